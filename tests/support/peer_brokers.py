"""Brokers that are nothing but their peer links, on loopback."""

import asyncio
import functools
import inspect
import logging
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

from anabranch.broker.peers.messages import Answer, PeerMessage, Question, ReadIndex, ReadIndexAnswer
from anabranch.clock import RealClock
from anabranch.errors import NotControllerError
from anabranch.server.peers.handshake import Identity
from anabranch.server.peers.link import PeerLink
from anabranch.server.peers.links import PeerLinks
from anabranch.server.peers.listener import PeerListener
from anabranch.server.peers.security import PeerSecurity
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
        port: int = 0,
    ) -> None:
        self.id = BrokerId(broker_id)
        me = Identity(cluster_id, self.id, directory_id or f"folder-{broker_id}")
        self.links = PeerLinks(me, security or PeerSecurity(secret), RealClock(), Random(broker_id))
        self.links.start(self)
        self.listener = PeerListener(self.links)
        self.address = self.listener.open("127.0.0.1", port)
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


class Loopback:
    """The brokers of one test."""

    def __init__(self) -> None:
        self.brokers: list[PeerBroker] = []

    def broker(self, broker_id: int, **more: Any) -> PeerBroker:
        self.brokers.append(PeerBroker(broker_id, **more))
        return self.brokers[-1]

    async def linked(self, *broker_ids: int) -> list[PeerBroker]:
        """Brokers of which everyone dials everyone, when all are linked."""
        brokers = [self.broker(broker_id) for broker_id in broker_ids]
        for broker in brokers:
            broker.connect(*brokers)
        await self.all_linked(*brokers)
        return brokers

    async def all_linked(self, *brokers: PeerBroker) -> None:
        pairs = [(one, other) for one in brokers for other in brokers if one is not other]
        await until(lambda: all(one.is_linked(other) for one, other in pairs))


def on_loopback(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run a test in a loop of its own, with a Loopback as its first argument; everything is closed afterwards, and
    nothing may have failed unseen."""

    async def run(*fixtures: object, **named: object) -> None:
        failures: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
        net = Loopback()
        try:
            await test(net, *fixtures, **named)
        finally:
            for broker in net.brokers:
                await broker.close()
        assert failures == []
        left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        assert left == []

    @functools.wraps(test)
    def wrapper(*fixtures: object, **named: object) -> None:
        asyncio.run(run(*fixtures, **named))

    parameters = list(inspect.signature(test).parameters.values())[1:]
    wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return wrapper


def link_of(one: PeerBroker, other: PeerBroker) -> PeerLink:
    return one.links._links[other.id]


def cut(one: PeerBroker, other: PeerBroker) -> None:
    """As when the process at the other end dies: the socket is closed under both."""
    transport = link_of(one, other)._transport
    assert transport is not None
    transport.abort()


def warnings_of(caplog: Any) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
