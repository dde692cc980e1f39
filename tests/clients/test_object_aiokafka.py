"""aiokafka on topics in the object store, on one node and on three brokers.

The tests are those of `test_aiokafka`; only the topic and where it lies are others.
"""

from typing import Any

import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from support.waiting import wait_until

from .conftest import OBJECT_CONFIGS
from .scenarios import PARTITIONS
from .test_aiokafka import (
    Run,
    admin,
    produce,
    run,
    test_admin_adds_partitions,
    test_admin_deletes_records_below_an_offset,
    test_consumer_lists_offsets_by_position_and_by_time,
    test_group_shares_rebalances_commits_and_resumes,
    test_idempotent_production_stores_each_record_once_and_in_order,
    test_records_come_back_byte_for_byte,
)

__all__ = [
    "Run",
    "admin",
    "produce",
    "run",
    "test_admin_adds_partitions",
    "test_admin_deletes_records_below_an_offset",
    "test_consumer_lists_offsets_by_position_and_by_time",
    "test_group_shares_rebalances_commits_and_resumes",
    "test_idempotent_production_stores_each_record_once_and_in_order",
    "test_records_come_back_byte_for_byte",
]


@pytest.fixture(scope="module")
def bootstrap(object_bootstrap: str) -> str:
    return object_bootstrap


@pytest.fixture
def topic(run: Run[Any], admin: AIOKafkaAdminClient, unique: str) -> str:
    new = NewTopic(unique, PARTITIONS, 1, topic_configs=OBJECT_CONFIGS)
    answer = run(admin.create_topics([new]))
    assert answer.topic_errors[0][1] == 0, answer
    wait_until(lambda: unique in run(admin.list_topics()), "the new topic")
    return unique
