"""Audits one segment of a data folder: what a task of the audit job does, with nothing of Spark in it.

Every batch: length, order of offsets, CRC, count of records. Every index entry: does a batch begin there, with that
offset and that largest time? The seal: do size, successor, largest time and the sums over batch heads hold? Then:
does the next segment begin where this one ends?

A node may be running. The newest segment is read up to its last whole batch. Retention may take a segment away, the
cleaner may put another in its place, a full one may be closed: so what looks wrong is looked at again whenever the
files changed meanwhile, and a segment that is gone is counted as gone.
"""

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple, TypeVar

from anabranch.errors import AnabranchError, CorruptDataError
from anabranch.record.batch import HEADER_BYTES, MAGIC, BatchHeader, check_batch, read_header
from anabranch.record.index_format import (
    OFFSET_ENTRY,
    OFFSET_ENTRY_BYTES,
    RELATIVE_OFFSET_MAX,
    TIME_ENTRY,
    TIME_ENTRY_BYTES,
)
from anabranch.record.seal_format import SealFields, unpack_seal
from anabranch.record.segment_agreement import (
    INDEX_FILE,
    LOG_FILE,
    TIME_INDEX_FILE,
    Agreement,
    gap_problem,
    seal_problems,
)
from anabranch.values import is_lane_gap

SEAL_FILE = ".seal"
SWAP_MARK = ".swap"
CHUNK_BYTES = 4 * 2**20
LOOKS_MAX = 4
SECONDS_BETWEEN_LOOKS = 0.5
_UNSUMMED_BYTES = 17

Loaded = TypeVar("Loaded")
LANE = "lane-"


def name_of(folder: str) -> str:
    """What a partition is called: its folder; a lane, of a topic in mode branch, behind its partition."""
    name = os.path.basename(folder)
    return f"{os.path.basename(os.path.dirname(folder))}/{name}" if is_lane(folder) else name


def is_lane(folder: str) -> bool:
    return os.path.basename(folder).startswith(LANE)


class SegmentTask(NamedTuple):
    """Which segment. Plain values: it travels to an executor."""

    folder: str
    base: int
    gaps_allowed: bool


class Finding(NamedTuple):
    """One thing that is wrong: in which file, where (None: in all of it), what."""

    file: str
    position: int | None
    problem: str


@dataclass
class SegmentReport:
    """What was read of one segment, and what is wrong with it."""

    partition: str
    base: int
    bytes_read: int = 0
    batches: int = 0
    records: int = 0
    end_offset: int = 0
    missing_offsets: int = 0
    torn_bytes: int = 0
    """After the last whole batch of the newest segment: somebody is writing, or was when the power went."""
    is_gone: bool = False
    findings: list[Finding] = field(default_factory=list)


def audit_segment(task: SegmentTask) -> SegmentReport:
    """The report of this segment. A torn end is no finding while somebody goes on writing it."""
    report = _settled(task)
    if not report.torn_bytes:
        return report
    time.sleep(SECONDS_BETWEEN_LOOKS)
    again = _settled(task)
    if again.torn_bytes and again.end_offset == report.end_offset:
        again.findings.append(
            Finding(
                f"{task.base:020d}{LOG_FILE}",
                again.bytes_read - again.torn_bytes,
                f"the last {again.torn_bytes} bytes are no whole batch, and nobody goes on writing them",
            )
        )
    return again


def _settled(task: SegmentTask) -> SegmentReport:
    """Looks until nothing is wrong or nothing changes any more, but a few times at most."""
    for look in range(1, LOOKS_MAX + 1):
        before = _listing(task.folder)
        report = SegmentAudit(task, before).run()
        if not report.findings or look == LOOKS_MAX:
            break
        time.sleep(SECONDS_BETWEEN_LOOKS)
        if not _is_changing(task.base, before, _listing(task.folder)):
            break
    return report


Listing = dict[str, tuple[int, int, int]]
"""Of a partition's folder: file name to inode, size and time of change."""


def _listing(folder: str) -> Listing:
    found: Listing = {}
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                try:
                    status = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue  # It went between the two calls.
                found[entry.name] = (status.st_ino, status.st_size, status.st_mtime_ns)
    except FileNotFoundError:
        pass  # The topic was deleted: every segment of it is gone.
    return found


