"""Metadata logs of several brokers in one thread: a real log on a FakeDisk each, and a network that fails by seed.

Invariants, checked as things happen: one leader per term, one change per offset, every table a prefix of all that was
chosen, a read sees what was acknowledged before it was asked. After the faults a calm: somebody leads, all tables are
equal, nothing acknowledged is missing and all of it is in the order in which it was committed.
"""

import asyncio
import contextlib
import errno
import itertools
import uuid
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from random import Random
from typing import Any

from anabranch.broker.metadata.metadata_log import MetadataLog
from anabranch.broker.metadata.metadata_opener import METADATA_ID, open_metadata
from anabranch.broker.peers.messages import Answer, PeerMessage, Question, ReadIndex, ReadIndexAnswer
from anabranch.broker.peers.peers import Address, Hello
from anabranch.broker.topics.partition_opener import PartitionOpener
from anabranch.broker.topics.stored_state import StoredState, partition_key
from anabranch.broker.workers import Done, Result
from anabranch.broker.write.core import BrokerCore
from anabranch.cluster.metadata.entries import Entry, decode_entry, topic_entry
from anabranch.cluster.metadata.rows import Topic
from anabranch.cluster.raft.messages import EntryKind, Member, Members, SendSnapshot
from anabranch.cluster.raft.quorum import Role
from anabranch.config import NodeSettings
from anabranch.errors import (
    AnabranchError,
    NotControllerError,
    PeerRefusedError,
    PeerUnreachableError,
    QuorumBusyError,
    StorageError,
)
from anabranch.testing.fakes.clock import FakeClock
from anabranch.testing.fakes.disk import FakeDisk, PowerLoss
from anabranch.testing.fakes.loop import SimWorkers, VirtualLoop
from anabranch.values import BrokerId

DATA = "data"
TICK_MS = 50


def topic_named(name: str, partitions: int = 1) -> Entry:
    return topic_entry(Topic(name, uuid.uuid5(uuid.NAMESPACE_OID, name), partitions))


def in_world(seed: int, test: "Callable[[World], Coroutine[Any, Any, None]]") -> Counter[str]:
    """Run a test in a world of its own; the counts of what happened there."""
    clock = FakeClock()
    loop = VirtualLoop(clock, lambda: False)
    world = World(seed, loop, clock)
    loop.set_exception_handler(world.note_exception)
    try:
        loop.run_until_complete(test(world))
    finally:
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
    assert not world.failures, world.failures
    return world.counts


class LifeWorkers(SimWorkers):
    """Workers that die with their process."""

    def __init__(self, loop: asyncio.AbstractEventLoop, rng: Random, node: "Node") -> None:
        super().__init__(loop, rng)
        self._node, self._life = node, node.life

    def _run(self, task: Callable[[], Result], done: Done[Result]) -> None:
        if self._node.life == self._life:
            super()._run(task, done)

    def _later(self, function: Callable[..., None], *arguments: object) -> None:
        def run() -> None:
            if self._node.life == self._life:
                function(*arguments)

        super()._later(run)


class LifeFiles:
    """The disk as one process sees it: nothing, once that process is dead."""

    def __init__(self, node: "Node") -> None:
        self._node, self._life = node, node.life

    def __getattr__(self, name: str) -> Any:
        if self._node.life != self._life:
            raise OSError("this process is dead")
        return getattr(self._node.disk, name)


class Net:
    """`Peers` of one life of one node."""

    def __init__(self, node: "Node") -> None:
        self._node, self._life = node, node.life

    @property
    def is_dead(self) -> bool:
        return self._node.life != self._life

    def tell(self, to: BrokerId, message: PeerMessage) -> None:
        if not self.is_dead:
            self._node.world.carry(self._node.id, to, message)

    async def ask(self, to: BrokerId, question: Question, timeout_ms: int) -> Answer:
        assert isinstance(question, ReadIndex)
        world = self._node.world
        other = world.nodes[to]
        await asyncio.sleep(world.delay_ms() / 1000)
        if other.metadata is None or world.is_lost(self._node.id, to):
            raise PeerUnreachableError("No link.")
        try:
            end = await other.metadata.read_index()
        except AnabranchError as error:
            raise PeerRefusedError(str(error), type(error).__name__) from error
        return ReadIndexAnswer(end)

    def is_up(self, broker: BrokerId) -> bool:
        return True

    def room(self, broker: BrokerId) -> int:
        return 2**30

    def connect(self, addresses: Mapping[BrokerId, Address]) -> None: ...

    async def join(self, address: Address) -> Hello:
        raise PeerUnreachableError("There is nobody.")


