"""SurvivorProcess: one of the programs described in `survivors.py`, as its test sees it."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from support.waiting import wait_until

from .client_process import ClientProcess

SURVIVORS = Path(__file__).with_name("survivors.py")
GO_ON_S_MAX = 60.0
GO_ON_RECORDS = 100
"""More than can be under way, or have been acknowledged since the process last spoke."""
FINISH_S_MAX = 150.0


class Outcome(NamedTuple):
    acked: list[int]
    read: list[int]
    errors: list[str]


def python_survivor(client: str) -> list[str]:
    """The command of one of the Python clients, without its arguments."""
    return [sys.executable, str(SURVIVORS), client]


class SurvivorProcess(ClientProcess):
    def finish(self) -> Outcome:
        """It sends no more, reads what was acknowledged, and ends."""
        self.ask_to_end()
        return Outcome(**self.last_words(FINISH_S_MAX))


def wait_until_all_go_on(clients: Mapping[str, SurvivorProcess]) -> None:
    """Until each has more records acknowledged, and read, than it can have had under way just now."""
    marks = {
        name: (client.acked + GO_ON_RECORDS, client.read + GO_ON_RECORDS) for name, client in clients.items()
    }
    for name, client in clients.items():
        wait_until(lambda: client.is_beyond(*marks[name]), f"{name} to go on", GO_ON_S_MAX)  # noqa: B023 - called at once
