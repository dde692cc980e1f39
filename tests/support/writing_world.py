"""Brokers that write to one object store in one thread: real gathering, a real table each, and a store and a quorum
that fail by seed. Producers behave as Kafka's idempotent ones do: five batches under way, sent again in order.

A quorum here is a list of entries; each broker applies them when its time comes.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Sequence
from random import Random
from typing import Any
from uuid import UUID

from anabranch.broker.object.partition import AgreedHead, ObjectPartition
from anabranch.broker.object.writer_driver import ObjectWriting
from anabranch.broker.write.append_queue import AppendJob
from anabranch.broker.write.core import BrokerCore
from anabranch.broker.write.producer_limits import ProducerLimits
from anabranch.cluster.metadata.entries import (
    Entry,
    broker_entry,
    broker_fenced_entry,
    decode_entry,
    encode_entry,
    topic_entry,
)
from anabranch.cluster.metadata.rows import BrokerRow, Topic
from anabranch.cluster.metadata.table import MetadataTable
from anabranch.cluster.objects.entries import Key
from anabranch.config import NodeSettings, TopicSettings
from anabranch.errors import (
    AnabranchError,
    EarlierBatchRefusedError,
    NotControllerError,
    NotOwnerError,
    OutOfOrderSequenceError,
    PeerUnreachableError,
    QuorumBusyError,
    RequestTimedOutError,
    StoreUnavailableError,
)
from anabranch.modes.object.writer import Limits
from anabranch.objects.memory_store import MemoryStore
from anabranch.objects.store import Buffer
from anabranch.record.batch import batch_spans, read_header
from anabranch.record.builder import BatchBuilder
from anabranch.record.records import records_of
from anabranch.testing.fakes.clock import FakeClock
from anabranch.testing.fakes.loop import SimWorkers, VirtualLoop
from anabranch.values import BrokerId, Offset, TopicPartition

TOPIC_ID = UUID(int=77)
LIMITS = Limits(gather_ms=100, gather_bytes=4000, puts_max=3, held_bytes_max=60_000)
IN_FLIGHT_MAX = 5
RETRIED = (NotOwnerError, StoreUnavailableError, RequestTimedOutError, EarlierBatchRefusedError)


def in_writing_world(
    seed: int, test: "Callable[[WritingWorld], Coroutine[Any, Any, None]]"
) -> "WritingWorld":
    clock = FakeClock()
    loop = VirtualLoop(clock, lambda: False)
    world = WritingWorld(seed, loop, clock)
    loop.set_exception_handler(world.note_exception)
    try:
        loop.run_until_complete(test(world))
    finally:
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
    assert not world.failures, world.failures
    return world


def no_remote_reads(*_: Any) -> Any:
    raise AssertionError("nothing is fetched here")


class FaultyStore(MemoryStore):
    """Slow, and at times refuses, hangs, or does what it was asked without saying so."""

    def __init__(self, clock: FakeClock, chance: Random) -> None:
        super().__init__(clock.wall_ms)
        self.chance = chance
        self.slow_ms_max = 20
        self.refuses = self.hides = self.hangs = 0.0
        self.is_away = False
        self.puts: Counter[str] = Counter()
        self.refused_names: Callable[[str], bool] = lambda name: False

    async def put(self, name: str, pieces: Sequence[Buffer]) -> None:
        self.puts[name] += 1
        await asyncio.sleep(self.chance.random() * self.slow_ms_max / 1000)
        if self.is_away or self.refused_names(name) or self.chance.random() < self.refuses:
            raise StoreUnavailableError("503")
        if self.chance.random() < self.hangs:
            await asyncio.sleep(3600)
        await super().put(name, pieces)
        if self.chance.random() < self.hides:
            raise StoreUnavailableError("the connection broke after the last byte")


class WritingBroker:
    """One broker: its table, and its present life if it has one."""

    def __init__(self, world: "WritingWorld", number: int) -> None:
        self.world = world
        self.id = BrokerId(number)
        self.life = 0
        self.epoch: int | None = None
        self.is_alive = False
        self.is_applying = True
        self.is_cut_off = False

    def boot(self) -> None:
        world = self.world
        self.is_alive, self.is_applying, self.epoch = True, True, None
        self.core = BrokerCore(NodeSettings.load({}), world.clock, SimWorkers(world.loop, world.chance))
        self.table = MetadataTable()
        self.applied = 0
        self.partitions: dict[Key, ObjectPartition] = {}
        self.limits = ProducerLimits(NodeSettings.load({}))
        self.writing = ObjectWriting(
            self.id,
            self.core,
            self.table,
            world.store,
            world.limits,
            propose=self._propose,
            own_epoch=lambda: self.epoch,
            is_cut_off=lambda: self.is_cut_off,
            chance=world.chance.randrange,
        )
        self.writing.start()
        world.loop.create_task(self._apply_all(self.life))
        world.loop.create_task(self._register(self.life))

    def crash(self) -> None:
        """As kill -9 does: nobody is told anything, and what was on its way to others is there."""
        self.life += 1
        self.is_alive = False
        self.writing.kill()

    async def _propose(self, entry: Entry) -> Offset:
        return await self.world.propose(entry)

    async def _register(self, life: int) -> None:
        await asyncio.sleep(self.world.delay())
        if self.life == life:
            epoch = self.world.agree(self.entry())
            await asyncio.sleep(self.world.delay())
            if self.life == life:
                self.epoch = epoch

    def entry(self) -> Entry:
        return broker_entry(BrokerRow(self.id, f"disk-{self.id}", 0, "h", 1))

    async def register_anew(self) -> None:
        self.epoch = None
        await self._register(self.life)

    async def _apply_all(self, life: int) -> None:
        while self.life == life:
            await asyncio.sleep(max(0.01, self.world.delay()))
            if self.life != life:
                return
            if not self.is_applying:
                continue
            if self.applied < len(self.world.log) and self.world.chance.random() < self.world.jumps:
                self.jump()
            while self.applied < len(self.world.log) and self.world.chance.random() < 0.9:
                self._apply_one()

    def _apply_one(self, *, is_seen: bool = True) -> None:
        offset, entry = self.applied, decode_entry(self.world.log[self.applied])
        self.table.apply(entry, offset)
        self.applied += 1
        if is_seen:
            for partition in self.partitions.values():
                partition.applied(0)
            self.writing.follow(Offset(offset), entry)

    def jump(self) -> None:
        self.world.counts["jumps"] += 1
        while self.applied < len(self.world.log):
            self._apply_one(is_seen=False)
        for partition in self.partitions.values():
            partition.applied(0)
        self.writing.follow(Offset(self.applied), None)

    def partition(self, number: int) -> ObjectPartition:
        key = TOPIC_ID, number
        if key not in self.partitions:
            self.partitions[key] = ObjectPartition(
                TopicPartition("t", number),
                TOPIC_ID,
                AgreedHead(self.table, key),
                TopicSettings.from_overrides(NodeSettings.load({})),
                self.table,
                broker_id=self.id,
                writing=self.writing,
                begin_reads=no_remote_reads,
                on_publish=lambda partition: None,
                finish=self.core.finish,
                finished=self.core.finished,
            )
            self.partitions[key].producer_limits = self.limits
        return self.partitions[key]

    def submit(
        self, number: int, batch: bytearray, *, timeout_ms: int = 2**60, acks: int = -1
    ) -> "asyncio.Future[Any]":
        """The base offset, or the error. The bytes are written over once the turn is over, as a connection's are."""
        future: asyncio.Future[Any] = self.world.loop.create_future()

        def finished(job: AppendJob) -> None:
            assert not future.done() or future.cancelled(), "a job is answered once"
            if not future.cancelled():
                future.set_result(job.error if job.error is not None else job.base_offset)

        deadline_ms = self.world.clock.monotonic_ms() + timeout_ms
        view = memoryview(batch)
        job = AppendJob(
            self.partition(number),
            view,
            read_header(batch),
            finished,
            wait_safe=acks != 0,
            deadline_ms=deadline_ms,
        )
        self.core.submit(job)

        def read_over() -> None:
            batch[:] = bytes(len(batch))

        self.world.loop.call_soon(read_over)
        return future


