"""Plan `anabranch log repair` for one partition, and carry it out.

The work itself is the storage engine's recovery, run over the whole log as if nothing were known about it: there is
only one way to repair a log, and the crash tests cover it. The plan is what the same recovery does to a trial of
the folder, on which nothing happens (`log/disk/trial_files.py`), and what a check finds there afterwards.
"""

from collections.abc import Iterator
from typing import NamedTuple

from anabranch.cli.log.check import Finding, Kind, Report, check_partition, intact_records
from anabranch.cli.log.offline import is_segment, segment_bases
from anabranch.errors import CorruptDataError
from anabranch.log import names
from anabranch.log.disk.files import Files
from anabranch.log.disk.trial_files import TrialFiles
from anabranch.log.log import Log
from anabranch.log.quarantine import Quarantined
from anabranch.log.segment.seal import load_seal
from anabranch.log.settings import LogConfig


class Step(NamedTuple):
    partition: str
    step: str
    file: str
    damaged_records: int
    """How many cannot be read any more; see `damage.Stretch.records`."""
    intact_records: int
    """How many can be read, and leave the log too because they follow the damage."""
    why: str


class Plan(NamedTuple):
    steps: list[Step]
    left: Report
    """What a check finds afterwards."""


def plan(files: Files, folder: str, report: Report) -> Plan:
    """What a repair does about the findings of this report, and what it leaves."""
    if not report.segments:  # A node goes on behind what was safe; of that nothing is known here.
        return Plan([_left(report.partition, finding) for finding in report.findings], report)
    with TrialFiles(files) as trial:
        log = repair_partition(trial, folder, gaps_allowed=report.gaps_allowed)
        left = check_partition(trial, folder, gaps_allowed=report.gaps_allowed)
    last = f"{log.segments[-1].base_offset:020d}{names.LOG}"
    steps = [
        *_set_aside(files, folder, report, left, log.quarantined, last),
        *_rebuilt(report, left, last),
        *(_left(left.partition, finding) for finding in left.findings),
    ]
    return Plan(steps, left)


def _set_aside(
    files: Files, folder: str, report: Report, left: Report, quarantined: list[Quarantined], last: str
) -> Iterator[Step]:
    """What leaves the log. `last` is the segment with which it ends from then on."""
    moved = sorted(
        (entry for entry in quarantined if entry.origin[0].endswith(names.LOG)), key=lambda entry: entry.name
    )
    found = next((each for each in report.findings if each.file == last and each.kind is Kind.DATA), None)
    is_short = found is not None and found.position is None and found not in left.findings
    is_ended = is_short or any(entry.origin[0] > last for entry in moved)
    if is_ended and all(entry.origin[0] != last for entry in moved):
        why = found.problem if found is not None else moved[0].reason
        yield Step(report.partition, "end the log after it", last, 0, 0, why)
    for entry in moved:
        name, position = entry.origin
        step, why = "move to quarantine/", f"it follows {last}"
        if position is not None:
            step, why = f"cut {entry.size_bytes} bytes at {position}, keep a copy", entry.reason
        elif not is_segment(name):
            yield Step(report.partition, step, name, 0, 0, entry.reason)
            continue
        start = position or 0
        damaged = sum(
            finding.damaged_records
            for finding in report.findings
            if finding.file == name and (finding.position or 0) >= start
        )
        intact = intact_records(files, folder, report, name, start)
        yield Step(report.partition, step, name, damaged, intact, why)


def _rebuilt(report: Report, left: Report, last: str) -> Iterator[Step]:
    remaining = {finding.file for finding in left.findings}
    for finding in report.findings:
        is_kept = finding.file[:20] <= last[:20] and finding.file not in remaining
        if finding.kind is Kind.INDEX and is_kept:
            yield Step(report.partition, "rebuild", finding.file, 0, 0, finding.problem)


def _left(partition: str, finding: Finding) -> Step:
    step = "leave, reads of the batch are refused"
    if finding.position is None:
        step = "leave, the gap stays"
    return Step(partition, step, finding.file, 0, 0, finding.problem)


def repair_partition(files: Files, folder: str, *, gaps_allowed: bool) -> Log:
    """Recover and close the partition. A crash meanwhile leaves a folder that can be repaired again."""
    for base in segment_bases(files, folder):
        _drop_unreadable_seal(files, f"{folder}/{base:020d}{names.SEAL}")
    log = Log.open(files, folder, LogConfig(compacted=gaps_allowed), clean=False, keeps_cuts=True)
    log.close(clean=True)
    return log


def _drop_unreadable_seal(files: Files, path: str) -> None:
    """A seal that cannot be read promises nothing; without it the batches' own checksums decide."""
    try:
        load_seal(files.read(path))
    except OSError:
        return  # There is none, or what has its name is no file, which stays.
    except CorruptDataError:
        files.unlink(path)
