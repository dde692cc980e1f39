"""A coordinator over a log that waits, fails and is read back as a test wants."""

import asyncio
import itertools
from typing import Any

from anabranch.broker.coordination.groups.coordinator import GroupCoordinator
from anabranch.coordination.groups.messages import JoinAnswer, LogRecord, SyncRequest
from anabranch.coordination.groups.settings import GroupSettings
from anabranch.testing.fakes.clock import FakeClock
from anabranch.values import Generation
from support.group_bench import WALL_MS, join_request


class FakeLog:
    """Appends wait for `open`; what is durable can be replayed into another coordinator."""

    def __init__(self) -> None:
        self.records: list[LogRecord] = []
        self.appends = 0
        self.error: Exception | None = None
        self._gate = asyncio.Event()
        self._gate.set()

    def hold(self) -> None:
        self._gate.clear()

    def open(self) -> None:
        self._gate.set()

    async def append(self, group_id: str, records: list[LogRecord]) -> None:
        assert records
        self.appends += 1
        error = self.error
        await self._gate.wait()
        if error is not None:
            raise error
        self.records += records


class Node:
    def __init__(self, log: FakeLog | None = None, first_id: int = 1, **settings: Any) -> None:
        self.log = log or FakeLog()
        self.clock = FakeClock(WALL_MS)
        ids = itertools.count(first_id)
        self.groups = GroupCoordinator(
            self.log.append, self.clock, GroupSettings(**settings), lambda: f"id{next(ids)}"
        )
        shard = self.groups.take_over(0, Generation(0))
        for record in self.log.records:
            self.groups.replay(shard, *record)
        self.groups.loaded(shard)

    def advance(self, milliseconds: int) -> None:
        self.clock.advance(milliseconds)
        self.groups.tick(self.clock.monotonic_ms())

    async def member(self, **changes: Any) -> JoinAnswer:
        """One member, joined and synced, in a group of its own."""
        joining = asyncio.create_task(self.groups.join(join_request(**changes)))
        await turn()
        self.advance(100)
        answer = await joining
        await self.groups.sync(SyncRequest("g", answer.member_id, answer.generation))
        return answer


async def turn() -> None:
    """Let everything that can run, run."""
    for _ in range(10):
        await asyncio.sleep(0)