def _is_changing(base: int, before: Listing, after: Listing) -> bool:
    """Whether this segment or its successor was being replaced, closed or removed; growth alone is no excuse."""
    if any(name.endswith(SWAP_MARK) for name in (*before, *after)):
        return True
    following = _following(base, before)
    if following != _following(base, after):
        return True
    mine = [name for name in {*before, *after} if name.startswith(f"{base:020d}.")]
    if following is None:
        mine = [name for name in mine if not name.endswith(LOG_FILE)]
    return any(before.get(name) != after.get(name) for name in mine)


def segment_bases(names: "Listing | list[str]") -> list[int]:
    """Base offsets of the segments among these file names, in order."""
    return sorted(
        int(name[:20])
        for name in names
        if len(name) == 24 and name.endswith(LOG_FILE) and name[:20].isdigit()
    )


def _following(base: int, listing: Listing) -> int | None:
    return next((other for other in segment_bases(listing) if other > base), None)


class SegmentAudit:
    """One look at one segment."""

    def __init__(self, task: SegmentTask, listing: Listing) -> None:
        self.folder = task.folder
        self.base = task.base
        self.gaps_allowed = task.gaps_allowed
        self.following = _following(task.base, listing)
        self.report = SegmentReport(name_of(task.folder), task.base, end_offset=task.base)

    def run(self) -> SegmentReport:
        # Sidecars first: whatever they speak of is in the log by the time its size is asked for.
        index = self._load(INDEX_FILE, offset_entries)
        times = self._load(TIME_INDEX_FILE, time_entries)
        seal = self._load(SEAL_FILE, unpack_seal)
        try:
            with open(self._path(LOG_FILE), "rb", buffering=0) as file:
                walk = self._walk(file.fileno(), index or {}, times or {}, seal)
        except FileNotFoundError:
            return SegmentReport(self.report.partition, self.base, is_gone=True)
        self.report.batches, self.report.end_offset = walk.batches, walk.next_offset
        self._check_gaps(walk)
        if seal is not None and seal.final:
            self._check_seal(seal, walk)
        return self.report

    def _walk(
        self, fd: int, index: dict[int, int], times: dict[int, int], seal: SealFields | None
    ) -> Agreement:
        size = os.fstat(fd).st_size
        self.report.bytes_read = size
        walk = Agreement(self.base, index, times, seal.regions() if seal else ())
        offset_end = self.following or self.base + RELATIVE_OFFSET_MAX + 1
        try:
            for header, head in checked_batches(fd, size):
                _check_order(header, walk.next_offset, offset_end)
                self._note(walk, header, head)
        except TornBatchError as error:
            if self.following is None:
                self.report.torn_bytes = size - walk.position
            else:
                self._find(LOG_FILE, walk.position, str(error))
        except AnabranchError as error:
            self._find(LOG_FILE, walk.position, str(error))
            return walk
        for suffix, position, problem in walk.problems():
            self._find(suffix, position, problem)
        return walk

    def _note(self, walk: Agreement, header: BatchHeader, head: bytes) -> None:
        self.report.records += header.record_count
        self.report.missing_offsets += header.last_offset_delta + 1 - header.record_count
        newest = header.max_timestamp if header.record_count else -1
        walk.note(header.size_bytes, header.last_offset, newest, head)

    def _check_gaps(self, walk: Agreement) -> None:
        self.report.missing_offsets += walk.missing_offsets
        following = self.following
        if (
            following is not None
            and not self.report.findings
            and not is_lane_gap(walk.next_offset, following)
        ):
            self.report.missing_offsets += following - walk.next_offset
        if self.report.missing_offsets and not self.gaps_allowed:
            self._find(*gap_problem(self.report.missing_offsets))

    def _check_seal(self, seal: SealFields, walk: Agreement) -> None:
        size = self.report.bytes_read
        for broken in seal_problems(seal, size, self.following):
            self._find(*broken)
        if seal.log_bytes == size == walk.position and seal.max_timestamp != walk.max_timestamp:
            problem = f"says the largest time is {seal.max_timestamp}, the log {walk.max_timestamp}"
            self._find(SEAL_FILE, None, problem)

    def _load(self, suffix: str, load: Callable[[bytes], Loaded]) -> Loaded | None:
        """What a sidecar says; None if it is missing or cannot be true, which is noted."""
        try:
            with open(self._path(suffix), "rb") as file:
                return load(file.read())
        except FileNotFoundError:
            # The newest segment has its indexes in memory; a seal needs a clean roll or stop. One without records,
            # which says where a log begins that begins with a gap, has nothing to index.
            if suffix != SEAL_FILE and self.following is not None and not self._is_empty:
                self._find(suffix, None, "is missing")
        except CorruptDataError as error:
            self._find(suffix, None, f"cannot be used: {error}")
        return None

    @property
    def _is_empty(self) -> bool:
        try:
            return not os.path.getsize(self._path(LOG_FILE))
        except FileNotFoundError:
            return False

    def _find(self, suffix: str, position: int | None, problem: str) -> None:
        self.report.findings.append(Finding(f"{self.base:020d}{suffix}", position, problem))

    def _path(self, suffix: str) -> str:
        return os.path.join(self.folder, f"{self.base:020d}{suffix}")


