"""confluent-kafka (librdkafka): records, groups, admin API, idempotent production."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    ConsumerGroupState,
    KafkaError,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from support.waiting import wait_until

from . import scenarios
from .samples import CODECS, SAMPLES, TIMESTAMP_MS_FIRST, Sample
from .scenarios import PARTITIONS, Seen

ANSWER_S_MAX = 15.0


class ConfluentMember:
    """A group consumer of librdkafka, as the scenarios see it."""

    def __init__(self, bootstrap: str, topic: str, group: str, **settings: object) -> None:
        self.assigned_count = 0
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "heartbeat.interval.ms": 200,  # a rebalance is heard of with a heartbeat
                **settings,
            }
        )
        self._consumer.subscribe([topic], on_assign=self._assigned)

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.assigned_count += 1

    def poll(self) -> list[Seen]:
        messages = self._consumer.consume(100, timeout=0.1)
        assert all(message.error() is None for message in messages), [m.error() for m in messages]
        return [Seen(m.partition(), m.offset(), m.value()) for m in messages]

    def partitions(self) -> set[int]:
        return {assigned.partition for assigned in self._consumer.assignment()}

    def commit(self) -> None:
        committed = self._consumer.commit(asynchronous=False)
        assert all(partition.error is None for partition in committed)

    def close(self) -> None:
        self._consumer.close()


@pytest.fixture
def admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap})


@pytest.fixture
def topic(admin: AdminClient, unique: str) -> str:
    """A fresh topic with as many partitions as the group scenarios share out."""
    _done(admin.create_topics([NewTopic(unique, num_partitions=PARTITIONS, replication_factor=1)]))
    return unique


@pytest.fixture
def produce(bootstrap: str, topic: str) -> Callable[[dict[int, list[bytes]]], None]:
    def send(values: dict[int, list[bytes]]) -> None:
        samples = [(p, Sample(None, value)) for p, share in values.items() for value in share]
        _produce(bootstrap, topic, samples)

    return send


def _done(futures: dict[Any, Any]) -> list[Any]:
    """Every answer of an admin call; one that failed raises."""
    return [future.result(ANSWER_S_MAX) for future in futures.values()]


def _produce(
    bootstrap: str, topic: str, samples: Sequence[tuple[int, Sample]], **settings: object
) -> list[Any]:
    """Sends the samples, waits for every acknowledgement, and returns the delivered messages in order."""
    delivered: list[Any] = []

    def on_delivery(error: KafkaError | None, message: Any) -> None:
        assert error is None, error
        delivered.append(message)

    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, **settings})
    for partition, (key, value, headers, timestamp_ms) in samples:
        producer.produce(
            topic, value, key, partition, on_delivery, timestamp=timestamp_ms, headers=list(headers) or None
        )
    assert producer.flush(ANSWER_S_MAX) == 0
    return delivered


def _consume(bootstrap: str, topic: str, count: int) -> Iterator[Any]:
    """The first `count` messages of partition 0, without a group's help."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "unused", "enable.auto.commit": False})
    try:
        consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        for _ in range(count):
            message = consumer.poll(ANSWER_S_MAX)
            assert message is not None, "no record within the deadline"
            assert message.error() is None, message.error()
            yield message
    finally:
        consumer.close()


def _sample_of(message: Any) -> Sample:
    kind, timestamp_ms = message.timestamp()
    assert kind == 1, "a producer's own timestamp must be kept as such"
    return Sample(message.key(), message.value(), tuple(message.headers() or ()), timestamp_ms)


@pytest.mark.parametrize("codec", CODECS)
def test_records_come_back_byte_for_byte(bootstrap: str, topic: str, codec: str) -> None:
    _produce(bootstrap, topic, [(0, sample) for sample in SAMPLES], **{"compression.type": codec})
    assert [_sample_of(message) for message in _consume(bootstrap, topic, len(SAMPLES))] == list(SAMPLES)


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_every_level_of_acknowledgement_stores_the_records(bootstrap: str, topic: str, acks: str) -> None:
    _produce(bootstrap, topic, [(0, sample) for sample in SAMPLES], acks=acks)
    assert [_sample_of(message) for message in _consume(bootstrap, topic, len(SAMPLES))] == list(SAMPLES)


