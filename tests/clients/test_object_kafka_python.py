"""kafka-python on topics in the object store, on one node and on three brokers.

The tests are those of `test_kafka_python`; only the topic and where it lies are others.
"""

import pytest
from kafka import KafkaAdminClient

from support.waiting import wait_until

from .scenarios import PARTITIONS
