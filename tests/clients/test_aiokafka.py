"""aiokafka: records, groups, admin API, idempotent production.

All clients of a test live on one event loop, which runs only while the test waits for one of them; the
scenarios, which are plain functions, therefore drive them all by polling each in turn.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import closing
from typing import Any, TypeVar

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

from support.waiting import wait_until

from . import scenarios
from .samples import CODECS, SAMPLES, TIMESTAMP_MS_FIRST, Sample, with_key_or_value
from .scenarios import PARTITIONS, Seen

T = TypeVar("T")
Run = Callable[[Coroutine[Any, Any, T]], T]

ANSWER_S_MAX = 15.0
SENDABLE = [with_key_or_value(sample) for sample in SAMPLES]
ERROR_TOPIC_ALREADY_EXISTS = 36
ERROR_INVALID_CONFIG = 40
ASSIGNORS = {
    "range": RangePartitionAssignor,
    "roundrobin": RoundRobinPartitionAssignor,
    "sticky": StickyPartitionAssignor,
}


@pytest.fixture
def run() -> Iterator[Run[Any]]:
    """Runs one coroutine on the test's loop, with a deadline."""
    with asyncio.Runner() as runner:
        yield lambda coroutine: runner.run(asyncio.wait_for(coroutine, ANSWER_S_MAX))


class AioMember:
    """A group consumer of aiokafka, as the scenarios see it."""

    def __init__(self, run: Run[Any], bootstrap: str, topic: str, group: str, **settings: Any) -> None:
        self._run = run
        self._consumer = run(self._joined(bootstrap, topic, group, settings))

    @staticmethod
    async def _joined(bootstrap: str, topic: str, group: str, settings: dict[str, Any]) -> AIOKafkaConsumer:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            heartbeat_interval_ms=200,  # a rebalance is heard of with a heartbeat
            **settings,
        )
        await consumer.start()
        consumer.subscribe([topic])  # after start, which would otherwise wait for partitions
        return consumer

    def poll(self) -> list[Seen]:
        batches = self._run(self._consumer.getmany(timeout_ms=100))
        return [Seen(r.partition, r.offset, r.value) for batch in batches.values() for r in batch]

    def partitions(self) -> set[int]:
        return {assigned.partition for assigned in self._consumer.assignment()}

    def commit(self) -> None:
        self._run(self._consumer.commit())

    def close(self) -> None:
        self._run(self._consumer.stop())


@pytest.fixture
def admin(run: Run[Any], bootstrap: str) -> Iterator[AIOKafkaAdminClient]:
    async def started() -> AIOKafkaAdminClient:
        client = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
        await client.start()
        return client

    client = run(started())
    yield client
    run(client.close())


@pytest.fixture
def topic(run: Run[Any], admin: AIOKafkaAdminClient, unique: str) -> str:
    """A fresh topic with as many partitions as the group scenarios share out."""
    answer = run(admin.create_topics([NewTopic(unique, PARTITIONS, 1)]))
    assert answer.topic_errors[0][1] == 0, answer
    wait_until(lambda: unique in run(admin.list_topics()), "the new topic")
    return unique


@pytest.fixture
def produce(run: Run[Any], bootstrap: str, topic: str) -> Callable[[dict[int, list[bytes]]], None]:
    def send(values: dict[int, list[bytes]]) -> None:
        samples = [(p, Sample(None, value)) for p, share in values.items() for value in share]
        run(_produce(bootstrap, topic, samples))

    return send


async def _produce(
    bootstrap: str, topic: str, samples: Sequence[tuple[int, Sample]], **settings: Any
) -> list[Any]:
    """Sends the samples and returns where each was stored, in order."""
    async with AIOKafkaProducer(
        bootstrap_servers=bootstrap, linger_ms=5, **{"acks": "all", **settings}
    ) as producer:
        futures = [
            await producer.send(topic, value, key, partition, timestamp_ms, list(headers))
            for partition, (key, value, headers, timestamp_ms) in samples
        ]
        return await asyncio.gather(*futures)


async def _consume(bootstrap: str, topic: str, count: int) -> list[Any]:
    """The first `count` records of partition 0, without a group."""
    async with AIOKafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        return [await consumer.getone() for _ in range(count)]


def _sample_of(record: Any) -> Sample:
    assert record.timestamp_type == 0, "a producer's own timestamp must be kept as such"
    return Sample(record.key, record.value, tuple(record.headers), record.timestamp)


@pytest.mark.parametrize("codec", CODECS)
def test_records_come_back_byte_for_byte(run: Run[Any], bootstrap: str, topic: str, codec: str) -> None:
    compression = None if codec == "none" else codec
    run(_produce(bootstrap, topic, [(0, sample) for sample in SENDABLE], compression_type=compression))
    records = run(_consume(bootstrap, topic, len(SENDABLE)))
    assert [_sample_of(record) for record in records] == SENDABLE


def test_reads_every_record_of_another_client(
    run: Run[Any], bootstrap: str, topic: str, write_all_samples: Callable[[str], None]
) -> None:
    write_all_samples(topic)
    records = run(_consume(bootstrap, topic, len(SAMPLES)))
    assert [_sample_of(record) for record in records] == list(SAMPLES)


def test_idempotent_production_stores_each_record_once_and_in_order(
    run: Run[Any], bootstrap: str, topic: str
) -> None:
    samples = [(0, Sample(None, str(number).encode())) for number in range(500)]
    stored = run(_produce(bootstrap, topic, samples, enable_idempotence=True, max_batch_size=400))
    assert [place.offset for place in stored] == list(range(500))
    records = run(_consume(bootstrap, topic, 500))
    assert [record.value for record in records] == [sample.value for _, sample in samples]


