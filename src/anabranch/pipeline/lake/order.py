"""Which of two records of one key is the later one: the rule behind every upsert.

Within a partition the offset decides, whatever the times say. Offsets of two partitions (or of two topics) do not
compare: there the record's time decides, and if the times are equal topic and partition do, so that it is the same
each time. Of many records the last of each partition is taken, and of these the one with the latest time.

As long as times do not run backwards within a partition this is one order of all records, and it does not matter how
they are divided into batches. If they do, and a key is in several partitions, what an earlier batch left behind is
compared with what a later one brings, two at a time.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import pyarrow as pa

_POSITION = "__position"


class Place(NamedTuple):
    """Where a record stood. Plain values, or columns of Arrow or Spark: whatever compares and knows & and |."""

    topic: Any
    partition: Any
    offset: Any
    timestamp: Any


COLUMNS = Place("_topic", "_partition", "_offset", "_timestamp")
"""Of a table's row: the record it came from."""


def comes_later(one: Place, other: Place) -> Any:
    """Does the first come after the second?"""
    together = (one.topic == other.topic) & (one.partition == other.partition)
    return (together & (one.offset > other.offset)) | (are_apart(one, other) & _is_newer(one, other))


def are_apart(one: Place, other: Place) -> Any:
    """Are they in different partitions?"""
    return (one.topic != other.topic) | (one.partition != other.partition)


def _is_newer(one: Place, other: Place) -> Any:
    further = (one.topic > other.topic) | ((one.topic == other.topic) & (one.partition > other.partition))
    return (one.timestamp > other.timestamp) | ((one.timestamp == other.timestamp) & further)


def last_of_each(records: pa.Table, key: Sequence[str]) -> pa.Table:
    """The last record of each key; `records` have the key's columns and those of a place."""
    partition = dict.fromkeys([*key, COLUMNS.topic, COLUMNS.partition])
    by_partition = _last(records, list(partition), [COLUMNS.offset])
    return _last(by_partition, list(key), [COLUMNS.timestamp, COLUMNS.topic, COLUMNS.partition])


def _last(records: pa.Table, group: list[str], order: list[str]) -> pa.Table:
    ordered = records.sort_by([(name, "ascending") for name in order])
    numbered = ordered.append_column(_POSITION, pa.array(range(ordered.num_rows), pa.int64()))
    last = numbered.group_by(group, use_threads=False).aggregate([(_POSITION, "last")])
    return ordered.take(last.column(f"{_POSITION}_last"))
