"""PeerPort: the side of a node that faces other brokers: its listener, its links, and the way into a cluster.

port = PeerPort(settings, clock)
identity = await port.open(state)   # bound; a blank folder that joins has found out which cluster it belongs to
port.start(handler)                 # others may speak now
await port.close()
"""

import asyncio
import logging
import uuid
from random import Random

from anabranch.broker.peers.messages import Answer, PeerMessage, Question
from anabranch.broker.peers.peers import PeerHandler
from anabranch.broker.topics.stored_state import NodeIdentity, StoredState, directory_of
from anabranch.clock import Clock
from anabranch.config import NodeSettings, host_and_port
from anabranch.errors import NotControllerError, PeerError, PeerRefusedError, PeerUnreachableError
from anabranch.server.peers.handshake import Cause, Identity
from anabranch.server.peers.links import PeerLinks
from anabranch.server.peers.listener import PeerListener
from anabranch.server.peers.security import load_security
from anabranch.values import BrokerId

JOIN_SECONDS_MAX = 30.0
JOIN_PAUSE_SECONDS = 0.2
JOIN_SAY_SECONDS = 3.0
SEED_SECONDS_MAX = 1.0
FOREIGN = [cause.name for cause in (Cause.CLUSTER, Cause.SECRET, Cause.VERSION, Cause.SAME_ID, Cause.REFUSED)]
"""Why a broker that answers will not be a peer of this one before somebody changes something."""

logger = logging.getLogger(__name__)


class _NotYet:
    """Answers for a broker that is still opening its logs."""

    def __init__(self) -> None:
        self.up: set[BrokerId] = set()

    def peer_up(self, broker: BrokerId) -> None:
        self.up.add(broker)

    def peer_down(self, broker: BrokerId) -> None:
        self.up.discard(broker)

    def heard(self, sender: BrokerId, message: PeerMessage) -> None:
        """Whatever it is, it is said again."""

    async def asked(self, sender: BrokerId, question: Question) -> Answer:
        raise NotControllerError("This broker is still starting: try again.")


class PeerPort:
    def __init__(self, settings: NodeSettings, clock: Clock) -> None:
        assert settings.peer_listen is not None
        self._settings = settings
        self._clock = clock
        self._security = load_security(settings)
        self.bound = ("", 0)

    async def open(self, state: StoredState) -> NodeIdentity:
        """Raises OSError if the port cannot be had; PeerError if no broker named by peer.join lets us in."""
        settings, new_id = self._settings, uuid.uuid4()
        broker_id = BrokerId(settings.broker_id)
        is_joining = state.is_blank and bool(settings.peer_join)
        if is_joining:
            me = Identity("", broker_id, directory_of(new_id))
        else:
            identity = state.identity(broker_id, new_id)
            me = Identity(identity.cluster_id, broker_id, identity.directory_id)
        self.links = PeerLinks(me, self._security, self._clock, Random())
        self._not_yet = _NotYet()
        self.links.start(self._not_yet)
        self.listener = PeerListener(self.links)
        assert settings.peer_listen is not None
        self.bound = self.listener.open(*host_and_port(settings.peer_listen))
        if not is_joining:
            await self._check_seeds()
            return identity
        self.listener.start()  # Others that join may ask us too: they should hear at once that we know nothing yet.
        try:
            cluster_id = await self._join()
        except BaseException:
            await self.close()
            raise
        return state.identity(broker_id, new_id, cluster_id)

    async def _join(self) -> str:
        """The id of the cluster that the seeds belong to. They may be starting at this moment."""
        loop = asyncio.get_running_loop()
        started, said = loop.time(), ""
        while True:
            try:
                return await self._ask_seeds()
            except PeerUnreachableError as error:
                waited = loop.time() - started
                if waited >= JOIN_SECONDS_MAX:
                    raise PeerUnreachableError(
                        f"No broker of the cluster has answered for {JOIN_SECONDS_MAX:.0f} s: check --join, or start "
                        f"one of those brokers first. {error}"
                    ) from error
                if waited >= JOIN_SAY_SECONDS and str(error) != said:
                    said = str(error)
                    logger.warning("no broker of the cluster answers yet, trying on: %s", error)
            await asyncio.sleep(JOIN_PAUSE_SECONDS)

    async def _check_seeds(self) -> None:
        """A folder that belongs to a cluster does not join another. Whoever does not answer is not waited for: all
        brokers may be starting together."""
        for address in self._settings.peer_join:
            try:
                async with asyncio.timeout(SEED_SECONDS_MAX):
                    await self.links.join(host_and_port(address))
            except PeerRefusedError as error:
                if error.kind in FOREIGN:
                    await self.close()
                    raise
            except (PeerError, TimeoutError):
                continue  # The links go on trying, and say what is wrong.

    async def _ask_seeds(self) -> str:
        seeds = [address for address in self._settings.peer_join if not self._is_own(address)]
        if not seeds:
            raise PeerRefusedError(
                "--join names nobody but this broker itself: name another broker of the cluster, or leave --join "
                "out to begin one."
            )
        reasons = []
        for address in seeds:
            try:
                hello = await self.links.join(host_and_port(address))
            except PeerRefusedError as error:
                if error.kind != "ITSELF":  # One list of addresses may serve all brokers.
                    raise
                reasons.append(f"{address}: that is this broker itself")
            except PeerError as error:
                reasons.append(f"{address}: {str(error).rstrip('.')}")
            else:
                if hello.cluster_id:
                    return hello.cluster_id
                reasons.append(f"{address}: broker {hello.broker_id} is still joining itself")
        raise PeerUnreachableError("; ".join(reasons))

    def _is_own(self, address: str) -> bool:
        return address in (self._settings.peer_listen, self._settings.peer_advertise)

    def start(self, handler: PeerHandler) -> None:
        self.links.start(handler)
        for broker in sorted(self._not_yet.up):
            handler.peer_up(broker)
        self.listener.start()

    async def close(self) -> None:
        await self.listener.close()
        await self.links.close()
