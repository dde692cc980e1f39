"""The two ends of a peer link's bytes: what is lent is not written over, what is sent keeps its order."""

import asyncio
import socket

import pytest

from anabranch.server.peers.receiving import BUFFER_BYTES, ROOM_BYTES_MIN, Receiving
from anabranch.server.peers.sending import Sending


def filled(received: Receiving, count: int, sign: bytes) -> memoryview:
    begin = received.end
    received.view[begin : begin + count] = sign * count
    received.end += count
    return received.view[begin : begin + count]


def test_a_stranger_gets_a_kilobyte() -> None:
    assert len(Receiving().view) < 1100


def test_a_buffer_that_lent_nothing_is_used_from_its_front_again() -> None:
    received = Receiving()
    received.make_room(9)
    view = received.view
    filled(received, 100, b"a")
    received.begin = received.end
    received.make_room(9)
    assert received.view is view
    assert (received.begin, received.end) == (0, 0)


def test_what_is_lent_is_never_written_over() -> None:
    received = Receiving()
    received.make_room(9)
    lent: list[tuple[memoryview, bytes]] = []
    for number in range(100):
        sign = bytes([number])
        lent.append((filled(received, ROOM_BYTES_MIN // 2, sign), sign))
        received.begin, received.is_lent = received.end, True
        received.make_room(9)
    assert all(bytes(view[-1:]) == sign == bytes(view[:1]) for view, sign in lent)


def test_memory_is_used_again_when_nobody_looks_at_it_any_more() -> None:
    received = Receiving()
    received.make_room(9)
    seen = set()
    for _ in range(100):
        filled(received, ROOM_BYTES_MIN, b"a").release()
        received.begin, received.is_lent = received.end, True
        received.make_room(9)
        seen.add(id(received.view.obj))
    assert len(seen) <= 2


def test_the_begun_part_of_a_frame_moves_along() -> None:
    received = Receiving()
    received.make_room(9)
    filled(received, 10, b"a")
    filled(received, 5, b"b")
    received.begin = 10
    received.make_room(BUFFER_BYTES + 1)
    assert len(received.view) == BUFFER_BYTES + 1
    assert bytes(received.view[received.begin : received.end]) == b"bbbbb"


@pytest.mark.parametrize("size", [1, 100, 5000, 300_000])
def test_everything_arrives_in_order_through_a_socket_that_is_often_full(size: int) -> None:
    async def send_all() -> bytes:
        ours, theirs = socket.socketpair()
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        loop = asyncio.get_running_loop()
        sending = Sending(loop)

        class Protocol(asyncio.Protocol):
            def pause_writing(self) -> None:
                sending.is_blocked = True

            def resume_writing(self) -> None:
                sending.is_blocked = False
                sending.flush()

        transport, _ = await loop.create_connection(Protocol, sock=ours)
        sending.open(transport)
        reader, writer = await asyncio.open_connection(sock=theirs)
        for number in range(200):
            sending.put(
                [b"", bytes([number]) * (size - size // 2), memoryview(bytes([number]) * (size // 2))]
            )
        received = await reader.readexactly(200 * size)
        assert sending.bytes_waiting == 0
        sending.close()
        transport.close()
        writer.close()
        await writer.wait_closed()
        return received

    assert asyncio.run(send_all()) == b"".join(bytes([number]) * size for number in range(200))
