"""The lag of a partition, by what is known of it."""

from typing import cast
from uuid import UUID

import pytest

from anabranch.pipeline.client.client import EARLIEST, LATEST, Client, Topic
from anabranch.pipeline.jobs.status import PartitionStatus, _partitions
from anabranch.values import TopicPartition

PLACE = TopicPartition("t", 0)


class _Log:
    """A broker whose topic has the offsets from 90 to 100."""

    def offsets_at(self, wanted: dict[TopicPartition, int]) -> dict[TopicPartition, int]:
        return {place: {EARLIEST: 90, LATEST: 100}[time] for place, time in wanted.items()}

    def committed_offsets(self, group: str, places: list[TopicPartition]) -> dict[TopicPartition, int]:
        return {}


def test_where_the_log_begins_is_asked_of_the_broker() -> None:
    topic = Topic("t", UUID(int=1), {0: ("127.0.0.1", 1)})
    (found,) = _partitions(cast(Client, _Log()), topic, "t", "g", {})
    assert (found.start_offset, found.end_offset, found.lag) == (90, 100, 10)


@pytest.mark.parametrize(
    ("table", "start", "end", "lag"),
    [(95, 90, 100, 5), (None, 90, 100, 10), (None, 0, 100, 100), (0, 90, 100, 100), (90, None, None, None)],
)
def test_lag_is_counted_from_the_logs_beginning_where_the_table_has_nothing(
    table: int | None, start: int | None, end: int | None, lag: int | None
) -> None:
    assert PartitionStatus(0, table, None, end, start).lag == lag
