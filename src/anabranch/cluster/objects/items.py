"""One partition in the object store, and how the batches of a stored object get their offsets in it.

A commit may name thousands of batches and comes many times a second, so `take_items` goes over them as plain tuples, a
`Draft` for each partition notes the row that they make, and only a batch that does not simply follow its producer's
last one is looked into.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from anabranch.cluster.objects.entries import Item, Key
from anabranch.cluster.objects.rows import RowSequence
from anabranch.cluster.objects.state import RowFile
from anabranch.errors import (
    AnabranchError,
    InvalidRecordError,
    NotOwnerError,
    UnknownTopicOrPartitionError,
)
from anabranch.objects.layout.names import ObjectId, Row
from anabranch.record.producer_table import ProducerTable
from anabranch.values import Offset

START = Offset(0)
NO_OFFSET = Offset(-1)
NOWHERE = -1


class Head(NamedTuple):
    """Of one partition: the records from `start` to `end` - 1 are there, as far as none was compacted away."""

    start: Offset
    end: Offset
    size_bytes: int


NOTHING = Head(START, START, 0)


class Result(NamedTuple):
    """What has become of one item; a repeat has the offset of the first time."""

    base_offset: Offset
    error: AnabranchError | None = None
    is_repeat: bool = False


class Partition:
    """One partition that was ever written to."""

    __slots__ = ("end", "file", "producers", "rows", "size_bytes", "start")

    def __init__(self, rows: RowSequence, head: Head = NOTHING) -> None:
        self.rows = rows
        self.file: RowFile | None = None
        """As the last snapshot on the disk names it."""
        self.start, self.end, self.size_bytes = head
        self.producers = ProducerTable()

    @property
    def head(self) -> Head:
        return Head(self.start, self.end, self.size_bytes)


class Draft:
    """What an object adds to one partition: the row that its last bytes belong to, and those before it."""

    __slots__ = (
        "_done",
        "base_offset",
        "batch_count",
        "end",
        "is_kept",
        "key",
        "max_timestamp",
        "partition",
        "position",
    )

    def __init__(self, key: Key, partition: Partition | None, *, is_kept: bool = False) -> None:
        """`partition`: None if there is no such one, or if brokers keep it (`is_kept`)."""
        self.key = key
        self.is_kept = is_kept
        self.partition = partition
        self.position = self.end = NOWHERE
        self.base_offset = START
        self.max_timestamp = self.batch_count = 0
        self._done: list[tuple[int, ...]] = []

    def begin(self, base_offset: Offset, position: int) -> None:
        """Bytes that do not touch the ones before."""
        self.close()
        self.base_offset, self.position, self.end = base_offset, position, position
        self.batch_count, self.max_timestamp = 0, -(2**63)

    def close(self) -> None:
        if self.batch_count:
            assert self.partition is not None
            offsets = self.base_offset, self.partition.end
            self._done.append((*offsets, self.position, self.end, self.max_timestamp, self.batch_count))

    def rows(self, object_id: ObjectId) -> Iterator[Row]:
        self.close()
        for base_offset, next_offset, position, end, max_timestamp, batch_count in self._done:
            yield Row(
                Offset(base_offset),
                Offset(next_offset),
                object_id,
                position,
                end - position,
                max_timestamp,
                batch_count,
            )

    def unknown(self) -> Result:
        topic_id, partition = self.key
        if self.is_kept:
            return Result(
                NO_OFFSET,
                NotOwnerError(f"Brokers keep partition {partition} of topic {topic_id} now: ask its leader."),
            )
        reason = f"There is no partition {partition} of a topic {topic_id} in the object store."
        return Result(NO_OFFSET, UnknownTopicOrPartitionError(reason))


def take_items(
    drafts: list[Draft], lines: Iterable[tuple[int, ...]], now_ms: int, forgotten_last: int = -1
) -> list[Result]:
    """Give each its offsets, unless its producer has sent it before or may not send it. `forgotten_last`: producers up
    to this id may have been forgotten."""
    results: list[Result] = []
    for line in lines:
        place, position, length, count, producer_id, epoch, sequence, _, max_timestamp, _ = line
        draft = drafts[place]
        partition = draft.partition
        if partition is None:
            results.append(draft.unknown())
            continue
        base_offset = partition.end
        is_plain = count > 0 and (
            producer_id < 0
            or partition.producers.go_on(producer_id, epoch, sequence, count, base_offset, now_ms)
        )
        if (
            not is_plain
            and (result := _judge(partition, draft.key, line, now_ms, forgotten_last)) is not None
        ):
            results.append(result)
            continue
        if position != draft.end:
            draft.begin(base_offset, position)
        partition.end = Offset(base_offset + count)
        draft.end = position + length
        draft.batch_count += 1
        if max_timestamp > draft.max_timestamp:
            draft.max_timestamp = max_timestamp
        results.append(Result(base_offset))
    return results


def _judge(
    partition: Partition, key: Key, line: tuple[int, ...], now_ms: int, forgotten_last: int
) -> Result | None:
    """What has become of a batch that is not to be written; None: it is."""
    item = Item(key, *line[1:])
    try:
        if item.record_count <= 0:
            raise InvalidRecordError("A batch without records cannot be given offsets.")
        if item.is_control:
            return None
        producers = partition.producers
        original = producers.original_of(item)
        if original is not None:
            return Result(original, None, True)
        if item.producer_id > forgotten_last:
            # One before it may have been given up: it is not to be taken for the start.
            producers.check_start(item)
        producers.note(item, partition.end, now_ms)
    except AnabranchError as error:
        return Result(NO_OFFSET, error)
    return None
