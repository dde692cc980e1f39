"""Takes turns: ours, Kafka, ours, Kafka, row by row, and keeps every round as soon as it is measured."""

import subprocess
import sys
import time
from collections.abc import Sequence

from bench.field import Field
from bench.figures import FIGURES
from bench.loads import Turn
from bench.rows import Row
from bench.state import State
from clients.registries import Unavailable
from support.raw_client import ClosedByBroker

FAILURES = (RuntimeError, OSError, AssertionError, subprocess.TimeoutExpired, ClosedByBroker)


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


class Runner:
    def __init__(self, field: Field, state: State, sides: Sequence[str], rounds: int, seconds: float) -> None:
        self._field = field
        self._state = state
        self._sides = sides
        self._rounds = rounds
        self._seconds = seconds
        self._warm: set[tuple[str, str]] = set()
        self.failures: dict[str, str] = {}
        self.skipped: dict[str, str] = {}

    def run(self, rows: Sequence[Row]) -> None:
        for row in rows:
            say(f"{row.id}: {row.title}")
            self._tell_of_earlier(row)
            for number in range(self._rounds):
                if row.id not in self.failures and row.id not in self.skipped:
                    self._round(row, number)

    def _tell_of_earlier(self, row: Row) -> None:
        earlier = [len(self._state.of(row.id, side)) for side in row.sides if side in self._sides]
        if any(earlier):
            taken = min(max(earlier), self._rounds)
            say(f"  {taken} of {self._rounds} rounds are of an earlier run; FRESH=1 measures them anew")

    def _round(self, row: Row, number: int) -> None:
        for side in row.sides:
            if side not in self._sides or len(self._state.of(row.id, side)) > number:
                continue
            try:
                self._turn(row, side, number)
            except Unavailable as reason:
                self.skipped[row.id] = str(reason)
                say(f"  skipped: {reason}")
                return
            except FAILURES as error:
                # One load that cannot be run must not cost the figures of all the others; it is told at the end.
                self.failures[row.id] = f"{side}: {error}"
                say(f"  {side} failed: {error}")
                return

    def _turn(self, row: Row, side: str, number: int) -> None:
        started = time.monotonic()
        is_first = (row.id, side) not in self._warm
        self._warm.add((row.id, side))
        figures = row.load.run(Turn(self._field, side, is_first, self._seconds))
        self._state.add(row.id, side, figures)
        shown = ", ".join(
            f"{FIGURES[name].title} {figures[name]:,.4g} {FIGURES[name].unit}" for name in row.figures[:2]
        )
        say(f"  round {number + 1} {side:9} {shown}  [{time.monotonic() - started:.1f} s]")
