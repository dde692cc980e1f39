"""The simulated net: what it keeps while nothing is wrong, and each of its faults."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from random import Random
from typing import Any
from uuid import UUID

import pytest

from anabranch.broker.peers.messages import (
    Answer,
    BrokerBeat,
    PeerMessage,
    Question,
    ReadIndex,
    ReadIndexAnswer,
    RingLetter,
)
from anabranch.errors import NotControllerError, PeerRefusedError, PeerUnreachableError
from anabranch.modes.ring.messages import Push
from anabranch.testing.fakes.clock import FakeClock
from anabranch.testing.fakes.loop import VirtualLoop
from anabranch.testing.fakes.net import FakeNet, FaultPlan
from support.numbered import number_of, numbered


class Handler:
    def __init__(self, net: FakeNet, me: int) -> None:
        self.peers = net.peers(me)
        self.events: list[tuple[str, int]] = []
        self.messages: list[PeerMessage] = []
        self.answer_after_ms = 0
        self.peers.start(self)

    def peer_up(self, broker: int) -> None:
        self.events.append(("up", broker))

    def peer_down(self, broker: int) -> None:
        self.events.append(("down", broker))

    def heard(self, sender: int, message: PeerMessage) -> None:
        self.messages.append(message)

    async def asked(self, sender: int, question: Question) -> Answer:
        await asyncio.sleep(self.answer_after_ms / 1000)
        if isinstance(question, ReadIndex):
            return ReadIndexAnswer(sender)
        raise NotControllerError("ask broker 9")

    @property
    def numbers(self) -> list[int]:
        return [number_of(message) for message in self.messages]


class World:
    def __init__(self, seed: int = 1, brokers: int = 2) -> None:
        self.clock = FakeClock()
        self.loop = VirtualLoop(self.clock, lambda: False)
        self.net = FakeNet(self.loop, self.clock, Random(seed))
        self.brokers = {me: Handler(self.net, me) for me in range(1, brokers + 1)}
        for me in self.brokers:
            self.connect(me)
        self.loop.run_for(200)

    def connect(self, me: int) -> None:
        self.brokers[me].peers.connect({broker: self.net.address(broker) for broker in self.brokers})

    def tell_many(self, numbers: range, sender: int = 1, to: int = 2) -> None:
        for number in numbers:
            self.brokers[sender].peers.tell(to, numbered(number))

    def run(self, coroutine: Coroutine[Any, Any, object]) -> object:
        task = self.loop.create_task(coroutine)
        self.loop.run_for(10_000)
        return task.result()


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.loop.close()


def test_links_come_up_once_on_both_sides(world: World) -> None:
    assert world.brokers[1].events == [("up", 2)]
    assert world.brokers[2].events == [("up", 1)]


def test_messages_keep_their_order_and_none_is_lost(world: World) -> None:
    world.tell_many(range(500))
    world.loop.run_for(100)
    assert world.brokers[2].numbers == list(range(500))


def test_records_lie_in_the_senders_buffer_until_they_arrive(world: World) -> None:
    records = bytearray(b"old")
    world.brokers[1].peers.tell(2, RingLetter(UUID(int=1), 0, 0, Push(1, 1, 0, 1, 1, 0, records)))
    records[:] = b"new"
    world.loop.run_for(10)
    [letter] = world.brokers[2].messages
    assert letter.message.records == b"new"


def test_questions_are_answered_or_refused_with_the_reason(world: World) -> None:
    peers = world.brokers[1].peers
    assert world.run(peers.ask(2, ReadIndex(), 1000)) == ReadIndexAnswer(1)
    with pytest.raises(PeerRefusedError, match="ask broker 9") as caught:
        world.run(peers.ask(2, BrokerBeat(1, 1, 1, False), 1000))
    assert caught.value.kind == "NotControllerError"


def test_without_a_link_questions_fail_at_once_and_messages_are_counted(world: World) -> None:
    world.brokers[1].peers.tell(9, numbered(0))
    assert world.brokers[1].peers.dropped_total == 1
    assert world.brokers[1].peers.room(9) == 0
    with pytest.raises(PeerUnreachableError, match="no link to broker 9"):
        world.run(world.brokers[1].peers.ask(9, ReadIndex(), 1000))


def test_what_finds_no_room_is_dropped_and_counted(world: World) -> None:
    peers, big = world.brokers[1].peers, bytes(20 * 2**20)
    letter = RingLetter(UUID(int=1), 0, 0, Push(1, 1, 0, 1, 1, 0, big))
    peers.tell(2, letter)
    assert 0 < peers.room(2) < len(big)
    peers.tell(2, letter)
    assert peers.dropped_total == 1
    world.loop.run_for(10)
    assert len(world.brokers[2].messages) == 1


# --- faults ------------------------------------------------------------------------------------------------------


def test_a_long_cut_breaks_the_link_loses_what_was_under_way_and_heals(world: World) -> None:
    world.net.cut(1, 2)
    world.tell_many(range(10))
    world.loop.run_for(5000)
    assert world.brokers[1].events == [("up", 2), ("down", 2)]
    assert not world.brokers[1].peers.is_up(2)
    world.net.heal()
    world.loop.run_for(5000)
    assert [handler.events[-1][0] for handler in world.brokers.values()] == ["up", "up"]
    world.tell_many(range(10, 20))
    world.loop.run_for(10)
    assert world.brokers[2].numbers == list(range(10, 20))


def test_a_short_cut_only_delays(world: World) -> None:
    world.net.plan.notice_ms_max = 10**6
    world.net.cut(1, 2)
    world.tell_many(range(10))
    world.loop.run_for(500)
    assert world.brokers[2].numbers == []
    world.net.heal(1, 2)
    world.loop.run_for(10)
    assert world.brokers[2].numbers == list(range(10))
    assert world.brokers[2].events == [("up", 1)]


def test_a_one_way_cut_lets_the_other_way_through(world: World) -> None:
    world.net.plan.notice_ms_max = 10**6
    world.net.cut(1, 2, one_way=True)
    world.tell_many(range(3), 1, 2)
    world.tell_many(range(3), 2, 1)
    world.loop.run_for(500)
    assert world.brokers[2].numbers == []
    assert world.brokers[1].numbers == [0, 1, 2]
    with pytest.raises(PeerUnreachableError, match="did not answer within 100 ms"):
        world.run(world.brokers[1].peers.ask(2, ReadIndex(), 100))


def test_open_questions_fail_when_their_link_breaks(world: World) -> None:
    world.net.pause(2)
    task = world.loop.create_task(world.brokers[1].peers.ask(2, ReadIndex(), 60_000))
    world.loop.run_for(10)
    world.net.crash(2)
    world.loop.run_for(10)
    with pytest.raises(PeerUnreachableError, match="broke"):
        task.result()


def test_an_isolated_broker_is_alone_and_the_others_are_not() -> None:
    world = World(brokers=3)
    world.net.isolate(1)
    world.loop.run_for(5000)
    assert not any(world.brokers[1].peers.is_up(other) for other in (2, 3))
    assert world.brokers[2].peers.is_up(3)
    world.net.heal(1)
    world.loop.run_for(5000)
    assert all(world.brokers[1].peers.is_up(other) for other in (2, 3))
    world.loop.close()


def test_a_paused_broker_gets_everything_afterwards(world: World) -> None:
    world.net.pause(2)
    world.tell_many(range(5))
    world.tell_many(range(5), 2, 1)
    world.loop.run_for(60_000)
    assert world.brokers[2].numbers == world.brokers[1].numbers == []
    world.net.resume(2)
    world.loop.run_for(10)
    assert world.brokers[2].numbers == world.brokers[1].numbers == [0, 1, 2, 3, 4]


def test_a_crashed_broker_is_silent_and_comes_back_as_a_new_one(world: World) -> None:
    old = world.brokers[2]
    world.tell_many(range(5), 2, 1)
    world.net.crash(2)
    world.loop.run_for(1000)
    assert world.brokers[1].events == [("up", 2), ("down", 2)]
    assert world.brokers[1].numbers == []
    world.brokers[2] = Handler(world.net, 2)
    world.connect(2)
    world.loop.run_for(2000)
    world.tell_many(range(3))
    old.peers.tell(1, numbered(99))
    world.loop.run_for(10)
    assert world.brokers[2].numbers == [0, 1, 2]
    assert (old.numbers, world.brokers[1].numbers) == ([], [])


def test_an_answer_does_not_reach_who_asked_something_else_since(world: World) -> None:
    """Number 1 of the first life is not number 1 of the second."""
    world.brokers[2].answer_after_ms = 500
    asked = world.loop.create_task(world.brokers[1].peers.ask(2, BrokerBeat(1, 1, 1, False), 5000))
    world.loop.run_for(100)
    world.net.crash(1)
    world.loop.run_for(50)
    world.brokers[1] = Handler(world.net, 1)
    world.connect(1)
    world.loop.run_for(100)
    assert world.run(world.brokers[1].peers.ask(2, ReadIndex(), 5000)) == ReadIndexAnswer(1)
    asked.cancel()


def test_a_dead_machine_is_noticed_late_and_its_return_at_once(world: World) -> None:
    world.net.plan.notice_ms_max = 10**6
    world.net.crash(2, is_noticed=False)
    world.loop.run_for(100)
    assert world.brokers[1].peers.is_up(2)
    world.brokers[2] = Handler(world.net, 2)
    world.connect(2)
    world.loop.run_for(100)
    assert world.brokers[1].events == [("up", 2), ("down", 2), ("up", 2)]


def test_a_broker_left_out_is_let_go(world: World) -> None:
    for broker in world.brokers.values():
        broker.peers.connect({})
    world.loop.run_for(100)
    assert not world.brokers[1].peers.is_up(2)


def test_a_seed_is_joined_and_kept_until_the_table_says_otherwise(world: World) -> None:
    joiner = world.brokers[3] = Handler(world.net, 3)
    assert world.run(joiner.peers.join(world.net.address(1))).broker_id == 1
    joiner.peers.connect({})
    world.net.crash(1)
    world.brokers[1] = Handler(world.net, 1)
    world.loop.run_for(2000)
    assert joiner.events == [("up", 1), ("down", 1), ("up", 1)]
    with pytest.raises(PeerUnreachableError, match="nobody answers at broker-8:1"):
        world.run(joiner.peers.join(world.net.address(8)))


def test_the_plan_loses_doubles_and_reorders_what_is_told(world: World) -> None:
    def heard_under(plan: FaultPlan) -> list[int]:
        world.net.plan = plan
        world.brokers[2].messages.clear()
        world.tell_many(range(1000))
        world.loop.run_for(2000)
        return world.brokers[2].numbers

    assert 600 < len(heard_under(FaultPlan(lose=0.3))) < 800
    assert 1200 < len(heard_under(FaultPlan(double=0.3))) < 1400
    reordered = heard_under(FaultPlan(reorder=0.3))
    assert reordered != sorted(reordered) == list(range(1000))
    assert heard_under(FaultPlan(slow=0.1)) == list(range(1000))


def test_one_seed_is_one_run() -> None:
    def run(seed: int) -> list[tuple[str, int]]:
        world = World(seed, brokers=3)
        world.net.plan = FaultPlan(lose=0.2, double=0.2, reorder=0.2, slow=0.1)
        script: list[Callable[[], None]] = [
            lambda: world.net.cut(1, 2, one_way=True),
            lambda: world.net.crash(3, is_noticed=False),
            lambda: world.net.heal(),
        ]
        for fault in script:
            fault()
            for sender in (1, 2):
                world.tell_many(range(50), sender, 3 - sender)
            world.loop.run_for(1500)
        world.loop.close()
        return [(f"{me}", number) for me in (1, 2) for number in world.brokers[me].numbers]

    assert run(5) == run(5)
    assert run(5) != run(6)
