"""kafka-python on topics in the object store, on one node and on three brokers.

The tests are those of `test_kafka_python`; only the topic and where it lies are others.
"""

import pytest
from kafka import KafkaAdminClient

from support.waiting import wait_until

from .conftest import OBJECT_CONFIGS
from .scenarios import PARTITIONS
from .test_kafka_python import (
    admin,
    produce,
    test_admin_adds_partitions,
    test_admin_alters_configs_the_old_way,
    test_admin_creates_describes_and_deletes_topics,
    test_admin_deletes_records_below_an_offset,
    test_admin_describes_a_topic_page_by_page,
    test_admin_lists_offsets_by_position_and_by_time,
    test_group_shares_rebalances_commits_and_resumes,
    test_idempotent_production_stores_each_record_once_and_in_order,
    test_records_come_back_byte_for_byte,
)

__all__ = [
    "admin",
    "produce",
    "test_admin_adds_partitions",
    "test_admin_alters_configs_the_old_way",
    "test_admin_creates_describes_and_deletes_topics",
    "test_admin_deletes_records_below_an_offset",
    "test_admin_describes_a_topic_page_by_page",
    "test_admin_lists_offsets_by_position_and_by_time",
    "test_group_shares_rebalances_commits_and_resumes",
    "test_idempotent_production_stores_each_record_once_and_in_order",
    "test_records_come_back_byte_for_byte",
]


@pytest.fixture(scope="module")
def bootstrap(object_bootstrap: str) -> str:
    return object_bootstrap


@pytest.fixture
def topic(admin: KafkaAdminClient, unique: str) -> str:
    configs = OBJECT_CONFIGS
    admin.create_topics({unique: {"num_partitions": PARTITIONS, "configs": configs}})
    wait_until(lambda: unique in admin.list_topics(), "the new topic")
    return unique
