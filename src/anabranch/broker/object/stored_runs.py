"""Where a partition has records in the object store, if its offsets have gaps: it was in branches before it went there.

Rows of one lane count as one run, whatever compaction took of them. So a count takes a few look-ups for each lane, and
not one for each row.
"""

from typing import Protocol

from anabranch.objects.layout.names import Key, Row
from anabranch.values import LANE_BITS, Offset, is_lane_gap


class Rows(Protocol):
    """What the agreed table says (`cluster.objects.table.ObjectTable`)."""

    def rows(self, key: Key, start: Offset, count_max: int) -> list[Row]: ...

    def row_before(self, key: Key, end: Offset) -> Row | None: ...


def lane_runs(objects: Rows, key: Key, start: Offset, end: Offset) -> list[tuple[Offset, Offset]]:
    """Where there are records in [start, end), without the gaps between lanes."""
    found: list[tuple[Offset, Offset]] = []
    while start < end:
        rows = objects.rows(key, start, 1)
        first = max(start, rows[0].base_offset) if rows else end
        if first >= end:
            break
        last = objects.row_before(key, min(end, Offset(((first >> LANE_BITS) + 1) << LANE_BITS)))
        assert last is not None, "one was found a moment ago"
        start = min(end, last.next_offset)
        if found and found[-1][1] == first:
            found[-1] = found[-1][0], start
        else:
            found.append((first, start))
    return found


def stored_end(objects: Rows, key: Key, start: Offset, end: Offset) -> Offset:
    """Behind the last record in [start, end), if what lies between was a change of lanes; else `end`."""
    last = objects.row_before(key, end)
    records_end = start if last is None else max(start, last.next_offset)
    return records_end if is_lane_gap(records_end, end) else end
