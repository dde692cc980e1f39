"""How the tests are shared out among the processes of pytest-xdist: by file, those that wait first.

The tests of one file stay together, as they share what the file starts; so do all that use the one Spark session, which
takes minutes to get through and therefore begins at once. Next come real processes and clients, which mostly wait: with
more workers than cores others compute meanwhile. What only computes comes last, where many small files keep all workers
busy to the end.
"""

from pathlib import Path, PurePath

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

ORDER = ("pipeline", "chaos", "clients", "gateway", "objects", "wire", "simulation", "unit")
"""Folders of tests."""
OWN_SPARKS = frozenset(
    {"test_demo.py", "test_exactly_once.py", "test_examples.py", "test_jobs_java.py", "test_two_workers.py"}
)
"""Files of the pipeline whose tests start Sparks of their own, and do not use the session."""
THE_SESSION = "the Spark session"


def unit_of_work(path: PurePath) -> str:
    """What the tests of one file are given to a worker with: alone, or with all others of the session."""
    uses_session = path.parent.name == "pipeline" and path.name not in OWN_SPARKS
    return THE_SESSION if uses_session else str(path)


def place_in_order(path: PurePath) -> tuple[int, bool]:
    """Smaller is earlier."""
    folder = next((part for part in path.parts if part in ORDER), ORDER[-1])
    return ORDER.index(folder), unit_of_work(path) != THE_SESSION


class InOrder(LoadFileScheduling):
    def __init__(self, config: pytest.Config, log: Producer | None = None) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = (
            False  # Else files with many tests come first, and the slow ones last.
        )

    def _split_scope(self, nodeid: str) -> str:
        return unit_of_work(Path(super()._split_scope(nodeid)))
