"""PeerListener: the peer port. Strangers are few, small and quick here, or gone: of connections that are not proven yet
there are at most `STRANGERS_MAX`, of one address `STRANGERS_PER_ADDRESS_MAX`; each holds about a kilobyte, and none
lasts longer than a handshake may.

A newcomer beyond these limits takes the place of another stranger, chosen at random, of its own address if that has its
share, else of the address that has the most. A flood therefore keeps no broker out that comes from another address, and
one from the same address gets through with a chance that does not depend on how long the flood has lasted: a handshake
takes a few milliseconds. Whoever is linked already is never touched.
"""

import asyncio
import logging
import secrets
import socket
from collections import Counter
from functools import partial

from anabranch.broker.requests.network import network_of
from anabranch.errors import PeerError
from anabranch.server.accepting import BACKLOG, Acceptor
from anabranch.server.bound_socket import address_of, bind
from anabranch.server.peers.dialler import HANDSHAKE_SECONDS_MAX
from anabranch.server.peers.handshake import NONCE_BYTES, Cause, HandshakeError, accept
from anabranch.server.peers.link import PeerLink
from anabranch.server.peers.links import PeerLinks
from anabranch.server.peers.sockets import tune

logger = logging.getLogger(__name__)

STRANGERS_MAX = 256
STRANGERS_PER_ADDRESS_MAX = 64
ACCEPTED_PER_TURN_MAX = 8
"""A full backlog is emptied soon, and those who are linked are heard in between."""


class PeerListener:
    def __init__(self, links: PeerLinks) -> None:
        self.refused_total = 0
        self._links = links
        self._loop = asyncio.get_running_loop()
        self._sock: socket.socket | None = None
        self._acceptor: Acceptor | None = None
        self._strangers: dict[asyncio.Task[None], str] = {}
        """With the address they count for."""
        self._counts: Counter[str] = Counter()
        """Of strangers, by their addresses."""

    def open(self, host: str, port: int) -> tuple[str, int]:
        """Bind and listen; the address actually bound. Raises OSError."""
        self._sock = bind(host, port)
        self._sock.listen(BACKLOG)
        return address_of(self._sock)

    def start(self) -> None:
        assert self._sock is not None
        self._acceptor = Acceptor(self._sock, self._take, ACCEPTED_PER_TURN_MAX)
        self._acceptor.start()

    async def close(self) -> None:
        if self._acceptor is not None:
            self._acceptor.stop()
        elif self._sock is not None:
            self._sock.close()
        strangers = list(self._strangers)
        for task in strangers:
            task.cancel()
        await asyncio.gather(*strangers, return_exceptions=True)

    # --- accepting ---------------------------------------------------------------------------------------------

    def _take(self, sock: socket.socket, host: str) -> None:
        network = network_of(host)
        self._make_room(network)
        link = self._new_link()
        task = self._loop.create_task(self._welcome(link, sock, host))
        self._strangers[task] = network
        self._counts[network] += 1
        task.add_done_callback(partial(self._done, link, sock))

    def _make_room(self, host: str) -> None:
        if self._counts[host] >= STRANGERS_PER_ADDRESS_MAX:
            self._turn_one_away(host)
        elif len(self._strangers) >= STRANGERS_MAX:
            self._turn_one_away(max(self._counts, key=self._counts.__getitem__))

    def _turn_one_away(self, host: str) -> None:
        those = [task for task, where in self._strangers.items() if where == host]
        evicted = those[self._links.rng.randrange(len(those))]
        self._forget(evicted)
        evicted.cancel()
        self._refuse(
            host,
            HandshakeError(
                Cause.CROWD,
                f"{len(those)} connections from there had not said who they are: keep others than brokers away from "
                "this port.",
            ),
        )

    def _forget(self, task: asyncio.Task[None]) -> None:
        host = self._strangers.pop(task, None)
        if host is not None:
            self._counts[host] -= 1
            if not self._counts[host]:
                del self._counts[host]

    def _new_link(self) -> PeerLink:
        links = self._links
        nonce = secrets.token_bytes(NONCE_BYTES)
        return PeerLink(
            links,
            lambda _: accept(links.me, links.security.secret, nonce, links.admit),
            is_dialled=False,
            check_certificate=links.security.check_certificate,
        )

    def _done(self, link: PeerLink, sock: socket.socket, task: asyncio.Task[None]) -> None:
        self._forget(task)
        if not link.is_up:
            link.close("it was not made")
            sock.close()

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
