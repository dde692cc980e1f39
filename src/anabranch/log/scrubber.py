"""Re-reads segments at a bounded rate, the active one too, so that rot is found before a consumer finds it.

`ScrubPace` decides, from the time that passed, how many bytes may be read now; `Scrubber` walks the segments
of one log in turn, region by region. `next_step` (the writer's thread) names what to read, `ScrubStep.run` (a
worker) reads it and answers what is damaged, and `accept` (the writer's thread again) has everything in those
segments checked anew before it is read. What was cut off meanwhile is no damage.
"""

from collections.abc import Sequence
from typing import NamedTuple

from anabranch.errors import CorruptDataError, StorageError
from anabranch.log.disk.files import File
from anabranch.log.log import Log
from anabranch.log.segment.seal import Region
from anabranch.log.segment.segment import Segment
from anabranch.log.segment.slice import verify_region
from anabranch.log.segment.tail import Tail
from anabranch.values import Offset


class ScrubPace:
    """So many bytes per second, saved up for at most `burst_ms`."""

    def __init__(self, bytes_per_second: int, burst_ms: int = 1000) -> None:
        assert bytes_per_second > 0
        self._bytes_per_second = bytes_per_second
        self._burst_ms = burst_ms
        self._last_ms: int | None = None
        self._saved_bytes = 0.0

    def allowed_bytes(self, now_ms: int) -> int:
        """How many bytes may be read now; tell it of those that were with `spent`."""
        if self._last_ms is not None:
            passed_ms = max(0, now_ms - self._last_ms)
            most = self._bytes_per_second * self._burst_ms / 1000
            self._saved_bytes = min(most, self._saved_bytes + self._bytes_per_second * passed_ms / 1000)
        self._last_ms = now_ms
        return max(0, int(self._saved_bytes))

    def spent(self, count: int) -> None:
        self._saved_bytes -= count


PASS_MS_MIN = 60_000
"""A small log is read again no sooner than this."""


class Damage(NamedTuple):
    """A region of a segment that does not hold."""

    path: str
    base_offset: Offset
    position: int
    reason: str


class ScrubStep(NamedTuple):
    """Something to read; plain values, for a worker."""

    file: File
    base_offset: Offset
    regions: Sequence[Region]
    segment: Segment
    tail: Tail | None
    """What the segment had in memory when this began: another one since then means that it was cut or sealed."""

    @property
    def size_bytes(self) -> int:
        return sum(region.end - region.start for region in self.regions)

    def run(self) -> list[Damage]:
        """Read and check. A file that is gone meanwhile is no damage."""
        found = []
        for region in self.regions:
            try:
                verify_region(self.file, region)
            except CorruptDataError as error:
                found.append(Damage(self.file.path, self.base_offset, region.start, str(error)))
            except StorageError:
                break
        return found

    def accept(self, found: list[Damage]) -> list[Damage]:
        """The writer's thread, with what `run` has answered: what of it is damage, which takes effect at once."""
        segment = self.segment
        if not found or segment.dropped or segment.tail is not self.tail:
            return []
        segment.forget_verified()
        return found


class Scrubber:
    """The place where one log's scrubbing goes on; it begins again after the end of the log, a while later."""

    def __init__(self) -> None:
        self._base_offset: Offset = Offset(0)
        self._position = 0
        self._read_of: tuple[Segment, Tail | None] | None = None
        """What `_position` is a batch boundary of: not of what the cleaner or a cut has put in its place."""
        self._pass_ms_begun: int | None = None

    def next_step(self, log: Log, bytes_max: int, now_ms: int) -> ScrubStep | None:
        """What to read next, at most about `bytes_max`; None if the log has nothing to read, or was read to its end a
        moment ago."""
        filled = [segment for segment in log.segments if segment.published_bytes]
        if not filled or bytes_max <= 0:
            return None
        segment = next((found for found in filled if self._is_ahead(found)), None)
        if segment is None:
            if self._pass_ms_begun is not None and now_ms - self._pass_ms_begun < PASS_MS_MIN:
                return None
            segment = filled[0]
            self._base_offset, self._position = segment.base_offset, 0
            self._pass_ms_begun = now_ms
        if self._pass_ms_begun is None:
            self._pass_ms_begun = now_ms
        start = self._position if segment.base_offset == self._base_offset else 0
        if start >= segment.published_bytes or self._read_of != (segment, segment.tail):
            start = 0
        regions = segment.regions_from(start, bytes_max)
        self._read_of = segment, segment.tail
        self._base_offset, self._position = segment.base_offset, regions[-1].end
        if segment is not log.segments[-1] and regions[-1].end >= segment.published_bytes:
            self._base_offset, self._position = segment.published_offset, 0
        return ScrubStep(segment.file, segment.base_offset, regions, segment, segment.tail)

    def _is_ahead(self, segment: Segment) -> bool:
        """Whether there is something in it that this pass has not read."""
        if segment.base_offset != self._base_offset:
            return segment.base_offset > self._base_offset
        return self._position < segment.published_bytes
