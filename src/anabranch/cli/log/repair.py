"""What `anabranch log repair` would do to one partition, and doing it.

The work itself is the storage engine's recovery, run over the whole log as if nothing about it were known:
there is one way to make a log whole, and it is the one that the crash tests test. The plan foretells it.
"""

import mmap
from typing import NamedTuple

from anabranch.cli.log.check import Kind, Report
from anabranch.cli.log.offline import segment_bases
from anabranch.errors import CorruptDataError
from anabranch.log import names
from anabranch.log.disk.real_files import RealFiles
from anabranch.log.log import Log
from anabranch.log.segment.seal import Region, load_seal
from anabranch.log.segment.soundness import survey
from anabranch.log.settings import LogConfig
from anabranch.record.batch import HEADER_BYTES, MAGIC, read_header
from anabranch.record.index_format import RELATIVE_OFFSET_MAX


class Step(NamedTuple):
    partition: str
    step: str
    file: str
    damaged_records: int
    """How many cannot be read any more; where not even a header can be, at least so many."""
    intact_records: int
    """How many can be read, and go too because they lie behind the damage."""
    why: str


def plan(files: RealFiles, folder: str, report: Report) -> list[Step]:
    """What recovery will do about these findings: it ends the log at the first bad place."""
    steps: list[Step] = []
    first_bad = next((finding for finding in report.findings if finding.kind is Kind.DATA), None)
    last_base = None
    if first_bad is not None:
        last_base = int(first_bad.file[:20])
        bases = segment_bases(files, folder)
        later = [base for base in bases if base > last_base]
        position = first_bad.position
        size = files.size(f"{folder}/{first_bad.file}")
        step = "end the log after it" if position is None else f"cut {size - position} bytes at {position}"
        lost = _removed(f"{folder}/{first_bad.file}", size if position is None else position, later[:1])
        steps.append(Step(report.partition, f"{step}, keep a copy", first_bad.file, *lost, first_bad.problem))
        reason = f"it follows {first_bad.file}"
        for number, base in enumerate(later):
            name = f"{base:020d}{names.LOG}"
            lost = _removed(f"{folder}/{name}", 0, later[number + 1 : number + 2])
            steps.append(Step(report.partition, "move to quarantine/", name, *lost, reason))
    for finding in report.findings:
        if finding.kind is Kind.INDEX and (last_base is None or int(finding.file[:20]) <= last_base):
            steps.append(Step(report.partition, "make anew", finding.file, 0, 0, finding.problem))
        elif finding.kind is Kind.HEADS:
            step = "leave, reads of the batch are refused"
            steps.append(Step(report.partition, step, finding.file, 0, 0, finding.problem))
    return steps


def _removed(path: str, position: int, following: list[int]) -> tuple[int, int]:
    """How many records from this position of a segment on are damaged, and how many are intact."""
    with open(path, "rb") as file:
        size = file.seek(0, 2)
        if position >= size:
            return 0, 0
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as whole, memoryview(whole) as data:
            return _counted(data, position, int(path[-24:-4]), following)


def _counted(data: memoryview, position: int, base: int, following: list[int]) -> tuple[int, int]:
    end = following[0] if following else base + RELATIVE_OFFSET_MAX + 1
    with data[:position] as before, data[position:] as rest:
        good = survey(before, Region(0, position, None))
        at, reached, damaged = good[-1].last_offset + 1 if good else base, position, 0
        sound = survey(rest, Region(position, len(data), None), range(at, end))
        intact = sum(read_header(data, batch.position).record_count for batch in sound)
        for batch in sound:
            if (
                batch.position != reached
            ):  # Where bytes are whole, offsets that are missing were compacted away.
                damaged += max(1, batch.base_offset - at)
            at, reached = batch.last_offset + 1, batch.end
        if reached < len(data):
            damaged += max(1, end - at) if following else _claimed(data, reached)
        return damaged, intact


def _claimed(data: memoryview, position: int) -> int:
    """How many records a damaged batch at the end says it has, if that can be believed."""
    if len(data) - position < HEADER_BYTES:
        return 1
    header = read_header(data, position)
    is_likely = header.magic == MAGIC and 0 < header.record_count == header.last_offset_delta + 1
    return header.record_count if is_likely and header.record_count <= len(data) - position else 1


def repair_partition(files: RealFiles, folder: str, *, gaps_allowed: bool) -> None:
    """Recovers and closes the partition. A crash in between leaves a folder that can be repaired again."""
    for base in segment_bases(files, folder):
        _drop_unreadable_seal(files, f"{folder}/{base:020d}{names.SEAL}")
    log = Log.open(files, folder, LogConfig(compacted=gaps_allowed), clean=False, keeps_cuts=True)
    log.close(clean=True)


def _drop_unreadable_seal(files: RealFiles, path: str) -> None:
    """A seal that cannot be read promises nothing; without it the batches' own checksums decide."""
    try:
        load_seal(files.read(path))
    except FileNotFoundError:
        return
    except CorruptDataError:
        files.unlink(path)
