from uuid import UUID

import pytest

from anabranch.objects.layout.names import ObjectId, Row
from anabranch.pipeline.source.object_plan import TASK_BYTES_MAX, object_stretches, rows_of, tasks_of
from anabranch.pipeline.source.plan import Range
from anabranch.values import Offset, TopicPartition

URL = "file:///store"
TOPIC_ID = UUID(int=7)


def row(start: int, end: int, number: int = 0, length: int = 100) -> Row:
    return Row(Offset(start), Offset(end), ObjectId(1, 1, number), 0, length, -1, 1)


ROWS = [row(0, 10, 0), row(10, 20, 1), row(25, 30, 2)]


def test_a_range_takes_the_rows_that_it_needs() -> None:
    (stretch,) = object_stretches(5, 20, URL, 0, 30, ROWS)
    assert (stretch.start, stretch.end) == (5, 20)
    assert stretch.objects is not None
    assert stretch.objects.store_url == URL
    whole = Range(TopicPartition("orders", 0), TOPIC_ID, 5, 20, (stretch,))
    assert list(rows_of(whole)) == ROWS[:2]


def test_what_is_before_and_behind_the_coordinates_comes_by_the_protocol() -> None:
    found = object_stretches(0, 40, URL, 3, 30, ROWS)
    assert [(each.start, each.end, each.objects is not None) for each in found] == [
        (0, 3, False),
        (3, 30, True),
        (30, 40, False),
    ]


@pytest.mark.parametrize(("start", "end"), [(0, 2), (35, 40)])
def test_where_no_coordinates_reach_everything_comes_by_the_protocol(start: int, end: int) -> None:
    (stretch,) = object_stretches(start, end, URL, 3, 30, ROWS)
    assert (stretch.start, stretch.end, stretch.objects) == (start, end, None)


def test_a_gap_of_compaction_needs_nobody() -> None:
    (stretch,) = object_stretches(20, 25, URL, 0, 30, ROWS)
    assert stretch.objects is not None
    assert stretch.objects.rows == b""


# --- tasks ----------------------------------------------------------------------------------------------------------


def wanted(partition: int, *rows: Row, size: int = 10) -> Range:
    place = TopicPartition("orders", partition)
    return Range(place, TOPIC_ID, 0, size, object_stretches(0, size, URL, 0, size, rows))


def numbers(tasks: list[tuple[Range, ...]]) -> list[list[int]]:
    return [[each.place.partition for each in task] for task in tasks]


def test_ranges_that_share_objects_share_a_task() -> None:
    ranges = [wanted(0, row(0, 10, 1)), wanted(1, row(0, 10, 2)), wanted(2, row(0, 5, 1), row(5, 10, 3))]
    assert numbers(tasks_of(ranges, None, None)) == [[0, 2], [1]]


def test_ranges_without_objects_have_a_task_each() -> None:
    ranges = [Range(TopicPartition("orders", number), TOPIC_ID, 0, 10) for number in range(3)]
    assert numbers(tasks_of(ranges, None, None)) == [[0], [1], [2]]


def test_a_task_that_many_share_stays_small() -> None:
    third = TASK_BYTES_MAX // 3
    ranges = [wanted(number, row(0, 10, 1, third)) for number in range(5)]
    assert numbers(tasks_of(ranges, None, None)) == [[0, 1, 2], [3, 4]]


def test_limits_that_somebody_has_set_are_kept() -> None:
    ranges = [wanted(number, row(0, 10, 1)) for number in range(6)]
    assert numbers(tasks_of(ranges, 4, None)) == [[0, 1, 2], [3], [4], [5]]
    assert numbers(tasks_of(ranges, None, 20)) == [[0, 1], [2, 3], [4, 5]]
    assert len(tasks_of(ranges, 100, None)) == 6


def test_parts_of_one_partition_stay_apart() -> None:
    parts = [wanted(0, row(0, 10, 1)), wanted(0, row(0, 10, 1))]
    assert numbers(tasks_of(parts, None, None)) == [[0], [0]]
