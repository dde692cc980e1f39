"""PeerLinks: a broker's connections to the others, one per pair.

Both sides may dial, so that one wrong address or one firewall does no harm. If they do so at once, the link that the
broker with the greater id dialled stays. A broker dials only when it has no link; so whoever dials although we have one
has lost it, and the new one takes its place, unless ours is so young that the two dials may have crossed.
"""

import asyncio
import logging
from collections.abc import Mapping
from random import Random

from anabranch.broker.peers.messages import Answer, PeerMessage, Question
from anabranch.broker.peers.peers import Address, Hello, PeerHandler, Peers
from anabranch.clock import Clock
from anabranch.errors import PeerRefusedError, PeerUnreachableError
from anabranch.server.peers.dialler import HANDSHAKE_SECONDS_MAX, PAUSE_SECONDS_MIN, Dialler, RareLog
from anabranch.server.peers.handshake import Cause, HandshakeError, Identity
from anabranch.server.peers.link import PeerLink
from anabranch.server.peers.security import PeerSecurity
from anabranch.values import BrokerId

logger = logging.getLogger(__name__)

CROSSING_MS_MAX = int(HANDSHAKE_SECONDS_MAX * 1000)


class PeerLinks(Peers):
    """`broker.peers.peers.Peers` over sockets."""

    def __init__(self, me: Identity, security: PeerSecurity, clock: Clock, rng: Random) -> None:
        self.me = me
        self.security = security
        self.clock = clock
        self.rng = rng
        self.rare_log = RareLog(clock)
        self.dropped_total = 0
        """Messages told to brokers without a link, or beyond the room of one."""
        self._handler: PeerHandler | None = None
        self._links: dict[BrokerId, PeerLink] = {}
        self._half_dialled: dict[BrokerId, PeerLink] = {}
        """Our dials that have been answered, and are not proven yet."""
        self._addresses: dict[BrokerId, Address] = {}
        self._seeds: dict[BrokerId, Address] = {}
        self._diallers: dict[BrokerId, Dialler] = {}
        self._is_closed = False

    def start(self, handler: PeerHandler) -> None:
        self._handler = handler

    async def close(self) -> None:
        self._is_closed = True
        for dialler in self._diallers.values():
            dialler.stop()
        for link in [*self._links.values(), *self._half_dialled.values()]:
            link.close("this broker stops")
        await asyncio.gather(*(dialler.task for dialler in self._diallers.values()), return_exceptions=True)
        self._diallers.clear()
        await asyncio.sleep(0)  # Aborted transports close their sockets in the loop's next turn.

    # --- Peers -------------------------------------------------------------------------------------------------

    def tell(self, to: BrokerId, message: PeerMessage) -> None:
        link = self._links.get(to)
        if link is None or not link.tell(message):
            self.dropped_total += 1

    def flush(self) -> None:
        for link in list(self._links.values()):
            link.flush()

    async def ask(self, to: BrokerId, question: Question, timeout_ms: int) -> Answer:
        link = self._links.get(to)
        if link is None:
            raise PeerUnreachableError(f"there is no link to broker {to}")
        return await link.ask(question, timeout_ms)

    def is_up(self, broker: BrokerId) -> bool:
        return broker in self._links

    def room(self, broker: BrokerId) -> int:
        link = self._links.get(broker)
        return link.room if link is not None else 0

    def connect(self, addresses: Mapping[BrokerId, Address]) -> None:
        left_out = self._addresses.keys() - addresses.keys()
        self._addresses = {
            broker: address for broker, address in addresses.items() if broker != self.me.broker_id
        }
        for broker in addresses:
            self._seeds.pop(broker, None)
        self._keep_diallers()
        for broker in left_out:
            if link := self._links.get(broker):
                link.close("it is no longer in the cluster")

    async def join(self, address: Address) -> Hello:
        try:
            them = await self._find(Dialler(self, None, address))
        except HandshakeError as error:
            if error.cause in (Cause.UNREACHABLE, Cause.SILENCE, Cause.NOT_YET):
                raise PeerUnreachableError(str(error)) from None
            raise PeerRefusedError(str(error), error.cause.name) from None
        if not self.me.cluster_id:
            self.me = self.me._replace(cluster_id=them.cluster_id)
        if them.broker_id not in self._addresses:
            self._seeds[them.broker_id] = address
            self._keep_diallers()
        return Hello(them.cluster_id, them.broker_id)

    async def _find(self, dialler: Dialler) -> Identity:
        """Who is at an address, to whom there is a link by then."""
        while True:
            try:
                return await dialler.dial()
            except HandshakeError as error:
                if error.cause is not Cause.DUPLICATE:
                    raise
            if dialler.met is not None and (link := self._links.get(dialler.met.broker_id)):
                return link.them
            await asyncio.sleep(PAUSE_SECONDS_MIN)  # The dials crossed; one of the two makes it.

    def _keep_diallers(self) -> None:
        wanted = self._seeds | self._addresses
        for broker in self._diallers.keys() - wanted.keys():
            self._diallers.pop(broker).stop()
        for broker, address in wanted.items():
            if broker in self._diallers:
                self._diallers[broker].address = address
            elif not self._is_closed:
                self._diallers[broker] = Dialler(self, broker, address)
                self._diallers[broker].start()

    # --- meeting -----------------------------------------------------------------------------------------------

    def meet(self, link: PeerLink, them: Identity) -> None:
        """Somebody answered our dial."""
        if them.broker_id in self._links or them.broker_id in self._half_dialled:
            raise HandshakeError(Cause.DUPLICATE, _duplicate(self.me, them))
        self._half_dialled[them.broker_id] = link

    def not_met(self, link: PeerLink) -> None:
        for broker in [broker for broker, half in self._half_dialled.items() if half is link]:
            del self._half_dialled[broker]

    def admit(self, them: Identity) -> None:
        """Somebody proven dialled us."""
        ours = self._half_dialled.get(them.broker_id)
        if ours is not None and self.me.broker_id > them.broker_id:
            raise HandshakeError(Cause.DUPLICATE, _duplicate(self.me, them))
        link = self._links.get(them.broker_id)
        if link is not None:
            self._check_replaces(link, them)
        if ours is not None:
            self.not_met(ours)
            ours.close(
                "the other side's dial is kept", HandshakeError(Cause.DUPLICATE, _duplicate(self.me, them))
            )

    def _check_replaces(self, link: PeerLink, them: Identity) -> None:
        if link.them.directory_id != them.directory_id:
            raise HandshakeError(
                Cause.DIRECTORY,
                f"a broker {them.broker_id} with another data folder is connected to broker {self.me.broker_id}: two "
                "brokers run under one id; give one of them another --broker-id, with a data folder of its own.",
            )
        if link.is_dialled and self.clock.monotonic_ms() - link.since_ms < CROSSING_MS_MAX:
            raise HandshakeError(Cause.DUPLICATE, _duplicate(self.me, them))

    # --- what links say ----------------------------------------------------------------------------------------

    def linked(self, link: PeerLink) -> None:
        self.not_met(link)
        if self._is_closed:
            link.close("this broker stops")
            return
        if old := self._links.get(link.broker_id):
            old.close("the other side lost it and dialled again")
        self._links[link.broker_id] = link
        logger.info("linked to broker %d (%s dialled)", link.broker_id, "we" if link.is_dialled else "it")
        self.rare_log.forget(link.broker_id)
        assert self._handler is not None, "links are made after start"
        self._handler.peer_up(link.broker_id)

    def lost(self, link: PeerLink, reason: str) -> None:
        if self._links.get(link.broker_id) is not link:
            return
        del self._links[link.broker_id]
        if not self._is_closed:
            logger.warning("the link to broker %d is down: %s", link.broker_id, reason)
        assert self._handler is not None
        self._handler.peer_down(link.broker_id)
        if dialler := self._diallers.get(link.broker_id):
            dialler.wake()

    def heard(self, link: PeerLink, message: PeerMessage) -> None:
        assert self._handler is not None
        self._handler.heard(link.broker_id, message)

    async def asked(self, link: PeerLink, question: Question) -> Answer:
        assert self._handler is not None
        return await self._handler.asked(link.broker_id, question)


def _duplicate(me: Identity, them: Identity) -> str:
    return f"brokers {me.broker_id} and {them.broker_id} dialled each other at once, and one link is enough."
