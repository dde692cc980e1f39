"""Brokers that are nothing but their peer links, on loopback."""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

from anabranch.broker.peer_messages import Answer, PeerMessage, Question, ReadIndex, ReadIndexAnswer
from anabranch.clock import RealClock
from anabranch.errors import NotControllerError
from anabranch.server.peer_handshake import Identity
from anabranch.server.peer_links import PeerLinks
from anabranch.server.peer_listener import PeerListener
from anabranch.server.peer_security import PeerSecurity
from anabranch.values import BrokerId

SECRET = b"a secret of more than sixteen bytes"
WAIT_SECONDS_MAX = 20


class PeerBroker:
    """A PeerHandler that writes down what happens to it."""

    def __init__(
        self,
        broker_id: int,
        *,
        cluster_id: str = "c",
        directory_id: str | None = None,
        secret: bytes = SECRET,
        security: PeerSecurity | None = None,
    ) -> None:
        self.id = BrokerId(broker_id)
        me = Identity(cluster_id, self.id, directory_id or f"folder-{broker_id}")
        self.links = PeerLinks(me, security or PeerSecurity(secret), RealClock(), Random(broker_id))
        self.links.start(self)
        self.listener = PeerListener(self.links)
        self.address = self.listener.open("127.0.0.1", 0)
        self.listener.start()
        self.ups: list[int] = []
        self.downs: list[int] = []
        self.messages: list[tuple[int, PeerMessage]] = []
        self.answer: Callable[[int, Question], Awaitable[Answer]] = self.refuse

    def peer_up(self, broker: BrokerId) -> None:
        self.ups.append(broker)

    def peer_down(self, broker: BrokerId) -> None:
        self.downs.append(broker)

    def heard(self, sender: BrokerId, message: PeerMessage) -> None:
        self.messages.append((sender, message))

    async def asked(self, sender: BrokerId, question: Question) -> Answer:
        return await self.answer(sender, question)

    async def refuse(self, sender: int, question: Question) -> Answer:
        if isinstance(question, ReadIndex):
            return ReadIndexAnswer(sender)
        raise NotControllerError("broker 9 leads, ask there")

    def connect(self, *others: "PeerBroker") -> None:
        self.links.connect({other.id: other.address for other in others})

    def is_linked(self, *others: "PeerBroker") -> bool:
        return all(self.links.is_up(other.id) for other in others)

    async def close(self) -> None:
        await self.listener.close()
        await self.links.close()


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(WAIT_SECONDS_MAX):
        while not condition():  # noqa: ASYNC110 - Conditions over several brokers, which no event tells.
            await asyncio.sleep(0.002)
