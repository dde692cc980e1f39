"""A partition's log as its readers see it: the segments, oldest first, and what lies where in them.

For the writer's thread, like all of `Log` (log.py), the heir that appends, rolls, drops and swaps.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence

from anabranch.errors import AnabranchError, CorruptDataError, OffsetOutOfRangeError
from anabranch.log.disk.files import read_refusal
from anabranch.log.segment.segment import Segment
from anabranch.log.segment.slice import Slice
from anabranch.log.segment.timestamps import Lookup, first_at_or_after, of_largest_timestamp
from anabranch.log.settings import LogConfig
from anabranch.record.batch import BatchHeader
from anabranch.values import Offset, is_other_lane

BYTES_WITHOUT_LIMIT = 2**62


class LogReader:
    def __init__(self, folder: str, config: LogConfig, segments: list[Segment]) -> None:
        self.folder = folder
        self.config = config
        self._segments = segments
        self._bases = [segment.base_offset for segment in segments]
        self._active = segments[-1]
        self._start_offset = self._bases[0]

    @property
    def start_offset(self) -> Offset:
        return self._start_offset

    @property
    def end_offset(self) -> Offset:
        """The next record gets this offset."""
        return self._active.published_offset

    @property
    def size_bytes(self) -> int:
        return sum(segment.published_bytes for segment in self._segments)

    @property
    def segments(self) -> Sequence[Segment]:
        return self._segments

    def slice(self, start: Offset, bytes_max: int, upto: Offset, *, whole_first: bool = True) -> Slice:
        """Whole batches from the one that holds `start` on, at most `bytes_max` and none that reaches `upto`.

        With `whole_first` the first batch comes even if it is larger. Empty if there is nothing below `upto`.
        Raises OffsetOutOfRangeError, and CorruptDataError where the way to the batch is damaged.
        """
        if not self._start_offset <= start <= self.end_offset:
            raise OffsetOutOfRangeError(
                f"Offset {start} is not within {self._start_offset} to {self.end_offset} of {self.folder}."
            )
        try:
            return self._slice(start, bytes_max, min(upto, self.end_offset), whole_first)
        except OSError as error:
            raise self._unreadable(error) from error

    def is_cut(self, start: Offset, part: Slice, upto: Offset) -> bool:
        """Whether more follows `part`, a slice from `start` on, and could be read: a slice ends with its file."""
        last = self.segments[-1]
        if not last.published_bytes and len(self.segments) > 1:
            last = self.segments[-2]  # Nothing was written since that one was sealed.
        if part.file is not last.file and upto > last.base_offset:
            return True
        return self.slice(start, BYTES_WITHOUT_LIMIT, upto).count > part.count

    def _slice(self, start: Offset, bytes_max: int, upto: Offset, whole_first: bool) -> Slice:
        number = max(0, bisect_right(self._bases, start) - 1)
        while start < upto and number < len(self._segments):
            segment = self._segments[number]
            if segment.base_offset >= upto:
                break
            found = segment.slice(start, bytes_max, upto, whole_first=whole_first)
            if found is not None:
                return found
            number += 1  # The cleaner took the end of this segment: the next batch is in a later one.
        return Slice(self._active.file, self._active.published_bytes, 0)

    # --- gaps between lanes ---------------------------------------------------------------------------------

    def readable_end(self, upto: Offset) -> Offset:
        """Behind the last record below `upto`, if what lies between was a change of lanes; else `upto`."""
        number = bisect_left(self._bases, upto) - 1
        if number == len(self._bases) - 1:
            return upto
        while number >= 0 and not self._segments[number].published_bytes:
            number -= 1  # The cleaner has left nothing in it.
        if number < 0:
            return min(upto, self._start_offset)
        return max(self._start_offset, min(upto, self._run_end(number)))

    def runs(self, upto: Offset) -> list[tuple[Offset, Offset]]:
        """Where there are records below `upto`, without the gaps between lanes. What the cleaner took counts as if it
        were there."""
        found: list[tuple[Offset, Offset]] = []
        for number, base in enumerate(self._bases):
            start, end = max(base, self._start_offset), min(upto, self._run_end(number))
            if found and found[-1][1] == start:
                found[-1] = found[-1][0], max(start, end)
            elif start < end:
                found.append((start, end))
        return found

    def _run_end(self, number: int) -> Offset:
        """Where a segment's part of a run ends: at the next one, unless that is of another lane."""
        segment = self._segments[number]
        end = segment.published_offset
        if number + 1 == len(self._bases) or not is_other_lane(segment.base_offset, self._bases[number + 1]):
            return end
        try:
            return segment.batches_end
        except (CorruptDataError, OSError):
            return end  # Whoever reads there is told what is wrong.

    def _unreadable(self, error: OSError) -> AnabranchError:
        return read_refusal(self.folder, error)

    def batch_headers(self, start: Offset) -> Iterator[BatchHeader]:
        """Every header from the batch that holds `start`; read in chunks, up to the end at each segment's
        turn."""
        first = max(0, bisect_right(self._bases, start) - 1)
        try:
            for segment in self._segments[first:]:
                yield from segment.headers(start)
        except OSError as error:
            raise self._unreadable(error) from error

    def sound_headers(
        self, start: Offset, on_damage: Callable[[AnabranchError], None]
    ) -> Iterator[BatchHeader]:
        """The same of the batches that hold. What is damaged, or cannot be read, is left out and told."""
        first = max(0, bisect_right(self._bases, start) - 1)
        for segment in self._segments[first:]:
            try:
                yield from segment.sound_headers(start, on_damage)
            except OSError as error:
                on_damage(self._unreadable(error))

    def offset_for_time(self, timestamp_ms: int) -> Lookup:
        """The first record, from the start of the log, whose timestamp is not before `timestamp_ms`."""
        bytes_max = self.config.batch_bytes_max
        try:
            return (yield from first_at_or_after(self._segments, self._start_offset, timestamp_ms, bytes_max))
        except OSError as error:
            raise self._unreadable(error) from error

    def max_timestamp(self) -> Lookup:
        """The record with the largest timestamp; the first one if there are several in its batch."""
        bytes_max = self.config.batch_bytes_max
        try:
            return (yield from of_largest_timestamp(self._segments, self._start_offset, bytes_max))
        except OSError as error:
            raise self._unreadable(error) from error
