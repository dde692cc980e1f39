"""Connections taken from a listening socket, and handed out address by address."""

import asyncio
import errno
import socket
from collections import deque
from typing import Any

import pytest

from anabranch.server import accepting
from anabranch.server.accepting import Acceptor
from support.broker_bench import in_loop


class Door:
    """A listening socket at which connections of these addresses wait."""

    def __init__(self, *addresses: str, error: int = errno.EAGAIN) -> None:
        self._pair = socket.socketpair()
        self._pair[1].sendall(b"!")  # Always ready to be read.
        self._waiting = deque(addresses)
        self._error = error
        self.accepted: list[socket.socket] = []
        self.is_closed = False

    def accept(self) -> Any:
        if self._waiting:
            self.accepted.append(socket.socket())
            return self.accepted[-1], (self._waiting.popleft(), 0)
        raise OSError(self._error, "no")

    def arrive(self, address: str) -> None:
        self._waiting.append(address)

    def fileno(self) -> int:
        return self._pair[0].fileno()

    def close(self) -> None:
        self.is_closed = True
        for sock in self._pair:
            sock.close()


class Guests:
    def __init__(self, door: Door, per_turn: int, taken_max: int = 1024) -> None:
        self.welcomed: list[str] = []
        self.turns: list[int] = []
        self.acceptor = Acceptor(door, self._welcome, per_turn, taken_max)  # type: ignore[arg-type]
        self.acceptor.start()

    def _welcome(self, sock: socket.socket, host: str) -> None:
        if host == "broken":
            raise ValueError("a defect")
        sock.close()
        self.welcomed.append(host)

    async def turn(self, count: int = 1) -> None:
        for _ in range(count):
            before = len(self.welcomed)
            await asyncio.sleep(0)
            self.turns.append(len(self.welcomed) - before)


def is_read(door: Door) -> bool:
    """Whether connections are still taken. They are not, afterwards."""
    return asyncio.get_running_loop().remove_reader(door.fileno())


@in_loop
async def test_a_crowd_of_one_address_keeps_another_waiting_for_few_turns() -> None:
    door = Door(*["crowd"] * 200, "somebody")
    guests = Guests(door, per_turn=16)
    await guests.turn(4)
    assert "somebody" in guests.welcomed[:2]
    assert max(guests.turns) == 16
    await guests.turn(20)
    assert len(guests.welcomed) == 201
    guests.acceptor.stop()
    assert door.is_closed


@in_loop
async def test_who_comes_alone_is_welcomed_at_once() -> None:
    guests = Guests(Door("somebody"), per_turn=16)
    await guests.turn(2)
    assert guests.welcomed == ["somebody"]
    guests.acceptor.stop()


@in_loop
async def test_no_more_are_taken_than_may_be_held() -> None:
    door = Door(*["crowd"] * 20)
    guests = Guests(door, per_turn=1, taken_max=8)
    await guests.turn(2)
    assert len(door.accepted) - len(guests.welcomed) <= 8
    assert not is_read(door), "the others wait in the system's queue"
    await guests.turn(20)
    assert len(guests.welcomed) == 20
    guests.acceptor.stop()


@in_loop
async def test_reading_goes_on_before_all_that_were_taken_are_handed_out() -> None:
    door = Door(*["crowd"] * 8, "somebody")
    guests = Guests(door, per_turn=2, taken_max=8)
    await guests.turn(5)
    assert "somebody" in guests.welcomed, "it came behind eight of a crowd, and is among the first six"
    guests.acceptor.stop()


@in_loop
async def test_connections_that_were_not_handed_out_are_closed_at_the_end() -> None:
    door = Door(*["crowd"] * 20)
    guests = Guests(door, per_turn=4)
    await guests.turn(2)
    guests.acceptor.stop()
    count = len(guests.welcomed)
    await guests.turn(3)
    assert len(guests.welcomed) == count < 20
    assert [sock.fileno() for sock in door.accepted] == [-1] * 20


@in_loop
async def test_connection_that_cannot_be_served_costs_no_other_one_anything(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accepting, "TAKEN_MAX", 4)
    monkeypatch.setattr(accepting, "TAKEN_PER_TURN_MAX", 4)
    door = Door("first", "broken", "second", "third", "fourth")
    guests = Guests(door, per_turn=4)
    await guests.turn(4)
    assert guests.welcomed == ["first", "second", "third", "fourth"]
    assert "this is a defect" in caplog.text
    assert door.accepted[1].fileno() == -1
    guests.acceptor.stop()


@in_loop
async def test_without_descriptors_accepting_rests_and_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accepting, "PAUSE_SECONDS", 0.01)
    door = Door("somebody", error=errno.EMFILE)
    guests = Guests(door, per_turn=16)
    await guests.turn(2)
    assert guests.welcomed == ["somebody"]
    assert not is_read(door)
    door.arrive("another")
    while "another" not in guests.welcomed:
        await guests.turn()
    guests.acceptor.stop()
    guests.acceptor.start()  # After the end it does nothing.


@pytest.mark.parametrize("number", accepting.LOST_BEFORE)
@in_loop
async def test_connection_lost_in_the_queue_is_no_error(number: int) -> None:
    door = Door(error=number)
    guests = Guests(door, per_turn=16)
    guests.acceptor._take()
    door.arrive("somebody")
    guests.acceptor._take()
    assert guests.welcomed == ["somebody"]
    guests.acceptor.stop()


@in_loop
async def test_error_of_the_listening_socket_is_told_after_those_before_it_were_served() -> None:
    guests = Guests(Door("somebody", error=errno.EBADF), per_turn=16)
    with pytest.raises(OSError, match="no"):
        guests.acceptor._take()
    assert guests.welcomed == ["somebody"]
    guests.acceptor.stop()


@in_loop
async def test_addresses_of_one_ipv6_network_take_turns_as_one() -> None:
    door = Door(*[f"2001:db8::{number:x}" for number in range(1, 100)], "2001:db8:0:1::1", "::ffff:192.0.2.7")
    guests = Guests(door, per_turn=6)
    await guests.turn(2)
    assert {"2001:db8:0:1::1", "::ffff:192.0.2.7"} < set(guests.welcomed[:3])
    guests.acceptor.stop()
