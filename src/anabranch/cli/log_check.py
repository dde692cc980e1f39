"""Checks one partition's folder against itself, reading everything and changing nothing.

Every batch: length, order of offsets, CRC. Every index entry: does a batch begin there, with that offset and
that largest time? Every seal: do size, successor and the sums over batch heads hold? Between segments: does
the next one begin where this one ends?
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, TypeVar

from anabranch.cli.offline import segment_bases
from anabranch.errors import CorruptDataError
from anabranch.log import names
from anabranch.log.index import OffsetIndex, TimeIndex
from anabranch.log.real_files import RealFiles
from anabranch.log.scan import Batch, Scan
from anabranch.log.seal import Region, Seal, load_seal
from anabranch.record.crc32c import crc32c
from anabranch.record.index_format import RELATIVE_OFFSET_MAX
from anabranch.values import Offset

Loaded = TypeVar("Loaded")


class Kind(Enum):
    DATA = "data"
    """Records: the log cannot go on here."""
    HEADS = "heads"
    """Records: somewhere in a stretch an offset or a generation was changed; reads of it are refused."""
    INDEX = "index"
    """Derived from the records: can be made again without loss."""


class Finding(NamedTuple):
    """One thing that is wrong: in which file, where (None: in all of it), what."""

    kind: Kind
    file: str
    position: int | None
    problem: str


@dataclass
class Report:
    """What was read of one partition and what is wrong with it."""

    partition: str
    segments: int = 0
    batches: int = 0
    start_offset: int = 0
    end_offset: int = 0
    size_bytes: int = 0
    missing_offsets: int = 0
    gaps_allowed: bool = False
    findings: list[Finding] = field(default_factory=list)

    def as_json(self) -> dict[str, object]:
        findings = [{**finding._asdict(), "kind": finding.kind.value} for finding in self.findings]
        return {**vars(self), "findings": findings, "intact": not self.findings}


def check_partition(
    files: RealFiles, folder: str, *, gaps_allowed: bool, on_bytes: Callable[[int], None] = lambda count: None
) -> Report:
    """Reads the whole partition. `gaps_allowed` is for compacted topics, whose cleaner leaves holes."""
    bases = segment_bases(files, folder)
    report = Report(os.path.basename(folder), len(bases), start_offset=bases[0], end_offset=bases[0])
    report.gaps_allowed = gaps_allowed
    for number, base in enumerate(bases):
        following = bases[number + 1] if number + 1 < len(bases) else None
        check = SegmentCheck(files, folder, base, following, gaps_allowed, report)
        check.run(on_bytes)
    return report


class SegmentCheck:
    """One segment of a report. `following` is the next segment's base offset, None for the last."""

    def __init__(
        self,
        files: RealFiles,
        folder: str,
        base: int,
        following: int | None,
        gaps_allowed: bool,
        report: Report,
    ) -> None:
        self.files = files
        self.folder = folder
        self.base = base
        self.following = following
        self.gaps_allowed = gaps_allowed
        self.report = report
        self.file = files.open(self._path(names.LOG))
        self.size_bytes = files.size(self._path(names.LOG))

    def run(self, on_bytes: Callable[[int], None]) -> None:
        seal = self._load(names.SEAL, load_seal)
        index = self._load(names.INDEX, lambda data: OffsetIndex.load(data, self.size_bytes))
        times = self._load(names.TIME_INDEX, TimeIndex.load)
        walk = _Walk(self.base, index, times, seal)
        # A batch that reaches into the next segment, or beyond what an index can name, is damage too.
        offsets = range(self.base, self.following or self.base + RELATIVE_OFFSET_MAX + 1)
        scan = Scan(self.file, 0, self.size_bytes, offsets, check_crc=True)
        for batches in scan:
            before = walk.position
            walk.note(batches)
            on_bytes(walk.position - before)
        self.file.close()
        self._conclude(scan, walk, seal)

    def _conclude(self, scan: Scan, walk: "_Walk", seal: Seal | None) -> None:
        report = self.report
        report.batches += walk.batches
        report.size_bytes += self.size_bytes
        report.end_offset = scan.next_offset
        if scan.reason is not None:
            self._find(Kind.DATA, names.LOG, scan.position, scan.reason)
        self._check_gaps(walk.missing_offsets, scan)
        if scan.reason is None:
            for suffix, position, problem in walk.problems():
                self._find(Kind.HEADS if suffix == names.LOG else Kind.INDEX, suffix, position, problem)
        if seal is not None and seal.final:
            self._check_seal(seal)

    def _check_gaps(self, missing_offsets: int, scan: Scan) -> None:
        if self.following is not None and scan.reason is None:
            missing_offsets += self.following - scan.next_offset
        self.report.missing_offsets += missing_offsets
        if missing_offsets and not self.gaps_allowed:
            problem = f"{missing_offsets} offsets are missing in or after it (see --gaps-allowed)"
            self._find(Kind.DATA, names.LOG, None, problem)

    def _check_seal(self, seal: Seal) -> None:
        if seal.log_bytes != self.size_bytes:
            problem = f"has {self.size_bytes} bytes and was sealed with {seal.log_bytes}"
            self._find(Kind.DATA, names.LOG, None, problem)
        if self.following is not None and seal.next_base != self.following:
            problem = f"the segment {seal.next_base} that should follow is missing"
            self._find(Kind.DATA, names.LOG, None, problem)

    def _load(self, suffix: str, load: Callable[[bytes], Loaded]) -> Loaded | None:
        """A sidecar; None if it is missing or cannot be true, which is noted."""
        try:
            return load(self.files.read(self._path(suffix)))
        except FileNotFoundError:
            # The active segment keeps its indexes in memory; a seal needs a clean roll or stop.
            if suffix != names.SEAL and self.following is not None:
                self._find(Kind.INDEX, suffix, None, "is missing")
        except CorruptDataError as error:
            self._find(Kind.INDEX, suffix, None, f"cannot be used: {error}")
        return None

    def _find(self, kind: Kind, suffix: str, position: int | None, problem: str) -> None:
        name = f"{self.base:020d}{suffix}"
        self.report.findings.append(Finding(kind, name, position, problem))

    def _path(self, suffix: str) -> str:
        return names.segment_path(self.folder, Offset(self.base), suffix)


