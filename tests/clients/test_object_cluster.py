"""Topics in the object store on a cluster of three: any broker takes and serves any partition; brokers come and go,
with their disks or without; nothing is lost or doubled."""

import json
import shutil
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from anabranch.testing.cluster_processes import ClusterProcesses
from anabranch.wire.api_keys import ApiKey
from anabranch.wire.error_codes import ErrorCode as E
from support.clusters import ask, partition_rows, wait_for_voters
from support.raw_client import RawClient, batch_of, produce_body
from support.waiting import wait_until

from .conftest import OBJECT_CONFIGS

LATEST, EARLIEST = -1, -2
RUN_S_MAX = 60.0
READ_S_MAX = 30.0
Body = dict[str, Any]


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcesses]:
    folder = tmp_path_factory.mktemp("object-cluster")
    settings = {"object.store": f"file://{folder}/store", "group.initial.rebalance.delay.ms": 0}
    with ClusterProcesses(folder / "cluster", settings=settings) as running:
        wait_for_voters(running)
        yield running


@pytest.fixture
def cluster(processes: ClusterProcesses) -> Iterator[ClusterProcesses]:
    processes.recover()
    yield processes
    processes.heal()


@pytest.fixture
def at(cluster: ClusterProcesses) -> Iterator[Callable[[int], RawClient]]:
    """A connection to one broker."""
    with ExitStack() as stack:
        yield lambda broker: stack.enter_context(RawClient(cluster.layout.places[broker].kafka))


@pytest.fixture
def topic(cluster: ClusterProcesses, unique: str, at: Callable[[int], RawClient]) -> str:
    """A topic that all three brokers have heard of."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.create_topics([NewTopic(unique, 6, config=OBJECT_CONFIGS)])[unique].result(RUN_S_MAX)
    asked = {"topics": [{"name": unique}], "allow_auto_topic_creation": False}
    for client in map(at, range(3)):
        wait_until(
            lambda client=client: client.ask(ApiKey.METADATA, 9, asked)["topics"][0]["error_code"] == 0,
            f"{unique} at every broker",
        )
    return unique


def offset_at(client: RawClient, topic: str, timestamp: int) -> Body:
    asked = {"partition_index": 0, "timestamp": timestamp}
    body = {"replica_id": -1, "topics": [{"name": topic, "partitions": [asked]}]}
    row: Body = client.ask(ApiKey.LIST_OFFSETS, 7, body)["topics"][0]["partitions"][0]
    return row


class Load:
    """One idempotent producer that goes on through whatever happens, and a count of what it was told."""

    def __init__(self, cluster: ClusterProcesses, topic: str) -> None:
        self._topic = topic
        self.sent = 0
        self.errors: list[Any] = []
        self._producer = confluent_kafka.Producer(
            {"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True, "linger.ms": 5}
        )

    def send(self, count: int) -> None:
        for _ in range(count):
            value = str(self.sent)
            self._producer.produce(self._topic, value, key=value, on_delivery=self._told)
            self._producer.poll(0.001)
            self.sent += 1

    def _told(self, error: Any, message: Any) -> None:
        if error is not None:
            self.errors.append(error)

    def finish(self) -> None:
        assert self._producer.flush(RUN_S_MAX) == 0
        assert self.errors == []


def values_in(cluster: ClusterProcesses, topic: str, count: int) -> list[int]:
    """In the order of offsets of each partition."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": cluster.bootstrap, "group.id": topic, "auto.offset.reset": "earliest"}
    )
    found: list[int] = []
    try:
        consumer.subscribe([topic])

        def all_read() -> bool:
            messages = consumer.consume(1000, 0.2)
            assert all(message.error() is None for message in messages)
            found.extend(int(message.value()) for message in messages)
            return len(found) >= count

        wait_until(all_read, f"{count} records", READ_S_MAX)
        found.extend(int(message.value()) for message in consumer.consume(1000, 0.5))
    finally:
        consumer.close()
    return found


# --- any broker -----------------------------------------------------------------------------------------------


def test_all_brokers_name_the_same_one_for_a_partition(cluster: ClusterProcesses, topic: str) -> None:
    told = [partition_rows(cluster, topic, broker) for broker in cluster.ids]
    assert told[0] == told[1] == told[2]
    for row in told[0]:
        assert row["replica_nodes"] == row["isr_nodes"] == [row["leader_id"]]
        assert (row["leader_epoch"], row["error_code"]) == (0, 0)


def test_any_broker_takes_records_and_they_get_one_order(topic: str, at: Callable[[int], RawClient]) -> None:
    clients = [at(broker) for broker in range(3)]
    offsets = []
    for number in range(30):
        row = clients[number % 3].produce(topic, 0, batch_of(b"%d" % number))
        assert row["error_code"] == 0, row
        offsets.append(row["base_offset"])
    assert offsets == list(range(30))


