"""Ports of this machine that nobody listens on.

A port that a broker keeps over restarts must not lie in the range from which the system takes ports for outgoing
connections: while the broker is down, anybody's connection could take it, and a peer that dials it again and again
would in the end be connected to itself.
"""

import errno
import random
import socket
from pathlib import Path

from anabranch.errors import InvalidConfigError, LocalClusterError

LOW, HIGH_DEFAULT = 10_000, 32_768
PORT_MAX = 65_535
TRIES_MAX = 200


def is_free(host: str, port: int) -> bool:
    """Whether a listener could have this address now. Raises LocalClusterError if this user or machine never can."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return False
            raise LocalClusterError(
                f"{address(host, port)} cannot be bound ({error.strerror or error}): choose another address."
            ) from error
    return True


def require_free(host: str, ports: range) -> None:
    if ports.stop - 1 > PORT_MAX:
        raise InvalidConfigError(
            f"Ports {ports.start} to {ports.stop - 1} are wanted, and {PORT_MAX} is the last there is: begin lower."
        )
    for port in ports:
        if not is_free(host, port):
            raise LocalClusterError(
                f"{address(host, port)} is taken by another process: stop it, or begin at another port "
                f"({ports.start} to {ports.stop - 1} are wanted)."
            )


def free_block(host: str, count: int, first: int) -> range:
    """The first `count` consecutive free ports from `first` on."""
    start = first
    while start + count - 1 <= PORT_MAX:
        taken = [port for port in range(start, start + count) if not is_free(host, port)]
        if not taken:
            return range(start, start + count)
        start = taken[-1] + 1
    raise LocalClusterError(f"There are no {count} free ports in a row above {first}: begin lower.")


def random_block(host: str, count: int, rng: random.Random) -> range:
    """Free ports that two test runs at once will hardly both choose."""
    for _ in range(TRIES_MAX):
        block = range(start := rng.randrange(LOW, ephemeral_low() - count), start + count)
        if all(is_free(host, port) for port in block):
            return block
    raise LocalClusterError(f"No {count} free ports in a row were found in {TRIES_MAX} tries.")


def ephemeral_low() -> int:
    """Where the ports of outgoing connections begin."""
    try:
        low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        return HIGH_DEFAULT
    return max(low, LOW + 1000)


def address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