def test_idempotent_production_stores_each_record_once_and_in_order(bootstrap: str, topic: str) -> None:
    samples = [(0, Sample(None, str(number).encode())) for number in range(500)]
    settings = {"enable.idempotence": True, "batch.num.messages": 20}
    delivered = _produce(bootstrap, topic, samples, **settings)
    assert [message.offset() for message in delivered] == list(range(500))
    assert [message.value() for message in _consume(bootstrap, topic, 500)] == [s.value for _, s in samples]


def test_group_shares_rebalances_commits_and_resumes(bootstrap: str, topic: str, produce: Any) -> None:
    scenarios.group_shares_rebalances_commits_and_resumes(
        lambda: ConfluentMember(bootstrap, topic, topic), produce
    )


@pytest.mark.parametrize("assignor", ["range", "roundrobin", "cooperative-sticky"])
def test_assignor_gives_each_partition_to_one_member(
    bootstrap: str, topic: str, produce: Any, assignor: str
) -> None:
    settings = {"partition.assignment.strategy": assignor}
    scenarios.two_members_share_everything(
        lambda: ConfluentMember(bootstrap, topic, topic, **settings), produce
    )


def test_static_member_returns_to_its_share_without_a_rebalance(bootstrap: str, topic: str) -> None:
    members: dict[str, ConfluentMember] = {}

    def join(name: str) -> ConfluentMember:
        members[name] = ConfluentMember(bootstrap, topic, topic, **{"group.instance.id": name})
        return members[name]

    def leave(member: Any) -> None:
        settled.append(members["stays"].assigned_count)
        member.close()

    settled: list[int] = []
    scenarios.static_member_returns_to_its_share(join, leave)
    assert [members["stays"].assigned_count] == settled


def test_member_that_dies_is_replaced_after_its_session(bootstrap: str, topic: str) -> None:
    """A static member sends no LeaveGroup when it closes, which is as good as dying."""
    settings = {"session.timeout.ms": 1500, "heartbeat.interval.ms": 300}
    stays = ConfluentMember(bootstrap, topic, topic, **settings)
    dies = ConfluentMember(bootstrap, topic, topic, **settings, **{"group.instance.id": "dies"})
    try:
        scenarios.wait_for_shares([stays, dies], [2, 2])
        dies.close()
        scenarios.wait_for_shares([stays], [PARTITIONS])
    finally:
        stays.close()


def test_admin_creates_describes_and_deletes_topics(admin: AdminClient, topic: str) -> None:
    (description,) = _done(admin.describe_topics(TopicCollection([topic])))
    assert [partition.id for partition in description.partitions] == list(range(PARTITIONS))
    assert len({str(description.topic_id)} - {""}) == 1
    assert not description.is_internal
    assert topic in admin.list_topics(timeout=ANSWER_S_MAX).topics
    _done(admin.delete_topics([topic]))
    wait_until(lambda: topic not in admin.list_topics(timeout=ANSWER_S_MAX).topics, "the topic to go")


def test_admin_refuses_a_topic_that_exists(admin: AdminClient, topic: str) -> None:
    with pytest.raises(KafkaException) as refused:
        _done(admin.create_topics([NewTopic(topic, num_partitions=1, replication_factor=1)]))
    assert refused.value.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS


def test_admin_only_validates_when_asked_to(admin: AdminClient, unique: str) -> None:
    _done(admin.create_topics([NewTopic(unique, 1, 1)], validate_only=True))
    assert unique not in admin.list_topics(timeout=ANSWER_S_MAX).topics


def test_admin_adds_partitions(bootstrap: str, admin: AdminClient, topic: str) -> None:
    _done(admin.create_partitions([NewPartitions(topic, PARTITIONS + 2)]))
    metadata = wait_until(
        lambda: (
            (found := admin.list_topics(topic, timeout=ANSWER_S_MAX).topics[topic]).error is None
            and len(found.partitions) == PARTITIONS + 2
            and found
        ),
        "the new partitions",
    )
    assert sorted(metadata.partitions) == list(range(PARTITIONS + 2))
    (message,) = _produce(bootstrap, topic, [(PARTITIONS + 1, SAMPLES[0])])
    assert message.offset() == 0


