"""What of a row's records an object still holds: of bytes that may have been cut short or changed.

A batch that holds by its checksum counts if its offsets are certain. In what was merged it says them by itself; in what
a broker has gathered they follow from all batches before it, or behind it up to the row's end, so that of what lies
between two damaged places nothing is kept.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from anabranch.errors import AnabranchError, CorruptDataError
from anabranch.objects.layout.format import Range, check_range, index_in, read_footer, read_index
from anabranch.objects.layout.merge import stamped_batches
from anabranch.objects.layout.names import Key, Row
from anabranch.record.batch import BatchHeader, batch_spans, check_batch
from anabranch.record.buffers import ByteBuffer
from anabranch.values import Offset


class NamedRow(NamedTuple):
    """A row, and the partition whose it is."""

    key: Key
    row: Row


class ObjectCheck(NamedTuple):
    kept: Mapping[NamedRow, Sequence[Row]]
    """Only of rows that are not whole: what is left of each."""
    damage: str | None
    """None: every byte is what was written, as far as anything says so."""


class _Found(NamedTuple):
    """A batch that holds; `number` counts all that were walked over."""

    number: int
    start: int
    end: int
    header: BatchHeader


def check_object(data: ByteBuffer, named: Sequence[NamedRow]) -> ObjectCheck:
    """`data`: the whole object, as the store has it now."""
    view = memoryview(data)
    kept: dict[NamedRow, Sequence[Row]] = {}
    damage: str | None = None
    for each in named:
        part = view[each.row.position : each.row.position + each.row.length]
        try:
            if len(part) != each.row.length:
                end = each.row.position + each.row.length
                raise CorruptDataError(f"It has {len(view)} bytes, and had records up to byte {end}.")
            for _ in stamped_batches(each.row, part):
                pass
        except AnabranchError as error:
            kept[each] = whole_parts(each.row, part)
            damage = damage or str(error)
    try:
        broken = _broken_ranges(view)
    except CorruptDataError as error:
        return ObjectCheck(kept, damage or str(error))
    for found in broken:
        damage = damage or f"The checksum of {found.length} bytes in an object does not hold."
        if not _has_bad_batch(view[found.position : found.end]):
            kept.update(_uncertain(found, named))
    return ObjectCheck(kept, damage)


def _broken_ranges(view: memoryview) -> list[Range]:
    """Raises CorruptDataError if there is no telling."""
    footer = read_footer(view)
    if footer.object_size != len(view):
        raise CorruptDataError(f"It has {len(view)} bytes instead of {footer.object_size}.")
    index = index_in(view, footer)
    assert index is not None, "the whole object reaches back to its index"
    broken = []
    for found in read_index(index, footer):
        try:
            check_range(view[found.position : found.end], found)
        except CorruptDataError:
            broken.append(found)
    return broken


def _has_bad_batch(data: memoryview) -> bool:
    try:
        for start, end in batch_spans(data):
            check_batch(data, start, end, fresh=False)
    except AnabranchError:
        return True
    return False


def _uncertain(broken: Range, named: Iterable[NamedRow]) -> dict[NamedRow, Sequence[Row]]:
    """Every batch holds, so what was changed is what a batch's checksum leaves out: its offset, if it has one of its
    own. Which batch it was nobody can tell."""
    return {
        each: ()
        for each in named
        if each.row.is_stamped
        and each.key == broken.key
        and each.row.position < broken.end
        and broken.position < each.row.position + each.row.length
    }


# --- rows -----------------------------------------------------------------------------------------------------------


def whole_parts(row: Row, data: ByteBuffer) -> list[Row]:
    """Rows for what is left of one whose bytes are these now. In order; none: nothing is."""
    found, walked, end = _batches_that_hold(data)
    if row.is_stamped:
        return _stamped_parts(row, found)
    if len(found) == walked and end == row.length:
        return []  # All hold, and they are not what the row speaks of.
    parts = []
    head = [each for place, each in enumerate(found) if each.number == place]
    if head:
        parts.append(_part(row, head, row.base_offset))
    is_walked_through = end == row.length and walked == row.batch_count
    behind = walked - len(found)
    tail = [each for place, each in enumerate(found) if each.number == place + behind]
    if tail and is_walked_through:
        parts.append(_part(row, tail, Offset(row.next_offset - _offset_count(tail))))
    offset = row.base_offset
    for part in parts:
        if not offset <= part.base_offset < part.next_offset <= row.next_offset:
            return []  # Nor are these.
        offset = part.next_offset
    return parts


def lost_parts(row: Row, kept: Iterable[Row]) -> list[Row]:
    """The rest of a row, for people: only the offsets mean something."""
    lost, offset = [], row.base_offset
    for base_offset, next_offset in [
        *((each.base_offset, each.next_offset) for each in kept),
        (row.next_offset,) * 2,
    ]:
        if offset < base_offset:
            lost.append(row._replace(base_offset=offset, next_offset=base_offset))
        offset = next_offset
    return lost


def _batches_that_hold(data: ByteBuffer) -> tuple[list[_Found], int, int]:
    """Those batches, how many were walked over, and how far: as long as their lengths lead from one to the next."""
    found: list[_Found] = []
    walked = end = 0
    try:
        for start, end in batch_spans(data):
            walked += 1
            try:
                header = check_batch(data, start, end, fresh=False)
            except AnabranchError:
                continue
            found.append(_Found(walked - 1, start, end, header))
    except AnabranchError:
        pass  # Nobody knows where the next one begins.
    return found, walked, end


def _stamped_parts(row: Row, found: Iterable[_Found]) -> list[Row]:
    """What follows each other without a damaged batch between is one part."""
    runs: list[list[_Found]] = []
    offset, number = row.base_offset, -1
    for each in found:
        if not offset <= each.header.base_offset < each.header.next_offset <= row.next_offset:
            continue
        if each.number != number + 1 or not runs:
            runs.append([])
        runs[-1].append(each)
        offset, number = each.header.next_offset, each.number
    return [_part(row, run, run[0].header.base_offset) for run in runs]


def _part(row: Row, run: Sequence[_Found], base_offset: Offset) -> Row:
    next_offset = run[-1].header.next_offset if row.is_stamped else Offset(base_offset + _offset_count(run))
    return row._replace(
        base_offset=base_offset,
        next_offset=next_offset,
        position=row.position + run[0].start,
        length=run[-1].end - run[0].start,
        max_timestamp=max(each.header.max_timestamp for each in run),
        batch_count=len(run),
    )


def _offset_count(run: Iterable[_Found]) -> int:
    return sum(each.header.last_offset_delta + 1 for each in run)
