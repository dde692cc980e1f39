"""Acceptor: takes the connections of a listening socket, and hands them out one address after the other.

To take a connection costs little, and to serve it costs more. So many are taken from the system's queue at once, where
the first to come is the first to be served; of those that have been taken, addresses take turns. A thousand connections
from one address then keep another address waiting for a few turns of the loop only.
"""

import asyncio
import errno
import logging
import socket
from collections import deque
from collections.abc import Callable

logger = logging.getLogger(__name__)

BACKLOG = 1024
"""How many may wait in the system's queue."""
TAKEN_PER_TURN_MAX = 256
TAKEN_MAX = 1024
"""Beyond, the others stay in the system's queue: each that was taken holds a descriptor."""
PAUSE_SECONDS = 1.0
OUT_OF_DESCRIPTORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Acceptor:
    """Owns the socket. For the loop's thread."""

    def __init__(
        self, listening: socket.socket, welcome: Callable[[socket.socket, str], None], per_turn_max: int
    ) -> None:
        """`welcome` gets each connection, not blocking, with the address it comes from; `per_turn_max`: how many in a
        turn of the loop."""
        self._listening = listening
        self._welcome = welcome
        self._per_turn_max = per_turn_max
        self._loop = asyncio.get_running_loop()
        self._taken: dict[str, deque[socket.socket]] = {}
        self._taken_count = 0
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
        """Accept nothing more. Whoever was not handed out is hung up on."""
        self._is_over = True
        self._rest()
        self._listening.close()
        for sockets in self._taken.values():
            for sock in sockets:
                sock.close()
        self._taken.clear()

    def _rest(self) -> None:
        if self._is_reading:
            self._is_reading = False
            self._loop.remove_reader(self._listening.fileno())

    def _take(self) -> None:
        for _ in range(TAKEN_PER_TURN_MAX):
            try:
                sock, address = self._listening.accept()
            except ConnectionAbortedError:
                continue
            except (BlockingIOError, InterruptedError):
                break
            except OSError as error:
                self._pause(error)
                break
            sock.setblocking(False)
            self._taken.setdefault(address[0], deque()).append(sock)
            self._taken_count += 1
        if self._taken_count >= TAKEN_MAX:
            self._rest()
        if not self._is_due:
            self._hand_out()

    def _pause(self, error: OSError) -> None:
        """Out of descriptors: those who are connected go on; newcomers wait in the system's queue."""
        if error.errno not in OUT_OF_DESCRIPTORS:
            raise error
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
            address, sockets = next(iter(self._taken.items()))
            sock = sockets.popleft()
            del self._taken[address]
            if sockets:
                self._taken[address] = sockets  # At the end of the line.
            self._taken_count -= 1
            self._welcome(sock, address)
        if self._taken_count:
            self._is_due = True
            self._loop.call_soon(self._hand_out)
        else:
            self.start()
