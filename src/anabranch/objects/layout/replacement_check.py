"""Whether rows that a job has made may take the place of those it says it has read: what can be told without reading
records. What cannot is `replacement_proof.py`'s.

Merging changes nothing but where batches lie: their count, their bytes and the offsets stay the same to the last one.
Compacting leaves some out, and may only be done where a topic is compacted. What a row names has to be in its object's
index, for this partition.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise

from anabranch.objects.layout.format import Range
from anabranch.objects.layout.names import Key, ObjectId, Row
from anabranch.values import is_lane_gap


def why_not_replaced(
    key: Key,
    old: Sequence[Row],
    new: Sequence[Row],
    ranges: Mapping[ObjectId, Sequence[Range]],
    *,
    is_compacted: bool,
) -> str | None:
    """Why these rows are refused; None: they may be agreed on. `ranges`: the index of each new object."""
    if not old:
        return "no rows are named that are to be replaced"
    if is_thinned(new) and not is_compacted:
        return "the topic is not compacted, and records would be left out"
    if not is_thinned(new) and not _is_merged(old, new):
        return "merged rows must have all batches of those they replace"
    return _why_not_in_index(key, new, ranges)


def is_thinned(new: Sequence[Row]) -> bool:
    """Whether records may be missing: these rows are said to be compacted, or there are none."""
    return not new or any(row.is_compacted for row in new)


def _is_merged(old: Sequence[Row], new: Sequence[Row]) -> bool:
    """One row, or one for each lane."""
    gaps = (is_lane_gap(one.next_offset, other.base_offset) for one, other in pairwise(new))
    return all(row.is_stamped for row in new) and all(gaps) and _sums(new) == _sums(old)


def _sums(rows: Sequence[Row]) -> tuple[int, ...]:
    """Of what merging does not change."""
    return (
        rows[0].base_offset,
        rows[-1].next_offset,
        sum(each.length for each in rows),
        max(each.max_timestamp for each in rows),
        sum(each.batch_count for each in rows),
    )


def _why_not_in_index(key: Key, new: Sequence[Row], ranges: Mapping[ObjectId, Sequence[Range]]) -> str | None:
    for object_id in dict.fromkeys(row.object_id for row in new):
        found = [each for each in ranges.get(object_id, ()) if each.key == key]
        rows = [row for row in new if row.object_id == object_id]
        if not found:
            return f"{object_id.name} has nothing of this partition"
        if _span(rows) != (found[0].position, found[0].end, found[0].batch_count):
            return f"the index of {object_id.name} does not say what its rows say"
        if not all(row.is_stamped for row in rows):
            return "what was merged carries its own offsets"
    return None


def _span(rows: Sequence[Row]) -> tuple[int, int, int] | None:
    """First byte, end and batches of rows that lie behind each other."""
    position = rows[0].position
    for row in rows:
        if row.position != position:
            return None
        position += row.length
    return rows[0].position, position, sum(row.batch_count for row in rows)
