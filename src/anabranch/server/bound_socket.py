"""A socket for a listener, with its address, and the addresses of those who connect to it."""

import socket

MAPPED_PREFIX = bytes(10) + b"\xff\xff"
"""Of an IPv4 address written as one of IPv6."""


def bind(host: str, port: int) -> socket.socket:
    """Bound and not listening yet: whoever connects is refused. Raises OSError."""
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        sock.setblocking(False)
    except OSError:
        sock.close()
        raise
    return sock


def address_of(sock: socket.socket) -> tuple[str, int]:
    """Where it is bound."""
    host, port = sock.getsockname()[:2]
    return host, port


def network_of(host: str) -> str:
    """The address that a connection counts for where each address has a limit: all of IPv4, the /64 of IPv6, since
    whoever has one address of it can use all."""
    if ":" not in host:
        return host
    packed = socket.inet_pton(socket.AF_INET6, host.partition("%")[0])
    if packed.startswith(MAPPED_PREFIX):
        return socket.inet_ntop(socket.AF_INET, packed[len(MAPPED_PREFIX) :])
    return f"{socket.inet_ntop(socket.AF_INET6, packed[:8] + bytes(8))}/64"
