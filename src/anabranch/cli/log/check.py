"""Checks one partition's folder against itself, reading everything and changing nothing.

Every batch: length, order of offsets, CRC. Every index entry: does a batch begin there, with that offset and
that largest time? Every seal: do size, successor and the sums over batch heads hold? Between segments: does
the next one begin where this one ends?
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, TypeVar

from anabranch.cli.log.offline import name_of, segment_bases
from anabranch.errors import CorruptDataError
from anabranch.log import names
from anabranch.log.disk.real_files import RealFiles
from anabranch.log.segment.index import OffsetIndex, TimeIndex
from anabranch.log.segment.scan import Scan
from anabranch.log.segment.seal import Seal, load_seal
from anabranch.record.index_format import RELATIVE_OFFSET_MAX
from anabranch.record.segment_agreement import Agreement, gap_problem, seal_problems
from anabranch.values import Offset, is_lane_gap

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
    report = Report(name_of(folder), len(bases), start_offset=bases[0], end_offset=bases[0])
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
        walk = Agreement(
            self.base,
            dict(zip(index.positions, index.offsets, strict=True)) if index else {},
            dict(zip(times.offsets, times.timestamps, strict=True)) if times else {},
            seal.sums.regions(0, seal.log_bytes) if seal else (),
        )
        # A batch that reaches into the next segment, or beyond what an index can name, is damage too.
        offsets = range(self.base, self.following or self.base + RELATIVE_OFFSET_MAX + 1)
        scan = Scan(self.file, 0, self.size_bytes, offsets, check_crc=True)
        for batches in scan:
            before = walk.position
            for batch in batches:
                walk.note(*batch)
            on_bytes(walk.position - before)
        self.file.close()
        self._conclude(scan, walk, seal)

    def _conclude(self, scan: Scan, walk: Agreement, seal: Seal | None) -> None:
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
            for broken in seal_problems(seal, self.size_bytes, self.following):
                self._find(Kind.DATA, *broken)

    def _check_gaps(self, missing_offsets: int, scan: Scan) -> None:
        following = self.following
        if following is not None and scan.reason is None and not is_lane_gap(scan.next_offset, following):
            missing_offsets += following - scan.next_offset
        self.report.missing_offsets += missing_offsets
        if missing_offsets and not self.gaps_allowed:
            self._find(Kind.DATA, *gap_problem(missing_offsets))

    def _load(self, suffix: str, load: Callable[[bytes], Loaded]) -> Loaded | None:
        """A sidecar; None if it is missing or cannot be true, which is noted."""
        try:
            return load(self.files.read(self._path(suffix)))
        except FileNotFoundError:
            # The active segment keeps its indexes in memory; a seal needs a clean roll or stop. One without records,
            # which says where a log begins that begins with a gap, has nothing to index.
            if suffix != names.SEAL and self.following is not None and self.size_bytes:
                self._find(Kind.INDEX, suffix, None, "is missing")
        except CorruptDataError as error:
            self._find(Kind.INDEX, suffix, None, f"cannot be used: {error}")
        return None

    def _find(self, kind: Kind, suffix: str, position: int | None, problem: str) -> None:
        name = f"{self.base:020d}{suffix}"
        self.report.findings.append(Finding(kind, name, position, problem))

    def _path(self, suffix: str) -> str:
        return names.segment_path(self.folder, Offset(self.base), suffix)
