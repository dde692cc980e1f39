"""One anabranch node as a real process, started, stopped and killed the way the world does it.

`start()` returns once the node has printed its JSON line, so the port answers; `stop()` sends SIGTERM and
insists on a clean exit; `kill()` is kill -9. A node that starts again keeps its folder and its port. What it says
on stderr is kept in a file and quoted when something is wrong.
"""

import json
import select
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

START_S_MAX = 20.0
STOP_S_MAX = 10.0

# Real clients need several partitions by default and short sessions, so that a lost member is noticed soon.
SETTINGS = {"num.partitions": "4", "group.min.session.timeout.ms": "1000"}


class NodeProcess:
    """A node with its own data folder; usable as a context manager."""

    def __init__(
        self,
        folder: Path,
        settings: Mapping[str, str] = SETTINGS,
        *,
        data_folder: Path | None = None,
        log_level: str = "error",
        listen: str = "127.0.0.1:0",
    ) -> None:
        self.data_folder = data_folder if data_folder is not None else folder / "data"
        self.log_path = folder / "node.log"
        self._settings = settings
        self._log_level = log_level
        self._process: subprocess.Popen[str] | None = None
        self._listen = listen
        self.ready: dict[str, Any] = {}

    @property
    def bootstrap(self) -> str:
        return str(self.ready["bootstrap"])

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> Self:
        with self.log_path.open("a") as log:
            self._process = subprocess.Popen(self._command(), stdout=subprocess.PIPE, stderr=log, text=True)
        self.ready = json.loads(self._first_line())
        self._listen = self.bootstrap
        return self

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with process:
            process.send_signal(signal.SIGTERM)
            try:
                exit_code = process.wait(STOP_S_MAX)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        assert exit_code == 0, f"the node exited with {exit_code}: {self.last_words()}"

    def kill(self) -> None:
        process, self._process = self._process, None
        assert process is not None
        with process:
            process.kill()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _command(self) -> list[str]:
        program = Path(sys.executable).with_name("anabranch")
        command = [str(program), "up", "--listen", self._listen, "--data-dir", str(self.data_folder)]
        command += ["--format", "json", "--log-level", self._log_level]
        for name, value in self._settings.items():
            command += ["--set", f"{name}={value}"]
        return command

    def _first_line(self) -> str:
        process = self._process
        assert process is not None
        assert process.stdout is not None
        readable, _, _ = select.select([process.stdout], [], [], START_S_MAX)
        line = process.stdout.readline() if readable else ""
        if not line:
            process.kill()
            process.wait()
            raise RuntimeError(f"the node did not come up within {START_S_MAX:.0f} s: {self.last_words()}")
        return line

    def last_words(self) -> str:
        return self.log_path.read_text(errors="replace")[-2000:]
