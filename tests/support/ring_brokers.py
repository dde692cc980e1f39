"""Up to three real partitions of one ring, each on its own FakeDisk, with a network between them, in one thread.

world = RingBrokers(seed=1)
world.run(3000)
pending = world.produce([b"a"])             # at whoever leads; a list that gets the job when it is answered
world.stop(1, lose_power=True); world.start(1)
world.cut_off(1); world.heal()
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any
from uuid import UUID

from anabranch.broker.peers.messages import LeaderRow, PeerMessage, RingLetter
from anabranch.broker.ring.replicas import Replicas
from anabranch.broker.topics.partition import Partition
from anabranch.broker.topics.partition_opener import PartitionOpener
from anabranch.broker.topics.stored_state import StoredState
from anabranch.broker.write.append_queue import NEVER_MS, AppendJob
from anabranch.broker.write.core import BrokerCore
from anabranch.cluster.metadata.rows import Placement
from anabranch.config import NodeSettings, TopicSettings
from anabranch.errors import CoordinatorNotAvailableError
from anabranch.modes.ring.messages import Push
from anabranch.record.batch import batch_spans, read_header
from anabranch.record.builder import BatchBuilder
from anabranch.record.records import records_of
from anabranch.testing.fakes.clock import FakeClock
from anabranch.testing.fakes.disk import FakeDisk
from anabranch.testing.fakes.loop import SimWorkers, VirtualLoop
from anabranch.values import TopicPartition

DATA = "data"
TOPIC_ID = UUID(int=77)
TICK_MS = 100
ROOM_BYTES = 16 * 2**20
UNPACKED_MAX = 2**24


class LifeWorkers(SimWorkers):
    """They die with their process."""

    is_dead = False

    def _run(self, task: Callable[[], Any], done: Any) -> None:
        if not self.is_dead:
            super()._run(task, done)

    def _later(self, function: Callable[..., None], *arguments: object) -> None:
        def unless_dead() -> None:
            if not self.is_dead:
                function(*arguments)

        super()._later(unless_dead)


class Link:
    """Messages of one direction: in order, each some time under way."""

    def __init__(self, world: "RingBrokers", sender: int, to: int) -> None:
        self._world = world
        self._sender = sender
        self._to = to
        self._waiting: deque[tuple[PeerMessage, int]] = deque()
        self.bytes_under_way = self.bytes_under_way_max = 0
        self.pushes = 0
        self.spoil: Callable[[bytearray], None] | None = None

    def send(self, message: PeerMessage) -> None:
        size = 100
        if isinstance(message, RingLetter) and isinstance(message.message, Push):
            self.pushes += 1
            data = bytearray(b"".join(message.message.records))
            if self.spoil is not None and data:
                self.spoil(data)
                self.spoil = None
            push = message.message
            copy = Push(push.sender, push.generation, push.start, push.end, push.written_in, push.safe)
            copy.records = memoryview(bytes(data))
            message = RingLetter(message.topic_id, message.partition, message.view, copy)
            size += len(data)
        self._waiting.append((message, size))
        self.bytes_under_way += size
        self.bytes_under_way_max = max(self.bytes_under_way_max, self.bytes_under_way)
        self._world.loop.call_later(self._world.delay_ms / 1000, self._arrive)

    def _arrive(self) -> None:
        if not self._waiting:
            return
        message, size = self._waiting.popleft()
        self.bytes_under_way -= size
        if self._world.is_linked(self._sender, self._to):
            self._world.brokers[self._to].heard(self._sender, message)

    def lose(self) -> None:
        self._waiting.clear()
        self.bytes_under_way = 0


class LinkPeers:
    """What a broker has of the network: enough of `Peers`."""

    def __init__(self, world: "RingBrokers", me: int) -> None:
        self._world = world
        self._me = me

    def tell(self, to: int, message: PeerMessage) -> None:
        if self._world.is_linked(self._me, to):
            self._world.links[self._me, to].send(message)

    def room(self, to: int) -> int:
        if not self._world.is_linked(self._me, to):
            return 0
        return self._world.room_bytes - self._world.links[self._me, to].bytes_under_way


class RingBroker:
    def __init__(self, world: "RingBrokers", broker_id: int) -> None:
        self.id = broker_id
        self.disk = FakeDisk()
        self.boots = 0
        self.is_alive = False
        self.is_stranger = False
        self.leads: list[LeaderRow | None] = []
        self._world = world

    def start(self) -> None:
        world = self._world
        self.disk.make_folder(DATA)
        self.settings = NodeSettings.load({"broker.id": str(self.id), **world.settings})
        self.workers = LifeWorkers(world.loop, world.rng)
        self.core = BrokerCore(self.settings, world.clock, self.workers)
        self.state = StoredState(self.disk, DATA, f"boot-{self.boots}")
        self.state.load()
        self.opener = PartitionOpener(self.core, self.settings, self.disk, DATA, self.state)
        self.partition: Partition = self.opener.open(
            TopicPartition("t", 0),
            TOPIC_ID,
            TopicSettings.from_overrides(self.settings, world.overrides),
            placement=world.placement,
            is_stranger=self.is_stranger,
        )
        self.replicas = Replicas(self.id, LinkPeers(world, self.id))  # type: ignore[arg-type]
        self.replicas.on_leads = lambda partition, row: self.leads.append(row)
        self.replicas.add(self.partition)
        self.is_alive = True
        world.loop.call_later(world.rng.random() * TICK_MS / 1000, self._tick, self.workers)

    @property
    def mode(self) -> Any:
        return self.partition.mode

    @property
    def values(self) -> list[bytes]:
        return [value for _, value in self.records()]

    def records(self) -> list[tuple[int, bytes]]:
        """Everything in the log, safe or not."""
        log, found = self.partition.log, []
        at = log.start_offset
        while at < log.end_offset:
            part = log.slice(at, 2**20, log.end_offset)
            if not part.count:
                break
            data = part.read()
            for first, last in batch_spans(data):
                batch = data[first:last]
                found += [(record.offset, bytes(record.value)) for record in records_of(batch, UNPACKED_MAX)]
                at = read_header(batch).next_offset
        return found

    def heard(self, sender: int, message: PeerMessage) -> None:
        assert isinstance(message, RingLetter)
        self.replicas.heard(sender, message)

    def _tick(self, life: LifeWorkers) -> None:
        if life.is_dead:
            return
        world, now_ms = self._world, self._world.clock.monotonic_ms()
        self.replicas.tick(now_ms)
        self.partition.time_out(now_ms)
        world.loop.call_later(TICK_MS / 1000, self._tick, life)

    def stop(self, *, lose_power: bool) -> None:
        self.is_alive = False
        self.workers.is_dead = True
        self.replicas.remove(self.partition)
        self.partition.abandon(CoordinatorNotAvailableError("It is dead."))
        if lose_power:
            self.disk.crash(self._world.rng)
            self.boots += 1
        else:
            self.disk.kill()


class RingBrokers:
    def __init__(
        self,
        seed: int = 1,
        count: int = 3,
        *,
        overrides: dict[str, str] | None = None,
        **settings: object,
    ) -> None:
        self.rng = Random(seed)
        self.clock = FakeClock()
        self.loop = VirtualLoop(self.clock, lambda: False)
        self.failures: list[dict[str, Any]] = []
        self.loop.set_exception_handler(lambda _, context: self.failures.append(context))
        self.settings = {name.replace("_", "."): str(value) for name, value in settings.items()}
        self.overrides = overrides or {}
        self.ids = tuple(range(1, count + 1))
        self.placement = Placement(self.ids)
        self.delay_ms = 1
        self.room_bytes = ROOM_BYTES
        self.severed: set[tuple[int, int]] = set()
        self.links = {(one, other): Link(self, one, other) for one in self.ids for other in self.ids}
        self.brokers = {broker_id: RingBroker(self, broker_id) for broker_id in self.ids}
        self.acknowledged: dict[int, bytes] = {}
        for broker_id in self.ids:
            self.start(broker_id)

    @contextmanager
    def _acting(self) -> Iterator[None]:
        """As if from within the loop."""
        asyncio._set_running_loop(self.loop)
        try:
            yield
        finally:
            asyncio._set_running_loop(None)

    def run(self, milliseconds: int) -> None:
        self.loop.run_for(milliseconds)
        assert not self.failures, self.failures

    def run_until(self, is_so: Callable[[], object], milliseconds: int) -> None:
        for _ in range(milliseconds // 10):
            if is_so():
                return
            self.run(10)
        assert is_so(), "it did not come true"

    # --- life and links

    def start(self, broker_id: int) -> None:
        with self._acting():
            self.brokers[broker_id].start()
        self._link_up([pair for pair in self.links if broker_id in pair])

    def stop(self, broker_id: int, *, lose_power: bool = False) -> None:
        with self._acting():
            self.brokers[broker_id].stop(lose_power=lose_power)
        for pair, link in self.links.items():
            if broker_id in pair:
                link.lose()

    def is_linked(self, one: int, other: int) -> bool:
        return (
            one != other
            and (one, other) not in self.severed
            and self.brokers[one].is_alive
            and self.brokers[other].is_alive
        )

    def cut_off(self, *alone: int) -> None:
        for pair, link in self.links.items():
            if (pair[0] in alone) != (pair[1] in alone):
                self.severed.add(pair)
                link.lose()

    def heal(self) -> None:
        severed, self.severed = self.severed, set()
        self._link_up(sorted(severed))

    def _link_up(self, pairs: list[tuple[int, int]]) -> None:
        with self._acting():
            for one, other in pairs:
                if self.is_linked(one, other):
                    self.brokers[one].replicas.peer_up(other)

    # --- people

    def leaders(self) -> list[RingBroker]:
        return [one for one in self.brokers.values() if one.is_alive and one.mode.may_write]

    @property
    def leader(self) -> RingBroker:
        """The one with the greatest generation."""
        return max(self.leaders(), key=lambda one: one.mode.generation)

    def led_by(self, broker_id: int) -> None:
        """Wait for it."""
        self.run_until(
            lambda: (
                [one.id for one in self.leaders()] == [broker_id] and self.brokers[broker_id].mode.is_settled
            ),
            20_000,
        )

    def produce(
        self,
        values: list[bytes],
        at: RingBroker | None = None,
        *,
        wait_safe: bool = True,
        timeout_ms: int | None = None,
        **fields: Any,
    ) -> list[AppendJob]:
        broker = at or self.leader
        builder = BatchBuilder(**fields)
        for value in values:
            builder.add(None, value, timestamp_ms=1_700_000_000_000)
        batch = builder.build()
        answered: list[AppendJob] = []

        def finished(job: AppendJob) -> None:
            answered.append(job)
            if job.error is None:
                self.acknowledged.update({job.base_offset + n: value for n, value in enumerate(values)})

        deadline_ms = NEVER_MS if timeout_ms is None else self.clock.monotonic_ms() + timeout_ms
        with self._acting():
            broker.core.submit(
                AppendJob(
                    broker.partition,
                    batch,
                    read_header(batch),
                    finished,
                    wait_safe=wait_safe,
                    deadline_ms=deadline_ms,
                )
            )
        return answered

    def produced(self, values: list[bytes], **fields: Any) -> AppendJob:
        """Wait for the answer."""
        answered = self.produce(values, **fields)
        self.run_until(lambda: answered, 5000)
        assert answered[0].error is None, answered[0].error
        return answered[0]

    def become_equal(self) -> None:
        """Within a second of calm."""
        self.run(1000)
        self.check_equal()

    def check_equal(self) -> None:
        """All have the same records, and all that was acknowledged."""
        records = [one.records() for one in self.brokers.values()]
        assert all(found == records[0] for found in records), [len(found) for found in records]
        found, start = dict(records[0]), max(one.partition.log.start_offset for one in self.brokers.values())
        for offset, value in self.acknowledged.items():
            assert offset < start or found.get(offset) == value, (
                f"the acknowledged record at {offset} is gone"
            )

    def close(self) -> None:
        for one in self.brokers.values():
            one.workers.is_dead = True
        self.loop.close()
