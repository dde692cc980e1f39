"""The two processes of the demo: a node, and the Spark job.

Each leads a process group of its own. A Ctrl-C therefore reaches only the demo, which ends them in the right order:
Spark first, then the node, which would otherwise vanish under a running query. What they say on stderr goes into a file
in the demo's folder, and its last words into the error when one of them fails. If the demo is killed they exit with it:
both are told its process id.
"""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from anabranch.errors import PipelineError

HOST = "127.0.0.1"
PORT = 9092
START_SECONDS_MAX = 30.0
STOP_SECONDS_MAX = 10.0
LAST_WORDS = 1500


class Child:
    """A process that answers in JSON lines; leaving the `with` ends it, whatever happened."""

    def __init__(self, name: str, command: list[str], log: Path) -> None:
        self.name = name
        self._log = log
        with log.open("w") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True,
                start_new_session=True,
            )  # fmt: skip
        assert self._process.stdout is not None
        self._output = self._process.stdout

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def first_answer(self, seconds_max: float) -> dict[str, Any]:
        readable, _, _ = select.select([self._output], [], [], seconds_max)
        line = self._output.readline() if readable else ""
        if not line:
            self.stop()
            raise self.failure()
        answer: dict[str, Any] = json.loads(line)
        return answer

    def answers(self) -> Iterator[dict[str, Any]]:
        """Everything it says, until it ends. PipelineError if it ends badly."""
        for line in self._output:
            if line.startswith("{"):
                yield json.loads(line)
        if self._process.wait() != 0:
            raise self.failure()

    def wait(self) -> int:
        return self._process.wait()

    def stop(self) -> None:
        """SIGTERM to its whole group, and SIGKILL to what is still there after a while."""
        if self._output.closed:
            return
        if not self._has_ended(0):
            self._signal(signal.SIGTERM)
        if not self._has_ended(STOP_SECONDS_MAX):
            self._signal(signal.SIGKILL)
            self._process.wait()
        self._output.close()

    def _has_ended(self, seconds_max: float) -> bool:
        """It, and with it all it has started: a JVM outlives its Python for a while and holds the output open."""
        deadline = time.monotonic() + seconds_max
        while select.select([self._output], [], [], max(0, deadline - time.monotonic()))[0]:
            if not os.read(self._output.fileno(), 2**16):
                self._process.wait()
                return True
        return False

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):  # It may have ended just now.
            os.killpg(self._process.pid, number)

    def failure(self) -> PipelineError:
        words = self._log.read_text(errors="replace").strip()[-LAST_WORDS:]
        return PipelineError(f"{self.name} ended early; the last lines of {self._log}:\n{words}")


def start_node(folder: Path, port: int) -> tuple[Child, str]:
    """A node on this port, or on a free one if that is taken; and its address."""
    program = Path(sys.executable).with_name("anabranch")
    listen = f"{HOST}:{port if is_free(port) else 0}"
    command = [str(program), "up", "--listen", listen, "--data-dir", str(folder / "data"), "--format", "json"]
    command += ["--exit-with-parent", str(os.getpid())]
    node = Child("The node", command, folder / "node.log")
    try:
        return node, str(node.first_answer(START_SECONDS_MAX)["bootstrap"])
    except BaseException:
        node.stop()
        raise


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def start_spark(folder: Path, bootstrap: str) -> Child:
    command = [sys.executable, "-m", "examples.demo.tables", bootstrap, str(folder), str(os.getpid())]
    return Child("The Spark job", command, folder / "spark.log")
