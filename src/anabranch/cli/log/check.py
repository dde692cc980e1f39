"""Check of one partition's folder against itself: it reads everything and changes nothing.

Every batch: length, order of offsets, CRC. Every index entry: does a batch begin there, with that offset and
that largest time? Every seal: do size, successor and the sums over batch heads hold? Between segments: does
the next one begin where this one ends?

Damage does not end the check: every damaged stretch of a segment is listed (`damage.py`), and the intact records after
the first one are counted.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, TypeVar

from anabranch.cli.log.damage import Survey, survey_segment
from anabranch.cli.log.offline import name_of, segment_bases
from anabranch.errors import CorruptDataError
from anabranch.log import names
from anabranch.log.disk.files import Files
from anabranch.log.segment.index import OffsetIndex, TimeIndex
from anabranch.log.segment.scan import Scan, headers_from
from anabranch.log.segment.seal import HeadSums, Region, Seal, load_seal
from anabranch.record.index_format import RELATIVE_OFFSET_MAX
from anabranch.record.segment_agreement import (
    HEADS_PROBLEM,
    Agreement,
    gap_problem,
    missing_segment_problem,
    seal_problems,
)
from anabranch.values import Offset, is_lane_gap

Loaded = TypeVar("Loaded")


class Kind(Enum):
    DATA = "data"
    """Records: the log cannot continue past this place."""
    HEADS = "heads"
    """Records: an offset or a generation in this stretch was changed; reads of it are refused."""
    INDEX = "index"
    """Derived from the records: can be rebuilt without loss."""


class Finding(NamedTuple):
    """One problem: the file, the position in it (None: all of it), and what is wrong."""

    kind: Kind
    file: str
    position: int | None
    problem: str
    end: int | None = None
    """Where the file is intact again; None if only the beginning of the damage is known."""
    damaged_records: int = 0


@dataclass
class Report:
    """What was read of one partition and what is wrong with it."""

    partition: str
    segments: int = 0
    batches: int = 0
    start_offset: int = 0
    end_offset: int = 0
    """After the last record that is intact, or that a seal vouches for."""
    size_bytes: int = 0
    missing_offsets: int = 0
    gaps_allowed: bool = False
    findings: list[Finding] = field(default_factory=list)
    intact_behind_damage: int = 0
    """Records after the first damage. A node serves those that it knew to be synced."""
    intact: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    """The position and the record count of each intact batch, by segment file, of those with damage."""

    @property
    def damaged_records(self) -> int:
        return sum(finding.damaged_records for finding in self.findings)

    @property
    def first_damage(self) -> Finding | None:
        return next((finding for finding in self.findings if finding.kind is Kind.DATA), None)

    def as_json(self) -> dict[str, object]:
        facts = {name: value for name, value in vars(self).items() if name != "intact"}
        findings = [{**finding._asdict(), "kind": finding.kind.value} for finding in self.findings]
        return {
            **facts,
            "damaged_records": self.damaged_records,
            "findings": findings,
            "intact": not self.findings,
        }


def check_partition(
    files: Files, folder: str, *, gaps_allowed: bool, on_bytes: Callable[[int], None] = lambda count: None
) -> Report:
    """Read the whole partition. `gaps_allowed` is for compacted topics, in which the cleaner leaves gaps."""
    bases = segment_bases(files, folder)
    if not bases:
        return Report(name_of(folder), findings=[Finding(Kind.DATA, "", None, "every .log file is missing")])
    report = Report(name_of(folder), len(bases), start_offset=bases[0], end_offset=bases[0])
    report.gaps_allowed = gaps_allowed
    for number, base in enumerate(bases):
        following = bases[number + 1] if number + 1 < len(bases) else None
        try:
            SegmentCheck(files, folder, base, following, gaps_allowed, report).run(on_bytes)
        except OSError as error:
            name, problem = f"{base:020d}{names.LOG}", f"cannot be read: {error.strerror or error}"
            report.findings.append(Finding(Kind.DATA, name, None, problem))
    return report


def intact_records(files: Files, folder: str, report: Report, name: str, position: int) -> int:
    """How many records of a segment file are intact from this position on, where a batch begins."""
    known = report.intact.get(name)
    if known is not None:
        return sum(count for start, count in known if start >= position)
    file = files.open(f"{folder}/{name}")
    try:
        return sum(header.record_count for header in headers_from(file, position, file.size()))
    finally:
        file.close()


class SegmentCheck:
    """One segment of a report. `following` is the next segment's base offset, None for the last."""

    def __init__(
        self,
        files: Files,
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
        self.offsets = range(self.base, self.following or self.base + RELATIVE_OFFSET_MAX + 1)
        scan = Scan(self.file, 0, self.size_bytes, self.offsets, check_crc=True)
        for batches in scan:
            before = walk.position
            for batch in batches:
                walk.note(*batch)
            on_bytes(walk.position - before)
        on_bytes(self.size_bytes - walk.position)
        self._conclude(scan, walk, seal)
        self.file.close()

    def _conclude(self, scan: Scan, walk: Agreement, seal: Seal | None) -> None:
        report = self.report
        problems = list(walk.problems()) if scan.reason is None else []
        seen = Survey(walk.batches, scan.next_offset, walk.missing_offsets)
        if scan.reason is not None or any(suffix == names.LOG for suffix, _, _ in problems):
            seen = self._survey(scan, seal)
        report.batches += seen.batches
        report.size_bytes += self.size_bytes
        report.end_offset = seen.next_offset
        self._find_damage(seen, scan)
        self._check_gaps(seen)
        for suffix, position, problem in problems:
            if suffix != names.LOG:
                self._find(Kind.INDEX, suffix, position, problem)
        report.end_offset = max(report.end_offset, self._sealed_end(seal) or 0)
        if seal is not None and seal.final:
            for broken in seal_problems(seal, self.size_bytes, self.following):
                self._find(Kind.DATA, *broken)
            if self.following is None:
                self._find(Kind.DATA, *missing_segment_problem(seal.next_base))
        elif seal is not None and seal.log_bytes > self.size_bytes and not seen.stretches:
            problem = f"has {self.size_bytes} bytes and had {seal.log_bytes} at a clean stop"
            self._find(Kind.DATA, names.LOG, None, problem)
        self._count_behind(seen, scan)

    def _survey(self, scan: Scan, seal: Seal | None) -> Survey:
        size = self.size_bytes
        regions = [
            region
            if region.end <= size
            else Region(region.start, size, None)  # Its sum covers more than is left.
            for region in (seal.sums if seal else HeadSums()).regions(0, size)
        ]
        end = self.following if self.following is not None else self._sealed_end(seal)
        if end is not None and is_lane_gap(scan.next_offset, end):
            end = None  # The next lane says nothing about where this one ended.
        return survey_segment(
            self.file, size, regions, self.offsets, scan, end, gaps_allowed=self.gaps_allowed
        )

    def _sealed_end(self, seal: Seal | None) -> int | None:
        """The offset after the segment, if its seal tells. The seal of a clean stop may be older than the file."""
        is_current = seal is not None and (seal.final or seal.log_bytes == self.size_bytes)
        return seal.next_base if seal is not None and is_current else None

    def _find_damage(self, seen: Survey, scan: Scan) -> None:
        ended_at = None if scan.reason is None else scan.position
        if scan.reason is not None and all(stretch.start != ended_at for stretch in seen.stretches):
            # This batch is intact; one before it, which is among the stretches, has a wrong offset.
            self._find(Kind.DATA, names.LOG, ended_at, scan.reason)
        for start, end, records, is_in_heads in seen.stretches:
            kind, problem = (
                (Kind.HEADS, HEADS_PROBLEM) if is_in_heads else (Kind.DATA, "no batch here is intact")
            )
            if scan.reason is not None and start == ended_at:
                kind, problem = Kind.DATA, scan.reason
            self._find(kind, names.LOG, start, problem, end, records)

    def _check_gaps(self, seen: Survey) -> None:
        following, missing_offsets = self.following, seen.missing_offsets
        ends_whole = not seen.stretches or seen.stretches[-1].end < self.size_bytes
        if following is not None and ends_whole and not is_lane_gap(seen.next_offset, following):
            missing_offsets += following - seen.next_offset
        self.report.missing_offsets += missing_offsets
        if missing_offsets and not self.gaps_allowed:
            self._find(Kind.DATA, *gap_problem(missing_offsets))

    def _count_behind(self, seen: Survey, scan: Scan) -> None:
        report, name = self.report, f"{self.base:020d}{names.LOG}"
        if seen.intact is not None:
            report.intact[name] = seen.intact
        first = report.first_damage
        if first is None or (first.file == name and first.position is None):
            return
        position = scan.position if first.file == name else 0
        report.intact_behind_damage += intact_records(self.files, self.folder, report, name, position)

    def _load(self, suffix: str, load: Callable[[bytes], Loaded]) -> Loaded | None:
        """Load a sidecar file. None if it is missing or invalid, which is noted where it matters."""
        try:
            return load(self.files.read(self._path(suffix)))
        except FileNotFoundError:
            # The active segment keeps its indexes in memory; a seal needs a clean roll or stop. A segment
            # without records, which marks where a log begins that begins with a gap, has nothing to index.
            if suffix != names.SEAL and self.following is not None and self.size_bytes:
                self._find(Kind.INDEX, suffix, None, "is missing")
        except CorruptDataError as error:
            self._find(Kind.INDEX, suffix, None, f"cannot be used: {error}")
        except OSError as error:
            self._find(Kind.INDEX, suffix, None, f"cannot be read: {error.strerror or error}")
        return None

    def _find(
        self,
        kind: Kind,
        suffix: str,
        position: int | None,
        problem: str,
        end: int | None = None,
        records: int = 0,
    ) -> None:
        name = f"{self.base:020d}{suffix}"
        self.report.findings.append(Finding(kind, name, position, problem, end, records))

    def _path(self, suffix: str) -> str:
        return names.segment_path(self.folder, Offset(self.base), suffix)
