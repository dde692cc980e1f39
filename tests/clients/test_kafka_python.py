"""kafka-python: records, groups, admin API, idempotent production."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, OffsetSpec, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from kafka.errors import TopicAlreadyExistsError

from support.waiting import wait_until

from . import scenarios
from .samples import CODECS, SAMPLES, TIMESTAMP_MS_FIRST, Sample, with_key_or_value, without_null_headers
from .scenarios import PARTITIONS, Seen

ANSWER_S_MAX = 15.0
POLL_MS = 500  # long enough for a rebalance, short enough to wait for
ASSIGNORS = {
    "range": RangePartitionAssignor,
    "roundrobin": RoundRobinPartitionAssignor,
    "sticky": StickyPartitionAssignor,
    "cooperative-sticky": CooperativeStickyAssignor,
}
SENDABLE = [without_null_headers(with_key_or_value(sample)) for sample in SAMPLES]


class KafkaPythonMember:
    """A group consumer of kafka-python, as the scenarios see it.

    It polls in a thread of its own: this client forgets a rebalance that does not end within one call of poll(),
    and rejoins, so that members polled in turn from one thread may chase each other without end.
    """

    def __init__(self, bootstrap: str, topic: str, group: str, **settings: Any) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1)
        self._polling: Future[Any] | None = None
        self._consumer = KafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            heartbeat_interval_ms=200,  # a rebalance is heard of with a heartbeat
            **settings,
        )
        # A leader of kafka-python that does not know the topic yet shares out nothing, and is slow to retry.
        assert self._consumer.partitions_for_topic(topic)

    def poll(self) -> list[Seen]:
        if self._polling is None:
            self._polling = self._thread.submit(self._consumer.poll, timeout_ms=POLL_MS)
        try:
            batches = self._polling.result(timeout=0.05)
        except TimeoutError:
            return []
        self._polling = None
        return [Seen(r.partition, r.offset, r.value) for batch in batches.values() for r in batch]

    def _settle(self) -> None:
        """Waits for the poll under way, which must find nothing that the scenario does not know of."""
        polling, self._polling = self._polling, None
        if polling is not None:
            assert not polling.result(ANSWER_S_MAX)

    def partitions(self) -> set[int]:
        return {assigned.partition for assigned in self._consumer.assignment()}

    def commit(self) -> None:
        self._settle()
        self._thread.submit(self._consumer.commit).result(ANSWER_S_MAX)

    def close(self) -> None:
        if self._polling is not None:
            self._polling.exception(
                ANSWER_S_MAX
            )  # It has been asked for; a failing test may not have read it.
        self._thread.submit(self._consumer.close).result(ANSWER_S_MAX)
        self._thread.shutdown()


@pytest.fixture
def admin(bootstrap: str) -> Iterator[KafkaAdminClient]:
    with closing(KafkaAdminClient(bootstrap_servers=bootstrap)) as client:
        yield client


@pytest.fixture
def topic(admin: KafkaAdminClient, unique: str) -> str:
    """A fresh topic with as many partitions as the group scenarios share out."""
    admin.create_topics({unique: {"num_partitions": PARTITIONS, "replication_factor": 1}})
    wait_until(lambda: unique in admin.list_topics(), "the new topic")
    return unique


@pytest.fixture
def produce(bootstrap: str, topic: str) -> Callable[[dict[int, list[bytes]]], None]:
    def send(values: dict[int, list[bytes]]) -> None:
        _produce(
            bootstrap, topic, [(p, Sample(None, value)) for p, share in values.items() for value in share]
        )

    return send


def _produce(bootstrap: str, topic: str, samples: Sequence[tuple[int, Sample]], **settings: Any) -> list[Any]:
    """Sends the samples and returns where each was stored, in order."""
    producer = KafkaProducer(bootstrap_servers=bootstrap, linger_ms=5, **settings)
    with closing(producer):
        futures = [
            producer.send(topic, value, key, list(headers), partition, timestamp_ms)
            for partition, (key, value, headers, timestamp_ms) in samples
        ]
        return [future.get(ANSWER_S_MAX) for future in futures]


def _consume(bootstrap: str, topic: str, count: int) -> list[Any]:
    """The first `count` records of partition 0, without a group."""
    records: list[Any] = []
    with closing(KafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest")) as consumer:
        consumer.assign([TopicPartition(topic, 0)])

        def arrived() -> bool:
            for batch in consumer.poll(timeout_ms=100).values():
                records.extend(batch)
            return len(records) >= count

        wait_until(arrived, f"{count} records")
    return records[:count]


def _sample_of(record: Any) -> Sample:
    assert record.timestamp_type == 0, "a producer's own timestamp must be kept as such"
    return Sample(record.key, record.value, tuple(record.headers), record.timestamp)


@pytest.mark.parametrize("codec", CODECS)
def test_records_come_back_byte_for_byte(bootstrap: str, topic: str, codec: str) -> None:
    compression = None if codec == "none" else codec
    _produce(bootstrap, topic, [(0, sample) for sample in SENDABLE], compression_type=compression)
    assert [_sample_of(record) for record in _consume(bootstrap, topic, len(SENDABLE))] == SENDABLE


def test_reads_null_headers_and_empty_records_of_another_client(
    bootstrap: str, topic: str, write_all_samples: Callable[[str], None]
) -> None:
    write_all_samples(topic)
    assert [_sample_of(record) for record in _consume(bootstrap, topic, len(SAMPLES))] == list(SAMPLES)


def test_idempotent_production_stores_each_record_once_and_in_order(bootstrap: str, topic: str) -> None:
    samples = [(0, Sample(None, str(number).encode())) for number in range(500)]
    stored = _produce(bootstrap, topic, samples, enable_idempotence=True, batch_size=400)
    assert [place.offset for place in stored] == list(range(500))
    assert [record.value for record in _consume(bootstrap, topic, 500)] == [s.value for _, s in samples]


def test_group_shares_rebalances_commits_and_resumes(bootstrap: str, topic: str, produce: Any) -> None:
    scenarios.group_shares_rebalances_commits_and_resumes(
        lambda: KafkaPythonMember(bootstrap, topic, topic), produce
    )


@pytest.mark.parametrize("assignor", list(ASSIGNORS))
def test_assignor_gives_each_partition_to_one_member(
    bootstrap: str, topic: str, produce: Any, assignor: str
) -> None:
    strategy = [ASSIGNORS[assignor]]
    scenarios.two_members_share_everything(
        lambda: KafkaPythonMember(bootstrap, topic, topic, partition_assignment_strategy=strategy), produce
    )


def test_static_member_returns_to_its_share(bootstrap: str, topic: str) -> None:
    scenarios.static_member_returns_to_its_share(
        lambda name: KafkaPythonMember(bootstrap, topic, topic, group_instance_id=name),
        lambda member: member.close(),
    )


def test_admin_creates_describes_and_deletes_topics(admin: KafkaAdminClient, topic: str) -> None:
    (description,) = admin.describe_topics([topic])
    assert sorted(p["partition_index"] for p in description["partitions"]) == list(range(PARTITIONS))
    admin.delete_topics([topic])
    wait_until(lambda: topic not in admin.list_topics(), "the topic to go")


def test_admin_describes_a_topic_page_by_page(admin: KafkaAdminClient, topic: str) -> None:
    first = admin.describe_topic_partitions([topic], response_partition_limit=3)
    assert [p["partition_index"] for p in first["topics"][0]["partitions"]] == [0, 1, 2]
    assert first["next_cursor"]["topic_name"] == topic
    rest = admin.describe_topic_partitions([topic], cursor=first["next_cursor"])
    assert [p["partition_index"] for p in rest["topics"][0]["partitions"]] == [3]
    assert rest["next_cursor"] is None


def test_admin_refuses_a_topic_that_exists(admin: KafkaAdminClient, topic: str) -> None:
    with pytest.raises(TopicAlreadyExistsError):
        admin.create_topics({topic: {"num_partitions": 1, "replication_factor": 1}})


def test_admin_adds_partitions(admin: KafkaAdminClient, topic: str) -> None:
    admin.create_partitions({topic: PARTITIONS + 2})
    wait_until(
        lambda: len(admin.describe_topics([topic])[0]["partitions"]) == PARTITIONS + 2, "the new partitions"
    )


def _config(admin: KafkaAdminClient, topic: str, name: str) -> Any:
    resource = ConfigResource(ConfigResourceType.TOPIC, topic)
    return admin.describe_configs([resource], config_filter="all")["topic"][topic][name]


def _alter(admin: KafkaAdminClient, topic: str, name: str, value: str, **settings: Any) -> Any:
    return admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, {name: value})], **settings)


def test_admin_alters_a_config_and_resets_it(admin: KafkaAdminClient, topic: str) -> None:
    before = _config(admin, topic, "retention.ms")["value"]
    _alter(admin, topic, "retention.ms", "86400000")
    wait_until(lambda: _config(admin, topic, "retention.ms")["value"] == "86400000", "the new retention")
    admin.reset_configs([ConfigResource(ConfigResourceType.TOPIC, topic, ["retention.ms"])])
    wait_until(lambda: _config(admin, topic, "retention.ms")["value"] == before, "the old retention")


def test_admin_alters_configs_the_old_way(admin: KafkaAdminClient, topic: str) -> None:
    """AlterConfigs replaces the whole set: what is not named goes back to its default."""
    _alter(admin, topic, "retention.ms", "86400000", incremental=False)
    wait_until(lambda: _config(admin, topic, "retention.ms")["value"] == "86400000", "the new retention")


def test_admin_refuses_an_unknown_config(admin: KafkaAdminClient, topic: str) -> None:
    answer = _alter(admin, topic, "no.such.config", "1", raise_on_unknown=False)["topic"][topic]
    assert "InvalidConfigurationError" in answer
    assert "no.such.config" in answer


def test_admin_describes_the_cluster_and_its_log_folders(
    bootstrap: str, admin: KafkaAdminClient, topic: str
) -> None:
    cluster = admin.describe_cluster()
    assert cluster["cluster_id"]
    assert cluster["controller_id"] in {broker["broker_id"] for broker in cluster["brokers"]}
    _produce(bootstrap, topic, [(0, sample) for sample in SENDABLE])
    (broker,) = admin.describe_log_dirs([topic])
    sizes = {
        partition["partition_index"]: partition["partition_size"]
        for folder in broker["log_dirs"]
        for described in folder["topics"]
        for partition in described["partitions"]
    }
    assert sorted(sizes) == list(range(PARTITIONS))
    assert sizes[0] > sum(len(sample.value or b"") for sample in SENDABLE)
    assert sizes[1] == 0


def test_admin_lists_offsets_by_position_and_by_time(
    bootstrap: str, admin: KafkaAdminClient, topic: str
) -> None:
    times = (TIMESTAMP_MS_FIRST, TIMESTAMP_MS_FIRST + 100, TIMESTAMP_MS_FIRST + 50)
    for time_ms in times:
        _produce(bootstrap, topic, [(0, Sample(None, b"v", (), time_ms))])

    def offset(spec: Any) -> int:
        partition = TopicPartition(topic, 0)
        return int(admin.list_partition_offsets({partition: spec})[partition].offset)

    assert offset(OffsetSpec.EARLIEST) == 0
    assert offset(OffsetSpec.LATEST) == 3
    assert offset(OffsetSpec.MAX_TIMESTAMP) == 1
    assert offset(TIMESTAMP_MS_FIRST + 1) == 1


def test_admin_deletes_records_below_an_offset(bootstrap: str, admin: KafkaAdminClient, topic: str) -> None:
    _produce(bootstrap, topic, [(0, sample) for sample in SENDABLE])
    partition = TopicPartition(topic, 0)
    assert admin.delete_records({partition: 4})[partition]["low_watermark"] == 4
    assert _consume(bootstrap, topic, 1)[0].offset == 4


def test_admin_lists_describes_and_deletes_groups(
    bootstrap: str, admin: KafkaAdminClient, topic: str, produce: Any
) -> None:
    with closing(KafkaPythonMember(bootstrap, topic, topic)) as member:
        scenarios.wait_for_shares([member], [PARTITIONS])
        produce(scenarios.values_for("g", 1))
        scenarios.read_exactly([member], scenarios.values_for("g", 1))
        member.commit()
        description = admin.describe_groups([topic])[topic]
        assert description["group_state"] == "Stable"
        assert len(description["members"]) == 1
        assert topic in {group["group_id"] for group in admin.list_groups()}
    committed = admin.list_group_offsets({topic: None})[topic]
    assert {place.partition: offset.offset for place, offset in committed.items()} == dict.fromkeys(
        range(PARTITIONS), 1
    )
    forgotten = TopicPartition(topic, 0)
    admin.delete_group_offsets(topic, [forgotten])
    assert forgotten not in admin.list_group_offsets({topic: None})[topic]
    admin.delete_groups([topic])
    assert topic not in {group["group_id"] for group in admin.list_groups()}
