"""Supervisor: all brokers of a local cluster, from the first start to the last stop.

A broker that ends by itself is told to whoever asked and left alone; the others go on. When the supervisor's own
process ends, however it does, its brokers are told to stop by the system.
"""

import signal
import threading
import time
from collections.abc import Callable, Sequence

from anabranch.errors import LocalClusterError
from anabranch.local_cluster.broker_process import BrokerProcess, wait_until_ready
from anabranch.local_cluster.layout import Layout

START_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 20.0
"""A node gives its own stop up long before that."""
LOOK_SECONDS = 0.2


class Supervisor:
    def __init__(self, layout: Layout, arguments: Sequence[str] = ()) -> None:
        self.layout = layout
        self.processes = [BrokerProcess(layout, place, arguments) for place in layout.places]
        self._ended: set[int] = set()

    def start(self, stopping: threading.Event) -> None:
        """Start all, and wait until all answer or `stopping` is set. If one cannot start, none stays."""
        deadline = time.monotonic() + START_SECONDS_MAX
        try:
            for process in self.processes:
                process.start()
            wait_until_ready(self.processes, deadline - time.monotonic(), stopping)
        except OSError as error:
            self.stop()
            raise LocalClusterError(
                f"A broker could not be started ({error.strerror or error}): check memory and limits."
            ) from error
        except BaseException:
            self.stop()
            raise

    def facts(self) -> dict[str, object]:
        """The one line of `--format json`."""
        return {
            "bootstrap": self.layout.bootstrap,
            "brokers": [
                {
                    "id": process.broker_id,
                    "kafka": process.place.kafka,
                    "peer": process.place.peer,
                    "http": process.place.http,
                    "pid": process.pid,
                    "data_dir": str(process.place.folder.absolute()),
                }
                for process in self.processes
            ],
        }

    def watch(self, stopping: threading.Event, on_end: Callable[[BrokerProcess], None]) -> None:
        """Until `stopping` is set or no broker is left; each that ends is told once."""
        while not stopping.wait(LOOK_SECONDS):
            for process in self.processes:
                if process.exit_code is not None and process.broker_id not in self._ended:
                    self._ended.add(process.broker_id)
                    on_end(process)
            if len(self._ended) == len(self.processes):
                return

    @property
    def ended(self) -> list[int]:
        """Brokers that ended although nobody asked them to."""
        return sorted(self._ended)

    def stop(self) -> list[int]:
        """Stop all at once; the brokers that did not stop cleanly."""
        running = [process for process in self.processes if process.is_alive]
        for process in running:
            process.ask_to_stop()
        deadline = time.monotonic() + STOP_SECONDS_MAX
        codes = {
            process.broker_id: process.finish(max(0.0, deadline - time.monotonic())) for process in running
        }
        for process in self.processes:
            process.finish(0.0)  # Lets go of what those leave behind that had ended before.
        return sorted(broker_id for broker_id, code in codes.items() if code != 0)

    def kill(self) -> None:
        for process in self.processes:
            process.signal(signal.SIGKILL)