class WritingWorld:
    def __init__(self, seed: int, loop: VirtualLoop, clock: FakeClock) -> None:
        self.chance = Random(seed)
        self.loop, self.clock = loop, clock
        self.store = FaultyStore(clock, self.chance)
        self.limits = LIMITS
        self.log: list[bytes] = []
        self.brokers: dict[BrokerId, WritingBroker] = {}
        self.counts: Counter[str] = Counter()
        self.failures: list[str] = []
        self.slow_ms_max = 5
        self.loses = self.late = 0.0
        """How often a proposal is lost, or comes into the log without its proposer being told, perhaps much later."""
        self.jumps = 0.0

    def note_exception(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.failures.append(f"{context.get('message')}: {context.get('exception')!r}")

    def delay(self) -> float:
        return self.chance.random() * self.slow_ms_max / 1000

    def grow(self, count: int, partitions: int = 2) -> None:
        topic = Topic("t", TOPIC_ID, partitions, {"anabranch.mode": "object"})
        self.agree(topic_entry(topic))
        for number in range(1, count + 1):
            self.brokers[BrokerId(number)] = WritingBroker(self, number)
            self.brokers[BrokerId(number)].boot()

    # --- the quorum

    def agree(self, entry: Entry) -> int:
        self.log.append(encode_entry(entry))
        return len(self.log) - 1

    async def propose(self, entry: Entry) -> Offset:
        await asyncio.sleep(self.delay())
        chance = self.chance.random()
        if chance < self.loses:
            raise self.chance.choice((NotControllerError("no leader"), PeerUnreachableError("no link")))
        if chance < self.loses + self.late:
            self.counts["late"] += 1
            self.loop.call_later(self.chance.choice((0.0, 0.05, 1.0)), self.agree, entry)
            raise self.chance.choice((QuorumBusyError("unknown"), PeerUnreachableError("no answer in time")))
        offset = self.agree(entry)
        await asyncio.sleep(self.delay())
        return Offset(offset)

    def fence(self, broker: WritingBroker, *, is_fenced: bool) -> None:
        if broker.epoch is not None:
            self.agree(broker_fenced_entry(broker.id, broker.epoch, is_fenced=is_fenced))

    def truth(self) -> MetadataTable:
        """The table of somebody who has applied everything."""
        table = MetadataTable()
        for offset, data in enumerate(self.log):
            table.apply(decode_entry(data), offset)
        return table

    def kept(self, number: int) -> list[bytes]:
        """The values in a partition, one for each offset, as they lie in the store."""
        table, values, end = self.truth(), [], 0
        for row in table.objects.rows((TOPIC_ID, number), Offset(0), 2**30):
            assert row.base_offset == end, "a gap or an overlap"
            data = self.store.content(row.object_id.name)[row.position : row.position + row.length]
            for start, stop in batch_spans(data):
                values += [bytes(record.value or b"") for record in records_of(data[start:stop], 2**20)]
            end = row.next_offset
            assert len(values) == end, "offsets and records differ"
        return values


class Producer:
    """An idempotent producer of one partition; goes on for ever after errors that are to be retried."""

    def __init__(self, world: WritingWorld, producer_id: int, partition: int, count: int) -> None:
        self.world, self.id, self.partition = world, producer_id, partition
        self.waiting = deque(range(count))
        self.flying: set[int] = set()
        self.acknowledged: dict[int, int] = {}
        self.count = count
        self.failure: BaseException | None = None
        self.broker = world.chance.choice(list(world.brokers.values()))

    def value(self, sequence: int) -> bytes:
        return b"%d-%d" % (self.id, sequence)

    def _batch(self, sequence: int) -> bytearray:
        builder = BatchBuilder(producer_id=self.id, producer_epoch=0, base_sequence=sequence)
        builder.add(None, self.value(sequence), timestamp_ms=1)
        return builder.build()

    def _first_open(self) -> int:
        return min((*self.flying, *self.waiting))

    async def run(self) -> None:
        world, sending = self.world, set()

        def sent(task: "asyncio.Task[None]") -> None:
            sending.discard(task)
            if not task.cancelled():
                self.failure = self.failure or task.exception()

        while self.waiting or self.flying:
            if self.failure is not None:
                raise self.failure
            # Answers come in the order of requests, so nothing is sent far beyond what is not answered yet.
            while self.waiting and self.waiting[0] < self._first_open() + IN_FLIGHT_MAX:
                sequence = self.waiting.popleft()
                self.flying.add(sequence)
                task = world.loop.create_task(self._send(sequence))
                sending.add(task)
                task.add_done_callback(sent)
                if world.chance.random() < 0.3:
                    await asyncio.sleep(world.delay())
            await asyncio.sleep(0.02)

    async def _send(self, sequence: int) -> None:
        world, broker = self.world, self.broker
        while not broker.is_alive:
            broker = self.broker = world.chance.choice(list(world.brokers.values()))
            await asyncio.sleep(0.05)
        is_first = sequence == self._first_open()
        life, timeout_ms = broker.life, world.chance.choice((300, 3000, 30_000))
        future = broker.submit(self.partition, self._batch(sequence), timeout_ms=timeout_ms)
        result: Any = None
        while not future.done():
            await asyncio.sleep(0.05)
            if broker.life != life:
                future.cancel()
                result = RequestTimedOutError("the connection broke")
                break
        else:
            result = future.result()
        await self._judge(sequence, result, is_first)

    async def _judge(self, sequence: int, result: Any, is_first: bool) -> None:
        """`is_first`: all before it were acknowledged when it was sent."""
        world = self.world
        if isinstance(result, AnabranchError):
            world.counts[type(result).__name__] += 1
            assert isinstance(result, (OutOfOrderSequenceError, *RETRIED)), result
            if isinstance(result, OutOfOrderSequenceError | EarlierBatchRefusedError):
                assert not is_first, f"{self.id} is stuck at {sequence}: {result}"
            await asyncio.sleep(0.05)
            if isinstance(result, NotOwnerError) or world.chance.random() < 0.2:
                self.broker = world.chance.choice(list(world.brokers.values()))
            self.waiting = deque(sorted((*self.waiting, sequence)))
        else:
            world.counts["acknowledged"] += 1
            self.acknowledged[sequence] = result
        self.flying.discard(sequence)

    def check(self) -> None:
        """Everything once, in order, where its producer was told."""
        kept = self.world.kept(self.partition)
        mine = [value for value in kept if value.startswith(b"%d-" % self.id)]
        assert mine == [self.value(sequence) for sequence in range(self.count)]
        for sequence, offset in self.acknowledged.items():
            assert kept[offset] == self.value(sequence)
