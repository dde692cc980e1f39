"""Clients who do nothing wrong, each in a process of its own, and how long they have to wait.

    with Probes(kafka="127.0.0.1:9092", http="127.0.0.1:8080", http_anew="127.0.0.1:8080") as probes:
        probes.longest_ms()     # of each, since the last call

One asks for ApiVersions, one for /healthz, and one for /healthz on a new connection each time, again and again.
"""

import contextlib
import multiprocessing
import socket
import struct
import time
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Self

PAUSE_SECONDS = 0.002
PROBE_HOST = "127.0.0.2"
ANSWER_SECONDS_MAX = 120.0
CALM_SECONDS, CALM_MS = 3, 50.0
CALM_SECONDS_MAX = 120.0

API_VERSIONS = struct.pack(">hhih", 18, 0, 1, -1)


def _probe_kafka(address: str) -> Callable[[], None]:
    host, _, port = address.rpartition(":")
    link = socket.create_connection((host, int(port)), ANSWER_SECONDS_MAX)
    frame_bytes = struct.pack(">i", len(API_VERSIONS)) + API_VERSIONS

    def once() -> None:
        link.sendall(frame_bytes)
        size = struct.unpack(">i", _exactly(link, 4))[0]
        _exactly(link, size)

    return once


def _probe_http(address: str) -> Callable[[], None]:
    link = _connected(address)
    return lambda: _ask_health(link)


def _probe_http_anew(address: str) -> Callable[[], None]:
    def once() -> None:
        with _connected(address) as link:
            _ask_health(link)

    return once


def _connected(address: str) -> socket.socket:
    """From an address of its own, because each may have only so many connections (max.connections.per.ip)."""
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), ANSWER_SECONDS_MAX, (PROBE_HOST, 0))


def _ask_health(link: socket.socket) -> None:
    link.sendall(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
    head = b""
    while b"\r\n\r\n" not in head:
        head += _some(link, 4096)
    length = next(
        int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")
    )
    missing = length - len(head.partition(b"\r\n\r\n")[2])
    if missing > 0:
        _exactly(link, missing)


def _some(link: socket.socket, count: int) -> bytes:
    data = link.recv(count)
    if not data:
        raise ConnectionError("the node closed the connection of a client that did nothing wrong")
    return data


def _exactly(link: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count:
        found += _some(link, count - len(found))
    return found


PROBES = {"kafka": _probe_kafka, "http": _probe_http, "http_anew": _probe_http_anew}


def _probe(kind: str, address: str, pipe: Connection) -> None:
    """Ask over and over; tell the longest wait since the last time it was asked for."""
    once = PROBES[kind](address)
    longest = 0.0
    while True:
        begun = time.perf_counter()
        once()
        longest = max(longest, time.perf_counter() - begun)
        if pipe.poll(PAUSE_SECONDS):
            if pipe.recv() is None:
                return
            pipe.send(longest * 1000)
            longest = 0.0


class Probes:
    def __init__(self, **addresses: str) -> None:
        """Some of `PROBES`."""
        context = multiprocessing.get_context("fork")
        self._pipes: dict[str, Connection] = {}
        self._processes = []
        for kind, address in addresses.items():
            self._pipes[kind], other = context.Pipe()
            process = context.Process(target=_probe, args=(kind, address, other), daemon=True)
            process.start()
            self._processes.append(process)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for pipe in self._pipes.values():
            with contextlib.suppress(OSError):
                pipe.send(None)
        for process in self._processes:
            process.join(5)

    def longest_ms(self) -> dict[str, float]:
        """The longest wait of each probe since the last call."""
        for pipe in self._pipes.values():
            pipe.send("tell")
        return {kind: float(pipe.recv()) for kind, pipe in self._pipes.items()}

    def wait_until_calm(self) -> None:
        """Wait until nobody has waited for long for a while, and warn if that takes more than `CALM_SECONDS_MAX`."""
        deadline = time.monotonic() + CALM_SECONDS_MAX
        calm = 0
        self.longest_ms()
        while calm < CALM_SECONDS and time.monotonic() < deadline:
            time.sleep(1)
            calm = calm + 1 if max(self.longest_ms().values()) < CALM_MS else 0
        if calm < CALM_SECONDS:
            warnings.warn("the node is still busy with something else, which stalls show too", stacklevel=2)
