"""Parsing of what has arrived, in slices, so that all connections of the HTTP port share the loop with everybody else.

Whatever the parser calls back for (a header, a chunk, a frame) may be a few bytes long. It counts as a row of `Turns`,
which all connections share. While a turn of the loop has rows left, a connection parses at once. Else it keeps its
bytes and reads no more, and a task goes on when its turn comes: first come, first served, a portion at a time.
"""

import asyncio
from abc import ABC, abstractmethod

from anabranch.broker.requests.turns import PORTION, Turns


class SlicedParser(ABC):
    """What a protocol inherits to parse in slices. It calls `stop_parsing` when its connection is lost."""

    transport: asyncio.Transport
    parsing_turns: Turns
    _parsing: asyncio.Task[None] | None = None

    @abstractmethod
    def has_slice(self) -> bool:
        """Whether there is anything that may be parsed now."""

    @abstractmethod
    def parse_slice(self) -> int:
        """Parse the next slice. Return how many rows that was."""

    @abstractmethod
    def after_parsing(self) -> None:
        """Called when slices were parsed, or have to wait."""

    @abstractmethod
    def hold_reading(self) -> None:
        """Read nothing more until `let_reading_go`."""

    @abstractmethod
    def let_reading_go(self) -> None:
        """Read again, unless there are other reasons not to."""

    @property
    def is_parsing_later(self) -> bool:
        return self._parsing is not None

    def parse_slices(self) -> None:
        """Parse what has arrived: as much as this turn has room for, and the rest in later turns."""
        while self._parsing is None and self.has_slice():
            if self.parsing_turns.has_room:
                self.parsing_turns.spend(self.parse_slice())
            else:
                self._parsing = asyncio.get_running_loop().create_task(self._parse_later())
        if self._parsing is not None:
            self.hold_reading()
        self.after_parsing()

    def stop_parsing(self) -> None:
        if self._parsing is not None:
            self._parsing.cancel()

    async def _parse_later(self) -> None:
        try:
            while self.has_slice():
                await self.parsing_turns.wait(PORTION)
                rows = 0
                while rows < PORTION and self.has_slice():
                    rows += self.parse_slice()
                self.after_parsing()
        except Exception:
            self.transport.abort()  # As asyncio does when data_received() fails.
            raise
        finally:
            self._parsing = None
        self.let_reading_go()