def test_group_shares_rebalances_commits_and_resumes(
    run: Run[Any], bootstrap: str, topic: str, produce: Any
) -> None:
    scenarios.group_shares_rebalances_commits_and_resumes(
        lambda: AioMember(run, bootstrap, topic, topic), produce
    )


@pytest.mark.parametrize("assignor", list(ASSIGNORS))
def test_assignor_gives_each_partition_to_one_member(
    run: Run[Any], bootstrap: str, topic: str, produce: Any, assignor: str
) -> None:
    strategy = [ASSIGNORS[assignor]]
    scenarios.two_members_share_everything(
        lambda: AioMember(run, bootstrap, topic, topic, partition_assignment_strategy=strategy), produce
    )


def test_static_member_returns_to_its_share(run: Run[Any], bootstrap: str, topic: str) -> None:
    scenarios.static_member_returns_to_its_share(
        lambda name: AioMember(run, bootstrap, topic, topic, group_instance_id=name),
        lambda member: member.close(),
    )


def test_admin_creates_describes_and_deletes_topics(
    run: Run[Any], admin: AIOKafkaAdminClient, topic: str
) -> None:
    (description,) = run(admin.describe_topics([topic]))
    assert sorted(p["partition"] for p in description["partitions"]) == list(range(PARTITIONS))
    run(admin.delete_topics([topic]))
    wait_until(lambda: topic not in run(admin.list_topics()), "the topic to go")


def test_admin_refuses_a_topic_that_exists(run: Run[Any], admin: AIOKafkaAdminClient, topic: str) -> None:
    answer = run(admin.create_topics([NewTopic(topic, 1, 1)]))
    assert answer.topic_errors[0][1] == ERROR_TOPIC_ALREADY_EXISTS


def test_admin_adds_partitions(run: Run[Any], admin: AIOKafkaAdminClient, topic: str) -> None:
    run(admin.create_partitions({topic: NewPartitions(PARTITIONS + 2)}))
    wait_until(
        lambda: len(run(admin.describe_topics([topic]))[0]["partitions"]) == PARTITIONS + 2,
        "the new partitions",
    )


def _config(run: Run[Any], admin: AIOKafkaAdminClient, topic: str, name: str) -> Any:
    (answer,) = run(admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)]))
    entries = answer.resources[0][4]
    return next(entry[1] for entry in entries if entry[0] == name)


def test_admin_alters_a_config(run: Run[Any], admin: AIOKafkaAdminClient, topic: str) -> None:
    resource = ConfigResource(ConfigResourceType.TOPIC, topic, {"retention.ms": "86400000"})
    (answer,) = run(admin.alter_configs([resource]))
    assert answer.resources[0][0] == 0, answer
    wait_until(lambda: _config(run, admin, topic, "retention.ms") == "86400000", "the new retention")


def test_admin_refuses_an_unknown_config(run: Run[Any], admin: AIOKafkaAdminClient, topic: str) -> None:
    resource = ConfigResource(ConfigResourceType.TOPIC, topic, {"no.such.config": "1"})
    (answer,) = run(admin.alter_configs([resource]))
    error_code, message = answer.resources[0][:2]
    assert error_code == ERROR_INVALID_CONFIG
    assert "no.such.config" in message


def test_admin_describes_the_cluster(run: Run[Any], admin: AIOKafkaAdminClient) -> None:
    cluster = run(admin.describe_cluster())
    assert cluster["cluster_id"]
    assert cluster["controller_id"] in {broker["node_id"] for broker in cluster["brokers"]}


async def _offsets(bootstrap: str, topic: str, timestamp_ms: int) -> tuple[int, int, int]:
    partition = TopicPartition(topic, 0)
    async with AIOKafkaConsumer(bootstrap_servers=bootstrap) as consumer:
        first = (await consumer.beginning_offsets([partition]))[partition]
        end = (await consumer.end_offsets([partition]))[partition]
        found = (await consumer.offsets_for_times({partition: timestamp_ms}))[partition]
        return first, end, found.offset


def test_consumer_lists_offsets_by_position_and_by_time(run: Run[Any], bootstrap: str, topic: str) -> None:
    for step_ms in (0, 100, 50):
        run(_produce(bootstrap, topic, [(0, Sample(None, b"v", (), TIMESTAMP_MS_FIRST + step_ms))]))
    assert run(_offsets(bootstrap, topic, TIMESTAMP_MS_FIRST + 1)) == (0, 3, 1)


def test_admin_deletes_records_below_an_offset(
    run: Run[Any], bootstrap: str, admin: AIOKafkaAdminClient, topic: str
) -> None:
    run(_produce(bootstrap, topic, [(0, sample) for sample in SENDABLE]))
    partition = TopicPartition(topic, 0)
    assert run(admin.delete_records({partition: RecordsToDelete(before_offset=4)})) == {partition: 4}
    assert run(_consume(bootstrap, topic, 1))[0].offset == 4


def test_admin_lists_and_describes_groups(
    run: Run[Any], bootstrap: str, admin: AIOKafkaAdminClient, topic: str, produce: Any
) -> None:
    with closing(AioMember(run, bootstrap, topic, topic)) as member:
        scenarios.wait_for_shares([member], [PARTITIONS])
        produce(scenarios.values_for("g", 1))
        scenarios.read_exactly([member], scenarios.values_for("g", 1))
        member.commit()
        (answer,) = run(admin.describe_consumer_groups([topic]))
        error_code, group, state = answer.groups[0][:3]
        assert (error_code, group, state) == (0, topic, "Stable")
    assert topic in {listed[0] for listed in run(admin.list_consumer_groups())}
    committed = run(admin.list_consumer_group_offsets(topic))
    assert {place.partition: offset.offset for place, offset in committed.items()} == dict.fromkeys(
        range(PARTITIONS), 1
    )
