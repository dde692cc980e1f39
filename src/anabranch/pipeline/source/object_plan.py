"""How records in an object store are shared out to tasks; pure.

What a broker has gathered lies in small objects, each with batches of many partitions. If every partition had a task of
its own, each object would be asked for as often as it has partitions. So ranges that share objects share a task, as far
as it stays small and nobody has asked for more of them; each partition's records still come in the order of offsets.
"""

from collections.abc import Iterator, Sequence

from anabranch.objects.layout.names import ObjectId, Row, pack_rows, unpack_rows
from anabranch.pipeline.source.plan import Range, StoredRows, Stretch
from anabranch.values import TopicPartition

TASK_BYTES_MAX = 128 * 2**20
"""What several ranges in one task have together, as Spark's own readers of files have it; one alone may have more."""


def object_stretches(
    start: int, end: int, store_url: str, first: int, upto: int, rows: Sequence[Row]
) -> tuple[Stretch, ...]:
    """[start, end) in order: out of objects where the rows reach, which is [first, upto) whatever gaps they have, and
    by the protocol elsewhere."""
    begins = min(max(start, first), end)
    ends = max(begins, min(end, upto))
    named = [row for row in rows if row.next_offset > begins and row.base_offset < ends]
    found = [
        Stretch(start, begins),
        Stretch(begins, ends, objects=StoredRows(store_url, pack_rows(named))),
        Stretch(ends, end),
    ]
    return tuple(stretch for stretch in found if stretch.start < stretch.end)


def rows_of(wanted: Range) -> Iterator[Row]:
    """All that a range reads out of objects, in the order of offsets."""
    for stretch in wanted.stretches:
        if stretch.objects is not None:
            yield from unpack_rows(stretch.objects.rows)


def is_stored(wanted: Range) -> bool:
    """Whether all of it is in objects."""
    return len(wanted.stretches) == 1 and wanted.stretches[0].objects is not None


# --- tasks --------------------------------------------------------------------------------------------------------


class _Group:
    """Ranges of different partitions for one task."""

    def __init__(self) -> None:
        self.ranges: list[Range] = []
        self._places: set[TopicPartition] = set()
        self._bytes = 0
        self._records = 0

    def has_room(self, wanted: Range, size_bytes: int, records_max: int | None) -> bool:
        return (
            wanted.place not in self._places
            and self._bytes + size_bytes <= TASK_BYTES_MAX
            and (records_max is None or self._records + wanted.size <= records_max)
        )

    def add(self, wanted: Range, size_bytes: int) -> None:
        self.ranges.append(wanted)
        self._places.add(wanted.place)
        self._bytes += size_bytes
        self._records += wanted.size


def tasks_of(
    ranges: Sequence[Range], partitions_min: int | None, records_max: int | None
) -> list[tuple[Range, ...]]:
    """What each task reads: one range, or several that share objects; never fewer tasks than `partitions_min` where
    there are as many ranges, and none above `records_max` offsets."""
    joins_left = len(ranges) - (partitions_min or 1)
    groups: list[_Group] = []
    last_with: dict[ObjectId, _Group] = {}
    for wanted in ranges:
        rows = list(rows_of(wanted)) if is_stored(wanted) else []
        size = sum(row.length for row in rows)
        near = (last_with[row.object_id] for row in rows if row.object_id in last_with)
        group = next((each for each in near if each.has_room(wanted, size, records_max)), None)
        if group is None or joins_left <= 0:
            group = _Group()
            groups.append(group)
        else:
            joins_left -= 1
        group.add(wanted, size)
        last_with.update((row.object_id, group) for row in rows)
    return [tuple(group.ranges) for group in groups]
