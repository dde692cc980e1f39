"""What a compaction of a partition in the object store reads, and whether it is due.

The rows at the start that are compacted hold no key twice; the first other one is where the dirty part begins. As in a
log, a run maps the keys of the dirty part and rewrites everything from the start on, in this order: if it ends in the
middle, what it has done is a shorter run.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from anabranch.objects.layout.names import Key, Row
from anabranch.objects.layout.plans import ROWS_PER_REPLACEMENT, Keeping, Rows, rows_from
from anabranch.values import Offset


class Compaction(NamedTuple):
    """What a compaction of one partition would read now."""

    key: Key
    rows: Sequence[Row]
    """From the start on, up to the first that is protected still."""
    first_dirty: Offset
    clean_bytes: int
    dirty_bytes: int
    is_overdue: bool
    keeping: Keeping

    @property
    def dirty_ratio(self) -> float:
        return self.dirty_bytes / max(1, self.clean_bytes + self.dirty_bytes)

    @property
    def is_due(self) -> bool:
        return self.dirty_bytes > 0 and (self.is_overdue or self.dirty_ratio >= self.keeping.dirty_ratio_min)

    @property
    def size_bytes(self) -> int:
        return self.clean_bytes + self.dirty_bytes

    def fits(self, bytes_max: int) -> bool:
        """Whether all of it can be replaced at once."""
        return self.size_bytes <= bytes_max and len(self.rows) <= ROWS_PER_REPLACEMENT


def compaction_of(objects: Rows, key: Key, keeping: Keeping, now_ms: int) -> Compaction | None:
    """None: it is not to be compacted, or has nothing that may be."""
    if not keeping.is_compacted:
        return None
    rows = list(_old_enough(objects, key, keeping, now_ms))
    dirty = list(_dirty(rows))
    if not dirty:
        return None
    size = sum(row.length for row in rows)
    dirty_bytes = sum(row.length for row in dirty)
    is_overdue = 0 <= dirty[0].max_timestamp < now_ms - keeping.compaction_lag_ms_max
    return Compaction(key, rows, dirty[0].base_offset, size - dirty_bytes, dirty_bytes, is_overdue, keeping)


def _old_enough(objects: Rows, key: Key, keeping: Keeping, now_ms: int) -> Iterator[Row]:
    """Up to the first row that min.compaction.lag.ms still protects."""
    count_max = 2**31
    for row in rows_from(objects, key, objects.head(key).start, count_max):
        lag_ms = keeping.compaction_lag_ms_min
        if lag_ms > 0 and row.max_timestamp > now_ms - lag_ms:
            return
        yield row


def _dirty(rows: Iterable[Row]) -> Iterator[Row]:
    """From the first row on that is not compacted."""
    is_dirty = False
    for row in rows:
        is_dirty = is_dirty or not row.is_compacted
        if is_dirty:
            yield row


def most_urgent(candidates: Sequence[Compaction], bytes_max: int) -> list[Compaction]:
    """The compactions to do next. Small ones are done together, as far as what they read fits into `bytes_max`, for
    their results share an object; a large one alone."""
    due = [each for each in candidates if each.is_due]
    due.sort(key=lambda each: (not each.is_overdue, -each.dirty_ratio, each.key))
    together: list[Compaction] = []
    size = 0
    for each in due:
        if not each.fits(bytes_max):
            if not together:
                return [each]
        elif size + each.size_bytes <= bytes_max:
            together.append(each)
            size += each.size_bytes
    return together


def grouped_rows(rows: Iterable[Row], bytes_max: int) -> list[list[Row]]:
    """Neighbours whose bytes fit into one object together, even if nothing of them goes."""
    groups: list[list[Row]] = []
    size = 0
    for row in rows:
        if not groups or size + row.length > bytes_max or len(groups[-1]) == ROWS_PER_REPLACEMENT:
            groups.append([])
            size = 0
        groups[-1].append(row)
        size += row.length
    return groups
