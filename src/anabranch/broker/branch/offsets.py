"""Committed offsets of groups when two branches of `__consumer_offsets` are joined (offsets.mode=branch).

Each side of a split had a coordinator, and the same group may have committed on both. Behind the joined records the
lesser of each side's last commit is written again, so that it is the one that counts: some records may come twice to a
group, and none is left out.
"""

from collections.abc import Iterable

from anabranch.coordination.groups.messages import LogRecord
from anabranch.coordination.groups.records import OffsetKey, read_key, read_offset
from anabranch.modes.branch.lines import Span
from anabranch.modes.branch.rows import Lane
from anabranch.record.batch import batch_spans
from anabranch.record.builder import BatchBuilder
from anabranch.record.records import records_of
from anabranch.values import Offset


class Commits:
    """The last commits of both sides since they parted."""

    def __init__(self, one: Iterable[Span], other: Iterable[Span]) -> None:
        """What each has behind that."""
        self._lanes = [{span.lane for span in side} for side in (one, other)]
        self._last: list[dict[bytes, bytes | None]] = [{}, {}]

    def see(self, lane: Lane, data: bytes) -> None:
        """Batches of one of them, in their order. Raises CorruptDataError."""
        sides = [last for lanes, last in zip(self._lanes, self._last, strict=True) if lane in lanes]
        for first, last in batch_spans(data):
            for record in records_of(memoryview(data)[first:last]):
                if record.key is not None and isinstance(read_key(record.key), OffsetKey):
                    for side in sides:
                        side[record.key] = record.value

    def lesser(self) -> list[LogRecord]:
        """Of whom both have committed; one that was deleted on a side counts as it is on the other."""
        one, other = self._last
        found: list[LogRecord] = []
        for key in one.keys() & other.keys():
            values = [value for value in (one[key], other[key]) if value is not None]
            if values:
                found.append((key, min(values, key=lambda value: read_offset(value).offset)))
        return sorted(found)


def batch_of(records: Iterable[LogRecord], start: Offset, now_ms: int) -> bytearray:
    builder = BatchBuilder(start)
    for key, value in records:
        builder.add(key, value, timestamp_ms=now_ms)
    return builder.build()