Problem = tuple[str, int | None, str]


class _Walk:
    """Follows the batches of one segment and ticks off what indexes and seal say about them."""

    def __init__(
        self, base: int, index: OffsetIndex | None, times: TimeIndex | None, seal: Seal | None
    ) -> None:
        self.base = base
        self.position = 0
        self.batches = 0
        self.next_offset = base
        self.missing_offsets = 0
        self.max_timestamp = -1
        self._index = dict(zip(index.positions, index.offsets, strict=True)) if index else {}
        self._times = dict(zip(times.offsets, times.timestamps, strict=True)) if times else {}
        self._regions = iter(seal.sums.regions(0, seal.log_bytes) if seal else ())
        self._region: Region | None = next(self._regions, None)
        self._heads: list[bytes | memoryview] = []
        self._wrong: list[Problem] = []

    def note(self, batches: list[Batch]) -> None:
        for size, last_offset, max_timestamp, head in batches:
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
            self._wrong.append((names.INDEX, self.position, problem))
        timestamp = self._times.pop(relative_offset, None)
        if timestamp is not None and timestamp != self.max_timestamp:
            problem = (
                f"says time {timestamp} at offset {self.base + relative_offset}, the log {self.max_timestamp}"
            )
            self._wrong.append((names.TIME_INDEX, None, problem))

    def _add_to_region(self, size: int, head: bytes | memoryview) -> None:
        if self._region is None:
            return
        self._heads.append(bytes(head))
        if self.position + size >= self._region.end:
            if self._region.crc is not None and crc32c(b"".join(self._heads)) != self._region.crc:
                problem = "the sum over batch heads does not hold: an offset or a generation was changed"
                self._wrong.append((names.LOG, self._region.start, problem))
            self._heads.clear()
            self._region = next(self._regions, None)

    def problems(self) -> Iterator[Problem]:
        """What was wrong, and which entries no batch answered to."""
        yield from self._wrong
        if self._index:
            position = next(iter(self._index))
            yield names.INDEX, position, f"{len(self._index)} entries point where no batch begins"
        if self._times:
            yield names.TIME_INDEX, None, f"{len(self._times)} entries name offsets where no batch ends"
