"""confluent-kafka on topics in the object store, on one node and on three brokers: what it can do with any topic.

The tests are those of `test_confluent`; only the topic and where it lies are others.
"""

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from .conftest import OBJECT_CONFIGS
from .scenarios import PARTITIONS
from .test_confluent import (
    _done,
    admin,
    produce,
    test_admin_adds_partitions,
    test_admin_creates_describes_and_deletes_topics,
    test_admin_deletes_records_below_an_offset,
    test_admin_lists_offsets_by_position_and_by_time,
    test_every_level_of_acknowledgement_stores_the_records,
    test_group_shares_rebalances_commits_and_resumes,
    test_idempotent_production_stores_each_record_once_and_in_order,
    test_member_that_dies_is_replaced_after_its_session,
    test_records_come_back_byte_for_byte,
)

__all__ = [
    "admin",
    "produce",
    "test_admin_adds_partitions",
    "test_admin_creates_describes_and_deletes_topics",
    "test_admin_deletes_records_below_an_offset",
    "test_admin_lists_offsets_by_position_and_by_time",
    "test_every_level_of_acknowledgement_stores_the_records",
    "test_group_shares_rebalances_commits_and_resumes",
    "test_idempotent_production_stores_each_record_once_and_in_order",
    "test_member_that_dies_is_replaced_after_its_session",
    "test_records_come_back_byte_for_byte",
]


@pytest.fixture(scope="module")
def bootstrap(object_bootstrap: str) -> str:
    return object_bootstrap


@pytest.fixture
def topic(admin: AdminClient, unique: str) -> str:
    new = NewTopic(unique, num_partitions=PARTITIONS, config=OBJECT_CONFIGS)
    _done(admin.create_topics([new]))
    return unique
