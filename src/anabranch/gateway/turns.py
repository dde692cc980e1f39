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
        """In this round of the loop."""
        self._line: deque[asyncio.Future[None]] = deque()

    async def mine(self) -> None:
        """Wait for a turn. It ends with the round of the loop in which it was given."""
        loop = asyncio.get_running_loop()
        if self._given < self._count:
            if not self._given:
                loop.call_soon(self._next_round)
            self._given += 1
            return
        turn: asyncio.Future[None] = loop.create_future()
        self._line.append(turn)
        await turn

    def _next_round(self) -> None:
        self._given = 0
        while self._line and self._given < self._count:
            turn = self._line.popleft()
            if not turn.done():
                turn.set_result(None)
                self._given += 1
        if self._given:
            asyncio.get_running_loop().call_soon(self._next_round)
