"""How the system is to treat the socket of a peer link."""

import socket
from typing import Protocol

DEAD_AFTER_MS = 6000
"""A link whose other end takes nothing for so long, as after a cut cable, is closed by the system."""


class HasOptions(Protocol):
    def setsockopt(self, level: int, option: int, value: int, /) -> None: ...


def tune(sock: HasOptions) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 2)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, DEAD_AFTER_MS)
