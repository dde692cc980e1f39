"""FakeNet: links between brokers that share one loop, with every fault a network has. One seed, one run.

    net = FakeNet(loop, clock, Random(seed))
    peers = net.peers(BrokerId(1))      # a `broker.peers.peers.Peers`; peers.start(handler), and it can be reached
    net.cut(1, 2, one_way=True)         # what 1 sends does not reach 2 any more
    net.crash(1)                        # and `net.peers(1)` again brings it back, knowing nothing

Messages travel as bytes through the real codec, and lie in the sender's buffers until they arrive, as they may on a
busy link: whoever changes a buffer after `tell` is found out. While a link lasts they keep their order, unless the
`plan` loses, doubles or reorders some.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import count
from random import Random

from anabranch.broker.peers.codec import (
    ANSWERS,
    BODY_START,
    HEADER,
    QUESTIONS,
    Refused,
    Said,
    decode,
    encode,
    size_of,
)
from anabranch.broker.peers.messages import Answer, Buffer, PeerMessage, Question
from anabranch.broker.peers.peers import Address, Hello, PeerHandler, Peers
from anabranch.clock import Clock
from anabranch.errors import AnabranchError, PeerRefusedError, PeerUnreachableError
from anabranch.values import BrokerId

QUEUE_BYTES_MAX = 32 * 2**20


@dataclass(slots=True)
class FaultPlan:
    """Shares of what is told, and times. Questions and answers are only ever lost with their link."""

    lose: float = 0.0
    double: float = 0.0
    reorder: float = 0.0
    delay_ms_max: int = 2
    slow: float = 0.0
    """Share of messages that take up to `slow_ms_max`; what follows on that link waits behind them."""
    slow_ms_max: int = 500
    notice_ms_max: int = 2000
    """Until a side notices that a link is cut or its other end dead; a process that dies is noticed at once."""
    dial_ms_max: int = 50
    redial_ms_max: int = 500


@dataclass(slots=True)
class _Flying:
    frame: list[Buffer]
    size: int


@dataclass(slots=True, eq=False)
class _Lane:
    """One direction of a link."""

    sender: "FakePeers"
    receiver: "FakePeers"
    queue: deque[_Flying] = field(default_factory=deque)
    bytes_waiting: int = 0
    held: int = 0
    """Arrivals that a cut, or a pause of either end, holds up."""


@dataclass(slots=True, eq=False)
class _Link:
    lanes: dict[BrokerId, _Lane]
    """By sender."""
    is_broken: bool = False


class FakeNet:
    def __init__(
        self, loop: asyncio.AbstractEventLoop, clock: Clock, rng: Random, plan: FaultPlan | None = None
    ) -> None:
        self.loop = loop
        self.clock = clock
        self.rng = rng
        self.plan = plan or FaultPlan()
        self.cluster_id = "simulated"
        self.delivered_total = 0
        self.lost_total = 0
        self._brokers: dict[BrokerId, FakePeers] = {}
        self._cuts: set[tuple[BrokerId, BrokerId]] = set()
        self._paused: set[BrokerId] = set()
        self.correlations = count(1)
        """Of all brokers in all their lives: an answer that comes late, by a later link, is nobody's."""

    def peers(
        self,
        broker: BrokerId,
        loop: asyncio.AbstractEventLoop | None = None,
        is_dark: Callable[[], bool] = lambda: False,
    ) -> "FakePeers":
        """A broker that starts, or starts again after a crash. It may have a loop of its own; once it `is_dark`, it
        says nothing any more."""
        if broker in self._brokers:
            self.crash(broker)
        self._brokers[broker] = FakePeers(self, broker, loop or self.loop, is_dark)
        return self._brokers[broker]

    @staticmethod
    def address(broker: BrokerId) -> Address:
        return f"broker-{broker}", 1

    # --- faults ------------------------------------------------------------------------------------------------

    def cut(self, one: BrokerId, other: BrokerId, *, one_way: bool = False) -> None:
        """Nothing that `one` sends reaches `other` (nor back, unless `one_way`) until `heal`. As with TCP, what was on
        its way arrives late if the cut is shorter than the link's life, and is lost with the link otherwise."""
        self._cuts.add((one, other))
        if not one_way:
            self._cuts.add((other, one))
        sides = self._brokers.get(one), self._brokers.get(other)
        for side, to in zip(sides, (other, one), strict=True):
            if side is not None and (link := side.links.get(to)):
                self.soon(self.plan.notice_ms_max, self._break_if_cut, link, one, other)
                return

    def isolate(self, broker: BrokerId) -> None:
        for other in list(self._brokers):
            if other != broker:
                self.cut(broker, other)

    def heal(self, one: BrokerId | None = None, other: BrokerId | None = None) -> None:
        """Of two brokers, of one to all others, or everything; links come back when they are dialled again."""
        some = {broker for broker in (one, other) if broker is not None}
        self._cuts = {cut for cut in self._cuts if not some <= set(cut)}
        self._release()

    def pause(self, broker: BrokerId) -> None:
        """Nothing reaches or leaves it until `resume`; then everything does. Its own timers are not stopped."""
        self._paused.add(broker)

    def resume(self, broker: BrokerId) -> None:
        self._paused.discard(broker)
        self._release()

    def _release(self) -> None:
        """Let arrive what nothing holds up any more."""
        for side in self._brokers.values():
            for link in side.links.values():
                lane = link.lanes[side.me]
                if not self._is_held(lane):
                    held, lane.held = lane.held, 0
                    for _ in range(held):
                        self.loop.call_soon(self._arrive, link, lane)

    def crash(self, broker: BrokerId, *, is_noticed: bool = True) -> None:
        """It hears and says nothing any more. `is_noticed`: the others' systems know at once (the process died), else
        they have to find out (the machine did)."""
        self._paused.discard(broker)
        dead = self._brokers.pop(broker, None)
        if dead is None:
            return  # It had stopped.
        dead.is_alive = False
        for link in list(dead.links.values()):
            self.break_link(link, 0 if is_noticed else self.plan.notice_ms_max)
        dead.fail_asks(None, "this broker has crashed")

    # --- links -------------------------------------------------------------------------------------------------

    def reachable(self, one: BrokerId, other: BrokerId) -> "FakePeers | None":
        """The other, if a handshake between the two would succeed now."""
        found = self._brokers.get(other)
        is_cut = (one, other) in self._cuts or (other, one) in self._cuts
        if found is None or not found.is_started or is_cut or {one, other} & self._paused:
            return None
        return found

    def link(self, dialler: "FakePeers", acceptor: "FakePeers") -> None:
        for side, other in ((dialler, acceptor), (acceptor, dialler)):
            if old := side.links.get(other.me):
                old.is_broken = True
                side.notice(old, other.me)
        lanes = {dialler.me: _Lane(dialler, acceptor), acceptor.me: _Lane(acceptor, dialler)}
        link = _Link(lanes)
        for side, other in ((acceptor, dialler), (dialler, acceptor)):
            side.links[other.me] = link
        for side, other in ((acceptor, dialler), (dialler, acceptor)):
            side.met(other.me)

    def _break_if_cut(self, link: _Link, one: BrokerId, other: BrokerId) -> None:
        if (one, other) in self._cuts or (other, one) in self._cuts:
            self.break_link(link, self.plan.notice_ms_max)

    def break_link(self, link: _Link, notice_ms_max: int) -> None:
        link.is_broken = True
        for lane in link.lanes.values():
            self.lost_total += len(lane.queue)
            lane.queue.clear()
            if lane.receiver.is_alive:
                self.soon(notice_ms_max, lane.receiver.notice, link, lane.sender.me)

    def soon(self, ms_max: int, function: object, *arguments: object) -> None:
        self.loop.call_later(self.rng.randint(0, ms_max) / 1000, function, *arguments)  # type: ignore[arg-type]

    # --- messages ----------------------------------------------------------------------------------------------

    def send(self, link: _Link, sender: BrokerId, frame: list[Buffer], *, is_told: bool) -> None:
        lane, plan, rng = link.lanes[sender], self.plan, self.rng
        if link.is_broken or (is_told and rng.random() < plan.lose):
            self.lost_total += 1
            return
        copies = 2 if is_told and rng.random() < plan.double else 1
        for _ in range(copies):
            flying = _Flying(frame, size_of(frame))
            is_early = is_told and lane.queue and rng.random() < plan.reorder
            lane.queue.insert(rng.randrange(len(lane.queue)) if is_early else len(lane.queue), flying)
            lane.bytes_waiting += flying.size
            self.soon(
                plan.slow_ms_max if rng.random() < plan.slow else plan.delay_ms_max, self._arrive, link, lane
            )

    def _is_held(self, lane: _Lane) -> bool:
        sender, receiver = lane.sender.me, lane.receiver.me
        return sender in self._paused or receiver in self._paused or (sender, receiver) in self._cuts

    def _arrive(self, link: _Link, lane: _Lane) -> None:
        """Each arrival brings the first that is under way: order does not hang on the timers."""
        if link.is_broken:
            return
        if self._is_held(lane):
            lane.held += 1
            return
        flying = lane.queue.popleft()
        lane.bytes_waiting -= flying.size
        self.delivered_total += 1
        lane.receiver.receive(lane.sender.me, b"".join(flying.frame))


