"""Re-reads sealed segments at a bounded rate, so that rot is found before a consumer finds it.

`ScrubPace` decides, from the time that passed, how many bytes may be read now; `Scrubber` walks the segments
of one log in turn, region by region. `next_step` (the writer's thread) names what to read, `ScrubStep.run` (a
worker) reads it and answers what is damaged. A finding is for a metric and the log of events: the segment is
not touched, and a reader gets CorruptDataError on its own.
"""

from collections.abc import Sequence
from typing import NamedTuple

from anabranch.errors import CorruptDataError, StorageError
from anabranch.log.files import File
from anabranch.log.log import Log
from anabranch.log.seal import Region
from anabranch.log.slice import verify_region
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


class Damage(NamedTuple):
    """A region of a sealed segment that does not hold."""

    path: str
    base_offset: Offset
    position: int
    reason: str


class ScrubStep(NamedTuple):
    """Something to read; plain values, for a worker."""

    file: File
    base_offset: Offset
    regions: Sequence[Region]

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


class Scrubber:
    """The place where one log's scrubbing goes on; it begins again after the last sealed segment."""

    def __init__(self) -> None:
        self._base_offset: Offset = Offset(0)
        self._position = 0

    def next_step(self, log: Log, bytes_max: int) -> ScrubStep | None:
        """What to read next, at most about `bytes_max`; None if the log has no sealed segment to read."""
        sealed = [segment for segment in log.segments[:-1] if segment.published_bytes]
        if not sealed or bytes_max <= 0:
            return None
        segment = next((found for found in sealed if found.base_offset >= self._base_offset), sealed[0])
        start = self._position if segment.base_offset == self._base_offset else 0
        if start >= segment.published_bytes:  # The cleaner made it shorter.
            start = 0
        regions = segment.regions_from(start, bytes_max)
        self._base_offset, self._position = segment.base_offset, regions[-1].end
        if regions[-1].end >= segment.published_bytes:
            self._base_offset, self._position = segment.published_offset, 0
        return ScrubStep(segment.file, segment.base_offset, regions)
