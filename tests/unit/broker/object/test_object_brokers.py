"""Whole brokers over one object store: all of them take records for the same partitions, and give them one order."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from random import Random
from typing import Any

import pytest

from anabranch.broker.broker import Broker
from anabranch.broker.object.partition import ObjectPartition
from anabranch.broker.requests.call import Call
from anabranch.config import NodeSettings
from anabranch.objects.layout.names import ObjectId, ObjectKind, object_id_of
from anabranch.objects.memory_store import MemoryStore
from anabranch.objects.store import Buffer
from anabranch.record.batch import batch_spans
from anabranch.record.builder import BatchBuilder
from anabranch.record.records import records_of
from anabranch.testing.fakes.clock import FakeClock
from anabranch.testing.fakes.disk import FakeDisk
from anabranch.testing.fakes.loop import SimWorkers, VirtualLoop
from anabranch.testing.in_process_client import InProcessClient, Pending
from anabranch.values import BrokerId, Offset
from anabranch.wire.api_keys import ApiKey
from anabranch.wire.error_codes import ErrorCode as E
from support.broker_cluster import BrokerCluster, close_all

RETRIED = (
    E.NOT_LEADER_OR_FOLLOWER,
    E.NOT_ENOUGH_REPLICAS,
    E.REQUEST_TIMED_OUT,
    E.OUT_OF_ORDER_SEQUENCE_NUMBER,
    E.UNKNOWN_TOPIC_OR_PARTITION,  # Of one that is back: these brokers answer before they have caught up.
)


@pytest.fixture(autouse=True)
def clusters_end() -> Iterator[None]:
    yield
    close_all()


class ObjectBrokers(BrokerCluster):
    def __init__(self, count: int, seed: int = 1) -> None:
        super().__init__(seed, object_store="memory:")
        self.store = self.memory = MemoryStore(self.clock.wall_ms)
        self.start(*range(1, count + 1))
        self.settle()
        configs = [{"name": "anabranch.mode", "value": "object"}]
        row = {
            "name": "t",
            "num_partitions": 2,
            "replication_factor": -1,
            "assignments": [],
            "configs": configs,
        }
        body = {"topics": [row], "timeout_ms": 10_000, "validate_only": False}
        answer = self.ask(1, ApiKey.CREATE_TOPICS, 7, body)
        assert answer["topics"][0]["error_code"] == 0, answer
        self.until(lambda: all(self.partition(each) is not None for each in self.lives))

    def partition(self, broker_id: int, number: int = 0) -> ObjectPartition | None:
        found = self.broker(broker_id).topics.find_partition("t", number)
        return found if isinstance(found, ObjectPartition) else None

    async def produce(
        self, broker_id: int, number: int, value: bytes, timeout_ms: int = 20_000, **fields: int
    ) -> tuple[E, int]:
        builder = BatchBuilder(**fields)  # type: ignore[arg-type]
        builder.add(None, value, timestamp_ms=self.clock.wall_ms())
        rows = [{"index": number, "records": bytes(builder.build())}]
        data = [{"name": "t", "partition_data": rows}]
        body = {"transactional_id": None, "acks": -1, "timeout_ms": timeout_ms, "topic_data": data}
        answer = await self.lives[broker_id].client.ask(ApiKey.PRODUCE, 9, body)
        row = answer["responses"][0]["partition_responses"][0]
        return E(row["error_code"]), row["base_offset"]

    def values(self, broker_id: int, number: int = 0) -> list[bytes]:
        """By the table of that broker, out of the store."""
        partition = self.partition(broker_id, number)
        assert partition is not None
        values: list[bytes] = []
        for row in self.broker(broker_id).metadata.table.objects.rows(partition.key, Offset(0), 2**30):
            assert row.base_offset == len(values), "a gap or an overlap"
            data = self.memory.content(row.object_id.name)[row.position : row.position + row.length]
            for start, end in batch_spans(data):
                values += [bytes(record.value or b"") for record in records_of(data[start:end], 2**20)]
        return values


def segments_in(store: MemoryStore) -> list[ObjectId]:
    """What brokers have gathered and stored."""
    found = [object_id_of(name) for name in store.names]
    return [each for each in found if each is not None and each.kind is ObjectKind.WRITTEN]


async def writer(
    cluster: ObjectBrokers, producer_id: int, number: int, brokers: list[int], count: int
) -> dict[bytes, int]:
    """An idempotent producer that sends one after the other, wherever it likes, until each is acknowledged."""
    told: dict[bytes, int] = {}
    for sequence in range(count):
        value = b"%d-%d" % (producer_id, sequence)
        for _ in range(500):
            at = cluster.rng.choice([each for each in brokers if each in cluster.lives])
            work = cluster.produce(
                at, number, value, producer_id=producer_id, producer_epoch=0, base_sequence=sequence
            )
            try:
                code, offset = await asyncio.wait_for(work, timeout=25)
            except TimeoutError:
                continue  # Its broker is dead.
            if code is E.NONE:
                told[value] = offset
                break
            assert code in RETRIED, code
            await asyncio.sleep(0.1)
        else:
            raise AssertionError(f"{value!r} was never taken")
    return told


def check(cluster: ObjectBrokers, told: dict[bytes, int], number: int) -> None:
    cluster.run(2000)
    kept = [cluster.values(each, number) for each in cluster.lives]
    assert all(each == kept[0] for each in kept), "they differ in what lies where"
    assert len(set(kept[0])) == len(kept[0]), "kept twice"
    assert {value: kept[0].index(value) for value in told} == told
    for producer in {value.split(b"-")[0] for value in told}:
        sequences = [int(value.split(b"-")[1]) for value in kept[0] if value.startswith(producer + b"-")]
        assert sequences == sorted(sequences)


# --- a node alone ----------------------------------------------------------------------------------------------------


class Alone:
    """One node without peers, life after life on the same disk and the same store."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.loop = VirtualLoop(self.clock, lambda: False)
        self.failures: list[dict[str, Any]] = []
        self.loop.set_exception_handler(lambda _, context: self.failures.append(context))
        self.disk, self.rng = FakeDisk(), Random(1)
        self.store = MemoryStore(self.clock.wall_ms)

    async def boot(self, *, has_store: bool = True, **more: str) -> Broker:
        settings = {"object.store": "memory:"} if has_store else {}
        settings |= {name.replace("_", "."): value for name, value in more.items()}
        workers = SimWorkers(self.loop, self.rng)
        store = self.store if has_store else None
        broker = Broker(
            NodeSettings.load(settings), self.clock, self.disk, workers, "data", "boot", None, store
        )
        broker.open()
        broker.start()
        await asyncio.sleep(1)
        return broker

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            self.loop.run_until_complete(work)
        finally:
            for task in asyncio.all_tasks(self.loop):
                task.cancel()
            self.loop.run_until_complete(asyncio.sleep(0))
            self.loop.close()
        assert not self.failures, self.failures


