"""Where the measurements take place: both brokers, and who of them may run.

The two long-lived brokers keep their warmth from row to row. While one is measured the other is paused, because an
idle JVM still costs CPU, and there are only so many cores. Rows that need a broker of their own (a start, an empty
memory, another flush) get one with both others paused.
"""

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.brokers import Broker, Kafka, Ours

OURS = Ours.name
THEIRS = Kafka.name


class Field:
    def __init__(self, folder: Path, warm_up: Callable[[Broker], None]) -> None:
        self.folder = folder
        self._warm_up = warm_up
        self._brokers: dict[str, Broker] = {}
        shutil.rmtree(folder, ignore_errors=True)  # What a killed run left behind.

    def broker(self, side: str) -> Broker:
        """The long-lived broker of this side, running, and alone."""
        self._pause_all(but=side)
        if side not in self._brokers:
            folder = self.folder / f"{side}-long-lived"
            broker = Ours(folder) if side == OURS else Kafka(folder, is_pausable=True)
            self._brokers[side] = broker  # Known before it runs: an interrupted start is cleaned up too.
            broker.prepare()
            broker.start()
            self._warm_up(broker)
        self._brokers[side].resume()
        return self._brokers[side]

    @contextmanager
    def fresh(self, side: str, flush: str = "os", words: Sequence[str] = ()) -> Iterator[Broker]:
        """A broker of its own on an empty folder, prepared but not started; gone after the block. The words are more
        of our command line."""
        self._pause_all()
        folder = self.folder / f"{side}-fresh"
        broker = Ours(folder, flush, words) if side == OURS else Kafka(folder)
        try:
            broker.prepare()
            yield broker
        finally:
            broker.remove()

    def rest(self) -> None:
        """Nobody runs: for rows that bring processes of their own."""
        self._pause_all()

    def close(self) -> None:
        for broker in self._brokers.values():
            broker.remove()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _pause_all(self, but: str = "") -> None:
        for side, broker in self._brokers.items():
            if side != but:
                broker.pause()
