"""What waits to be sent on a link, and when it leaves."""

import asyncio
from typing import Any

import pytest

from anabranch.server.peers.sending import Sending
from anabranch.testing.fakes.clock import FakeClock
from anabranch.testing.fakes.loop import VirtualLoop


class Written:
    """A transport that takes everything; as under TLS, so that the bytes come by."""

    def __init__(self) -> None:
        self.calls: list[bytes] = []

    def set_write_buffer_limits(self, high: int) -> None:
        assert high == 0

    def get_extra_info(self, name: str) -> Any:
        return object() if name == "sslcontext" else None

    def write(self, data: bytes) -> None:
        self.calls.append(data)


@pytest.fixture
def loop() -> Any:
    loop = VirtualLoop(FakeClock(), lambda: False)
    yield loop
    loop.close()


def opened(loop: asyncio.AbstractEventLoop) -> tuple[Sending, Written]:
    sending, written = Sending(loop), Written()
    sending.open(written)  # type: ignore[arg-type]
    return sending, written


def test_what_is_put_in_one_turn_leaves_in_one_call(loop: VirtualLoop) -> None:
    sending, written = opened(loop)
    sending.put([b"one", b"two"])
    sending.put([b"three"], 5)
    assert (written.calls, sending.bytes_waiting) == ([], 11)
    loop.run_for(0)
    assert (written.calls, sending.bytes_waiting) == ([b"onetwothree"], 0)


def test_what_is_gathered_leaves_at_once_and_only_then(loop: VirtualLoop) -> None:
    sending, written = opened(loop)
    sending.gather()
    sending.put([b"an answer"])
    loop.run_for(0)
    assert written.calls == []
    sending.flush_gathered()
    assert written.calls == [b"an answer"]
    sending.put([b"later"])
    loop.run_for(0)
    assert written.calls == [b"an answer", b"later"]


def test_what_was_put_before_the_gathering_is_not_kept_back(loop: VirtualLoop) -> None:
    sending, written = opened(loop)
    sending.put([b"before"])
    sending.gather()
    sending.put([b"within"])
    sending.flush_gathered()
    assert written.calls == [b"beforewithin"]
    loop.run_for(0)
    assert written.calls == [b"beforewithin"]


def test_a_blocked_link_keeps_what_was_gathered(loop: VirtualLoop) -> None:
    sending, written = opened(loop)
    sending.is_blocked = True
    sending.gather()
    sending.put([b"waits"])
    sending.flush_gathered()
    assert (written.calls, sending.bytes_waiting) == ([], 5)
    sending.is_blocked = False
    sending.flush()
    assert written.calls == [b"waits"]
