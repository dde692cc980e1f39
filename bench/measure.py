"""What a process has used, from /proc, and what a handful of rounds come to."""

import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
PARENT, USER_TIME, SYSTEM_TIME, CHILDREN_SYSTEM_TIME = (
    1,
    11,
    12,
    14,
)  # Among the fields that follow the name in /proc/PID/stat.


def cpu_seconds(pid: int) -> float:
    """User and system time of all threads of a process, those that have ended too."""
    fields = _stat_fields(pid)
    return (int(fields[USER_TIME]) + int(fields[SYSTEM_TIME])) / TICKS_PER_SECOND


def system_seconds(pid: int) -> float:
    """The part of it that was spent in the kernel."""
    return int(_stat_fields(pid)[SYSTEM_TIME]) / TICKS_PER_SECOND


def tree_cpu_seconds(pid: int) -> float:
    """The same for a process with all its descendants, those that have ended and were waited for included."""
    parents: dict[int, list[int]] = {}
    spent: dict[int, float] = {}
    for path in Path("/proc").iterdir():
        if not path.name.isdigit():
            continue
        try:
            fields = _stat_fields(int(path.name))
        except (FileNotFoundError, ProcessLookupError):
            continue  # It ended while we looked.
        parents.setdefault(int(fields[PARENT]), []).append(int(path.name))
        spent[int(path.name)] = sum(map(int, fields[USER_TIME : CHILDREN_SYSTEM_TIME + 1])) / TICKS_PER_SECOND
    total, left = 0.0, [pid]
    while left:
        each = left.pop()
        total += spent.get(each, 0.0)
        left += parents.get(each, [])
    return total


def _stat_fields(pid: int) -> list[str]:
    stat = Path(f"/proc/{pid}/stat").read_text()
    return stat[stat.rindex(")") + 1 :].split()  # The name of the program may hold blanks and brackets.


def resident_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("the system does not say how much memory a process has")


@dataclass(frozen=True)
class Spread:
    """What the rounds of one figure come to."""

    median: float
    low: float
    high: float
    rounds: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        return cls(statistics.median(values), min(values), max(values), len(values))
