"""kcat on topics in the object store, on one node and on three brokers.

The tests are those of `test_kcat`; only the topic and where it lies are others.
"""

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from .conftest import OBJECT_CONFIGS
from .scenarios import PARTITIONS
from .test_kcat import (
    RUN_S_MAX,
    kcat,
    kcat_path,
    test_finds_offsets_by_time,
    test_group_of_two_shares_the_topic_and_the_next_one_resumes,
    test_lists_the_topic_with_its_partitions,
    test_reads_from_an_offset_and_the_last_ones,
    test_records_come_back_byte_for_byte,
)

pytestmark = pytest.mark.interop

__all__ = [
    "RUN_S_MAX",
    "kcat",
    "kcat_path",
    "test_finds_offsets_by_time",
    "test_group_of_two_shares_the_topic_and_the_next_one_resumes",
    "test_lists_the_topic_with_its_partitions",
    "test_reads_from_an_offset_and_the_last_ones",
    "test_records_come_back_byte_for_byte",
]


@pytest.fixture(scope="module")
def bootstrap(object_bootstrap: str) -> str:
    return object_bootstrap


@pytest.fixture
def topic(kcat_path: str, bootstrap: str, unique: str) -> str:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    new = NewTopic(unique, PARTITIONS, config=OBJECT_CONFIGS)
    admin.create_topics([new])[unique].result(RUN_S_MAX)
    return unique
