"""A socket for a listener, with its address."""

import socket


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
