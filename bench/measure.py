"""What a process has used, from /proc, and what a handful of rounds come to."""

import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
CLOSING_BRACKET_TO_USER_TIME = 12


def cpu_seconds(pid: int) -> float:
    """User and system time of all threads of a process, those that have ended too."""
    stat = Path(f"/proc/{pid}/stat").read_text()
    # The name of the program may hold blanks and brackets: what counts comes after the last bracket.
    fields = stat[stat.rindex(")") + 1 :].split()
    user_ticks, system_ticks = fields[CLOSING_BRACKET_TO_USER_TIME - 1 : CLOSING_BRACKET_TO_USER_TIME + 1]
    return (int(user_ticks) + int(system_ticks)) / TICKS_PER_SECOND


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