async def produced(broker: Broker, value: bytes, sequence: int) -> tuple[E, int]:
    builder = BatchBuilder(producer_id=5, producer_epoch=0, base_sequence=sequence)
    builder.add(None, value, timestamp_ms=broker.clock.wall_ms())
    data = [{"name": "t", "partition_data": [{"index": 0, "records": bytes(builder.build())}]}]
    body = {"transactional_id": None, "acks": -1, "timeout_ms": 20_000, "topic_data": data}
    answer = await InProcessClient(broker).ask(ApiKey.PRODUCE, 9, body)
    row = answer["responses"][0]["partition_responses"][0]
    return E(row["error_code"]), row["base_offset"]


def test_a_node_alone_with_a_store_is_registered_anew_at_every_start() -> None:
    alone = Alone()

    async def lives() -> None:
        broker = await alone.boot()
        await broker.topics.create(broker.topics.plan("t", 1, {"anabranch.mode": "object"}))
        assert await produced(broker, b"0", 0) == (E.NONE, 0)
        epochs = [broker.orchestrator.epoch]
        for life in (1, 2):
            assert broker.objects is not None
            broker.objects.writing.kill()
            alone.disk.kill()
            broker = await alone.boot()
            epochs.append(broker.orchestrator.epoch)
            assert await produced(broker, b"%d" % (life - 1), life - 1) == (E.NONE, life - 1)
            assert await produced(broker, b"%d" % life, life) == (E.NONE, life)
        assert len(set(epochs)) == 3
        stored = segments_in(alone.store)
        assert {each.epoch for each in stored} == set(epochs)
        assert [each.number for each in stored if each.epoch == epochs[-1]] == [0, 1]

    alone.run(lives())


class SilentStore(MemoryStore):
    """Takes nothing until somebody lets it."""

    def __init__(self, wall_ms: Callable[[], int]) -> None:
        super().__init__(wall_ms)
        self.may_take = asyncio.Event()

    async def put(self, name: str, pieces: Sequence[Buffer]) -> None:
        await self.may_take.wait()
        await super().put(name, pieces)


def test_while_the_store_is_silent_only_those_wait_who_write_to_it() -> None:
    alone = Alone()

    def sent(broker: Broker, topic: str, size: int) -> tuple[Call, Pending]:
        builder = BatchBuilder()
        builder.add(None, bytes(size), timestamp_ms=alone.clock.wall_ms())
        data = [{"name": topic, "partition_data": [{"index": 0, "records": bytes(builder.build())}]}]
        client = InProcessClient(broker)
        body = {"transactional_id": None, "acks": -1, "timeout_ms": 20_000, "topic_data": data}
        pending = client.send(ApiKey.PRODUCE, 9, body)
        [call] = client._pending
        return call, pending

    async def life() -> None:
        alone.store = store = SilentStore(alone.clock.wall_ms)
        broker = await alone.boot(append_queue_bytes_max="1048576", object_gather_bytes="100000")
        for name, mode in (("t", "object"), ("near", "solo")):
            await broker.topics.create(broker.topics.plan(name, 1, {"anabranch.mode": mode}))
        first = sent(broker, "t", 700_000)
        assert not first[0].holds
        await asyncio.sleep(1)
        second, near = sent(broker, "t", 500_000), sent(broker, "near", 700_000)
        assert (second[0].holds, near[0].holds) == (True, False)
        await asyncio.sleep(1)
        third = sent(broker, "t", 10)
        await asyncio.sleep(1)
        assert [each[1].is_settled for each in (first, second, near)] == [False, False, True]
        assert third[1].body is not None, "more than may be held is refused at once"
        assert third[1].body["responses"][0]["partition_responses"][0]["error_code"] == E.NOT_ENOUGH_REPLICAS
        store.may_take.set()
        await asyncio.sleep(2)
        assert all(each[1].is_settled for each in (first, second))
        assert not sent(broker, "t", 10)[0].holds

    alone.run(life())


