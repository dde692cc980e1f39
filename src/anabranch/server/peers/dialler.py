"""Dialler: keeps a link to one broker, dialling again with growing pauses. RareLog: says each thing once a minute."""

import asyncio
import logging
import os
import secrets
from typing import TYPE_CHECKING

from anabranch.broker.peers.peers import Address
from anabranch.clock import Clock
from anabranch.errors import PeerError
from anabranch.server.peers.handshake import NONCE_BYTES, Cause, HandshakeError, Identity, dial
from anabranch.server.peers.link import PeerLink
from anabranch.server.peers.sockets import tune
from anabranch.values import BrokerId

if TYPE_CHECKING:
    from anabranch.server.peers.links import PeerLinks

logger = logging.getLogger(__name__)

HANDSHAKE_SECONDS_MAX = 5.0
PAUSE_SECONDS_MIN = 0.05
PAUSE_SECONDS_MAX = 1.0
"""So that a link is back soon after whatever cut it is over."""
PAUSE_SECONDS_REFUSED = 5.0
"""Somebody has to change something first."""
SAY_AGAIN_MS = 60_000
SAID_MAX = 256


class RareLog:
    """Reasons why a link is not made come again with every dial; each is written once a minute."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._said: dict[tuple[object, Cause], int] = {}

    def warn(self, who: object, error: HandshakeError, text: str) -> None:
        now_ms = self._clock.monotonic_ms()
        said_ms = self._said.get((who, error.cause))
        is_new = said_ms is None or now_ms - said_ms >= SAY_AGAIN_MS
        if is_new:
            if len(self._said) >= SAID_MAX:
                self._said.clear()
            self._said[who, error.cause] = now_ms
        is_wrong = error.cause not in (Cause.DUPLICATE, Cause.ITSELF, Cause.NOT_YET)
        logger.log(logging.WARNING if is_new and is_wrong else logging.DEBUG, "%s: %s", text, error)

    def forget(self, who: object) -> None:
        """All is well with them: the next trouble is news."""
        for key in [key for key in self._said if key[0] == who]:
            del self._said[key]


class Dialler:
    def __init__(self, links: "PeerLinks", broker: BrokerId | None, address: Address) -> None:
        self.address = address
        self._links = links
        self._broker = broker
        self._wanted = asyncio.Event()
        self.met: Identity | None = None
        """Who answered last."""
        self.task: asyncio.Task[None]

    def start(self) -> None:
        self.task = asyncio.get_running_loop().create_task(self._keep())

    def stop(self) -> None:
        self.task.cancel()

    def wake(self) -> None:
        self._wanted.set()

    async def _keep(self) -> None:
        assert self._broker is not None
        pause = 0.0
        while True:
            if self._links.is_up(self._broker):
                self._wanted.clear()
                await self._wanted.wait()
                pause = PAUSE_SECONDS_MIN * self._links.rng.random()
            await asyncio.sleep(pause * (0.5 + self._links.rng.random()))
            if not self._links.is_up(self._broker):
                pause = await self._try(max(pause, PAUSE_SECONDS_MIN))

    async def _try(self, pause: float) -> float:
        """How long to wait before the next time, if there is one."""
        try:
            await self.dial()
        except HandshakeError as error:
            where = f"no link to broker {self._broker} at {self.address[0]}:{self.address[1]}"
            self._links.rare_log.warn(self._broker, error, where)
            if error.cause in (Cause.UNREACHABLE, Cause.SILENCE, Cause.DUPLICATE, Cause.NOT_YET):
                return min(2 * pause, PAUSE_SECONDS_MAX)
            return PAUSE_SECONDS_REFUSED
        return PAUSE_SECONDS_MIN

    async def dial(self) -> Identity:
        """Make the link; who is at its other end. Raises HandshakeError."""
        links = self._links
        nonce = secrets.token_bytes(NONCE_BYTES)
        link = PeerLink(
            links,
            lambda link: dial(
                links.me, self._broker, links.security.secret, nonce, lambda them: self._meet(link, them)
            ),
            is_dialled=True,
            check_certificate=links.security.check_certificate,
        )
        try:
            async with asyncio.timeout(HANDSHAKE_SECONDS_MAX):
                await self._connect(link)
                return await link.met
        except TimeoutError:
            raise HandshakeError(
                Cause.SILENCE,
                f"nobody answered within {HANDSHAKE_SECONDS_MAX:.0f} s: is that the peer port of a running broker, and "
                "does a firewall let us through?",
            ) from None
        except HandshakeError:
            raise
        except PeerError as error:
            raise HandshakeError(
                Cause.UNREACHABLE,
                f"the other side hung up before it said who it is ({error}): is that the peer port of a running "
                "broker?",
            ) from None
        finally:
            links.not_met(link)
            if not link.is_up:
                link.close("it was not made")

    def _meet(self, link: PeerLink, them: Identity) -> None:
        self.met = them
        self._links.meet(link, them)

    async def _connect(self, link: PeerLink) -> None:
        host, port = self.address
        security = self._links.security
        try:
            transport, _ = await asyncio.get_running_loop().create_connection(
                lambda: link,
                host,
                port,
                ssl=security.client_context,
                server_hostname=host if security.client_context else None,
            )
            sock = transport.get_extra_info("socket")
            if sock is not None:  # Else the link has objected already, and says why.
                tune(sock)
        except OSError as error:
            why = os.strerror(error.errno) if error.errno else str(error)
            raise HandshakeError(
                Cause.UNREACHABLE,
                f"it cannot be reached ({why}): is the broker running, and is the address right?",
            ) from None