# --- what the files say ----------------------------------------------------------------------------------


class TornBatchError(CorruptDataError):
    """The file ends within a batch."""


def checked_batches(fd: int, size: int) -> Iterator[tuple[BatchHeader, bytes]]:
    """Header and first 17 bytes of every batch in [0, size), each checked; an error at the first that is bad."""
    position = 0
    while position < size:
        data = os.pread(fd, min(CHUNK_BYTES, size - position), position)
        if len(data) >= HEADER_BYTES and (wanted := read_header(data).size_bytes) > len(data):
            data = os.pread(fd, min(wanted, size - position), position)
        at = 0
        while (end := _batch_end(data, at, size - position)) is not None:
            yield check_batch(data, at, end, fresh=False), data[at : at + _UNSUMMED_BYTES]
            position, at = position + end - at, end
        if at == 0:
            raise TornBatchError("the file ends within a batch")


def _batch_end(data: bytes, at: int, left: int) -> int | None:
    """Where the batch at `at` ends; None if the data ends before. `left` is what the file has from there."""
    if len(data) - at < HEADER_BYTES:
        return None
    header = read_header(data, at)
    if header.magic != MAGIC or header.size_bytes < HEADER_BYTES:
        raise CorruptDataError(f"no batch begins here: magic {header.magic}, {header.size_bytes} bytes")
    if header.size_bytes > left:
        raise TornBatchError(f"a batch announces {header.size_bytes} bytes where {left} are left")
    end = at + header.size_bytes
    return end if end <= len(data) else None


def _check_order(header: BatchHeader, next_offset: int, offset_end: int) -> None:
    if header.base_offset < next_offset:
        raise CorruptDataError(f"offset {header.base_offset} follows {next_offset - 1}")
    if not header.base_offset <= header.last_offset < offset_end:
        raise CorruptDataError(
            f"a batch of offsets {header.base_offset} to {header.last_offset} cannot be here"
        )


def offset_entries(data: bytes) -> dict[int, int]:
    """Position to relative offset; CorruptDataError unless both grow."""
    if len(data) % OFFSET_ENTRY_BYTES:
        raise CorruptDataError(f"{len(data)} bytes are no whole number of entries")
    entries = list(OFFSET_ENTRY.iter_unpack(data))
    _check_growth(entries)
    return {position: offset for offset, position in entries}


def time_entries(data: bytes) -> dict[int, int]:
    """Relative offset to timestamp; CorruptDataError unless both grow."""
    if len(data) % TIME_ENTRY_BYTES:
        raise CorruptDataError(f"{len(data)} bytes are no whole number of entries")
    entries = list(TIME_ENTRY.iter_unpack(data))
    _check_growth(entries)
    return {offset: timestamp for timestamp, offset in entries}


def _check_growth(entries: list[tuple[int, int]]) -> None:
    if entries and min(entries[0]) < 0:
        raise CorruptDataError("an entry is negative")
    for (first, second), (next_first, next_second) in pairwise(entries):
        if not (first < next_first and second < next_second):
            raise CorruptDataError("entries do not grow")
