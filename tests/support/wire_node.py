"""A node in a process of its own, watched from outside: its memory by /proc, its log for defects, its service.

`check_served` is what an innocent client does while and after others misbehave: it writes one record, waits for
the acknowledgement and reads it back.
"""

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.node_process import NodeProcess
from support.process_memory import ProcessMemory
from support.raw_client import RawClient, batch_of
from support.waiting import wait_until

MIB = 2**20
BYSTANDER_TOPIC = "bystander"


class WireNode(NodeProcess, ProcessMemory):
    """A node that says what it does: it logs from INFO on, to a file that `defects` reads."""

    def _command(self) -> list[str]:
        return [*super()._command(), "--log-level", "info"]

    def start(self) -> "WireNode":
        is_new = not self.data_folder.exists()
        super().start()
        if is_new:
            with RawClient(self.bootstrap) as client:
                client.create_topic(BYSTANDER_TOPIC)
        return self

    def __enter__(self) -> "WireNode":
        return self.start()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    # --- what it holds open ------------------------------------------------------------------------------------

    def descriptor_count(self) -> int:
        return sum(1 for _ in Path(f"/proc/{self.pid}/fd").iterdir())

    def open_sockets(self) -> set[str]:
        """Each by a name that no other socket has while it is open."""
        names = set()
        for descriptor in Path(f"/proc/{self.pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # Closed while we looked.
                names.add(str(descriptor.readlink()))
        return {name for name in names if name.startswith("socket:")}

    # --- its log -----------------------------------------------------------------------------------------------

    def log_size(self) -> int:
        return self.log_path.stat().st_size

    def log_since(self, position: int) -> list[str]:
        with self.log_path.open(errors="replace") as log:
            log.seek(position)
            return log.read().splitlines()

    def defects_since(self, position: int) -> list[str]:
        """Lines that no client may cause: errors, and whatever is not even a log line, such as a traceback."""
        return [line for line in self.log_since(position) if _is_defect(line)]

    # --- its service -------------------------------------------------------------------------------------------

    def check_served(self) -> float:
        """Write a record and read it back; the seconds it took."""
        began = time.monotonic()
        with RawClient(self.bootstrap) as client:
            batch = batch_of(str(began).encode())
            row = client.produce(BYSTANDER_TOPIC, 0, batch)
            assert row["error_code"] == 0, row
            fetched = client.fetch(BYSTANDER_TOPIC, 0, row["base_offset"])
            assert fetched["error_code"] == 0, fetched
            assert bytes(fetched["records"])[61:] == batch[61:]
        return time.monotonic() - began


def _is_defect(line: str) -> bool:
    try:
        entry = json.loads(line)
    except ValueError:
        return True
    return entry["level"] == "error" or "defect" in entry["message"]


class Bystander:
    """An innocent client that is served again and again in a thread of its own."""

    def __init__(self, node: WireNode) -> None:
        self._node = node
        self.seconds: list[float] = []
        self.error: BaseException | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="bystander")

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self.seconds.append(self._node.check_served())
        except BaseException as error:  # noqa: BLE001 - told to the test when it stops this thread.
            self.error = error

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        if self.error is not None:
            raise AssertionError("the bystander was not served") from self.error


@contextmanager
def bystander(node: WireNode) -> Iterator[Bystander]:
    """Somebody else is served all the while; fails if they are not."""
    other = Bystander(node)
    other.start()
    try:
        yield other
        wait_until(lambda: other.seconds or other.error, "the bystander was served once")
    finally:
        other.stop()
