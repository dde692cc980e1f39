"""ClientProcess: a program as `client_program.py` describes it, as its test sees it."""

import json
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self


class ClientProcess:
    """Usable as a context manager: whatever happens, the process does not outlive it."""

    def __init__(self, command: Sequence[str], log: Path) -> None:
        self._log = log
        self.acked = self.read = 0
        """How many, as far as it has said."""
        self._last: dict[str, Any] | None = None
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
                self._last = said
            else:
                self.acked, self.read = said["acked"], said["read"]

    def is_beyond(self, acked: int, read: int) -> bool:
        """Whether so many records are acknowledged, and so many read."""
        assert self._process.poll() is None, self._log.read_text()[-2000:]
        return self.acked >= acked and self.read >= read

    def ask_to_end(self) -> None:
        """It sends no more, reads what there is, and ends."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def last_words(self, seconds_max: float) -> dict[str, Any]:
        """What it says when it has ended, which it must have been asked to."""
        code = self._process.wait(seconds_max)
        self._listener.join()
        assert code == 0, self._log.read_text()[-2000:]
        assert self._last is not None
        return self._last

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._listener.join()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
