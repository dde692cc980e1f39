"""What tasks over objects share: read rows, store what was made of them, have the broker put it in their place.

The new object is in the store before the broker hears of it, and the broker replaces only rows that are still those
that were read: so a task may be repeated, run beside the broker's own upkeep, or end at any moment. What is left of
one that did is an object that nobody names, which the broker collects.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from anabranch.errors import PipelineError
from anabranch.objects.layout.merge import MergedRange, RowBytes, build_object
from anabranch.objects.layout.names import Key, ObjectId, Row, object_id_of, pack_rows
from anabranch.objects.layout.plans import ROWS_PER_REPLACEMENT
from anabranch.pipeline.client.connection import Connection
from anabranch.pipeline.source.coordinates import checked, named_object
from anabranch.pipeline.source.object_store import JobStore
from anabranch.wire.api_keys import ApiKey


class Rewritten(NamedTuple):
    """What is to take the place of some rows of one partition."""

    old: Sequence[Row]
    new: Sequence[MergedRange]


class Outcome(NamedTuple):
    key: Key
    is_replaced: bool
    reason: str


def read_rows(store: JobStore, rows: Iterable[Row]) -> dict[Row, memoryview]:
    """The bytes of these rows; every object is asked once."""
    by_object: dict[ObjectId, list[Row]] = {}
    for row in rows:
        by_object.setdefault(row.object_id, []).append(row)
    read = {}
    for object_id, named in by_object.items():
        start = min(row.position for row in named)
        end = max(row.position + row.length for row in named)
        view = memoryview(store.get(object_id.name, start, end))
        read.update({row: view[row.position - start :][: row.length] for row in named})
    return read


def parts_of(store: JobStore, rows: Sequence[Row]) -> list[RowBytes]:
    read = read_rows(store, rows)
    return [RowBytes(row, read[row]) for row in rows]


def replace_rows(store: JobStore, link: Connection, made: Mapping[Key, Rewritten]) -> list[Outcome]:
    """Store it all as one object and have it take the others' place; what became of each partition."""
    kept = {key: rewritten.new for key, rewritten in made.items() if rewritten.new}
    rows: Mapping[Key, Sequence[Row]] = {}
    if kept:
        object_id = object_id_of(named_object(link))
        if object_id is None:
            raise PipelineError("The broker gives a name that no object has: is it of another version?")
        pieces, rows = build_object(kept, object_id)
        store.put(object_id.name, pieces)
    outcomes = []
    for some in _in_requests(made):
        asked = [
            {
                "topic_id": key[0],
                "partition_index": key[1],
                "old_rows": pack_rows(made[key].old),
                "new_rows": pack_rows(rows.get(key, ())),
            }
            for key in some
        ]
        answer = checked(link.ask(ApiKey.REPLACE_OBJECTS, {"partitions": asked}), "a replacement")
        outcomes += [
            Outcome((row["topic_id"], row["partition_index"]), row["is_replaced"], row["reason"] or "")
            for row in answer["partitions"]
        ]
    return outcomes


def _in_requests(made: Mapping[Key, Rewritten]) -> Iterator[list[Key]]:
    """So many partitions at once that a request stays small."""
    some: list[Key] = []
    count = 0
    for key, rewritten in made.items():
        if some and count + len(rewritten.old) > ROWS_PER_REPLACEMENT:
            yield some
            some, count = [], 0
        some.append(key)
        count += len(rewritten.old)
    if some:
        yield some
