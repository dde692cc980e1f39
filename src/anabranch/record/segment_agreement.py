"""Whether a segment's batches are what its indexes and its seal say of them, ticked off in one walk over the batches.

The caller reads the files and walks the `.log`; it notes each batch here, in order, and asks for the problems at
the end. What it hands in is what the files say: for the index, position to relative offset; for the time index,
relative offset to timestamp; of the seal, its regions in order. Used by `anabranch log verify` and by the audit job.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

from anabranch.record.crc32c import crc32c

LOG_FILE = ".log"
INDEX_FILE = ".index"
TIME_INDEX_FILE = ".timeindex"

HEADS_PROBLEM = "the sum over batch heads does not hold: an offset or a generation was changed"

Problem = tuple[str, int | None, str]
"""The file by its suffix, the position in the log (None: nowhere in particular), and what is wrong."""


class SummedRegion(Protocol):
    """A stretch of whole batches, and the sum over their heads if one was kept."""

    @property
    def start(self) -> int: ...
    @property
    def end(self) -> int: ...
    @property
    def crc(self) -> int | None: ...


class FinalSeal(Protocol):
    """What a seal says of its segment as a whole."""

    @property
    def next_base(self) -> int: ...
    @property
    def log_bytes(self) -> int: ...


def gap_problem(missing_offsets: int) -> Problem:
    offsets_are = "offset is" if missing_offsets == 1 else "offsets are"
    return LOG_FILE, None, f"{missing_offsets} {offsets_are} missing in or after it (see --gaps-allowed)"


def seal_problems(seal: FinalSeal, log_bytes: int, following: int | None) -> Iterator[Problem]:
    """Which promises of a final seal do not hold; `following` is the next segment's base, None for the last."""
    if seal.log_bytes != log_bytes:
        yield LOG_FILE, None, f"has {log_bytes} bytes and was sealed with {seal.log_bytes}"
    if following is not None and seal.next_base != following:
        yield missing_segment_problem(seal.next_base)


def missing_segment_problem(base: int) -> Problem:
    return LOG_FILE, None, f"the segment {base} that should follow is missing"


class Agreement:
    """One segment. `position`, `next_offset` and the counts follow the batches noted."""

    def __init__(
        self,
        base: int,
        index: Mapping[int, int],
        times: Mapping[int, int],
        regions: Iterable[SummedRegion],
    ) -> None:
        self.base = base
        self.position = 0
        self.batches = 0
        self.next_offset = base
        self.missing_offsets = 0
        self.max_timestamp = -1
        self._index = dict(index)
        self._times = dict(times)
        self._regions = iter(regions)
        self._region = next(self._regions, None)
        self._heads: list[bytes] = []
        self._wrong: list[Problem] = []

    def note(self, size: int, last_offset: int, max_timestamp: int, head: bytes) -> None:
        """The next batch; `head` is its first 17 bytes, `max_timestamp` -1 if it has no record."""
        base_offset = int.from_bytes(head[:8])
        self.missing_offsets += base_offset - self.next_offset
        self.max_timestamp = max(self.max_timestamp, max_timestamp)
        self._tick_off(last_offset - self.base)
        self._add_to_region(size, head)
        self.position += size
        self.next_offset = last_offset + 1
        self.batches += 1

    def _tick_off(self, relative_offset: int) -> None:
        indexed = self._index.pop(self.position, None)
        if indexed is not None and indexed != relative_offset:
            problem = f"says offset {self.base + indexed} where the log has {self.base + relative_offset}"
            self._wrong.append((INDEX_FILE, self.position, problem))
        timestamp = self._times.pop(relative_offset, None)
        if timestamp is not None and timestamp != self.max_timestamp:
            problem = (
                f"says time {timestamp} at offset {self.base + relative_offset}, the log {self.max_timestamp}"
            )
            self._wrong.append((TIME_INDEX_FILE, None, problem))

    def _add_to_region(self, size: int, head: bytes) -> None:
        region = self._region
        if region is None or self.position < region.start:
            return
        self._heads.append(head)
        if self.position + size >= region.end:
            if region.crc is not None and crc32c(b"".join(self._heads)) != region.crc:
                self._wrong.append((LOG_FILE, region.start, HEADS_PROBLEM))
            self._heads.clear()
            self._region = next(self._regions, None)

    def problems(self) -> Iterator[Problem]:
        """What was wrong, and which entries no batch answered to. For a walk that reached the end."""
        yield from self._wrong
        if self._index:
            position = next(iter(self._index))
            yield INDEX_FILE, position, f"{len(self._index)} entries point where no batch begins"
        if self._times:
            yield TIME_INDEX_FILE, None, f"{len(self._times)} entries name offsets where no batch ends"
