"""One key, one partition: the same keys written by every client of ours and by stock ones, for each partitioner."""

import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import kafka
import pyarrow as pa
import pytest

from anabranch.pipeline.source.options import WriterOptions
from anabranch.pipeline.writer.topic_writer import Written, write_all
from anabranch.record.partitioner import DEFAULT_PARTITIONER, PARTITIONERS
from anabranch.testing import EmbeddedBroker
from support.http_client import ask_at
from support.node_process import SETTINGS, NodeProcess
from support.topics import make_topic, send

PROGRAM = Path(sys.executable).with_name("anabranch")
PARTITIONS = 7
KEYS = ["", *(f"key-{number}" for number in range(40))]
"""The empty one is a key too."""
LIBRDKAFKA = {"murmur2": "murmur2_random", "crc32": "consistent"}
"""How a stock librdkafka is told to choose as the topic's partitioner does."""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path_factory.mktemp("node"), {**SETTINGS, "http": "127.0.0.1:0"}) as node:
        yield node


@pytest.fixture
def topic(request: pytest.FixtureRequest, node: NodeProcess, unique: str) -> str:
    make_topic(node.bootstrap, unique, PARTITIONS, anabranch_partitioner=request.param)
    return unique


def each_partitioner(*names: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("topic", names or tuple(PARTITIONERS), indirect=True)


def partitions_by_key(bootstrap: str, topic: str) -> dict[str, set[int]]:
    found: dict[str, set[int]] = defaultdict(set)
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": f"look-{topic}", "enable.partition.eof": True}
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    ended = 0
    while ended < PARTITIONS:
        record = consumer.poll(10)
        assert record is not None, "the end of the topic was not reached"
        if record.error() is None:
            found[record.key().decode()].add(record.partition())
        else:
            ended += record.error().code() == confluent_kafka.KafkaError._PARTITION_EOF
    consumer.close()
    return found


def by_command_line(bootstrap: str, topic: str) -> None:
    lines = "".join(f"{key}:cli\n" for key in KEYS)
    command = [str(PROGRAM), "produce", topic, "--key-separator", ":", "--bootstrap", bootstrap]
    subprocess.run(command, input=lines, text=True, check=True, capture_output=True, timeout=60)


def by_gateway(address: str, topic: str) -> None:
    records = [{"key": key, "value": "gateway"} for key in KEYS]
    answer = ask_at(address, "POST", f"/v1/topics/{topic}/records", {"records": records})
    assert answer.status == 200, answer.body


def by_spark_writer(bootstrap: str, topic: str) -> None:
    """What a task of the writer runs on an executor; one topic is named by the option, one by a column."""
    keys = pa.array([key.encode() for key in KEYS], pa.binary())
    batch = pa.record_batch({"value": keys, "key": keys})
    assert write_all(WriterOptions(bootstrap, topic, {}), ("value", "key"), [batch]) == Written(len(KEYS))
    named = pa.record_batch({"value": keys, "key": keys, "topic": pa.array([topic] * len(KEYS))})
    assert write_all(WriterOptions(bootstrap, None, {}), ("value", "key", "topic"), [named]) == Written(
        len(KEYS)
    )


@each_partitioner()
def test_key_has_one_partition_whichever_of_our_clients_writes_it(node: NodeProcess, topic: str) -> None:
    by_command_line(node.bootstrap, topic)
    by_gateway(node.ready["http"], topic)
    by_spark_writer(node.bootstrap, topic)
    found = partitions_by_key(node.bootstrap, topic)
    assert sorted(found) == sorted(KEYS)
    assert {key: places for key, places in found.items() if len(places) != 1} == {}
    assert len(set().union(*found.values())) > 1, "keys are spread"


@each_partitioner(*LIBRDKAFKA)
def test_librdkafka_set_to_the_topics_partitioner_agrees(node: NodeProcess, topic: str, request) -> None:
    partitioner = request.node.callspec.params["topic"]
    by_gateway(node.ready["http"], topic)
    given = {"partitioner": LIBRDKAFKA[partitioner]}
    send(node.bootstrap, topic, [(key.encode(), b"librdkafka") for key in KEYS], **given)
    assert all(len(places) == 1 for places in partitions_by_key(node.bootstrap, topic).values())


@each_partitioner("crc32")
def test_librdkafka_as_it_comes_agrees_with_crc32_except_for_empty_keys(
    node: NodeProcess, topic: str
) -> None:
    by_command_line(node.bootstrap, topic)
    sent = [(key.encode(), b"librdkafka") for key in [*KEYS, *[""] * 100]]
    send(node.bootstrap, topic, sent, **{"sticky.partitioning.linger.ms": 0})
    found = partitions_by_key(node.bootstrap, topic)
    assert [key for key, places in found.items() if len(places) != 1] == [""], "spread by consistent_random"


@each_partitioner(DEFAULT_PARTITIONER)
def test_kafka_python_agrees_with_the_default(node: NodeProcess, topic: str) -> None:
    by_command_line(node.bootstrap, topic)
    producer = kafka.KafkaProducer(bootstrap_servers=node.bootstrap)
    for key in KEYS:
        producer.send(topic, key=key.encode(), value=b"kafka-python")
    producer.close()
    assert all(len(places) == 1 for places in partitions_by_key(node.bootstrap, topic).values())


@pytest.mark.interop
@each_partitioner(DEFAULT_PARTITIONER)
def test_java_agrees_with_the_default(node: NodeProcess, topic: str, java_command: list[str]) -> None:
    by_command_line(node.bootstrap, topic)
    by_gateway(node.ready["http"], topic)
    by_spark_writer(node.bootstrap, topic)
    subprocess.run(
        [*java_command, "KeyWriter", node.bootstrap, topic, *KEYS],
        check=True,
        capture_output=True,
        timeout=60,
    )
    found = partitions_by_key(node.bootstrap, topic)
    assert sorted(found) == sorted(KEYS)
    assert all(len(places) == 1 for places in found.values())


def test_topic_that_does_not_exist_yet_gets_the_default_partitioner(node: NodeProcess, unique: str) -> None:
    """The first writer makes it, with num.partitions; keys are where the gateway then puts them."""
    by_command_line(node.bootstrap, unique)
    by_gateway(node.ready["http"], unique)
    found: dict[str, set[int]] = defaultdict(set)
    for line in _consume(node.bootstrap, unique):
        place, _, rest = line.partition("@")
        found[rest.split("\t")[2]].add(int(place))
    assert sorted(found) == sorted(KEYS)
    assert all(len(places) == 1 for places in found.values())


def _consume(bootstrap: str, topic: str) -> list[str]:
    command = [str(PROGRAM), "consume", topic, "--meta", "--bootstrap", bootstrap]
    done = subprocess.run(command, text=True, check=True, capture_output=True, timeout=60)
    return done.stdout.splitlines()


@pytest.mark.parametrize("partitioner", PARTITIONERS)
def test_broker_for_tests_puts_keys_where_the_gateway_does(partitioner: str) -> None:
    with EmbeddedBroker(settings={"http": "127.0.0.1:0"}) as broker:
        broker.create_topic("orders", partitions=PARTITIONS, anabranch_partitioner=partitioner)
        offsets = broker.produce("orders", [(key, "fixture") for key in KEYS])
        by_gateway(broker.http_address, "orders")
        found = defaultdict(set)
        for record in broker.wait_for_records("orders", 2 * len(KEYS)):
            found[record.key].add(record.partition)
            if record.value == b"fixture":
                assert offsets[KEYS.index(record.key.decode())] == record.offset
        assert all(len(places) == 1 for places in found.values())
