"""Wires between processes that can be cut: here all ends are in this process, told apart by who dials."""

import contextlib
import os
import socket
import subprocess
import sys

import pytest

from anabranch.testing.link_proxy import LinkProxy, holds, socket_inode
from support.waiting import wait_until

ME, YOU = 0, 1
SHORT_SECONDS = 0.3


def free_address():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


class Wires:
    """Broker YOU listens; this process dials it as broker ME."""

    def __init__(self) -> None:
        self.server = socket.create_server(("127.0.0.1", 0))
        self.server.settimeout(5)
        self.told = free_address()
        real = f"127.0.0.1:{self.server.getsockname()[1]}"
        self.pids = {ME: os.getpid()}
        self.proxy = LinkProxy({YOU: (self.told, real)}, lambda: self.pids)
        self.open: list[socket.socket] = []

    def dial(self) -> socket.socket:
        host, _, port = self.told.rpartition(":")
        sock = socket.create_connection((host, int(port)), 5)
        self.open.append(sock)
        return sock

    def accept(self) -> socket.socket:
        sock, _ = self.server.accept()
        sock.settimeout(5)
        self.open.append(sock)
        return sock

    def close(self) -> None:
        self.proxy.close()
        for sock in (*self.open, self.server):
            sock.close()


@pytest.fixture
def wires():
    made = Wires()
    yield made
    made.close()


def arrives_soon(sock):
    sock.settimeout(SHORT_SECONDS)
    try:
        return sock.recv(100)
    except TimeoutError:
        return None
    finally:
        sock.settimeout(5)


def test_bytes_go_both_ways(wires):
    near = wires.dial()
    far = wires.accept()
    near.sendall(b"there")
    assert far.recv(100) == b"there"
    far.sendall(b"back")
    assert near.recv(100) == b"back"


def test_much_more_than_the_buffer_goes_through(wires):
    near = wires.dial()
    far = wires.accept()
    data = os.urandom(3_000_000)
    received = bytearray()
    near.settimeout(0.01)
    sent = 0
    while len(received) < len(data):
        with contextlib.suppress(TimeoutError):
            sent += near.send(data[sent : sent + 100_000]) if sent < len(data) else 0
        received += far.recv(100_000)
    assert bytes(received) == data


def test_end_of_one_side_ends_the_other(wires):
    near = wires.dial()
    far = wires.accept()
    near.sendall(b"last")
    near.close()
    assert far.recv(100) == b"last"
    assert far.recv(100) == b""


def test_one_way_cut_holds_back_one_way_only(wires):
    near = wires.dial()
    far = wires.accept()
    wires.proxy.cut(ME, YOU)
    near.sendall(b"held back")
    assert arrives_soon(far) is None
    far.sendall(b"arrives")
    assert near.recv(100) == b"arrives"
    wires.proxy.heal()
    assert far.recv(100) == b"held back"


def test_cut_of_the_other_way_holds_back_that_one(wires):
    near = wires.dial()
    far = wires.accept()
    wires.proxy.cut(YOU, ME)
    far.sendall(b"held back")
    assert arrives_soon(near) is None
    near.sendall(b"arrives")
    assert far.recv(100) == b"arrives"


def test_cut_between_others_changes_nothing(wires):
    near = wires.dial()
    far = wires.accept()
    wires.proxy.cut(2, YOU)
    near.sendall(b"arrives")
    assert far.recv(100) == b"arrives"


def test_connection_is_not_made_over_a_cut_wire(wires):
    wires.proxy.cut(ME, YOU)
    near = wires.dial()
    near.sendall(b"hello")
    wires.server.settimeout(SHORT_SECONDS)
    with pytest.raises(TimeoutError):
        wires.accept()
    wires.server.settimeout(5)
    wires.proxy.heal()
    assert wires.accept().recv(100) == b"hello"


def test_end_of_a_connection_is_not_heard_over_a_cut_wire(wires):
    near = wires.dial()
    far = wires.accept()
    near.sendall(b"x")
    assert far.recv(100) == b"x"
    wires.proxy.cut(ME, YOU)
    near.close()
    assert arrives_soon(far) is None
    wires.proxy.heal()
    assert far.recv(100) == b""


def test_dead_broker_refuses_by_ending_the_connection(wires):
    wires.server.close()
    near = wires.dial()
    with contextlib.suppress(ConnectionResetError):
        assert near.recv(100) == b""


def test_stranger_is_not_let_through(wires):
    wires.pids.clear()
    near = wires.dial()
    with contextlib.suppress(ConnectionResetError):
        assert near.recv(100) == b""


def test_process_that_holds_a_socket_is_found(wires):
    near = wires.dial()
    inode = socket_inode(near.getsockname(), near.getpeername())
    assert inode is not None
    assert holds(os.getpid(), inode)
    other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert not holds(other.pid, inode)
    other.communicate(b"\n")
    assert not holds(other.pid, inode)


def test_nothing_is_left_open_after_close(wires):
    near = wires.dial()
    far = wires.accept()
    wires.proxy.close()
    wait_until(lambda: near.recv(100) == b"" and far.recv(100) == b"", "both ends have heard the end")
    wires.proxy = LinkProxy({}, dict)
