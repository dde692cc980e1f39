"""LinkProxy: the wires between brokers on one machine, each of which can be cut in one direction or both.

Every broker tells the others the address of the proxy instead of its own, so that all their connections run through
here. Who dialled is found by asking the system which process holds the other end. A cut wire holds back whatever is
sent on it, connections and their ends included, and delivers it when it is healed, as TCP does on a real network. One
thread moves the bytes; `cut` and `heal` may be called from any other.
"""

import contextlib
import os
import selectors
import socket
import threading
from collections.abc import Callable, Mapping

from anabranch.config import host_and_port

BUFFER_BYTES_MAX = 256 * 1024
CONNECT_SECONDS_MAX = 1.0
LOOK_SECONDS = 0.5


class _Wire:
    """One connection between two brokers."""

    def __init__(self, dialler: int, target: int, near: socket.socket) -> None:
        self.dialler = dialler
        self.target = target
        self.near = near
        self.far: socket.socket | None = None
        self.waiting: dict[socket.socket, bytearray] = {near: bytearray()}
        """Bytes on their way to each end."""
        self.ended: set[socket.socket] = set()
        """Ends that will send nothing more."""

    def way(self, source: socket.socket) -> tuple[int, int]:
        """From whom to whom the bytes of this end go."""
        return (self.dialler, self.target) if source is self.near else (self.target, self.dialler)

    def other(self, end: socket.socket) -> socket.socket:
        assert self.far is not None
        return self.far if end is self.near else self.near

    @property
    def ends(self) -> list[socket.socket]:
        return [self.near] if self.far is None else [self.near, self.far]


