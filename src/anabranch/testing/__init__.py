"""What we test with, shipped to users: a disk and a clock that fail on purpose, a broker inside the test process,
a cluster of processes, and a simulator.

The top room: it may know every other one, and none knows it. Nothing here is imported until it is used, so that the
pytest plugin costs a test run that never asks for it nothing: the names below are looked up on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from anabranch.testing.cluster_processes import ClusterProcesses
    from anabranch.testing.embedded import EmbeddedBroker
    from anabranch.testing.fakes.clock import FakeClock
    from anabranch.testing.fakes.disk import FakeDisk
    from anabranch.testing.simulation.simulator import Simulator

__all__ = ["ClusterProcesses", "EmbeddedBroker", "FakeClock", "FakeDisk", "Simulator"]

_HOMES = {
    "ClusterProcesses": "anabranch.testing.cluster_processes",
    "EmbeddedBroker": "anabranch.testing.embedded",
    "FakeClock": "anabranch.testing.fakes.clock",
    "FakeDisk": "anabranch.testing.fakes.disk",
    "Simulator": "anabranch.testing.simulation.simulator",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"anabranch.testing has no {name}")
    return getattr(import_module(home), name)
