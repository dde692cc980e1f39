"""A subscription: every record in order, no more than granted, and little memory for who does not read."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from anabranch.errors import BrokerRefusedError
from anabranch.gateway.read.header_filter import HeaderFilter, header_filter
from anabranch.gateway.websocket.subscription import PROGRESS_MS, Subscription
from anabranch.wire.error_codes import ErrorCode
from support.fan_out_world import OTHER, STREAM, FakeClient, FanOutWorld, on_virtual_loop, turns


class World(FanOutWorld):
    """A fan-out and those who follow it."""

    def __init__(self) -> None:
        super().__init__()
        self._tasks: list[asyncio.Task[None]] = []

    def subscribe(
        self, client: FakeClient, credit: int = 10**6, wanted: HeaderFilter | None = None, position: int = 0
    ) -> Subscription:
        subscription = Subscription("s", self.fan_out, client.outlet, wanted, credit)
        subscription.follow(STREAM, position)
        self._tasks.append(asyncio.ensure_future(subscription.run()))
        return subscription

    async def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.fan_out.close()


def played(scene: Callable[[World], Awaitable[None]]) -> None:
    world = World()

    async def play() -> None:
        await scene(world)
        await world.end()

    on_virtual_loop(world.clock, play())


def test_records_come_in_order_from_the_position_on() -> None:
    async def scene(world: World) -> None:
        world.source.write(STREAM, b"0", b"1", b"2")
        client = FakeClient()
        world.subscribe(client, position=1)
        await turns()
        world.source.write(STREAM, b"3")
        await turns()
        assert client.offsets() == [1, 2, 3]

    played(scene)


def test_no_more_is_sent_than_was_granted() -> None:
    async def scene(world: World) -> None:
        world.source.write(STREAM, *(b"x" for _ in range(10)))
        client = FakeClient()
        subscription = world.subscribe(client, credit=3)
        await turns()
        assert client.offsets() == [0, 1, 2]
        subscription.grant(2)
        await turns()
        assert (client.offsets(), subscription.credit) == ([0, 1, 2, 3, 4], 0)
        subscription.grant(100)
        await turns()
        assert client.offsets() == list(range(10))

    played(scene)


def test_without_credit_nothing_is_even_read() -> None:
    async def scene(world: World) -> None:
        world.source.write(STREAM, b"0")
        subscription = world.subscribe(FakeClient(), credit=0)
        await turns()
        assert world.source.loaded == []
        subscription.grant(1)
        await turns()
        assert world.source.loaded == [(STREAM, 0)]

    played(scene)


def test_what_the_filter_drops_costs_no_credit() -> None:
    async def scene(world: World) -> None:
        for number in range(6):
            world.source.write(STREAM, b"x", kind=b"ab"[number % 2 : number % 2 + 1])
        client = FakeClient()
        subscription = world.subscribe(
            client, credit=3, wanted=header_filter({"header": "kind", "equals": "b"})
        )
        await turns()
        assert (client.offsets(), subscription.credit) == ([1, 3, 5], 0)

    played(scene)


def test_a_client_that_stalls_costs_bounded_memory_and_harms_nobody() -> None:
    bytes_max = 400_000

    async def scene(world: World) -> None:
        stalled, lively = FakeClient(bytes_max), FakeClient(bytes_max)
        stalled.stall()
        slow, _ = world.subscribe(stalled), world.subscribe(lively)
        for _ in range(300):
            world.source.write(STREAM, b"x" * 10_000)
            await turns(6)
        assert lively.offsets() == list(range(300))
        follow = slow.follows[0]
        assert follow.position * 10_000 <= bytes_max
        assert stalled.outlet.held_bytes <= bytes_max // 4
        assert world.fan_out.bytes_at_hand <= 2**20
        stalled.read_on()
        await turns(300)
        assert stalled.offsets() == list(range(300))

    played(scene)


def test_a_stalled_client_of_many_partitions_holds_no_chunk_of_each() -> None:
    bytes_max = 100_000

    async def scene(world: World) -> None:
        client = FakeClient(bytes_max)
        subscription = world.subscribe(client)
        streams = [STREAM._replace(partition=index) for index in range(1, 50)]
        for stream in streams:
            subscription.follow(stream, 0)
        await turns(100)
        client.stall()
        for stream in [STREAM, *streams]:
            world.source.write(stream, b"x" * 10_000)
        await turns(200)
        assert 0 < client.outlet.held_bytes <= bytes_max // 4
        client.read_on()
        await turns(600)
        assert all(client.offsets(index) == [0] for index in range(50))
        assert client.outlet.held_bytes == 0

    played(scene)


def test_partitions_take_turns() -> None:
    async def scene(world: World) -> None:
        client = FakeClient(bytes_max=40_000)
        for stream in (STREAM, OTHER):
            world.source.write(stream, *(b"x" * 5000 for _ in range(20)))
        subscription = world.subscribe(client, credit=8)
        subscription.follow(OTHER, 0)
        await turns(100)
        assert client.offsets(0) == client.offsets(1) == [0, 1, 2, 3]

    played(scene)


def test_a_partition_that_is_taken_away_sends_nothing_more() -> None:
    async def scene(world: World) -> None:
        client = FakeClient()
        subscription = world.subscribe(client)
        await turns()
        subscription.unfollow(0)
        world.source.write(STREAM, b"0")
        await turns()
        assert (client.heard, world.source.waiting) == ([], 0)
        subscription.follow(STREAM, 0)
        await turns()
        assert client.offsets() == [0]

    played(scene)


def test_closing_lets_go_of_what_is_held() -> None:
    async def scene(world: World) -> None:
        client = FakeClient()
        subscription = world.subscribe(client, credit=1)
        subscription.follow(OTHER, 0)
        await turns()
        world.source.write(STREAM, b"0")
        world.source.write(OTHER, b"0")
        await turns()
        assert client.outlet.held_bytes > 0
        subscription.close()
        assert (client.outlet.held_bytes, dict(subscription.follows)) == (0, {})

    played(scene)


def test_a_subscription_that_cannot_go_on_ends_with_the_reason() -> None:
    async def scene(world: World) -> None:
        world.source.errors = [BrokerRefusedError("gone", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]
        subscription = Subscription("s", world.fan_out, FakeClient().outlet, None, 1)
        subscription.follow(STREAM, 0)
        with pytest.raises(BrokerRefusedError, match="gone"):
            await subscription.run()

    played(scene)


def test_a_client_that_hears_nothing_is_told_now_and_then_how_far_it_is() -> None:
    async def scene(world: World) -> None:
        client = FakeClient()
        world.subscribe(client, wanted=header_filter({"header": "kind", "equals": "b"}))
        for _ in range(100):
            world.source.write(STREAM, b"x")
            await asyncio.sleep(PROGRESS_MS / 10_000)
        told = [int(each["next"]) for each in client.heard]
        assert all(each["records"] == [] for each in client.heard)
        assert 5 <= len(told) <= 12
        assert told == sorted(told)

    played(scene)


def test_a_chunk_larger_than_may_be_held_comes_all_the_same() -> None:
    async def scene(world: World) -> None:
        client = FakeClient(bytes_max=1024)
        world.subscribe(client)
        await turns()
        world.source.write(STREAM, b"x" * 3_000_000)  # More than the fan-out keeps at hand, too.
        await turns()
        assert client.offsets() == [0]

    played(scene)