def test_a_node_alone_without_a_store_is_registered_once() -> None:
    alone = Alone()

    async def lives() -> None:
        first = await alone.boot(has_store=False)
        end = first.metadata.applied_end
        alone.disk.kill()
        second = await alone.boot(has_store=False)
        assert second.orchestrator.epoch == first.orchestrator.epoch
        assert second.metadata.applied_end == end

    alone.run(lives())


# --- several ---------------------------------------------------------------------------------------------------------


def test_three_brokers_take_records_for_one_partition_and_give_them_one_order() -> None:
    cluster = ObjectBrokers(3)

    async def all_at_once() -> list[dict[bytes, int]]:
        return await asyncio.gather(
            *(writer(cluster, each, 0, [each % 3 + 1], 15) for each in range(1, 7)),
            *(writer(cluster, each, 0, [1, 2, 3], 15) for each in range(7, 10)),
        )

    told: dict[bytes, int] = {}
    for each in cluster.do(all_at_once()):
        told |= each
    assert len(told) == 9 * 15
    check(cluster, told, 0)
    assert len({each.epoch for each in segments_in(cluster.memory)}) == 3, "every broker has stored its own"


@pytest.mark.parametrize("is_leader", [True, False], ids=["the leader", "another"])
def test_a_killed_broker_loses_nothing_that_was_acknowledged_and_doubles_nothing(is_leader: bool) -> None:
    cluster = ObjectBrokers(3, seed=5)
    victim = cluster.leader_id if is_leader else cluster.follower_id
    assert victim is not None
    told: dict[bytes, int] = {}

    async def begin() -> "asyncio.Future[list[dict[bytes, int]]]":
        writers = [writer(cluster, each, each % 2, [1, 2, 3], 25) for each in range(1, 7)]
        return asyncio.gather(*writers)

    running = cluster.do(begin())
    cluster.run(700)
    cluster.kill(victim)
    cluster.run(4000)
    cluster.start(victim)
    cluster.until(running.done, within_ms=300_000)
    for each in running.result():
        told |= each
    assert len(told) == 6 * 25
    for number in (0, 1):
        check(
            cluster,
            {value: at for value, at in told.items() if int(value.split(b"-")[0]) % 2 == number},
            number,
        )


def test_a_broker_that_is_cut_off_says_so_before_producers_lose_their_patience() -> None:
    cluster = ObjectBrokers(3, seed=2)
    away = cluster.follower_id
    assert cluster.do(cluster.produce(away, 0, b"before")) == (E.NONE, 0)
    cluster.net.isolate(BrokerId(away))
    began_ms = cluster.clock.monotonic_ms()
    code, _ = cluster.do(cluster.produce(away, 0, b"meanwhile", timeout_ms=60_000))
    assert code is E.NOT_LEADER_OR_FOLLOWER
    assert cluster.clock.monotonic_ms() - began_ms < 10_000
    other = next(each for each in cluster.lives if each not in (away, cluster.leader_id))
    assert cluster.do(cluster.produce(other, 0, b"elsewhere"))[0] is E.NONE
    cluster.net.heal()
    cluster.settle()
    assert cluster.do(cluster.produce(away, 0, b"after"))[0] is E.NONE
    cluster.run(1000)
    kept = cluster.values(other)
    assert kept[0] == b"before"
    assert [each for each in kept if each != b"meanwhile"] == [b"before", b"elsewhere", b"after"]


def test_one_after_a_cut_counts_again_and_goes_on_in_the_same_order() -> None:
    """A broker that the others do not hear is fenced: what it has open fails, and none of it counts later twice."""
    cluster = ObjectBrokers(3, seed=9)
    away = cluster.follower_id

    async def begin() -> "asyncio.Future[list[dict[bytes, int]]]":
        return asyncio.gather(*(writer(cluster, each, 0, [1, 2, 3], 20) for each in range(1, 5)))

    running: Any = cluster.do(begin())
    cluster.run(500)
    cluster.net.isolate(BrokerId(away))
    cluster.run(6000)
    cluster.net.heal()
    cluster.until(running.done, within_ms=300_000)
    told: dict[bytes, int] = {}
    for each in running.result():
        told |= each
    assert len(told) == 4 * 20
    check(cluster, told, 0)
