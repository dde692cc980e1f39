"""Whom a client's address counts for, wherever addresses have limits or take turns."""

import socket

MAPPED_PREFIX = bytes(10) + b"\xff\xff"
"""Of an IPv4 address written as one of IPv6."""


def network_of(host: str) -> str:
    """The address that a connection counts for where each address has a limit: all of IPv4, the /64 of IPv6, since
    whoever has one address of it can use all."""
    if ":" not in host:
        return host
    packed = socket.inet_pton(socket.AF_INET6, host.partition("%")[0])
    if packed.startswith(MAPPED_PREFIX):
        return socket.inet_ntop(socket.AF_INET, packed[len(MAPPED_PREFIX) :])
    return f"{socket.inet_ntop(socket.AF_INET6, packed[:8] + bytes(8))}/64"
