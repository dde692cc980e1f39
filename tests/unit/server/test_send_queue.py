"""Answers on their way out: in order, whatever the socket takes at once, and no file held longer than needed."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from anabranch.broker.requests.call import HeldBytes
from anabranch.log.disk.real_files import RealFiles
from anabranch.log.segment.slice import Slice
from anabranch.server.send_queue import BUFFERS_PER_CALL_MAX, OpenSlice, SendQueue, held, let_go


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    with ours, theirs:
        yield ours, theirs


def received(sock: socket.socket) -> bytes:
    parts = []
    while True:
        try:
            parts.append(sock.recv(2**20))
        except BlockingIOError:
            return b"".join(parts)


class CountingSlice(Slice):
    pins = 0

    def pin(self) -> None:
        super().pin()
        CountingSlice.pins += 1

    def unpin(self) -> None:
        super().unpin()
        CountingSlice.pins -= 1


@pytest.fixture
def sliced(tmp_path: Path) -> Iterator[CountingSlice]:
    path = tmp_path / "0.log"
    path.write_bytes(bytes(range(256)) * 40_000)
    files = RealFiles(open_files_max=4)
    CountingSlice.pins = 0
    yield CountingSlice(files.open(str(path)), 256, 256 * 30_000)
    assert CountingSlice.pins == 0


def drain(queue: SendQueue, pair: tuple[socket.socket, socket.socket]) -> bytes:
    data = b""
    while not queue.send(pair[0]):
        data += received(pair[1])
    return data + received(pair[1])


def test_pieces_leave_in_order_and_in_one_call(pair: tuple[socket.socket, socket.socket]) -> None:
    queue = SendQueue()
    for piece in (b"a", bytearray(b"bc"), memoryview(b"d"), b""):
        queue.put([held(piece)])
    assert (bool(queue), len(queue)) == (True, 4)
    assert queue.send(pair[0])
    assert received(pair[1]) == b"abcd"
    assert (bool(queue), queue.bytes_held, queue.bytes_sent) == (False, 0, 4)


def test_more_pieces_than_one_call_takes_all_leave(pair: tuple[socket.socket, socket.socket]) -> None:
    queue = SendQueue()
    expected = b""
    for number in range(3 * BUFFERS_PER_CALL_MAX + 1):
        queue.put([held(b"%d," % number)])
        expected += b"%d," % number
    assert drain(queue, pair) == expected


def test_what_a_full_socket_does_not_take_stays_in_order(pair: tuple[socket.socket, socket.socket]) -> None:
    queue = SendQueue()
    data = bytes(range(256)) * 20_000
    queue.put([held(data)])
    queue.put([held(b"end")])
    assert not queue.send(pair[0])
    assert 0 < queue.bytes_held < len(data) + 3
    assert queue.bytes_held + queue.bytes_sent == len(data) + 3
    assert drain(queue, pair) == data + b"end"


def test_slice_leaves_between_its_neighbours_and_is_let_go(
    pair: tuple[socket.socket, socket.socket], sliced: CountingSlice
) -> None:
    queue = SendQueue()
    for piece in (b"head", sliced, b"tail"):
        queue.put([held(piece)])
    assert CountingSlice.pins == 1
    assert drain(queue, pair) == b"head" + (bytes(range(256)) * 30_000) + b"tail"


def test_clearing_lets_go_of_a_slice_that_was_half_sent(
    pair: tuple[socket.socket, socket.socket], sliced: CountingSlice
) -> None:
    queue = SendQueue()
    queue.put([held(sliced)])
    queue.put([held(b"x")])
    assert not queue.send(pair[0])
    queue.clear()
    assert (bool(queue), queue.bytes_held) == (False, 0)


def test_file_shorter_than_promised_breaks_the_connection(
    pair: tuple[socket.socket, socket.socket], tmp_path: Path
) -> None:
    (tmp_path / "0.log").write_bytes(b"abc")
    queue = SendQueue()
    queue.put([held(Slice(RealFiles().open(str(tmp_path / "0.log")), 0, 4))])
    assert not queue.send(pair[0])
    with pytest.raises(OSError, match="shorter"):
        queue.send(pair[0])
    queue.clear()


def test_peer_that_is_gone_is_reported(pair: tuple[socket.socket, socket.socket]) -> None:
    pair[1].close()
    queue = SendQueue()
    queue.put([held(b"x")])
    with pytest.raises(BrokenPipeError):
        queue.send(pair[0])


def test_letting_go_unpins_slices_and_leaves_bytes_alone(sliced: CountingSlice) -> None:
    piece = held(sliced)
    assert isinstance(piece, OpenSlice)
    let_go(piece)
    let_go(held(b"x"))


def test_what_all_readers_leave_lying_is_counted_together(pair: tuple[socket.socket, socket.socket]) -> None:
    together = HeldBytes()
    queue = SendQueue(together)
    queue.put([held(b"x" * 4_000_000)])
    assert not queue.send(pair[0])
    assert 0 < together.count == queue.bytes_held
    drain(queue, pair)
    assert together.count == 0
    queue.put([held(b"x" * 4_000_000)])
    assert not queue.send(pair[0])
    queue.clear()
    assert together.count == 0
