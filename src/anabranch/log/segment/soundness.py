"""Which batches of a region hold, when not all of them do: damage costs its own records and not its neighbours'.

A batch whose CRC fails is damaged. The heads of batches, which their CRCs leave out, are held against the sum that was
kept of the region's: if it fails and one changed byte explains that, the batch with that byte is the damaged one. If
nothing explains it, nobody can tell which head is wrong, and no batch of the region is vouched for. Where a length is
wrong the next batch is found by its shape and its CRC. Without a sum (a folder that Kafka wrote, an unclean stop) CRCs
and the order of offsets have to do.

A record's value may hold whole batches, with any offsets. They are met only if the batch around them is damaged in its
length, or is a write that was cut short. Nothing is searched for in what may be such a write: `safe_upto`.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import pairwise
from struct import Struct
from typing import NamedTuple

from anabranch.log.segment.seal import Region
from anabranch.record.batch import HEADER_BYTES, LOG_OVERHEAD, MAGIC, crc_holds
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
    safe_upto: int | None = None,
) -> list[SoundBatch]:
    """The batches of a region that hold, in order, and lie within `offsets`; `data` may end early. `behind` are those
    that follow it, if that helps to tell which of its batches lies about its offsets. A batch from the offset
    `safe_upto` on may be a write that was cut short: the survey ends with the first that does not hold. `next_offset`
    is the one that the first batch should have."""
    walked = _walk(data, next_offset, safe_upto)
    if region.crc is not None:
        walked = _with_true_heads(data, walked, region.crc)
    found: list[SoundBatch] = []
    for start, end, is_sound in walked:
        if is_sound:
            base, _, _, delta = _SHAPE.unpack_from(data, start)
            if offsets.start <= base <= base + delta < offsets.stop:
                found.append(SoundBatch(region.start + start, region.start + end, base, base + delta))
    return [batch for batch in _in_order([*found, *behind]) if batch.position < region.end]


def survey_regions(
    regions: Sequence[Region], bytes_of: Callable[[Region], memoryview], offsets: range = ALL_OFFSETS
) -> list[SoundBatch]:
    """The batches of neighbouring regions that hold, in order: each begins behind the offsets of the one before."""
    surveyed: list[list[SoundBatch]] = []
    behind: list[SoundBatch] = []
    for region in reversed(regions):
        found = survey(bytes_of(region), region, offsets, behind if region.crc is None else ())
        surveyed.append(found)
        behind = [*found, *behind][:2]
    sound: list[SoundBatch] = []
    for found in reversed(surveyed):
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


def _with_true_heads(data: memoryview, walked: Walked, crc: int) -> Walked:
    heads = b"".join([data[start : start + HEAD_BYTES] for start, _, _ in walked])
    if crc32c(heads) == crc:
        return walked
    changed = changed_byte(heads, crc)
    if changed is None:
        return []
    number = changed // HEAD_BYTES
    start, end, _ = walked[number]
    walked[number] = start, end, False
    return walked
