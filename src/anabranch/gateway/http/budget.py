"""Budget: bytes that may be held at once. Who finds none left waits in order of arrival; what is larger than the whole
passes alone."""

import asyncio
import contextlib
from collections import deque


class Budget:
    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes_taken = 0
        self._line: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def waiting_count(self) -> int:
        return len(self._line)

    def take_at_once(self, count: int) -> bool:
        """Whether there was room; those in line come first."""
        if self._line or not self._fits(count):
            return False
        self.bytes_taken += count
        return True

    async def take(self, count: int) -> None:
        if self.take_at_once(count):
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = count, turn
        self._line.append(entry)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give(count)  # It was granted in the very moment in which nobody wanted it any more.
            else:
                with contextlib.suppress(
                    ValueError
                ):  # Whoever gave something back may have passed it over already.
                    self._line.remove(entry)
                self._grant()
            raise

    def give(self, count: int) -> None:
        self.bytes_taken -= count
        assert self.bytes_taken >= 0, "more bytes given back than were taken"
        self._grant()

    def _grant(self) -> None:
        while self._line and self._fits(self._line[0][0]):
            count, turn = self._line.popleft()
            if not turn.done():
                self.bytes_taken += count
                turn.set_result(None)

    def _fits(self, count: int) -> bool:
        return not self.bytes_taken or self.bytes_taken + count <= self.bytes_max
