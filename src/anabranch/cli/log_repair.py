"""What `anabranch log repair` would do to one partition, and doing it.

The work itself is the storage engine's recovery, run over the whole log as if nothing about it were known:
there is one way to make a log whole, and it is the one that the crash tests test. The plan foretells it.
"""

from typing import NamedTuple

from anabranch.cli.log_check import Finding, Kind, Report
from anabranch.cli.offline import segment_bases
from anabranch.errors import CorruptDataError
from anabranch.log import names
from anabranch.log.log import Log
from anabranch.log.real_files import RealFiles
from anabranch.log.seal import load_seal
from anabranch.log.settings import LogConfig


class Step(NamedTuple):
    partition: str
    step: str
    file: str
    why: str


def plan(files: RealFiles, folder: str, report: Report) -> list[Step]:
    """What recovery will do about these findings: it ends the log at the first bad place."""
    steps: list[Step] = []
    first_bad = next((finding for finding in report.findings if finding.kind is Kind.DATA), None)
    last_base = None
    if first_bad is not None:
        last_base = int(first_bad.file[:20])
        steps.append(
            Step(report.partition, _cut(files, folder, first_bad), first_bad.file, first_bad.problem)
        )
        later = [base for base in segment_bases(files, folder) if base > last_base]
        reason = f"it follows {first_bad.file}"
        steps += [
            Step(report.partition, "move to quarantine/", f"{base:020d}{names.LOG}", reason) for base in later
        ]
    for finding in report.findings:
        if finding.kind is Kind.INDEX and (last_base is None or int(finding.file[:20]) <= last_base):
            steps.append(Step(report.partition, "make anew", finding.file, finding.problem))
        elif finding.kind is Kind.HEADS:
            steps.append(Step(report.partition, "leave, reads are refused", finding.file, finding.problem))
    return steps


def _cut(files: RealFiles, folder: str, finding: Finding) -> str:
    if finding.position is None:
        return "end the log after it"
    size = files.size(f"{folder}/{finding.file}")
    return f"cut {size - finding.position} bytes at {finding.position}"


def repair_partition(files: RealFiles, folder: str, *, gaps_allowed: bool) -> None:
    """Recovers and closes the partition. A crash in between leaves a folder that can be repaired again."""
    for base in segment_bases(files, folder):
        _drop_unreadable_seal(files, f"{folder}/{base:020d}{names.SEAL}")
    log = Log.open(files, folder, LogConfig(compacted=gaps_allowed), clean=False)
    log.close(clean=True)


def _drop_unreadable_seal(files: RealFiles, path: str) -> None:
    """A seal that cannot be read promises nothing; without it the batches' own checksums decide."""
    try:
        load_seal(files.read(path))
    except FileNotFoundError:
        return
    except CorruptDataError:
        files.unlink(path)
