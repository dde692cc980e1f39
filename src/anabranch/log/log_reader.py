"""A partition's log as its readers see it: the segments, oldest first, and what lies where in them.

For the writer's thread, like all of `Log` (log.py), the heir that appends, rolls, drops and swaps.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence

from anabranch.errors import OffsetOutOfRangeError, StorageError
from anabranch.log.segment import Segment
from anabranch.log.settings import LogConfig
from anabranch.log.slice import Slice
from anabranch.log.timestamps import Moment, first_at_or_after, of_largest_timestamp
from anabranch.record.batch import BatchHeader
from anabranch.values import Offset


class LogReader:
    def __init__(self, folder: str, config: LogConfig, segments: list[Segment]) -> None:
        self.folder = folder
        self.config = config
        self._segments = segments
        self._bases = [segment.base_offset for segment in segments]
        self._active = segments[-1]
        self._start_offset = self._bases[0]
        self._records_end: tuple[Offset, Offset] | None = None
        """Where the active segment begins, and where the last record ended then."""

    @property
    def start_offset(self) -> Offset:
        return self._start_offset

    @property
    def end_offset(self) -> Offset:
        """The next record gets this offset."""
        return self._active.published_offset

    def records_end(self) -> Offset:
        """Behind the last record: the end, but for a gap that the log may end with."""
        active = self._active
        if active.published_bytes:
            return self.end_offset
        if self._records_end is None or self._records_end[0] != active.base_offset:
            filled = next((each for each in reversed(self._segments) if each.published_bytes), None)
            end = filled.records_end() if filled is not None else self._start_offset
            self._records_end = active.base_offset, end
        return max(self._records_end[1], self._start_offset)

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

    def _unreadable(self, error: OSError) -> StorageError:
        return StorageError(f"{self.folder} cannot be read: {error.strerror or error}.")

    def batch_headers(self, start: Offset) -> Iterator[BatchHeader]:
        """Every header from the batch that holds `start`; read in chunks, up to the end at each segment's
        turn."""
        first = max(0, bisect_right(self._bases, start) - 1)
        try:
            for segment in self._segments[first:]:
                yield from segment.headers(start)
        except OSError as error:
            raise self._unreadable(error) from error

    def offset_for_time(self, timestamp_ms: int) -> Moment | None:
        """The first record, from the start of the log, whose timestamp is not before `timestamp_ms`."""
        try:
            return first_at_or_after(
                self._segments, self._start_offset, timestamp_ms, self.config.batch_bytes_max
            )
        except OSError as error:
            raise self._unreadable(error) from error

    def max_timestamp(self) -> Moment | None:
        """The record with the largest timestamp; the first one if there are several in its batch."""
        try:
            return of_largest_timestamp(self._segments, self._start_offset, self.config.batch_bytes_max)
        except OSError as error:
            raise self._unreadable(error) from error
