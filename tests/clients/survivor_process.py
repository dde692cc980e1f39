"""SurvivorProcess: one of the programs described in `survivors.py`, as its test sees it."""

import json
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Self

from support.waiting import wait_until

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


class SurvivorProcess:
    """Usable as a context manager: whatever happens, the process does not outlive it."""

    def __init__(self, command: Sequence[str], log: Path) -> None:
        self._log = log
        self.acked = self.read = 0
        self._outcome: Outcome | None = None
        with log.open("w") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
            )
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            said = json.loads(line)
            if "errors" in said:
                self._outcome = Outcome(said["acked"], said["read"], said["errors"])
            else:
                self.acked, self.read = said["acked"], said["read"]

    def is_beyond(self, acked: int, read: int) -> bool:
        """Whether so many records are acknowledged, and so many read."""
        assert self._process.poll() is None, self._log.read_text()[-2000:]
        return self.acked >= acked and self.read >= read

    def finish(self) -> Outcome:
        """It sends no more, reads what was acknowledged, and ends."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        code = self._process.wait(FINISH_S_MAX)
        self._listener.join()
        assert code == 0, self._log.read_text()[-2000:]
        assert self._outcome is not None
        return self._outcome

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._listener.join()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()


def wait_until_all_go_on(clients: Mapping[str, SurvivorProcess]) -> None:
    """Until each has more records acknowledged, and read, than it can have had under way just now."""
    marks = {
        name: (client.acked + GO_ON_RECORDS, client.read + GO_ON_RECORDS) for name, client in clients.items()
    }
    for name, client in clients.items():
        wait_until(lambda: client.is_beyond(*marks[name]), f"{name} to go on", GO_ON_S_MAX)  # noqa: B023 - called at once
