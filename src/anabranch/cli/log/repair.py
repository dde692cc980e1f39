"""Plan `anabranch log repair` for one partition, and carry it out.

The work itself is the storage engine's recovery, run over the whole log as if nothing were known about it: there is
only one way to make a log whole, and the crash tests cover it. The plan predicts what recovery will do.
"""

from typing import NamedTuple

from anabranch.cli.log.check import Finding, Kind, Report
from anabranch.cli.log.offline import segment_bases
from anabranch.errors import CorruptDataError
from anabranch.log import names
from anabranch.log.disk.real_files import RealFiles
from anabranch.log.log import Log
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


def plan(files: RealFiles, folder: str, report: Report) -> list[Step]:
    """What recovery will do about these findings: it ends the log at the first bad place."""
    steps: list[Step] = []
    first_bad = next((finding for finding in report.findings if finding.kind is Kind.DATA), None)
    if first_bad is not None:
        position = first_bad.position
        size = files.size(f"{folder}/{first_bad.file}")
        step = "end the log after it" if position is None else f"cut {size - position} bytes at {position}"
        cut, *later = report.cuts
        lost = cut.damaged_records, cut.intact_records
        steps.append(Step(report.partition, f"{step}, keep a copy", cut.file, *lost, first_bad.problem))
        for cut in later:
            lost = cut.damaged_records, cut.intact_records
            why = f"it follows {first_bad.file}"
            steps.append(Step(report.partition, "move to quarantine/", cut.file, *lost, why))
    for finding in report.findings:
        if first_bad is not None and _is_cut(finding, first_bad):
            continue
        if finding.kind is Kind.INDEX:
            steps.append(Step(report.partition, "rebuild", finding.file, 0, 0, finding.problem))
        elif finding.kind is Kind.HEADS:
            step = "leave, reads of the batch are refused"
            steps.append(Step(report.partition, step, finding.file, 0, 0, finding.problem))
    return steps


def _is_cut(finding: Finding, first_bad: Finding) -> bool:
    """Whether the finding concerns what follows the place where the log is cut."""
    base, cut_base = int(finding.file[:20]), int(first_bad.file[:20])
    if base != cut_base or finding.kind is Kind.INDEX or finding.position is None:
        return base > cut_base
    return first_bad.position is not None and finding.position >= first_bad.position


def repair_partition(files: RealFiles, folder: str, *, gaps_allowed: bool) -> None:
    """Recover and close the partition. A crash meanwhile leaves a folder that can be repaired again."""
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
