"""Acknowledgements of a group: what is committed, in which order, and what is left to a client that is gone."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any
from uuid import UUID

import pytest

from anabranch.errors import BrokerRefusedError, InvalidRequestError
from anabranch.gateway.websocket.fields import Start
from anabranch.gateway.websocket.group_subscription import GroupSubscription
from anabranch.gateway.websocket.subscription import Subscription
from anabranch.wire.error_codes import ErrorCode
from support.fan_out_world import STREAM, FakeClient, FanOutWorld, on_virtual_loop, turns


class FakeMember:
    """A member of a group of one partition."""

    def __init__(self) -> None:
        self.commits: list[dict[int, int]] = []
        self.may_commit = asyncio.Event()
        self.may_commit.set()
        self.refusals: list[BrokerRefusedError] = []
        self.joins = 0
        self.has_left = False
        self.is_settled = True

    async def join(self) -> list[int]:
        self.joins += 1
        self.is_settled = True
        return [0]

    async def committed(self, partitions: Iterable[int]) -> dict[int, int]:
        return {0: 0}

    async def commit(self, offsets: Mapping[int, int]) -> None:
        await self.may_commit.wait()
        if self.refusals:
            raise self.refusals.pop(0)
        self.commits.append(dict(offsets))

    async def beat(self) -> bool:
        return self.is_settled

    async def leave(self) -> None:
        self.has_left = True


class FakeCalls:
    async def list_offsets_of(
        self, topic: str, partitions: Iterable[int], timestamp: int
    ) -> dict[int, tuple[int, int]]:
        return dict.fromkeys(partitions, (0, -1))


class World(FanOutWorld):
    def __init__(self) -> None:
        super().__init__()
        self.client = FakeClient()
        self.member = FakeMember()
        self.subscription = Subscription("s", self.fan_out, self.client.outlet, None, 1000)
        member: Any = self.member
        calls: Any = FakeCalls()
        topic: Any = type("View", (), {"name": "t", "topic_id": UUID(int=1)})
        self.group = GroupSubscription(
            calls, member, self.subscription, self.client.outlet, topic, Start("earliest")
        )

    async def begin(self, records: int) -> None:
        self.source.write(STREAM, *(b"x" for _ in range(records)))
        self.tasks = [asyncio.ensure_future(self.group.run()), asyncio.ensure_future(self.subscription.run())]
        await turns()

    async def end(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    def heard(self, kind: str) -> list[dict[str, Any]]:
        return [message for message in self.client.heard if message["type"] == kind]


def played(scene: Callable[[World], Awaitable[None]]) -> None:
    world = World()

    async def play() -> None:
        await scene(world)
        await world.end()
        await world.fan_out.close()

    on_virtual_loop(world.clock, play())


def test_acknowledgements_that_come_meanwhile_are_committed_together() -> None:
    async def scene(world: World) -> None:
        await world.begin(10)
        world.member.may_commit.clear()
        for offset in (0, 1, 2, 3):
            world.group.ack(0, offset)
            await turns()
        world.member.may_commit.set()
        await turns()
        assert world.member.commits == [{0: 1}, {0: 4}]
        assert [each["committed"] for each in world.heard("acked")] == [{"0": "1"}, {"0": "4"}]

    played(scene)


def test_a_commit_never_goes_back() -> None:
    async def scene(world: World) -> None:
        await world.begin(10)
        world.member.may_commit.clear()
        world.group.ack(0, 5)
        await turns()
        world.group.ack(0, 3)
        world.member.may_commit.set()
        await turns()
        world.group.ack(0, 1)
        await turns()
        assert world.member.commits == [{0: 6}]

    played(scene)


def test_what_was_not_sent_or_is_anothers_cannot_be_acknowledged() -> None:
    async def scene(world: World) -> None:
        await world.begin(2)
        for partition, offset in ((0, 2), (1, 0)):
            with pytest.raises(InvalidRequestError):
                world.group.ack(partition, offset)

    played(scene)


def test_one_that_goes_has_acknowledged_what_it_has_acknowledged() -> None:
    async def scene(world: World) -> None:
        await world.begin(10)
        world.member.may_commit.clear()
        world.group.ack(0, 2)
        await turns()
        world.group.ack(0, 4)
        world.tasks[0].cancel()
        await turns()
        world.member.may_commit.set()
        await turns()
        assert (world.member.commits, world.member.has_left) == ([{0: 5}], True)

    played(scene)


def test_a_refused_commit_is_told_and_may_be_made_again() -> None:
    async def scene(world: World) -> None:
        await world.begin(10)
        world.member.refusals = [BrokerRefusedError("shared out anew", ErrorCode.REBALANCE_IN_PROGRESS)]
        world.group.ack(0, 2)
        await turns()
        assert world.heard("error")[0]["code"] == "REBALANCE_IN_PROGRESS"
        world.group.ack(0, 2)
        await turns()
        assert world.member.commits == [{0: 3}]

    played(scene)


def test_when_the_group_gathers_anew_acknowledgements_count_and_the_rest_comes_again() -> None:
    async def scene(world: World) -> None:
        await world.begin(3)
        world.member.may_commit.clear()
        world.group.ack(0, 1)
        await turns()
        world.member.is_settled = False
        await asyncio.sleep(5)
        assert (world.member.joins, world.heard("revoked")) == (1, [])
        world.member.may_commit.set()
        await asyncio.sleep(5)
        assert (world.member.joins, world.member.commits) == (2, [{0: 2}])
        assert [each["type"] for each in world.client.heard] == [
            "assigned",
            "records",
            "acked",
            "revoked",
            "assigned",
            "records",
        ]

    played(scene)


def test_a_client_that_stalls_keeps_no_member_from_leaving() -> None:
    async def scene(world: World) -> None:
        await world.begin(10)
        world.client.stall()
        world.group.ack(0, 2)
        await turns()
        world.tasks[0].cancel()
        await turns()
        assert world.member.has_left
        assert world.member.commits[-1] == {0: 3}

    played(scene)