class FakePeers(Peers):
    """`broker.peers.peers.Peers` of one broker of a FakeNet."""

    def __init__(
        self, net: FakeNet, me: BrokerId, loop: asyncio.AbstractEventLoop, is_dark: Callable[[], bool]
    ) -> None:
        self.me = me
        self._loop = loop
        self._is_dark = is_dark
        self.is_alive = True
        self.links: dict[BrokerId, _Link] = {}
        self.dropped_total = 0
        self._net = net
        self._handler: PeerHandler | None = None
        self._wanted: set[BrokerId] = set()
        self._seeds: set[BrokerId] = set()
        self._dialling: set[BrokerId] = set()
        self._asks: dict[int, tuple[BrokerId, asyncio.Future[Answer]]] = {}
        self._answering: set[asyncio.Task[None]] = set()

    @property
    def is_started(self) -> bool:
        return self.is_alive and self._handler is not None

    def start(self, handler: PeerHandler) -> None:
        self._handler = handler

    async def close(self) -> None:
        if self.is_alive:
            self._net.crash(self.me)

    # --- Peers -------------------------------------------------------------------------------------------------

    def tell(self, to: BrokerId, message: PeerMessage) -> None:
        if not self._put(to, encode(message), is_told=True):
            self.dropped_total += 1

    def flush(self) -> None:
        """Everything is under way already."""

    async def ask(self, to: BrokerId, question: Question, timeout_ms: int) -> Answer:
        correlation = next(self._net.correlations)
        if not self._put(to, encode(question, correlation), is_told=False):
            raise PeerUnreachableError(f"there is no link to broker {to}, or no room on it")
        asking: asyncio.Future[Answer] = self._loop.create_future()
        self._asks[correlation] = (to, asking)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                answer: Answer = await asking
                return answer
        except TimeoutError:
            raise PeerUnreachableError(f"broker {to} did not answer within {timeout_ms} ms") from None
        finally:
            self._asks.pop(correlation, None)

    def is_up(self, broker: BrokerId) -> bool:
        return broker in self.links

    def room(self, broker: BrokerId) -> int:
        link = self.links.get(broker)
        return max(0, QUEUE_BYTES_MAX - link.lanes[self.me].bytes_waiting) if link is not None else 0

    def connect(self, addresses: Mapping[BrokerId, Address]) -> None:
        left_out = self._wanted - addresses.keys()
        self._wanted = addresses.keys() - {self.me}
        self._seeds -= self._wanted
        for broker in sorted(self._wanted):
            self._dial_soon(broker, self._net.plan.dial_ms_max)
        for broker in sorted(left_out):
            if link := self.links.get(broker):
                self._net.break_link(link, 0)

    async def join(self, address: Address) -> Hello:
        broker = BrokerId(int(address[0].rpartition("-")[2]))
        await asyncio.sleep(self._net.rng.randint(0, self._net.plan.dial_ms_max) / 1000)
        if broker not in self.links and not self._dial(broker):
            raise PeerUnreachableError(f"nobody answers at {address[0]}:{address[1]}: is the broker running?")
        if broker not in self._wanted:
            self._seeds.add(broker)
        return Hello(self._net.cluster_id, broker)

    # --- dialling ----------------------------------------------------------------------------------------------

    def _dial_soon(self, broker: BrokerId, ms_max: int) -> None:
        if broker not in self._dialling and broker not in self.links and self.is_alive:
            self._dialling.add(broker)
            self._net.soon(ms_max, self._redial, broker)

    def _redial(self, broker: BrokerId) -> None:
        self._dialling.discard(broker)
        is_wanted = broker in self._wanted or broker in self._seeds
        if is_wanted and broker not in self.links and not self._dial(broker):
            self._dial_soon(broker, self._net.plan.redial_ms_max)

    def _dial(self, broker: BrokerId) -> bool:
        other = self._net.reachable(self.me, broker)
        if other is None or not self.is_started:
            return False
        self._net.link(self, other)
        return True

    def met(self, broker: BrokerId) -> None:
        if self._handler is not None and broker in self.links:
            self._call(self._handler.peer_up, broker)

    def notice(self, link: _Link, broker: BrokerId) -> None:
        """The link to that broker is no more."""
        if self.links.get(broker) is not link or not self.is_alive:
            return
        del self.links[broker]
        self.fail_asks(broker, f"the link to broker {broker} broke")
        assert self._handler is not None
        self._call(self._handler.peer_down, broker)
        if broker in self._wanted or broker in self._seeds:
            self._dial_soon(broker, self._net.plan.dial_ms_max)

    def fail_asks(self, broker: BrokerId | None, reason: str) -> None:
        for to, asking in self._asks.values():
            if (broker is None or to == broker) and not asking.done():
                asking.set_exception(PeerUnreachableError(reason))

    # --- messages ----------------------------------------------------------------------------------------------

    def _put(self, to: BrokerId, frame: list[Buffer], *, is_told: bool) -> bool:
        link = self.links.get(to)
        if link is None or not self.is_alive or self._is_dark():
            return False
        waiting = link.lanes[self.me].bytes_waiting
        if waiting and waiting + size_of(frame) > QUEUE_BYTES_MAX:
            return False
        self._net.send(link, self.me, frame, is_told=is_told)
        return True

    def _call(self, function: Callable[..., None], *arguments: object) -> None:
        """Who has a loop of its own is told in one of its turns."""
        if self._loop is self._net.loop:
            function(*arguments)
        else:
            self._loop.call_soon(function, *arguments)

    def receive(self, sender: BrokerId, frame: bytes) -> None:
        self._call(self._take, sender, frame)

    def _take(self, sender: BrokerId, frame: bytes) -> None:
        assert self._handler is not None
        _, kind, correlation = HEADER.unpack_from(frame)
        said = decode(kind, memoryview(frame)[BODY_START:], sender)
        if kind in QUESTIONS:
            task = self._loop.create_task(self._answer(sender, said, correlation))  # type: ignore[arg-type]
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)
        elif kind in ANSWERS:
            self._take_answer(said, correlation)
        else:
            self._handler.heard(sender, said)  # type: ignore[arg-type]

    async def _answer(self, sender: BrokerId, question: Question, correlation: int) -> None:
        assert self._handler is not None
        said: Said
        try:
            said = await self._handler.asked(sender, question)
        except AnabranchError as error:
            said = Refused(str(error), type(error).__name__)
        self._put(sender, encode(said, correlation), is_told=False)

    def _take_answer(self, said: Said, correlation: int) -> None:
        _, asking = self._asks.pop(correlation, (None, None))
        if asking is None or asking.done():
            return
        if isinstance(said, Refused):
            asking.set_exception(PeerRefusedError(said.reason, said.kind))
        else:
            asking.set_result(said)  # type: ignore[arg-type]
