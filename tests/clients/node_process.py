"""One anabranch node as a real process, started and stopped the way a user would.

`start()` returns once the node has printed its JSON line, so the port answers; `stop()` sends SIGTERM and
insists on a clean exit. What the node says on stderr is kept in a file and quoted when it does not come up.
"""

from __future__ import annotations

import json
import select
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

START_S_MAX = 20.0
STOP_S_MAX = 10.0

# Real clients need several partitions by default and short sessions, so that a lost member is noticed soon.
SETTINGS = {"num.partitions": "4", "group.min.session.timeout.ms": "1000"}


class NodeProcess:
    """A node with its own data folder; usable as a context manager."""

    def __init__(self, folder: Path, settings: Mapping[str, str] = SETTINGS) -> None:
        self.data_folder = folder / "data"
        self.log_path = folder / "node.log"
        self._settings = settings
        self._process: subprocess.Popen[str] | None = None
        self.bootstrap = ""

    def start(self) -> NodeProcess:
        with self.log_path.open("w") as log:
            self._process = subprocess.Popen(self._command(), stdout=subprocess.PIPE, stderr=log, text=True)
        self.bootstrap = json.loads(self._first_line())["bootstrap"]
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
        assert exit_code == 0, f"the node exited with {exit_code}: {self._last_words()}"

    def __enter__(self) -> NodeProcess:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _command(self) -> list[str]:
        program = Path(sys.executable).with_name("anabranch")
        command = [str(program), "up", "--listen", "127.0.0.1:0", "--data-dir", str(self.data_folder)]
        command += ["--format", "json"]
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
            raise RuntimeError(f"the node did not come up within {START_S_MAX:.0f} s: {self._last_words()}")
        return line

    def _last_words(self) -> str:
        return self.log_path.read_text(errors="replace")[-2000:]