def test_what_one_broker_acknowledged_every_other_tells_and_serves_at_once(
    topic: str, at: Callable[[int], RawClient]
) -> None:
    clients = [at(broker) for broker in range(3)]
    for number in range(9):
        assert clients[number % 3].produce(topic, 0, batch_of(b"x"))["base_offset"] == number
        for client in clients:
            assert offset_at(client, topic, LATEST)["offset"] == number + 1
            row = client.fetch(topic, 0, number)
            assert row["error_code"] == 0
            assert row["high_watermark"] == number + 1


def test_repeat_of_a_batch_at_another_broker_is_kept_once(topic: str, at: Callable[[int], RawClient]) -> None:
    body = {
        "transactional_id": None,
        "transaction_timeout_ms": 60_000,
        "producer_id": -1,
        "producer_epoch": -1,
    }
    producer_id = at(0).ask(ApiKey.INIT_PRODUCER_ID, 4, body)["producer_id"]
    batch = batch_of(b"once", producer_id=producer_id, producer_epoch=0, base_sequence=0)
    told = [at(broker).produce(topic, 0, batch) for broker in range(3)]
    assert [(row["error_code"], row["base_offset"]) for row in told] == [(0, 0)] * 3
    assert offset_at(at(1), topic, LATEST)["offset"] == 1


def test_three_that_write_to_one_partition_at_once_get_one_order_each_their_own(
    topic: str, at: Callable[[int], RawClient]
) -> None:
    body = {
        "transactional_id": None,
        "transaction_timeout_ms": 60_000,
        "producer_id": -1,
        "producer_epoch": -1,
    }
    count = 60

    def write(broker: int) -> list[int]:
        """Five batches under way, as Kafka's producers have them."""
        client = at(broker)
        producer_id = client.ask(ApiKey.INIT_PRODUCER_ID, 4, body)["producer_id"]
        batches = [
            batch_of(
                b"%d %d" % (broker, number), producer_id=producer_id, producer_epoch=0, base_sequence=number
            )
            for number in range(count)
        ]
        asked: deque[int] = deque()
        offsets = []
        for batch in batches:
            asked.append(client.send(ApiKey.PRODUCE, 9, produce_body(topic, 0, batch)))
            if len(asked) == 5:
                offsets.append(_taken(client, asked.popleft()))
        return offsets + [_taken(client, each) for each in asked]

    with ThreadPoolExecutor(3) as writers:
        given = list(writers.map(write, range(3)))
    assert sorted(offset for offsets in given for offset in offsets) == list(range(3 * count))
    assert all(offsets == sorted(offsets) for offsets in given)
    for broker in range(3):
        assert _count_at(at(broker), topic, 0, 3 * count) == 3 * count


def _taken(client: RawClient, correlation_id: int) -> int:
    row = client.receive(ApiKey.PRODUCE, 9, correlation_id)["responses"][0]["partition_responses"][0]
    assert row["error_code"] == 0, row
    offset: int = row["base_offset"]
    return offset


def test_records_are_deleted_whichever_broker_is_asked(topic: str, at: Callable[[int], RawClient]) -> None:
    for _ in range(4):
        at(0).produce(topic, 0, batch_of(b"x"))
    for broker in range(3):
        rows = [{"partition_index": 0, "offset": broker + 1}]
        body = {"topics": [{"name": topic, "partitions": rows}], "timeout_ms": 5000}
        row = at(broker).ask(ApiKey.DELETE_RECORDS, 2, body)["topics"][0]["partitions"][0]
        assert (row["error_code"], row["low_watermark"]) == (0, broker + 1)
        assert offset_at(at(broker), topic, EARLIEST)["offset"] == broker + 1
    beyond = {"topics": [{"name": topic, "partitions": [{"partition_index": 0, "offset": 9}]}]}
    row = at(2).ask(ApiKey.DELETE_RECORDS, 2, {**beyond, "timeout_ms": 5000})["topics"][0]["partitions"][0]
    assert row["error_code"] == E.OFFSET_OUT_OF_RANGE


# --- brokers that come and go -------------------------------------------------------------------------------------


def test_brokers_that_die_or_stop_lose_and_double_nothing(cluster: ClusterProcesses, topic: str) -> None:
    load = Load(cluster, topic)
    load.send(500)
    victim = cluster.leader_of(topic, 0)
    cluster.kill(victim)
    load.send(1000)
    cluster.restart(victim)
    load.send(500)
    assert cluster.stop_broker((victim + 1) % 3) == 0
    load.send(1000)
    cluster.restart((victim + 1) % 3)
    cluster.kill(cluster.controller())
    load.send(1000)
    load.finish()
    cluster.recover()
    assert sorted(values_in(cluster, topic, load.sent)) == list(range(load.sent))


