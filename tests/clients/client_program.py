"""What programs around a client share: they tell how far they are, and end when their stdin does.

Twice a second stdout gets `{"acked": n, "read": n}`. When stdin ends the program sends no more, reads what there is,
and prints `{"acked": [...], "read": [...], "errors": [...]}`. `client_process.py` is the other end of it, and
java/ClientProgram.java the same for Java.
"""

import json
import sys
import threading
from collections.abc import Callable
from typing import Any

PAUSE_S = 0.01
"""Between two records."""
TELL_S = 0.5


class Notes:
    """What became of the records. Any thread may write."""

    def __init__(self) -> None:
        self.acked: list[Any] = []
        self.read: list[Any] = []
        self.errors: list[str] = []
        self.is_ending = threading.Event()
        threading.Thread(target=self._wait_for_end, daemon=True).start()
        threading.Thread(target=self._tell, daemon=True).start()

    def _wait_for_end(self) -> None:
        sys.stdin.read()
        self.is_ending.set()

    def _tell(self) -> None:
        while not self.is_ending.wait(TELL_S):
            say({"acked": len(self.acked), "read": len(self.read)})

    def failed(self, where: str, error: object) -> None:
        self.errors.append(f"{where}: {error!r}")

    def finish(self, **more: object) -> None:
        say({"acked": self.acked, "read": self.read, "errors": self.errors, **more})


def say(message: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def produce_and_consume(
    notes: Notes,
    produce: Callable[[], None],
    consume: Callable[[Callable[[], bool]], None],
    is_all_read: Callable[[], bool],
) -> None:
    """The producer on a thread of its own; `consume` is told when to end: `is_all_read` is asked after the producer."""
    producing = threading.Thread(target=produce)
    producing.start()
    consume(lambda: notes.is_ending.is_set() and not producing.is_alive() and is_all_read())
    producing.join()