def _config(admin: AdminClient, topic: str, name: str) -> ConfigEntry:
    (entries,) = _done(admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]))
    return entries[name]


def test_admin_alters_one_config_and_takes_it_back(admin: AdminClient, topic: str) -> None:
    assert _config(admin, topic, "retention.ms").is_default
    change = ConfigEntry("retention.ms", "86400000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[change])
    _done(admin.incremental_alter_configs([resource]))
    wait_until(lambda: _config(admin, topic, "retention.ms").value == "86400000", "the new retention")
    assert not _config(admin, topic, "retention.ms").is_default

    change = ConfigEntry("retention.ms", None, incremental_operation=AlterConfigOpType.DELETE)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[change])
    _done(admin.incremental_alter_configs([resource]))
    wait_until(lambda: _config(admin, topic, "retention.ms").is_default, "the old retention")


@pytest.mark.parametrize(("name", "value"), [("no.such.config", "1"), ("retention.ms", "soon")])
def test_admin_refuses_a_config_that_makes_no_sense(
    admin: AdminClient, topic: str, name: str, value: str
) -> None:
    change = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[change])
    with pytest.raises(KafkaException) as refused:
        _done(admin.incremental_alter_configs([resource]))
    assert refused.value.args[0].code() == KafkaError.INVALID_CONFIG
    assert name in refused.value.args[0].str()


def test_admin_describes_the_cluster(admin: AdminClient) -> None:
    cluster = admin.describe_cluster().result(ANSWER_S_MAX)
    assert cluster.cluster_id
    assert cluster.controller.id in {node.id for node in cluster.nodes}


def test_admin_lists_offsets_by_position_and_by_time(bootstrap: str, admin: AdminClient, topic: str) -> None:
    times = (TIMESTAMP_MS_FIRST, TIMESTAMP_MS_FIRST + 100, TIMESTAMP_MS_FIRST + 50)
    for time_ms in times:  # one batch each, so that the answer must look further than a batch's first record
        _produce(bootstrap, topic, [(0, Sample(None, b"v", (), time_ms))])

    def offset(spec: OffsetSpec) -> int:
        (answer,) = _done(admin.list_offsets({TopicPartition(topic, 0): spec}))
        return int(answer.offset)

    assert offset(OffsetSpec.earliest()) == 0
    assert offset(OffsetSpec.latest()) == 3
    assert offset(OffsetSpec.max_timestamp()) == 1
    assert offset(OffsetSpec.for_timestamp(TIMESTAMP_MS_FIRST + 1)) == 1
    assert offset(OffsetSpec.for_timestamp(TIMESTAMP_MS_FIRST + 101)) == -1


def test_admin_deletes_records_below_an_offset(bootstrap: str, admin: AdminClient, topic: str) -> None:
    _produce(bootstrap, topic, [(0, sample) for sample in SAMPLES])
    (deleted,) = _done(admin.delete_records([TopicPartition(topic, 0, 4)]))
    assert deleted.low_watermark == 4
    (first,) = _consume(bootstrap, topic, 1)
    assert first.offset() == 4


def test_admin_lists_describes_and_deletes_groups(
    bootstrap: str, admin: AdminClient, topic: str, produce: Any
) -> None:
    with closing(ConfluentMember(bootstrap, topic, topic)) as member:
        scenarios.wait_for_shares([member], [PARTITIONS])
        produce(scenarios.values_for("g", 1))
        scenarios.read_exactly([member], scenarios.values_for("g", 1))
        member.commit()
        (description,) = _done(admin.describe_consumer_groups([topic]))
        assert description.state == ConsumerGroupState.STABLE
        assigned = description.members[0].assignment.topic_partitions
        assert {place.partition for place in assigned} == set(range(PARTITIONS))
        listed = admin.list_consumer_groups().result(ANSWER_S_MAX)
        assert not listed.errors
        assert topic in {group.group_id for group in listed.valid}
    _done(admin.delete_consumer_groups([topic]))
    listed = admin.list_consumer_groups().result(ANSWER_S_MAX)
    assert topic not in {group.group_id for group in listed.valid}
