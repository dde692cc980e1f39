"""Loads: each is a small frozen description that knows how to run one round of itself on one side.

A round returns its figures by the names of `bench.figures.FIGURES`. It leaves no topic behind. A round with errors
is no round: it raises.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from bench.brokers import Broker
from bench.field import Field
from bench.measure import cpu_seconds

Figures = dict[str, float]


@dataclass(frozen=True)
class Turn:
    """One side's turn at a load."""

    field: Field
    side: str
    is_first: bool  # The first one in this process warms up for longer.
    seconds: float

    def broker(self) -> Broker:
        return self.field.broker(self.side)

    @property
    def warm_up_seconds(self) -> float:
        return 4.0 if self.is_first else 0.5


class Load(Protocol):
    def run(self, turn: Turn) -> Figures: ...


class Cpu:
    """CPU seconds a broker used while a block ran."""

    seconds = 0.0


@contextmanager
def cpu_of(broker: Broker) -> Iterator[Cpu]:
    cpu = Cpu()
    before = cpu_seconds(broker.pid)
    yield cpu
    cpu.seconds = cpu_seconds(broker.pid) - before
