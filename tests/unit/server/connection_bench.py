"""One connection with a client at its other end, and a listener that collects calls instead of serving them."""

import asyncio
import contextlib
import socket
import struct
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from anabranch.broker.requests.call import Call, HeldBytes
from anabranch.broker.requests.memory_budget import MemoryBudget
from anabranch.server import poller
from anabranch.server.connection import Connection
from anabranch.server.poller import Poller
from anabranch.testing.fakes.clock import FakeClock
from support.broker_bench import in_loop, turn


class FakeQueue:
    is_full = False
    is_write_due = False

    def __bool__(self) -> bool:
        return self.is_write_due


class FakeCore:
    def __init__(self) -> None:
        self.queue = FakeQueue()
        self.is_turn_open = False
        self.is_loop_awaited = False
        self.send_answers: Callable[[], None] = lambda: None
        self.schedule = lambda: asyncio.get_running_loop().call_soon(self.turn)
        self.on_turn: Callable[[], None] = lambda: None
        self.stalled: list[Callable[[], None]] = []

    def turn(self) -> None:
        self.on_turn()
        self.queue.is_write_due = False
        self.send_answers()

    def when_relaxed(self, resume: Callable[[], None]) -> None:
        self.stalled.append(resume)

    def relax(self) -> None:
        self.queue.is_full = False
        stalled, self.stalled = self.stalled, []
        for resume in stalled:
            resume()


class FakeListener:
    """What a connection needs of the listener; collects the calls instead of serving them."""

    def __init__(self, memory: int = 4 * 2**20) -> None:
        self.clock = FakeClock()
        self.memory = MemoryBudget(memory)
        self.frame_bytes_max = self.control_bytes_max = 4 * 2**20
        self.requests_max = 5
        self.response_bytes_max = 100_000
        self.requests_total = 0
        self.take_plain = None
        self.core = FakeCore()
        self.broker = SimpleNamespace(core=self.core, answers_held=HeldBytes())
        self.poller = Poller(self.core, self.clock)
        self.poller.start()
        self.flush_due: list[Connection] = []
        self.core.send_answers = self.flush_all
        self.calls: list[Call] = []
        self.closed: list[str] = []
        self.failure: Exception | None = None

    def dispatch(self, broker: Any, call: Call) -> None:
        if self.failure is not None:
            raise self.failure
        self.calls.append(call)

    def flush_all(self) -> None:
        due, self.flush_due = self.flush_due, []
        for connection in due:
            connection.flush()
        self.poller.go_on()
        if self.flush_due or self.poller.is_behind:
            self.core.schedule()

    def forget(self, connection: Any, reason: str) -> None:
        self.closed.append(reason)


class Peer:
    """A client on the other end of a pair of sockets."""

    def __init__(self, listener: FakeListener | None = None) -> None:
        self.listener = listener or FakeListener()
        ours, self.sock = socket.socketpair()
        ours.setblocking(False)
        self.sock.setblocking(False)
        self.connection = Connection(self.listener, ours, "peer")

    @property
    def calls(self) -> list[Call]:
        return self.listener.calls

    def send(self, *frames: bytes) -> None:
        data = b"".join(frames)
        assert self.sock.send(data) == len(data)

    async def send_slowly(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            with contextlib.suppress(BlockingIOError):
                view = view[self.sock.send(view) :]
            await turn(3)

    def received(self) -> bytes:
        try:
            return self.sock.recv(2**20)
        except BlockingIOError:
            return b""

    def close(self) -> None:
        self.connection.close("the test is over")
        self.listener.poller.close()
        self.sock.close()


def frame(api_key: int, body: bytes = b"", number: int = 0) -> bytes:
    content = struct.pack(">hhih", api_key, 3, number, -1) + body
    return len(content).to_bytes(4, "big") + content


@contextlib.contextmanager
def steps_of(frames: int, step_ns: int = poller.STEP_NS) -> Iterator[None]:
    """Let the poller's steps be so small."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(poller, "FRAMES_PER_STEP", frames)
        patch.setattr(poller, "STEP_NS", step_ns)
        yield


def with_peer(test: Callable[[Peer], Any]) -> Callable[[], None]:
    @in_loop
    async def run() -> None:
        peer = Peer()
        try:
            await test(peer)
        finally:
            peer.close()
            assert peer.listener.memory.bytes_taken == 0, "memory was not given back"

    run.__name__ = test.__name__
    return run
