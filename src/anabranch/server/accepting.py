"""Acceptor: takes the connections of a listening socket, and hands them out one address after the other.

Accepting a connection is cheap, serving it is not. So many are accepted at once from the system's queue, which is first
come, first served, and then handed out by address in turn. A thousand connections from one address then keep another
address waiting for only a few turns of the loop.
"""

import asyncio
import errno
import logging
import resource
import socket
from collections import deque
from collections.abc import Callable

from anabranch.broker.requests.network import network_of

logger = logging.getLogger(__name__)

BACKLOG = 1024
"""How many may wait in the system's queue."""
TAKEN_PER_TURN_MAX = 256
TAKEN_MAX = 1024
"""Accepted and not handed out yet; beyond, newcomers stay in the system's queue."""
TAKEN_SHARE = 64
"""At most one in so many of the descriptors that the system allows: each that was taken holds one."""
PAUSE_SECONDS = 1.0
LOST_BEFORE = (
    errno.ECONNABORTED,
    errno.EHOSTDOWN,
    errno.EHOSTUNREACH,
    errno.ENETDOWN,
    errno.ENETUNREACH,
    errno.ENONET,
    errno.ENOPROTOOPT,
    errno.EOPNOTSUPP,
    errno.EPERM,
    errno.EPROTO,
)
"""What went wrong on a connection before it was accepted, as accept(2) has it; it costs that connection alone."""
OUT_OF_DESCRIPTORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Acceptor:
    """Owns the socket. For the loop's thread."""

    def __init__(
        self,
        listening: socket.socket,
        welcome: Callable[[socket.socket, str], None],
        per_turn_max: int,
        taken_max: int | None = None,
    ) -> None:
        """`welcome` gets each connection, not blocking, with the address it comes from; `per_turn_max`: how many in a
        turn of the loop; `taken_max`: how many are accepted and not handed out yet, by default what the limit of open
        files allows."""
        self._listening = listening
        self._welcome = welcome
        self._per_turn_max = per_turn_max
        self._loop = asyncio.get_running_loop()
        self._taken: dict[str, deque[tuple[socket.socket, str]]] = {}
        """Not handed out yet, with their addresses, by what they count for (`network_of`)."""
        self._taken_count = 0
        self._taken_max = taken_max or _taken_max()
        self._is_due = False
        """The next turn hands out more."""
        self._is_reading = False
        self._is_pausing = False
        """There was no descriptor for another one."""
        self._is_over = False

    def start(self) -> None:
        if not self._is_over and not self._is_reading and not self._is_pausing:
            self._is_reading = True
            self._loop.add_reader(self._listening.fileno(), self._take)

    def stop(self) -> None:
        """Accept nothing more. Connections that were not handed out are closed."""
        self._is_over = True
        self._rest()
        self._listening.close()
        for sockets in self._taken.values():
            for sock, _ in sockets:
                sock.close()
        self._taken.clear()

    def _rest(self) -> None:
        if self._is_reading:
            self._is_reading = False
            self._loop.remove_reader(self._listening.fileno())

    def _take(self) -> None:
        try:
            for _ in range(min(TAKEN_PER_TURN_MAX, self._taken_max - self._taken_count)):
                if not self._take_one():
                    break
        finally:
            if self._taken_count >= self._taken_max:
                self._rest()
            if not self._is_due:
                self._hand_out()

    def _take_one(self) -> bool:
        """False: there are no more now."""
        try:
            sock, address = self._listening.accept()
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:
            if error.errno in OUT_OF_DESCRIPTORS:
                self._pause(error)
                return False
            if error.errno in LOST_BEFORE:
                return True
            raise
        sock.setblocking(False)
        self._taken.setdefault(network_of(address[0]), deque()).append((sock, address[0]))
        self._taken_count += 1
        return True

    def _pause(self, error: OSError) -> None:
        """Out of descriptors: those who are connected go on; newcomers wait in the system's queue."""
        logger.warning("cannot accept connections for %.0f s: %s", PAUSE_SECONDS, error)
        self._rest()
        self._is_pausing = True
        self._loop.call_later(PAUSE_SECONDS, self._end_pause)

    def _end_pause(self) -> None:
        self._is_pausing = False
        self.start()

    def _hand_out(self) -> None:
        self._is_due = False
        for _ in range(min(self._per_turn_max, self._taken_count)):
            if self._is_over:
                return
            network, sockets = next(iter(self._taken.items()))
            sock, address = sockets.popleft()
            del self._taken[network]
            if sockets:
                self._taken[network] = sockets  # At the end of the line.
            self._taken_count -= 1
            try:
                self._welcome(sock, address)
            except Exception:  # A defect of ours costs this connection, and nobody else anything.
                logger.exception("a connection from %s could not be served: this is a defect", address)
                sock.close()
        if self._taken_count:
            self._is_due = True
            self._loop.call_soon(self._hand_out)
        if self._taken_count <= self._taken_max // 2:
            self.start()


def _taken_max() -> int:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return TAKEN_MAX if limit == resource.RLIM_INFINITY else max(1, min(TAKEN_MAX, limit // TAKEN_SHARE))
