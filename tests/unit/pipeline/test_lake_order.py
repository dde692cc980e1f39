"""The later of two records of a key, the last of many, and what a table's row has to say about it."""

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.pipeline.lake.order import COLUMNS, Place, comes_later, last_of_each
from anabranch.pipeline.lake.rewrite import judge
from anabranch.pipeline.lake.rows.arrow_types import TIMESTAMP

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
KINDS = (pa.string(), pa.int32(), pa.int64(), TIMESTAMP)

places = st.builds(
    Place,
    st.sampled_from("ab"),
    st.integers(0, 2),
    st.integers(0, 5),
    st.integers(0, 3).map(lambda seconds: NOON + timedelta(seconds=seconds)),
)


def at(partition: int, offset: int, seconds: int = 0, topic: str | None = "t") -> Place:
    return Place(topic, partition, offset, NOON + timedelta(seconds=seconds))


def table(*records: tuple[str, Place], **more: pa.Array) -> pa.Table:
    columns = {"k": pa.array([key for key, _ in records], pa.string())}
    for position, (name, kind) in enumerate(zip(COLUMNS, KINDS, strict=True)):
        columns[name] = pa.array([place[position] for _, place in records], kind)
    return pa.table({**columns, **more})


def last(*records: Place) -> Place:
    found = last_of_each(table(*(("k", place) for place in records)), ("k",))
    (row,) = found.select(list(COLUMNS)).to_pylist()
    return Place(*row.values())


def test_within_a_partition_the_offset_decides_whatever_the_times_say() -> None:
    assert comes_later(at(0, 2, seconds=-60), at(0, 1))
    assert not comes_later(at(0, 1), at(0, 2, seconds=-60))
    assert last(at(0, 3, -60), at(0, 1, 60), at(0, 2)) == at(0, 3, -60)


def test_across_partitions_the_time_decides_whatever_the_offsets_say() -> None:
    assert comes_later(at(1, 0, seconds=1), at(0, 1000))
    assert not comes_later(at(0, 1000), at(1, 0, seconds=1))
    assert last(at(0, 1000), at(1, 0, seconds=1)) == at(1, 0, seconds=1)


def test_partitions_of_the_same_number_in_two_topics_are_two_partitions() -> None:
    assert comes_later(at(0, 0, 1, topic="a"), at(0, 1000, 0, topic="b"))


def test_of_many_the_last_of_each_partition_is_compared() -> None:
    """The first record's time is the latest of all, but its own partition has gone on."""
    assert last(at(0, 1, 10), at(0, 2, 5), at(1, 0, 7)) == at(1, 0, 7)


@given(places, places)
def test_of_two_different_records_exactly_one_is_later_and_it_is_the_last(one: Place, other: Place) -> None:
    if one[:3] == other[:3]:
        return
    assert comes_later(one, other) is not comes_later(other, one)
    assert last(one, other) == last(other, one) == (one if comes_later(one, other) else other)


@given(st.lists(places, min_size=1, max_size=6), st.integers(1, 5))
def test_batches_may_be_cut_anywhere_where_times_do_not_run_backwards(records: list[Place], cut: int) -> None:
    """Each partition's records in order of offset and time."""
    ordered = [record._replace(timestamp=NOON + timedelta(seconds=record.offset)) for record in records]
    first, rest = ordered[:cut], ordered[cut:]
    assert last(*(last(*part) for part in (first, rest) if part)) == last(*ordered)


def test_a_row_stays_if_it_is_later_than_the_record_that_came() -> None:
    rows = table(("a", at(0, 5)), ("b", at(0, 6)), ("c", at(0, 7)), o=pa.array([{"n": 1}] * 3))
    judged = judge(rows, table(("a", at(0, 4)), ("b", at(0, 8)), ("z", at(0, 9))), ("k",))
    assert judged.stay.to_pylist() == [0, 2]
    assert judged.outdated["k"].to_pylist() == ["a"]


def test_a_record_that_follows_all_of_its_partition_replaces_rows_of_higher_offsets() -> None:
    """They are of an older topic of that name. Rows of other partitions are compared as ever."""
    rows = table(("a", at(0, 5)), ("b", at(1, 6, seconds=1)))
    judged = judge(rows, table(("a", at(0, 4)), ("b", at(0, 8))), ("k",), ordered=True)
    assert judged.stay.to_pylist() == [1]
    assert judged.outdated["k"].to_pylist() == ["b"]


def test_the_same_record_again_replaces_its_row() -> None:
    judged = judge(table(("a", at(0, 5))), table(("a", at(0, 5))), ("k",))
    assert (judged.stay.to_pylist(), judged.outdated.num_rows) == ([], 0)


@pytest.mark.parametrize(
    ("record", "stays"),
    [
        (at(0, 6, seconds=-60), False),
        (at(0, 4, seconds=-60), True),
        (at(0, 4, seconds=60), False),
        (at(1, 9, seconds=-60), True),
    ],
)
def test_a_row_that_names_no_topic_gives_way_to_later_offsets_and_else_to_later_times(
    record: Place, stays: bool
) -> None:
    judged = judge(table(("a", at(0, 5, topic=None))), table(("a", record)), ("k",))
    assert (judged.stay.to_pylist() == [0]) is stays
    assert judged.outdated.num_rows == int(stays)


def test_a_row_that_names_no_topic_gives_way_to_what_follows_all_of_its_partition() -> None:
    """Its topic was made again, and the new one's events are older than the row."""
    rows = table(("a", at(0, 5, topic=None)), ("b", at(1, 5, topic=None)))
    touched = table(("a", at(0, 4, seconds=-60)), ("b", at(0, 4, seconds=-60)))
    judged = judge(rows, touched, ("k",), ordered=True)
    assert judged.stay.to_pylist() == [1]
    assert judged.outdated["k"].to_pylist() == ["b"]


def test_a_row_that_came_from_no_record_is_replaced() -> None:
    judged = judge(table(("a", Place(None, None, None, None))), table(("a", at(0, 0))), ("k",))
    assert judged.stay.to_pylist() == []
