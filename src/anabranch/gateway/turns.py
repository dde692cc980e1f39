"""Turns: how much heavy work is done between two looks of the loop at everybody's sockets.

    await turns.mine()      # then a step of some milliseconds, without waiting in it
    ...

asyncio runs all that is ready before it looks at the sockets again: a hundred clients whose bodies have come are a
hundred steps in a row, however short each of them is. Whoever has such a step takes a turn for it; `count` are given in
one round of the loop, in order of arrival, and whoever else is connected is served in between.
"""

import asyncio
from collections import deque


class Turns:
    def __init__(self, count: int = 1) -> None:
        self._count = count
        self._given = 0
        """Turns of this round of the loop."""
        self._coming = 0
        """Turns of the next one that are promised already."""
        self._is_counting = False
        self._line: deque[asyncio.Future[None]] = deque()

    async def mine(self) -> None:
        """Wait for a turn. It ends with the round of the loop in which it was given."""
        loop = asyncio.get_running_loop()
        if not self._is_counting:
            self._is_counting = True
            loop.call_soon(self._next_round)
        if self._given < self._count and not self._line:
            self._given += 1
            return
        turn: asyncio.Future[None] = loop.create_future()
        self._line.append(turn)
        await turn

    def _next_round(self) -> None:
        """Runs before those who were promised a turn in this round: it is called for before they are."""
        self._given, self._coming = self._coming, 0
        self._is_counting = bool(self._given or self._line)
        if self._is_counting:
            asyncio.get_running_loop().call_soon(self._next_round)
        while self._line and self._coming < self._count:
            turn = self._line.popleft()
            if not turn.done():
                turn.set_result(None)
                self._coming += 1
