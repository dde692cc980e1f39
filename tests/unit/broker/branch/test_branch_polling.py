"""Whom a broker sees that polls the others for their branches."""

import asyncio
from typing import Any

from anabranch.broker.branch.heads import encode_told
from anabranch.broker.branch.polling import POLL_MS, BranchPolling
from anabranch.broker.peers.messages import BranchRows
from anabranch.testing.fakes.clock import FakeClock
from anabranch.values import BrokerId

OTHER = BrokerId(2)
SILENCE_MS = 1500


class Peers:
    """One other broker, that answers or does not."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        self.answers = True
        self.takes_ms = 0

    def is_up(self, broker: BrokerId) -> bool:
        return self.answers

    async def ask(self, broker: BrokerId, question: object, timeout_ms: int) -> BranchRows:
        self._clock.advance(self.takes_ms)
        return BranchRows("boot", 0, 0, False, False, encode_told([], {}))


class Tube:
    def __init__(self) -> None:
        self.is_done = asyncio.Event()
        self.is_done.set()

    async def add(self, rows: object) -> None:
        await self.is_done.wait()


async def pulse(polling: BranchPolling, clock: FakeClock, after_ms: int) -> None:
    clock.advance(after_ms)
    polling.pulse([OTHER], clock.monotonic_ms())
    for _ in range(5):
        await asyncio.sleep(0)


def polled(tube: Tube | None = None) -> tuple[BranchPolling, FakeClock, Peers]:
    clock = FakeClock()
    peers = Peers(clock)
    unused: Any = tube or Tube()
    polling = BranchPolling(
        peers,  # type: ignore[arg-type]
        unused,
        clock,
        SILENCE_MS,
        own_heads=dict,
        own_state=lambda: (False, False),
        changed=lambda: None,
    )
    return polling, clock, peers


def test_whoever_answers_is_seen_until_it_has_been_silent_for_a_while() -> None:
    async def run() -> None:
        polling, clock, peers = polled()
        await pulse(polling, clock, POLL_MS)
        assert polling.view == {OTHER}
        peers.answers = False
        for _ in range(SILENCE_MS // POLL_MS - 1):
            await pulse(polling, clock, POLL_MS)
            assert polling.view == {OTHER}
        await pulse(polling, clock, POLL_MS)
        assert polling.view == frozenset()

    asyncio.run(run())


def test_a_broker_that_was_held_up_itself_takes_nobody_for_silent() -> None:
    async def run() -> None:
        polling, clock, peers = polled()
        await pulse(polling, clock, POLL_MS)
        peers.answers = False
        await pulse(polling, clock, 10 * SILENCE_MS)
        assert polling.view == {OTHER}
        for _ in range(SILENCE_MS // POLL_MS):
            await pulse(polling, clock, POLL_MS)
        assert polling.view == frozenset()

    asyncio.run(run())


def test_whoever_takes_long_to_answer_may_be_silent_for_longer() -> None:
    async def run() -> None:
        polling, clock, peers = polled()
        peers.takes_ms = 800
        await pulse(polling, clock, POLL_MS)
        peers.answers = False
        for _ in range(4 * 800 // POLL_MS):  # Once more: that long nobody was asked, either.
            await pulse(polling, clock, POLL_MS)
            assert polling.view == {OTHER}
        await pulse(polling, clock, POLL_MS)
        assert polling.view == frozenset()

    asyncio.run(run())


def test_a_disk_that_is_slow_to_keep_rows_makes_nobody_silent() -> None:
    async def run() -> None:
        tube = Tube()
        polling, clock, _ = polled(tube)
        await pulse(polling, clock, POLL_MS)
        tube.is_done.clear()
        for _ in range(3 * SILENCE_MS // POLL_MS):
            await pulse(polling, clock, POLL_MS)
            assert polling.view == {OTHER}
        tube.is_done.set()
        await pulse(polling, clock, POLL_MS)
        assert polling.view == {OTHER}

    asyncio.run(run())