def test_partitions_of_a_dead_broker_are_named_elsewhere_and_come_back_to_it(
    cluster: ClusterProcesses, topic: str
) -> None:
    before = {row["partition_index"]: row["leader_id"] for row in partition_rows(cluster, topic)}
    victim = before[0]
    cluster.kill(victim)

    def named() -> dict[int, int]:
        rows = partition_rows(cluster, topic, (victim + 1) % 3)
        return {row["partition_index"]: row["leader_id"] for row in rows}

    wait_until(lambda: victim not in named().values(), "others are named", READ_S_MAX)
    assert {index: who for index, who in named().items() if before[index] != victim} == {
        index: who for index, who in before.items() if who != victim
    }
    cluster.restart(victim)
    wait_until(lambda: named() == before, "the same are named as before", READ_S_MAX)


def test_broker_that_lost_its_disk_serves_everything(
    cluster: ClusterProcesses, topic: str, at: Callable[[int], RawClient]
) -> None:
    load = Load(cluster, topic)
    load.send(300)
    load.finish()
    victim = (cluster.controller() + 1) % 3
    cluster.kill(victim)
    shutil.rmtree(cluster.layout.places[victim].folder)
    wait_until(
        lambda: victim not in {row["leader_id"] for row in partition_rows(cluster, topic, (victim + 1) % 3)},
        "the dead broker is not counted on",
        READ_S_MAX,
    )
    cluster.restart(victim)
    ends = [_end(at(victim), topic, index) for index in range(6)]
    assert sum(ends) == 300
    found = sum(_count_at(at(victim), topic, index, end) for index, end in enumerate(ends))
    assert found == 300


def _end(client: RawClient, topic: str, index: int) -> int:
    return client.end_offset(topic, index)


def _count_at(client: RawClient, topic: str, index: int, end: int) -> int:
    """The records that this broker itself serves."""
    offset = 0
    while offset < end:
        row = client.fetch(topic, index, offset)
        assert row["error_code"] == 0, row
        data, position = row["records"] or b"", 0
        while position < len(data):
            base = int.from_bytes(data[position : position + 8], "big")
            assert base == offset, "no gap and no overlap"
            offset = base + int.from_bytes(data[position + 23 : position + 27], "big") + 1
            position += int.from_bytes(data[position + 8 : position + 12], "big") + 12
    return offset


# --- the command line -----------------------------------------------------------------------------------------------


def run(cluster: ClusterProcesses, *arguments: object) -> Any:
    command = [sys.executable, "-m", "anabranch", *map(str, arguments)]
    command += ["--bootstrap", cluster.bootstrap, "--format", "json"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=RUN_S_MAX)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_segments_of_all_brokers_are_shown(
    cluster: ClusterProcesses, topic: str, at: Callable[[int], RawClient]
) -> None:
    for broker in range(3):
        at(broker).produce(topic, 0, batch_of(b"x"))
    shown = run(cluster, "cluster", "segments")
    assert sorted(shown["brokers"]) == ["0", "1", "2"]
    assert shown["without"] == {}
    for facts in shown["brokers"].values():
        assert facts["flushed"]["segments"] >= 1
        assert facts["objects"]["written"] >= 1
    epochs = {facts["store"]["epoch"] for facts in shown["brokers"].values()}
    assert len(epochs) == 3


def test_drained_broker_keeps_nothing_and_is_not_named(cluster: ClusterProcesses, topic: str) -> None:
    run(cluster, "topic", "create", f"{topic}-2", "--mode", "object", "--partitions", 12)
    drained = run(cluster, "cluster", "drain", 2)
    assert topic not in {move["topic"] for move in drained["moved"]}
    try:
        wait_until(
            lambda: 2 not in {row["leader_id"] for row in partition_rows(cluster, f"{topic}-2")},
            "the drained broker is not named",
            READ_S_MAX,
        )
        rows = run(cluster, "cluster", "ring", "--topic", f"{topic}-2")
        assert all(row["replicas"] == [] and row["leader"] in (0, 1) for row in rows)
    finally:
        run(cluster, "cluster", "add", 2)
    wait_until(
        lambda: 2 in {row["leader_id"] for row in partition_rows(cluster, f"{topic}-2")},
        "it is named again",
        READ_S_MAX,
    )
    assert run(cluster, "topic", "describe", f"{topic}-2")["mode"] == "object"
    assert ask(cluster, ApiKey.LIST_PARTITION_REASSIGNMENTS, {"topics": None})["topics"] == []
