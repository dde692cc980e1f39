"""PeerListener: the peer port. Strangers are few, small and quick here, or gone: of connections that are not proven yet
there are at most `STRANGERS_MAX`, each holds about a kilobyte, and none lasts longer than a handshake may."""

import asyncio
import errno
import logging
import secrets
import socket
from functools import partial

from anabranch.errors import PeerError
from anabranch.server.bound_socket import address_of, bind
from anabranch.server.peer_dialler import HANDSHAKE_SECONDS_MAX
from anabranch.server.peer_handshake import NONCE_BYTES, Cause, HandshakeError, accept
from anabranch.server.peer_link import PeerLink
from anabranch.server.peer_links import PeerLinks
from anabranch.server.peer_sockets import tune

logger = logging.getLogger(__name__)

STRANGERS_MAX = 64
BACKLOG = 128


class PeerListener:
    def __init__(self, links: PeerLinks) -> None:
        self.refused_total = 0
        self._links = links
        self._loop = asyncio.get_running_loop()
        self._sock: socket.socket | None = None
        self._strangers: dict[asyncio.Task[None], str] = {}
        """In the order they came."""

    def open(self, host: str, port: int) -> tuple[str, int]:
        """Bind and listen; the address actually bound. Raises OSError."""
        self._sock = bind(host, port)
        self._sock.listen(BACKLOG)
        return address_of(self._sock)

    def start(self) -> None:
        assert self._sock is not None
        self._loop.add_reader(self._sock.fileno(), self._accept)

    async def close(self) -> None:
        if self._sock is not None:
            self._loop.remove_reader(self._sock.fileno())
            self._sock.close()
            self._sock = None
        strangers = list(self._strangers)
        for task in strangers:
            task.cancel()
        await asyncio.gather(*strangers, return_exceptions=True)

    # --- accepting ---------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        assert self._sock is not None
        try:
            sock, address = self._sock.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:
            self._pause_accepting(error)
            return
        sock.setblocking(False)
        if len(self._strangers) >= STRANGERS_MAX:
            # The oldest has had the most time; a broker of ours needs a few milliseconds.
            self._turn_away(next(iter(self._strangers)))
        link = self._new_link()
        task = self._loop.create_task(self._welcome(link, sock, address[0]))
        self._strangers[task] = address[0]
        task.add_done_callback(partial(self._done, link, sock))

    def _new_link(self) -> PeerLink:
        links = self._links
        nonce = secrets.token_bytes(NONCE_BYTES)
        return PeerLink(
            links,
            lambda _: accept(links.me, links.security.secret, nonce, links.admit),
            is_dialled=False,
        )

    def _done(self, link: PeerLink, sock: socket.socket, task: asyncio.Task[None]) -> None:
        self._strangers.pop(task, None)
        if not link.is_up:
            link.close("it was not made")
            sock.close()

    def _turn_away(self, oldest: asyncio.Task[None]) -> None:
        host = self._strangers.pop(oldest)
        oldest.cancel()
        self._refuse(
            host,
            HandshakeError(
                Cause.CROWD,
                f"{STRANGERS_MAX} connections had not said who they are: keep others than brokers away from this port.",
            ),
        )

    def _pause_accepting(self, error: OSError) -> None:
        """Out of descriptors: those who are connected go on; newcomers wait in the backlog for a second."""
        if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
            raise error
        assert self._sock is not None
        logger.warning("cannot accept peer links for a second: %s", error)
        self._loop.remove_reader(self._sock.fileno())
        self._loop.call_later(1.0, self._accept_again)

    def _accept_again(self) -> None:
        if self._sock is not None:
            self._loop.add_reader(self._sock.fileno(), self._accept)

    async def _welcome(self, link: PeerLink, sock: socket.socket, host: str) -> None:
        try:
            async with asyncio.timeout(HANDSHAKE_SECONDS_MAX):
                tune(sock)
                await self._loop.connect_accepted_socket(
                    lambda: link, sock, ssl=self._links.security.server_context
                )
                await link.met
        except TimeoutError:
            text = f"it did not say who it is within {HANDSHAKE_SECONDS_MAX:.0f} s."
            self._refuse(host, HandshakeError(Cause.SILENCE, text))
        except HandshakeError as error:
            self._refuse(host, error)
        except (OSError, PeerError) as error:
            self._refuse(host, HandshakeError(Cause.UNREACHABLE, f"it left before it was proven ({error})."))

    def _refuse(self, host: str, error: HandshakeError) -> None:
        if error.cause not in (Cause.DUPLICATE, Cause.ITSELF):
            self.refused_total += 1
        self._links.rare_log.warn(host, error, f"refused a connection from {host} to the peer port")
