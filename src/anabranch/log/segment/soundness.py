"""Which batches of a region hold, when not all of them do: damage costs its own records and not its neighbours'.

A batch whose CRC fails is damaged. The heads of batches, which their CRCs leave out, are held against those that are in
memory, or the sum that was kept of the region's: if that fails and one changed byte explains it, the batch with that
byte is the damaged one. If several bytes in one place were changed, as a bad sector or page does it, the sum tells no
more than that, and a head has to be confirmed by the others (`_confirmed`). If they leave open which one is wrong, no
batch of the region is vouched for. Where a length is wrong the next batch is found by its shape and its CRC. Without a
sum (a folder that Kafka wrote, an unclean stop) CRCs and the order of offsets have to do.

A record's value may hold whole batches, with any offsets. They are met only if the batch around them is damaged in its
length, or is a write that was cut short. Nothing is searched for in what may be such a write: `safe_upto`.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from struct import Struct
from typing import NamedTuple

from anabranch.log.segment.seal import Region
from anabranch.record.batch import HEADER_BYTES, LOG_OVERHEAD, MAGIC, crc_holds, read_header
from anabranch.record.batch_sums import HEAD_BYTES, changed_byte, sound_batches
from anabranch.record.crc32c import crc32c

# base offset, length, magic, last offset delta
_SHAPE = Struct(">qi4xb6xi")
_MAGIC_AT = 16
_MAGIC_BYTE = bytes([MAGIC])
SEARCHED_BYTES = 2**20
SEARCH_SUMMED_BYTES_MIN = 2**20
SEARCH_SUMMED_TIMES = 32
"""A search computes CRCs over at most so many times the bytes that it looks through: for bytes that look like batches
inside one another it would take a time that grows with the square of their number."""
ALL_OFFSETS = range(2**63)


class SoundBatch(NamedTuple):
    """A batch that holds, by its place in the file."""

    position: int
    end: int
    base_offset: int
    last_offset: int


def region_holds(data: memoryview, region: Region, next_offset: int = 0) -> int | None:
    """The offset that comes next if every batch in the bytes of a region holds, and their heads too; else None."""
    end, next_offset, heads_crc = sound_batches(data, 0, len(data), next_offset)
    is_whole = end == region.end - region.start == len(data)
    return next_offset if is_whole and region.crc in (None, heads_crc) else None


def survey(
    data: memoryview,
    region: Region,
    offsets: range = ALL_OFFSETS,
    behind: Sequence[SoundBatch] = (),
    *,
    next_offset: int | None = None,
    end_offset: int | None = None,
    safe_upto: int | None = None,
) -> list[SoundBatch]:
    """The batches of a region that hold, in order, and lie within `offsets`; `data` may end early. `behind` are those
    that follow it: they help to tell which of its batches lies about its offsets. `next_offset` is the one that the
    first batch should have, `end_offset` what should follow the last. A batch from the offset `safe_upto` on may be a
    write that was cut short: the survey ends with the first that does not hold."""
    is_known = region.heads is not None
    walked = _walk_known(data, region.heads or b"") if is_known else _walk(data, next_offset, safe_upto)
    if region.crc is not None and not is_known:
        if behind and behind[0].position == region.end:
            end_offset = behind[0].base_offset
        is_whole = len(data) == region.end - region.start
        walked = _with_true_heads(data, walked, region.crc, next_offset, end_offset, is_whole=is_whole)
    found: list[SoundBatch] = []
    for start, end, is_sound in walked:
        if is_sound:
            _, _, base, last = _read(data, start, end)
            if offsets.start <= base <= last < offsets.stop:
                found.append(SoundBatch(region.start + start, region.start + end, base, last))
    if region.crc is not None:
        return _in_order(found)
    return [batch for batch in _in_order([*found, *behind]) if batch.position < region.end]


def survey_each(
    regions: Sequence[Region],
    bytes_of: Callable[[Region], memoryview],
    offsets: range = ALL_OFFSETS,
    behind: Sequence[SoundBatch] = (),
    *,
    next_offset: int | None = None,
    end_offset: int | None = None,
) -> list[list[SoundBatch]]:
    """For each of these neighbouring regions what `survey` finds, with what its neighbours tell."""
    surveyed: list[list[SoundBatch]] = []
    ends: list[tuple[Sequence[SoundBatch], int | None]] = []
    for region in reversed(regions):
        found = survey(bytes_of(region), region, offsets, behind, end_offset=end_offset)
        surveyed.append(found)
        ends.append((behind, end_offset))
        behind, end_offset = [*found, *behind][:2], None
    surveyed.reverse()
    for number, (region, (behind, end_offset)) in enumerate(zip(regions, reversed(ends), strict=True)):
        found = surveyed[number]
        is_odd = region.crc is not None and not (found and found[0].position == region.start)
        if is_odd and next_offset is not None:
            found = survey(
                bytes_of(region), region, offsets, behind, next_offset=next_offset, end_offset=end_offset
            )
            surveyed[number] = found
        next_offset = found[-1].last_offset + 1 if found and found[-1].end == region.end else None
    return surveyed


def survey_regions(
    regions: Sequence[Region],
    bytes_of: Callable[[Region], memoryview],
    offsets: range = ALL_OFFSETS,
    *,
    next_offset: int | None = None,
    end_offset: int | None = None,
) -> list[SoundBatch]:
    """The batches of neighbouring regions that hold, in order: each begins behind the offsets of the one before."""
    sound: list[SoundBatch] = []
    for found in survey_each(regions, bytes_of, offsets, next_offset=next_offset, end_offset=end_offset):
        sound += [batch for batch in found if not sound or batch.base_offset > sound[-1].last_offset]
    return sound


def _in_order(batches: list[SoundBatch]) -> list[SoundBatch]:
    """Those that every longest row of growing offsets has: where two contradict each other and no others tell which of
    them is wrong, neither is believed."""
    if all(one.last_offset < other.base_offset for one, other in pairwise(batches)):
        return batches
    lasts: list[int] = []
    places = []
    for batch in batches:
        place = bisect_left(lasts, batch.base_offset)
        places.append(place)
        if place == len(lasts):
            lasts.append(batch.last_offset)
        else:
            lasts[place] = min(lasts[place], batch.last_offset)
    taken: list[list[SoundBatch]] = [[] for _ in lasts]
    for batch, place in zip(reversed(batches), reversed(places), strict=True):
        following = taken[place + 1] if place + 1 < len(taken) else None
        if following is None or any(batch.last_offset < other.base_offset for other in following):
            taken[place].append(batch)
    return [alone[0] for alone in taken if len(alone) == 1]


Walked = list[tuple[int, int, bool]]
"""(start, end, whether the CRC holds) of each batch."""


def _walk(data: memoryview, next_offset: int | None, safe_upto: int | None) -> Walked:
    walked: Walked = []
    at, size = 0, len(data)
    while size - at >= HEADER_BYTES:
        end = _end_of(data, at)
        if end is not None and crc_holds(data, at, end):
            walked.append((at, end, True))
            base, _, _, delta = _SHAPE.unpack_from(data, at)
            next_offset, at = base + delta + 1, end
            continue
        if safe_upto is not None and next_offset is not None and next_offset >= safe_upto:
            break
        next_offset = None
        if chain := _damaged_chain(data, at):
            walked.extend(chain)
            end = chain[-1][1]
        else:
            end = _next_sound(data, at + 1)
            walked.append((at, end, False))
        at = end
    return walked


def _walk_known(data: memoryview, heads: bytes) -> Walked:
    """The batches as their true heads say where they are."""
    walked: Walked = []
    at = 0
    for known in range(0, len(heads), HEAD_BYTES):
        head = heads[known : known + HEAD_BYTES]
        end = at + LOG_OVERHEAD + int.from_bytes(head[8:LOG_OVERHEAD])
        if end > len(data):
            break
        walked.append((at, end, data[at : at + HEAD_BYTES] == head and crc_holds(data, at, end)))
        at = end
    return walked


def _damaged_chain(data: memoryview, at: int) -> Walked:
    """The damaged batches from `at` up to one that holds, or the end of the data, if their lengths lead there: then
    they are right. Else nothing."""
    chain: Walked = []
    while at < len(data):
        end = _end_of(data, at)
        if end is None:
            return []
        if chain and crc_holds(data, at, end):
            break
        chain.append((at, end, False))
        at = end
    return chain


def _end_of(data: memoryview, at: int) -> int | None:
    if len(data) - at < HEADER_BYTES:
        return None
    base, length, magic, delta = _SHAPE.unpack_from(data, at)
    end: int = at + LOG_OVERHEAD + length
    is_possible = magic == MAGIC and base >= 0 <= delta and at + HEADER_BYTES <= end <= len(data)
    return end if is_possible else None


def _next_sound(data: memoryview, at: int) -> int:
    """Where the next batch begins that holds; the end of the data if there is none, or the search takes too long."""
    left = max(SEARCH_SUMMED_BYTES_MIN, SEARCH_SUMMED_TIMES * (len(data) - at))
    for start in range(at + _MAGIC_AT, len(data), SEARCHED_BYTES):
        window = bytes(data[start : start + SEARCHED_BYTES])
        found = window.find(_MAGIC_BYTE)
        while found >= 0:
            place = start + found - _MAGIC_AT
            end = _end_of(data, place)
            if end is not None:
                left -= end - place
                if left < 0:
                    return len(data)
                if crc_holds(data, place, end):
                    return place
            found = window.find(_MAGIC_BYTE, found + 1)
    return len(data)


def _with_true_heads(
    data: memoryview,
    walked: Walked,
    crc: int,
    next_offset: int | None,
    end_offset: int | None,
    *,
    is_whole: bool,
) -> Walked:
    heads = b"".join([data[start : start + HEAD_BYTES] for start, _, _ in walked])
    if is_whole and crc32c(heads) == crc:
        return walked
    changed = changed_byte(heads, crc) if is_whole else None
    if changed is None:
        return _confirmed(data, walked, next_offset, end_offset, is_whole=is_whole)
    number = changed // HEAD_BYTES
    start, end, _ = walked[number]
    walked[number] = start, end, False
    return walked


def _confirmed(
    data: memoryview, walked: Walked, next_offset: int | None, end_offset: int | None, *, is_whole: bool
) -> Walked:
    """Those batches of a region whose offset and generation others confirm; the sum of its heads is no help.

    An offset is confirmed in a row of batches without a gap that begins or ends the region, and that is longer than one
    or goes on where what is known around the region ends. What lies between damaged bytes may be the inside of a
    record. Generations never fall, and one is confirmed if another batch has it too. If nothing else is damaged, one of
    the batches must be left over: else nobody knows what was changed."""
    batches = [_read(data, start, end) if is_sound else None for start, end, is_sound in walked]
    placed = _row(batches, next_offset, is_backwards=False)
    if is_whole and walked and walked[-1][1] == len(data) and len(placed) < len(walked):
        placed += _row(batches[::-1], end_offset, is_backwards=True)[::-1]
    generations = [read_header(data, batch.position).generation for batch in placed]
    repeated, is_explained = Counter(generations), not is_whole or None in batches
    is_alone = is_explained and len(placed) == 1
    numbered, count = [], len(placed)
    for number, (batch, generation) in enumerate(zip(placed, generations, strict=True)):
        if is_alone or repeated[generation] > 1:
            # With its number behind it, which makes equal ones grow too.
            place = generation * count + number
            numbered.append(SoundBatch(batch.position, batch.end, place, place))
    found = [(start, end, True) for start, end, _, _ in _in_order(numbered)]
    return found if is_explained or len(found) < len(walked) else []


def _row(batches: Sequence[SoundBatch | None], due: int | None, *, is_backwards: bool) -> list[SoundBatch]:
    """The sound batches with which these begin, each of which goes on where the one before ends; if it is a single
    one, it has to go on where `due` says. `is_backwards`: the first is the last one of the file."""
    row: list[SoundBatch] = []
    follows = due
    for batch in batches:
        if batch is None:
            break
        base, next_offset = batch.base_offset, batch.last_offset + 1
        if (next_offset if is_backwards else base) != follows:
            if row:
                break
            due = None
        row.append(batch)
        follows = base if is_backwards else next_offset
    return row if len(row) > 1 or due is not None else []


def _read(data: memoryview, start: int, end: int) -> SoundBatch:
    base, _, _, delta = _SHAPE.unpack_from(data, start)
    return SoundBatch(start, end, base, base + delta)
