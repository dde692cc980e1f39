"""What a segment promises about itself: a `.seal` file beside a `.log` that will not change any more.

A batch's own CRC leaves out its base offset, length and generation, because a broker stamps them. A flipped
bit there would go unnoticed, so each 64 KiB of batches gets a sum over these heads. `next base offset` is
that of the segment that follows: a missing file between two segments shows. Retention asks for the largest
timestamp here, because the time index has no sum of its own and must not cost a segment. The file is derived:
without it (an unclean stop, a folder written by Kafka) verification rests on the batches' CRCs and order.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from anabranch.log.segment.scan import Batch
from anabranch.record.crc32c import crc32c
from anabranch.record.seal_format import SealFields, pack_seal, unpack_seal
from anabranch.values import Offset

REGION_BYTES = 64 * 2**10


class Region(NamedTuple):
    """A stretch of whole batches, and the sum over their heads if one was kept."""

    start: int
    end: int
    crc: int | None
    heads: bytes | None = None
    """The heads themselves, as long as they are in memory."""


class HeadSums:
    """The sums of one segment's regions, in order of position; the last region may still be open."""

    def __init__(self) -> None:
        self._starts = array("I")
        self._ends = array("I")
        self._crcs = array("I")
        self._open_from = 0
        self._open_to = 0
        self._heads: list[bytes] = []
        self._head_starts = array("I")
        """Where the batches of the open region begin."""

    def note(self, position: int, batches: Iterable[Batch]) -> None:
        """More batches, from `position` on. Of those whose sums came with a seal nothing is noted: the file may have
        been changed since."""
        if position < self._open_to:
            position, batches = _behind(position, batches, self._open_to)
            if position < self._open_to:
                return
        if position != self._open_to:
            self.close_region()
            self._open_from = position
        full_at = self._open_from + REGION_BYTES
        append, append_start = self._heads.append, self._head_starts.append
        for size, _, _, head in batches:
            append(head)
            append_start(position)
            position += size
            if position >= full_at:
                self._open_to = position
                self.close_region()
                full_at = position + REGION_BYTES
        self._open_to = position

    def close_region(self) -> None:
        if self._heads:
            self._starts.append(self._open_from)
            self._ends.append(self._open_to)
            self._crcs.append(crc32c(b"".join(self._heads)))
            self._heads.clear()
            del self._head_starts[:]
        self._open_from = self._open_to

    def regions(self, start: int, end: int) -> list[Region]:
        """[start, end) widened to whole regions where there are some; both must be batch boundaries. Of the region
        that is still open every head is known: it need not be widened."""
        return list(self.each_region(start, end))

    def each_region(self, start: int, end: int) -> Iterator[Region]:
        """The same one by one, for callers that need only some."""
        number = bisect_right(self._ends, start)
        while start < end:
            if number < len(self._starts) and self._starts[number] <= start:
                region = Region(self._starts[number], self._ends[number], self._crcs[number])
                number += 1
            elif self._heads and start >= self._open_from:
                first, stop = bisect_left(self._head_starts, start), bisect_left(self._head_starts, end)
                heads = b"".join(self._heads[first:stop])
                region = Region(start, end, crc32c(heads), heads)
            else:
                stop = min(end, self._starts[number]) if number < len(self._starts) else end
                if self._heads:
                    stop = min(stop, self._open_from)
                region = Region(start, stop, None)
            yield region
            start = region.end

    def open_batches(self) -> list[Region]:
        """Each batch of the open region by itself, whose heads are all known."""
        ends = [*self._head_starts[1:], self._open_to]
        return (
            [
                Region(start, end, crc32c(head))
                for start, end, head in zip(self._head_starts, ends, self._heads, strict=True)
            ]
            if self._heads
            else []
        )

    def closed_before(self, position: int) -> list[Region]:
        """The region that ends there, if its sum was kept."""
        number = bisect_left(self._ends, position)
        if number == len(self._ends) or self._ends[number] != position:
            return []
        return [Region(self._starts[number], position, self._crcs[number])]

    def last_boundary(self, start: int, end: int) -> int | None:
        """The last end of a region in (start, end]; None: there is none."""
        number = bisect_right(self._ends, end) - 1
        return self._ends[number] if number >= 0 and self._ends[number] > start else None

    def boundary_from(self, position: int, end: int) -> int:
        """The first batch boundary from `position` on that is known here, and `end` at the latest. Where no sums were
        kept nobody knows, and it is `position` itself."""
        if self._heads and position > self._open_from:
            number = bisect_left(self._head_starts, position)
            return min(end, self._head_starts[number] if number < len(self._head_starts) else self._open_to)
        number = bisect_left(self._ends, position)
        if number < len(self._ends) and self._starts[number] < position:
            return min(end, self._ends[number])
        return min(end, position)

    def below(self, position: int) -> "HeadSums":
        """Only the regions that end at `position` or before."""
        kept = bisect_right(self._ends, position)
        sums = HeadSums()
        sums._starts, sums._ends, sums._crcs = self._starts[:kept], self._ends[:kept], self._crcs[:kept]
        sums._open_from = sums._open_to = sums._ends[-1] if sums._ends else 0
        return sums

    def cut(self, size: int) -> "HeadSums":
        """What is known of the bytes below `size`, a batch boundary."""
        sums = self.below(size)
        count = bisect_left(self._head_starts, size)
        if count:
            sums._heads, sums._head_starts = self._heads[:count], self._head_starts[:count]
            sums._open_from, sums._open_to = self._open_from, size
        return sums

    def dump(self, next_base: Offset, log_bytes: int, max_timestamp: int, *, final: bool) -> bytes:
        self.close_region()
        regions = array("I", bytes(array("I").itemsize * 3 * len(self._starts)))
        regions[0::3], regions[1::3], regions[2::3] = self._starts, self._ends, self._crcs
        return pack_seal(SealFields(final, next_base, log_bytes, max_timestamp, regions))


def _behind(position: int, batches: Iterable[Batch], known: int) -> tuple[int, Iterable[Batch]]:
    """The batches from `known` on, and where they begin."""
    rest = iter(batches)
    while position < known and (batch := next(rest, None)) is not None:
        position += batch[0]
    return position, rest


class Seal(NamedTuple):
    final: bool
    next_base: Offset
    log_bytes: int
    max_timestamp: int
    sums: HeadSums


def load_seal(data: bytes) -> Seal:
    """CorruptDataError if the file does not hold."""
    fields = unpack_seal(data)
    regions = fields.region_numbers
    sums = HeadSums()
    sums._starts, sums._ends, sums._crcs = regions[0::3], regions[1::3], regions[2::3]
    sums._open_from = sums._open_to = sums._ends[-1] if sums._ends else 0
    return Seal(fields.final, fields.next_base, fields.log_bytes, fields.max_timestamp, sums)