class Node:
    """One broker's disk, and its present life if it has one."""

    def __init__(self, world: "World", number: int) -> None:
        self.world = world
        self.id = BrokerId(number)
        self.member = Member(number, f"directory-{number}")
        self.disk = FakeDisk()
        self.life = 0
        self.metadata: MetadataLog | None = None
        self.core: BrokerCore
        self.state: StoredState

    def boot(self) -> None:
        assert self.metadata is None
        world, files = self.world, LifeFiles(self)
        settings = NodeSettings.load({"broker.id": str(self.id)})
        self.core = BrokerCore(settings, world.clock, LifeWorkers(world.loop, world.chance, self))
        self.disk.make_folder(DATA)
        state = self.state = StoredState(files, DATA, f"boot {self.life}")
        state.load()
        opener = PartitionOpener(self.core, settings, files, DATA, state)
        self.metadata = open_metadata(
            self.core,
            opener,
            state,
            self.member,
            is_founder=self.id == 1,
            peers=Net(self),
            chance=Random(world.chance.random()).randrange,
        )
        world.note_loaded(self)
        life = self.life

        def follow(offset: int, change: Entry | None) -> None:
            if self.life == life:
                world.on_change(self, offset, change)

        self.metadata.subscribe(follow)
        world.loop.call_later(0.001 * world.chance.random() * TICK_MS, self._tick, self.life)

    def _tick(self, life: int) -> None:
        if self.life == life and self.metadata is not None:
            self.metadata.tick(self.world.clock.monotonic_ms())
            self.world.check_leader(self)
            self.world.loop.call_later(TICK_MS / 1000, self._tick, life)

    def crash(self) -> None:
        """The power goes."""
        self.world.dead.append(self.metadata)
        self.metadata = None
        self.life += 1
        for task in [task for task, node in self.world.clients.items() if node is self]:
            task.cancel()
        self.disk.crash(self.world.chance)
        self.world.counts["crashes"] += 1

    def restart(self) -> None:
        """The power goes, and comes back."""
        self.crash()
        self.boot()

    @property
    def names(self) -> list[str]:
        assert self.metadata is not None
        return list(self.metadata.table.topics)


