"""A partition in the object store: who may write, what is told when, and what it has in common with the others."""

import asyncio
import uuid
from collections.abc import Iterator

import pytest

from anabranch.broker.object.partition import STORE_COPIES, AgreedHead, ObjectPartition
from anabranch.broker.topics.partition import Partition
from anabranch.broker.write.append_queue import AppendJob
from anabranch.cluster.metadata.entries import broker_entry, topic_entry
from anabranch.cluster.metadata.rows import BrokerRow, Topic
from anabranch.cluster.metadata.table import MetadataTable
from anabranch.cluster.objects.entries import Commit, Item, commit_entry, incarnation_entry
from anabranch.config import NodeSettings, TopicSettings
from anabranch.errors import AnabranchError, StorageError, UnknownTopicOrPartitionError
from anabranch.record.batch import read_header
from anabranch.record.builder import BatchBuilder
from anabranch.values import BrokerId, Offset, TopicPartition
from support.writing_world import no_remote_reads

TOPIC = uuid.UUID(int=3)
KEY = (TOPIC, 0)
ME = BrokerId(0)


class Writing:
    def __init__(self) -> None:
        self.taken: list[AppendJob] = []

    def take(self, partition: ObjectPartition, jobs: list[AppendJob]) -> None:
        self.taken += jobs


class World:
    def __init__(self, *, has_store: bool = True) -> None:
        self.table = MetadataTable()
        self.table.apply(broker_entry(BrokerRow(ME, "disk", 0, "h", 1)), 0)
        self.table.apply(topic_entry(Topic("t", TOPIC, 1, {"anabranch.mode": "object"})), 1)
        self.table.apply(incarnation_entry(7), 2)
        self.writing = Writing()
        self.finished: list[AppendJob] = []
        self.woken: list[Partition] = []
        self.partition = ObjectPartition(
            TopicPartition("t", 0),
            TOPIC,
            AgreedHead(self.table, KEY),
            TopicSettings.from_overrides(NodeSettings.load(), {"min.insync.replicas": "2"}),
            self.table,
            broker_id=ME,
            writing=self.writing if has_store else None,
            begin_reads=no_remote_reads,
            on_publish=self.woken.append,
            finish=self.finished.append,
            finished=lambda size: None,
        )

    def job(self) -> AppendJob:
        builder = BatchBuilder()
        builder.add(b"k", b"v", timestamp_ms=1)
        batch = bytearray(builder.build())
        return AppendJob(self.partition, batch, read_header(batch), lambda job: None, wait_safe=True)

    def agree(self, number: int, count: int, producer_id: int = -1) -> None:
        item = Item(KEY, 0, 100, count, producer_id, 0, 0 if producer_id >= 0 else -1, 0, 1, 0)
        self.table.apply(commit_entry(ME, 0, 5, [Commit(number, [item])]), 3 + number)


@pytest.fixture(autouse=True)
def loop() -> Iterator[None]:
    """A partition has a lock, which wants a loop to be there."""
    with asyncio.Runner() as runner:
        runner.get_loop()
        yield


def error_of(job: AppendJob) -> AnabranchError:
    assert job.error is not None
    return job.error


def test_jobs_are_handed_to_the_writing_and_answered_when_it_says_so() -> None:
    world = World()
    job = world.job()
    world.partition.write([job], 0)
    assert world.writing.taken == [job]
    assert world.finished == []
    world.agree(0, 1)
    world.partition.applied(0)
    world.partition.settle(job, Offset(0))
    assert world.finished == [job]
    assert (job.base_offset, job.end_offset, job.error, job.batch) == (0, 1, None, None)


def test_nobody_is_answered_before_readers_may_see_it() -> None:
    world = World()
    job = world.job()
    world.agree(0, 1)
    with pytest.raises(AssertionError, match="answered before it is seen"):
        world.partition.settle(job, Offset(0))


def test_whoever_wrote_the_high_watermark_follows_the_table_and_readers_are_woken() -> None:
    world = World()
    world.partition.waiting_fetches[object()] = None  # type: ignore[index]
    world.agree(0, 3)
    world.partition.applied(0)
    assert world.partition.high_watermark == 3
    assert world.woken == [world.partition]
    world.partition.applied(0)
    assert world.woken == [world.partition]


def test_producers_are_those_of_the_table() -> None:
    world = World()
    assert world.partition.producers.producers == {}
    world.agree(0, 1, producer_id=5)
    world.partition.applied(0)
    assert list(world.partition.producers.producers) == [5]


def test_partition_begins_where_the_table_is() -> None:
    world = World()
    world.agree(0, 4)
    again = ObjectPartition(
        TopicPartition("t", 0),
        TOPIC,
        AgreedHead(world.table, KEY),
        world.partition.settings,
        world.table,
        broker_id=ME,
        writing=world.writing,
        begin_reads=no_remote_reads,
        on_publish=world.woken.append,
        finish=world.finished.append,
        finished=lambda size: None,
    )
    assert (again.high_watermark, again.log.start_offset, again.log.size_bytes) == (4, 0, 100)


def test_nothing_goes_by_the_plain_lane_and_every_acknowledgement_waits() -> None:
    partition = World().partition
    assert partition.plain_limits is None
    partition.settings = TopicSettings.from_overrides(NodeSettings.load(), {})
    assert partition.plain_limits is None
    assert partition.acks1_waits
    assert partition.copies == STORE_COPIES
    assert not partition.has_files


def test_every_broker_serves_it() -> None:
    partition = World().partition
    partition.check_leader()
    partition.check_writable()
    assert partition.is_leader
    assert partition.is_settled
    assert (partition.generation, partition.lag) == (0, 0)


def test_without_the_store_it_is_refused_in_a_way_that_clients_try_again() -> None:
    world = World(has_store=False)
    job = world.job()
    world.partition.write([job], 0)
    assert world.finished == [job]
    assert isinstance(error_of(job), StorageError)
    assert "--object-store" in str(error_of(job))
    for check in (world.partition.check_leader, world.partition.check_writable):
        with pytest.raises(StorageError, match="--object-store"):
            check()
    with pytest.raises(StorageError, match="--object-store"):
        asyncio.run(_of_time(world.partition))


async def _of_time(partition: ObjectPartition) -> None:
    await partition.coordinates.offset_for_time(5)


def test_abandoned_partition_takes_nothing() -> None:
    world = World()
    world.partition.abandon(UnknownTopicOrPartitionError("gone"))
    job = world.job()
    world.partition.write([job], 0)
    assert isinstance(error_of(job), UnknownTopicOrPartitionError)
    assert world.writing.taken == []
