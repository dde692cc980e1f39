"""How the tests are shared out among the processes of pytest-xdist: by file, those that wait first.

The tests of one file stay together, as they share what the file starts; so do all that use the one Spark session, which
takes minutes to get through and therefore begins at once. Next come real processes and clients, which mostly wait: with
more workers than cores others compute meanwhile. What only computes comes last, where many small files keep all workers
busy to the end.
"""

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


def unit_of_work(file: str) -> str:
    """What a worker gets the tests of a file in, named as in their ids: alone, or with the others of the session."""
    name = file.rpartition("/")[2]
    return THE_SESSION if _folder(file) == "pipeline" and name not in OWN_SPARKS else file


def place_in_order(file: str) -> tuple[int, bool]:
    """Smaller is earlier."""
    folder = _folder(file)
    place = ORDER.index(folder) if folder in ORDER else len(ORDER)
    return place, unit_of_work(file) != THE_SESSION


def _folder(file: str) -> str:
    """Of tests/unit/log/test_index.py unit."""
    return file.split("/")[1]


class InOrder(LoadFileScheduling):
    def __init__(self, config: pytest.Config, log: Producer | None = None) -> None:
        super().__init__(config, log)
        # Else files with many tests come first, and the slow ones last.
        config.option.loadscopereorder = False

    def _split_scope(self, nodeid: str) -> str:
        return unit_of_work(super()._split_scope(nodeid))