class World:
    def __init__(self, seed: int, loop: VirtualLoop, clock: FakeClock) -> None:
        self.chance = Random(seed)
        self.loop, self.clock = loop, clock
        self.nodes: dict[BrokerId, Node] = {}
        self.loss = 0.0
        self.cut: set[tuple[int, int]] = set()
        self.counts: Counter[str] = Counter()
        self.failures: list[str] = []
        self.chosen: dict[int, str] = {}
        self.acknowledged: dict[int, str] = {}
        self.leaders: dict[int, BrokerId] = {}
        self.dead: list[MetadataLog | None] = []
        """Whose tasks wait for ever; they are kept from being collected."""
        self._number = itertools.count(1)
        self.clients: dict[asyncio.Task[None], Node] = {}

    def note_exception(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if not isinstance(context.get("exception"), PowerLoss):
            self.failures.append(f"{context.get('message')}: {context.get('exception')!r}")

    # --- the network

    def delay_ms(self) -> float:
        return float(self.chance.choice([1, 3, 10, 10, 60]) * self.chance.random())

    def is_lost(self, sender: int, receiver: int) -> bool:
        return (sender, receiver) in self.cut or self.chance.random() < self.loss

    def carry(self, sender: BrokerId, receiver: BrokerId, message: Any) -> None:
        for _ in range(2 if self.chance.random() < 0.02 else 1):
            if not self.is_lost(sender, receiver):
                self.loop.call_later(self.delay_ms() / 1000, self._deliver, receiver, message)

    def _deliver(self, receiver: BrokerId, message: Any) -> None:
        metadata = self.nodes[receiver].metadata if receiver in self.nodes else None
        if metadata is not None:
            self.counts["snapshots sent"] += isinstance(message, SendSnapshot)
            metadata.heard(message)
            self.check_leader(self.nodes[receiver])

    def split(self, *sides: set[int]) -> None:
        """Brokers of different sides do not hear each other; who is on no side hears nobody."""
        side_of = {number: index for index, side in enumerate(sides) for number in side}
        everyone = [(a, b) for a in self.nodes for b in self.nodes if a != b]
        self.cut = {(a, b) for a, b in everyone if side_of.get(a, -1 - a) != side_of.get(b, -1 - b)}

    # --- invariants

    def check_leader(self, node: Node) -> None:
        metadata = node.metadata
        if metadata is not None and metadata.quorum.role is Role.LEADER:
            assert self.leaders.setdefault(metadata.term, node.id) == node.id, (
                f"two leaders of {metadata.term}"
            )

    def note_loaded(self, node: Node) -> None:
        """A sole voter applies at its start what it had written and not yet applied."""
        assert node.metadata is not None
        log, end = node.metadata.quorum.log, node.metadata.applied_end
        for offset, entry in enumerate(log.slice(log.start, end - log.start), log.start):
            if entry.kind is EntryKind.CHANGE:
                self.on_change(node, offset, decode_entry(entry.data))
        self.check_table(node)

    def on_change(self, node: Node, offset: int, change: Entry | None) -> None:
        if change is None:
            self.counts["snapshots installed"] += 1
            self.check_table(node)
        else:
            known = self.chosen.setdefault(offset, change["name"])
            if known != change["name"]:
                self.failures.append(f"{node.id} has {change['name']} at {offset}, others {known}")
            metadata = node.metadata
            if metadata is not None and change["name"] not in metadata.table.topics:
                self.failures.append(f"{node.id} told of {change['name']} before it was in the table")
            if metadata is not None and metadata.partition.log.synced_offset <= offset:
                self.failures.append(f"{node.id} applied {offset} before its own disk had it")

    def check_table(self, node: Node) -> None:
        if node.metadata is not None:  # Within `boot` there is none yet.
            chosen = [self.chosen[offset] for offset in sorted(self.chosen)]
            if node.names != chosen[: len(node.names)]:
                self.failures.append(f"the table of {node.id} is no prefix: {node.names} of {chosen}")

    # --- brokers

    def add(self, number: int) -> Node:
        node = self.nodes[BrokerId(number)] = Node(self, number)
        node.boot()
        return node

    async def grow(self, count: int) -> None:
        """From one founder to `count` voters, one after the other."""
        self.add(1)
        for number in range(2, count + 1):
            node = self.add(number)
            for role in ("learner", "voter"):
                await self.change_members(node.member, role)

    async def three(self) -> Node:
        """Three voters, and the one in charge."""
        await self.grow(3)
        return await self.leader()

    async def change_members(self, member: Member, role: str) -> None:
        while True:
            leader = await self.leader()
            assert leader.metadata is not None
            before = leader.metadata.members
            voters, learners = before.voters - {member}, before.learners - {member}
            if role == "voter":
                voters |= {member}
            elif role == "learner":
                learners |= {member}
            try:
                await leader.metadata.change_members(Members(voters, learners))
            except (QuorumBusyError, NotControllerError):
                await asyncio.sleep(0.05)
            else:
                return

    async def leader(self) -> Node:
        """The one in charge, as soon as there is one."""
        for _ in range(20_000):
            leaders = [each for each in self.nodes.values() if each.metadata and each.metadata.is_leader]
            if leaders:
                return max(leaders, key=lambda each: each.metadata.term if each.metadata else -1)
            await asyncio.sleep(0.01)
        raise AssertionError("nobody leads")

    # --- clients

    async def commit(self, node: Node) -> int:
        """One change more, at this broker; what it raises is the caller's."""
        metadata, life, name = node.metadata, node.life, f"topic-{next(self._number)}"
        assert metadata is not None
        async with metadata.lock:
            offset = await metadata.commit(topic_named(name))
        if node.life == life:
            assert name in metadata.table.topics, "a commit returned before it was applied"
            self.acknowledged[offset] = name
            self.counts["acknowledged"] += 1
        return offset

    async def _try(self, node: Node) -> None:
        try:
            await self.commit(node)
        except QuorumBusyError:
            self.counts["unknown"] += 1
        except StorageError:
            self.counts["disk refused"] += 1
        except NotControllerError:
            self.counts["not the controller"] += 1

    async def _read(self, node: Node) -> None:
        metadata, life, known = node.metadata, node.life, set(self.acknowledged.values())
        assert metadata is not None
        try:
            await metadata.caught_up()
        except (QuorumBusyError, StorageError):
            return
        if node.life == life:
            self.counts["reads"] += 1
            missing = known - set(metadata.table.topics)
            if missing:
                self.failures.append(f"{node.id} read the past: {missing} are missing")

    def client(self, node: Node, work: Coroutine[Any, Any, None]) -> None:
        task = self.loop.create_task(work)
        self.clients[task] = node
        task.add_done_callback(self.clients.pop)

    # --- trouble

    async def trouble(self, steps: int) -> None:
        deeds = [
            (100, self._commit_somewhere),
            (10, self._read_somewhere),
            (1.5, self._crash_one),
            (1.5, self._crash_within_a_write),
            (0.7, self._fail_a_disk),
            (0.7, self._fill_a_disk),
            (2, self._split),
            (1, self._transfer),
            (5, self._write_recovery_points),
        ]
        weights, works = zip(*deeds, strict=True)
        for _ in range(steps):
            self.chance.choices(works, weights)[0]()
            await asyncio.sleep(self.chance.random() * 0.15)
            self._sweep_dark()

    def _alive(self) -> list[Node]:
        return [node for node in self.nodes.values() if node.metadata is not None]

    def _some(self) -> Node | None:
        alive = self._alive()
        leaders = [node for node in alive if node.metadata and node.metadata.is_leader]
        return self.chance.choice(leaders if leaders and self.chance.random() < 0.8 else alive or [None])

    def _commit_somewhere(self) -> None:
        if node := self._some():
            self.client(node, self._try(node))

    def _read_somewhere(self) -> None:
        if alive := self._alive():
            node = self.chance.choice(alive)
            self.client(node, self._read(node))

    def _crash_one(self) -> None:
        if node := self._some():
            self.crash(node)

    def crash(self, node: Node) -> None:
        node.crash()
        self.loop.call_later(self.chance.uniform(0.02, 2), self.boot, node)

    def boot(self, node: Node) -> None:
        if node.metadata is None:
            node.boot()

    def _crash_within_a_write(self) -> None:
        if node := self._some():
            node.disk.crash_at = node.disk.operations + self.chance.randint(1, 12)

    def _sweep_dark(self) -> None:
        for node in self.nodes.values():
            if node.disk.is_dark and node.metadata is not None:
                self.counts["dark"] += 1
                self.crash(node)

    def _fail_a_disk(self) -> None:
        """A broker whose disk failed says nothing more; somebody starts it again later."""
        if node := self._some():
            self.counts["disk failures"] += 1
            node.disk.fail_next(self.chance.choice(["write", "sync"]))
            self.loop.call_later(1, self._restart, node, node.life)

    def _fill_a_disk(self) -> None:
        """There is room again after a while, and nobody starts anything."""
        if node := self._some():
            self.counts["full disks"] += 1
            node.disk.fail_next("write", errno.ENOSPC, times=self.chance.randint(1, 4))

    def _restart(self, node: Node, life: int) -> None:
        if node.life == life and node.metadata is not None:
            self.crash(node)

    def _split(self) -> None:
        self.cut = set()
        what = self.chance.random()
        if what < 0.4 and len(self.nodes) > 1:
            side = set(self.chance.sample(sorted(self.nodes), self.chance.randint(1, len(self.nodes) - 1)))
            self.split(side, set(self.nodes) - side)
        elif what < 0.6:  # One way only.
            self.cut = {(a, b) for a in self.nodes for b in self.nodes if self.chance.random() < 0.2}

    def _write_recovery_points(self) -> None:
        """As housekeeping does now and then."""
        node = self._some()
        if node and node.metadata and not node.disk.is_dark:
            with contextlib.suppress(PowerLoss, OSError):
                mark = node.metadata.partition.recovery_mark
                node.state.write_recovery_points({partition_key(METADATA_ID, 0): mark})
                self.counts["checkpoints"] += 1

    def _transfer(self) -> None:
        node = self._some()
        if node and node.metadata and node.metadata.is_leader:
            others = sorted(node.metadata.members.voters - {node.member})
            self.counts["transfers"] += bool(others) and node.metadata.transfer(self.chance.choice(others))

    async def calm(self) -> None:
        self.cut, self.loss = set(), 0
        for node in self.nodes.values():
            node.disk.forget_faults()
            node.disk.crash_at = None
            if node.metadata is None or node.metadata.is_ended:
                if node.metadata is not None:
                    node.crash()
                node.boot()
        await asyncio.sleep(10)
        leader = await self.leader()
        await self.commit(leader)
        await asyncio.sleep(5)
        assert not self.clients, "somebody waits for ever"
        for node in self.nodes.values():
            assert node.names == leader.names, f"{node.id} differs from the leader {leader.id}"
        chosen = [self.chosen[offset] for offset in sorted(self.chosen)]
        assert leader.names == chosen
        for offset, name in self.acknowledged.items():
            assert self.chosen.get(offset) == name, f"acknowledged change {offset} is gone"
