"""One broker of a local cluster as a process: started, awaited, signalled.

It is in a process group of its own, so that a Ctrl-C at the terminal reaches only whoever started it, and it exits with
that process. It prints one JSON line when its port answers; everything else it says goes to its log file.
"""

import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from typing import IO

from anabranch.errors import LocalClusterError
from anabranch.local_cluster.layout import Layout, Place, private

LAST_WORDS_BYTES_MAX = 4000
LOOK_SECONDS = 0.2


class BrokerProcess:
    def __init__(
        self, layout: Layout, place: Place, arguments: Sequence[str] = (), prefix: Sequence[str] = ()
    ) -> None:
        """`prefix`: a program that becomes the broker, such as one that enters another network."""
        self.place = place
        self._prefix = list(prefix)
        self._layout = layout
        self._arguments = list(arguments)
        self._process: subprocess.Popen[bytes] | None = None
        self._log_start = 0
        self._said = b""
        self.ready: dict[str, object] | None = None

    @property
    def broker_id(self) -> int:
        return self.place.broker_id

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start it and return at once; `wait_until_ready` waits for the port."""
        assert self.exit_code is not None or self._process is None, "it runs already"
        self._close()
        self.ready, self._said = None, b""
        with open(self.place.log, "ab", opener=private) as log:
            self._log_start = log.tell()
            self._process = subprocess.Popen(
                self._command(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                process_group=0,
            )
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)

    def _command(self) -> list[str]:
        place, layout = self.place, self._layout
        command = [sys.executable, "-m", "anabranch", "up", "--config", str(layout.config_file)]
        command += ["--broker-id", str(place.broker_id), "--data-dir", str(place.folder)]
        command += ["--cluster-secret-file", str(layout.secret_file)]
        for join in layout.joins_of(place):
            command += ["--join", join]
        command += ["--format", "json", "--exit-with-parent", str(os.getpid())]
        return [*self._prefix, *command, *self._arguments]

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative: the signal that ended it."""
        return None if self._process is None else self._process.poll()

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    # --- what it says ------------------------------------------------------------------------------------------

    @property
    def stdout(self) -> IO[bytes]:
        assert self._process is not None
        assert self._process.stdout is not None
        return self._process.stdout

    def read_ready(self) -> bool:
        """Take what it has printed. True once its line is there, or once there will be none."""
        chunk = self.stdout.read()
        if chunk is None:
            return False
        self._said += chunk
        if b"\n" in self._said:
            self.ready = json.loads(self._said.split(b"\n", 1)[0])
            return True
        return not chunk

    def last_words(self) -> str:
        """The end of what it has logged since its last start."""
        try:
            with self.place.log.open("rb") as log:
                size = log.seek(0, os.SEEK_END)
                log.seek(max(self._log_start, size - LAST_WORDS_BYTES_MAX))
                return log.read().decode(errors="replace").strip()
        except OSError as error:
            return f"{self.place.log} cannot be read ({error.strerror})"

    def last_sentence(self) -> str:
        """The last line it logged, without the JSON around it."""
        line = self.last_words().rpartition("\n")[2]
        try:
            said = json.loads(line)
        except ValueError:
            return line
        if not isinstance(said, dict):
            return line
        return str(said.get("error") or said.get("message") or line)

    # --- how it ends -------------------------------------------------------------------------------------------

    def signal(self, number: int) -> None:
        """Send it, unless it has ended already."""
        if self._process is not None:  # Popen looks whether it has.
            self._process.send_signal(number)

    def wait(self, seconds_max: float) -> int | None:
        """Its exit code; None if it still runs after that time."""
        if self._process is None:
            return None
        try:
            return self._process.wait(seconds_max)
        except subprocess.TimeoutExpired:
            return None

    def kill(self) -> None:
        """kill -9, and wait until it is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._close()

    def stop(self, seconds_max: float) -> int | None:
        """Ask it to stop; kill -9 if that takes too long. Its exit code, None if it had to be killed."""
        self.ask_to_stop()
        return self.finish(seconds_max)

    def ask_to_stop(self) -> None:
        self.signal(signal.SIGTERM)
        self.signal(signal.SIGCONT)  # A paused process acts on the first only when it goes on.

    def finish(self, seconds_max: float) -> int | None:
        """Wait for a broker that was asked to stop: a second SIGTERM would end it at once."""
        code = self.wait(seconds_max)
        if code is None:
            self.kill()
        self._close()
        return code

    def _close(self) -> None:
        if self._process is not None and self._process.stdout is not None:
            self._process.stdout.close()


def wait_until_ready(
    processes: Iterable[BrokerProcess], seconds_max: float, stopping: threading.Event | None = None
) -> None:
    """Until each has said that its port answers, or `stopping` is set. Raises LocalClusterError for the first that
    cannot."""
    deadline = time.monotonic() + seconds_max
    with selectors.DefaultSelector() as selector:
        for process in processes:
            selector.register(process.stdout, selectors.EVENT_READ, process)
        while selector.get_map() and not (stopping is not None and stopping.is_set()):
            ready = selector.select(LOOK_SECONDS)
            if not ready and time.monotonic() > deadline:
                waiting = [key.data.broker_id for key in selector.get_map().values()]
                raise LocalClusterError(_too_slow(waiting, seconds_max))
            for key, _ in ready:
                if not key.data.read_ready():
                    continue
                selector.unregister(key.fileobj)
                if key.data.ready is None:
                    raise LocalClusterError(_did_not_start(key.data))


def _too_slow(broker_ids: list[int], seconds_max: float) -> str:
    who = ", ".join(map(str, sorted(broker_ids)))
    return f"After {seconds_max:.0f} s broker {who} did not answer yet: its log says why."


def _did_not_start(process: BrokerProcess) -> str:
    process.wait(5)
    said = process.last_sentence().removeprefix("Error: ").strip()
    return f"Broker {process.broker_id} did not start: {said or f'it said nothing; see {process.place.log}.'}"