class LinkProxy:
    """`routes`: by broker id, the address the others dial and the one it really listens on."""

    def __init__(self, routes: Mapping[int, tuple[str, str]], pids: Callable[[], Mapping[int, int]]) -> None:
        self._targets = {broker: host_and_port(real) for broker, (_, real) in routes.items()}
        self._pids = pids
        self._cuts: set[tuple[int, int]] = set()
        self._wires: set[_Wire] = set()
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = socket.socketpair()
        self._wake_read.setblocking(False)
        self._selector.register(self._wake_read, selectors.EVENT_READ, None)
        self._listeners: list[socket.socket] = []
        for broker, (told, _) in routes.items():
            listener = socket.create_server(host_and_port(told))
            listener.setblocking(False)
            self._listeners.append(listener)
            self._selector.register(listener, selectors.EVENT_READ, broker)
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="link-proxy", daemon=True)
        self._thread.start()

    # --- from any thread ---------------------------------------------------------------------------------------

    def cut(self, sender: int, receiver: int) -> None:
        """Nothing that `sender` sends arrives at `receiver`, until it is healed."""
        self._cuts = self._cuts | {(sender, receiver)}
        self._wake()

    def heal(self) -> None:
        self._cuts = set()
        self._wake()

    @property
    def cuts(self) -> frozenset[tuple[int, int]]:
        return frozenset(self._cuts)

    def close(self) -> None:
        self._is_closed = True
        self._wake()
        self._thread.join()
        for wire in list(self._wires):
            self._close(wire)
        for sock in (*self._listeners, self._wake_read, self._wake_write):
            sock.close()
        self._selector.close()

    def _wake(self) -> None:
        self._wake_write.send(b"x")

    # --- the thread --------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._is_closed:
            for key, mask in self._selector.select(LOOK_SECONDS):
                self._serve(key, mask)
            for wire in list(self._wires):
                self._settle(wire)

    def _serve(self, key: selectors.SelectorKey, mask: int) -> None:
        sock = key.fileobj
        assert isinstance(sock, socket.socket)
        if key.data is None:
            with contextlib.suppress(BlockingIOError):
                sock.recv(4096)
        elif isinstance(key.data, int):
            self._accept(sock, key.data)
        elif key.data in self._wires:  # Its other end may just have closed it.
            try:
                if mask & selectors.EVENT_WRITE:
                    self._send(key.data, sock)
                if mask & selectors.EVENT_READ:
                    self._receive(key.data, sock)
            except OSError:
                self._close(key.data)

    def _accept(self, listener: socket.socket, target: int) -> None:
        try:
            near, _ = listener.accept()
        except OSError:
            return
        dialler = self._dialler(near)
        if dialler is None:
            near.close()
            return
        near.setblocking(False)
        near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._wires.add(_Wire(dialler, target, near))

    def _dialler(self, near: socket.socket) -> int | None:
        inode = socket_inode(near.getpeername(), near.getsockname())
        return next((broker for broker, pid in self._pids().items() if inode and holds(pid, inode)), None)

    def _receive(self, wire: _Wire, source: socket.socket) -> None:
        try:
            data = source.recv(BUFFER_BYTES_MAX)
        except BlockingIOError:
            return
        if data:
            wire.waiting[wire.other(source)] += data
        else:
            wire.ended.add(source)

    def _send(self, wire: _Wire, end: socket.socket) -> None:
        waiting = wire.waiting[end]
        with contextlib.suppress(BlockingIOError):
            del waiting[: end.send(waiting)]

    def _settle(self, wire: _Wire) -> None:
        """What this wire waits for now; whether it is at its end."""
        if wire.far is None and not self._open(wire):
            return
        for end in wire.ends:
            if end in wire.ended and not wire.waiting[wire.other(end)]:
                self._close(wire)
                return
        for end in wire.ends:
            self._watch(wire, end, self._events(wire, end))

    def _open(self, wire: _Wire) -> bool:
        """Dial the broker, unless that wire is cut. False: nothing to do yet, or any more."""
        if wire.way(wire.near) in self._cuts:
            return False
        try:
            far = socket.create_connection(self._targets[wire.target], CONNECT_SECONDS_MAX)
        except OSError:
            self._close(wire)
            return False
        far.setblocking(False)
        far.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        wire.far = far
        wire.waiting[far] = bytearray()
        return True

    def _events(self, wire: _Wire, end: socket.socket) -> int:
        events = 0
        other = wire.other(end)
        is_open = wire.way(end) not in self._cuts
        if is_open and end not in wire.ended and len(wire.waiting[other]) < BUFFER_BYTES_MAX:
            events |= selectors.EVENT_READ
        if wire.waiting[end] and wire.way(other) not in self._cuts:
            events |= selectors.EVENT_WRITE
        return events

    def _watch(self, wire: _Wire, end: socket.socket, events: int) -> None:
        known = self._selector.get_map().get(end)
        if events == 0:
            if known is not None:
                self._selector.unregister(end)
        elif known is None:
            self._selector.register(end, events, wire)
        elif known.events != events:
            self._selector.modify(end, events, wire)

    def _close(self, wire: _Wire) -> None:
        self._wires.discard(wire)
        for end in wire.ends:
            if end in self._selector.get_map():
                self._selector.unregister(end)
            end.close()


# --- who holds a socket -----------------------------------------------------------------------------------


def socket_inode(local: tuple[str, int], remote: tuple[str, int]) -> str | None:
    """The system's number of the connection of this machine that runs from `local` to `remote`."""
    wanted = [_hex(local), _hex(remote)]
    with open("/proc/net/tcp", encoding="ascii") as table:
        for line in table:
            fields = line.split()
            if fields[1:3] == wanted:
                return fields[9]
    return None


def _hex(address: tuple[str, int]) -> str:
    host = socket.inet_aton(address[0])
    return f"{int.from_bytes(host, 'little'):08X}:{address[1]:04X}"


def holds(pid: int, inode: str) -> bool:
    """Whether that process has the socket open."""
    folder = f"/proc/{pid}/fd"
    try:
        descriptors = os.listdir(folder)
    except OSError:
        return False
    for descriptor in descriptors:
        with contextlib.suppress(OSError):  # Closed while we looked.
            if os.readlink(f"{folder}/{descriptor}") == f"socket:[{inode}]":
                return True
    return False
