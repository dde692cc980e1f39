"""The poller lingers only while that costs nobody anything. Its clock is replaced: a step of time is a look at it."""

import asyncio
import socket

import pytest

from anabranch.server import poller as module
from anabranch.server.poller import LINGER_NS, READ, SOON_NS, STAY_NS, Poller
from anabranch.testing.fakes.clock import FakeClock
from support.broker_bench import in_loop
from unit.server.connection_bench import FakeCore


class Steps:
    """Time that passes when somebody looks."""

    def __init__(self, step_ns: int) -> None:
        self.step_ns = step_ns
        self.now_ns = 10 * SOON_NS

    def __call__(self) -> int:
        self.now_ns += self.step_ns
        return self.now_ns


class Talker:
    """A socket that always has something to say: nobody ever reads it."""

    def __init__(self, poller: Poller) -> None:
        self.served = 0
        self._ours, self._theirs = socket.socketpair()
        self._theirs.send(b"x")
        self._poller = poller
        poller.watch(self._ours.fileno(), READ, self)

    def ready(self, events: int) -> None:
        self.served += 1

    def fall_silent(self) -> None:
        self._ours.recv(1)

    def close(self, reason: str) -> None:
        self._ours.close()
        self._theirs.close()


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    steps = Steps(1000)
    monkeypatch.setattr(module, "perf_counter_ns", steps)
    monkeypatch.setattr(module.os, "sched_getaffinity", lambda _: {0, 1})
    return steps


def poller_with_talker(core: FakeCore) -> tuple[Poller, Talker]:
    poller = Poller(core, FakeClock())
    return poller, Talker(poller)


@in_loop
async def test_first_turn_after_a_pause_does_not_linger(steps: Steps) -> None:
    poller, talker = poller_with_talker(FakeCore())
    poller._turn()
    assert talker.served == 1
    steps.now_ns += SOON_NS
    poller._turn()
    assert talker.served == 2
    talker.close("")


@in_loop
async def test_turn_close_upon_another_serves_more_but_not_for_ever(steps: Steps) -> None:
    poller, talker = poller_with_talker(FakeCore())
    poller._turn()
    began_ns = steps.now_ns
    poller._turn()
    assert talker.served > 10
    assert STAY_NS <= steps.now_ns - began_ns <= STAY_NS + 10 * steps.step_ns
    talker.close("")


@in_loop
async def test_silence_ends_it_soon(steps: Steps) -> None:
    poller, talker = poller_with_talker(FakeCore())
    poller._turn()
    talker.fall_silent()
    began_ns = steps.now_ns
    poller._turn()
    assert talker.served == 1
    assert LINGER_NS <= steps.now_ns - began_ns <= LINGER_NS + 10 * steps.step_ns
    talker.close("")


@in_loop
async def test_nobody_lingers_while_the_loop_is_awaited(steps: Steps) -> None:
    core = FakeCore()
    poller, talker = poller_with_talker(core)
    poller._turn()
    core.is_loop_awaited = True
    poller._turn()
    assert talker.served == 2
    talker.close("")


@in_loop
async def test_nobody_lingers_on_the_only_core(steps: Steps, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.os, "sched_getaffinity", lambda _: {0})
    poller, talker = poller_with_talker(FakeCore())
    poller._turn()
    poller._turn()
    assert talker.served == 2
    talker.close("")


@in_loop
async def test_work_of_the_loop_has_its_turn_beside_a_socket_that_never_stops(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module.os, "sched_getaffinity", lambda _: {0, 1})
    poller, talker = poller_with_talker(FakeCore())
    poller.start()
    await asyncio.wait_for(asyncio.sleep(0.01), 10)
    assert talker.served
    poller.close()
    talker.close("")
