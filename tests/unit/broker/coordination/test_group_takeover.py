"""Leadership of a partition of the offsets topic comes and goes: its groups are loaded, served and given up."""

import asyncio
from typing import Any

import pytest

from anabranch.broker.coordination import offsets_topic
from anabranch.broker.topics.partition import Partition
from anabranch.coordination.groups.messages import CommitRequest, PartitionCommit
from anabranch.errors import (
    CoordinatorLoadingError,
    CoordinatorNotAvailableError,
    NotControllerError,
    NotCoordinatorError,
    NotEnoughCopiesError,
    NotOwnerError,
    StorageError,
)
from anabranch.values import BrokerId, TopicPartition
from support.broker_bench import in_loop, turn
from support.cluster_bench import ClusterBench

ORDERS = TopicPartition("orders", 0)


async def commit(bench: ClusterBench, offset: int, group_id: str = "g") -> None:
    request = CommitRequest(group_id, (PartitionCommit(*ORDERS, offset),))
    assert await bench.groups.commit(request) == [None]


def committing(bench: ClusterBench, offset: int, group_id: str = "g") -> "asyncio.Task[None]":
    return asyncio.create_task(commit(bench, offset, group_id))


def offset_of(bench: ClusterBench, group_id: str = "g") -> int | None:
    found = bench.groups.fetch(group_id).get(ORDERS)
    return None if found is None else found.offset


async def leading() -> tuple[ClusterBench, Partition]:
    """A broker that leads the only partition of the groups, and has loaded it."""
    bench = ClusterBench(offsets_topic_num_partitions=1)
    partition = await bench.offsets_partition()
    bench.lead(partition)
    await turn()
    return bench, partition


async def lead_again_unsafe(bench: ClusterBench, partition: Partition) -> None:
    """With a commit that nobody knows to be safe."""
    await commit(bench, 5)
    bench.lose(partition)
    bench.steer(partition)
    partition.high_watermark = partition.log.start_offset
    bench.lead(partition, 3)
    await turn()


# --- taking over and giving up ----------------------------------------------------------------------------


@in_loop
async def test_before_the_topic_is_made_nobody_coordinates() -> None:
    bench = ClusterBench(offsets_topic_num_partitions=2)
    bench.offsets_topic.start()
    with pytest.raises(NotCoordinatorError):
        await commit(bench, 1)
    assert bench.groups.next_deadline_ms() is None
    assert bench.groups.list_groups() == []


@in_loop
async def test_only_the_groups_of_the_led_partition_are_served() -> None:
    bench = ClusterBench(offsets_topic_num_partitions=2)
    partition = await bench.offsets_partition(1)
    bench.lead(partition)
    await turn()
    await commit(bench, 5, "a")  # Java's hash of "a" is 97.
    with pytest.raises(NotCoordinatorError):
        await commit(bench, 5, "b")
    assert partition.log.end_offset == 1


@in_loop
async def test_what_was_committed_is_there_after_each_change_of_leadership() -> None:
    bench = ClusterBench(offsets_topic_num_partitions=1)
    partition = await bench.offsets_partition()
    for generation in range(1, 6):
        bench.lead(partition, generation)
        with pytest.raises(CoordinatorLoadingError):
            bench.groups.fetch("g")
        await turn()
        assert offset_of(bench) == (generation - 1 or None)
        await commit(bench, generation)
        bench.lose(partition, generation)
        with pytest.raises(NotCoordinatorError):
            bench.groups.fetch("g")


@in_loop
async def test_other_topics_and_a_leadership_told_twice_change_nothing() -> None:
    bench = ClusterBench(offsets_topic_num_partitions=1)
    other = await bench.topic("t")
    bench.lead(other)
    assert bench.groups.shard(0) is None
    partition = await bench.offsets_partition()
    bench.lead(partition)
    await turn()
    shard = bench.groups.shard(0)
    bench.lead(partition)
    assert bench.groups.shard(0) is shard
    bench.lead(partition, 2)
    assert bench.groups.shard(0) is not shard
    with pytest.raises(CoordinatorLoadingError):
        bench.groups.fetch("g")


@in_loop
async def test_node_that_is_alone_is_not_told() -> None:
    bench = ClusterBench(offsets_topic_num_partitions=1)
    partition = await bench.offsets_partition()
    again = bench.again()
    again.broker.start()
    await turn()
    shard = again.broker.groups.shard(0)
    again.broker.offsets_topic.on_leadership(partition, False, partition.generation)
    assert again.broker.groups.shard(0) is shard
    await again.broker.drain()
    await again.broker.close()


# --- loads ------------------------------------------------------------------------------------------------


@in_loop
async def test_nothing_is_served_before_the_log_is_safe() -> None:
    bench, partition = await leading()
    bench.steer(partition)
    pending = committing(bench, 5)
    await turn()
    bench.lose(partition)
    bench.lead(partition, 3)
    await turn()
    with pytest.raises(CoordinatorLoadingError):
        bench.groups.fetch("g")
    with pytest.raises(NotCoordinatorError):
        await pending
    bench.publish(partition)
    await turn()
    assert offset_of(bench) == 5
    assert not partition.waiting_fetches


@in_loop
async def test_load_waits_for_the_safety_of_records_nobody_here_appended() -> None:
    """The adopted log of a leader that died: no append of ours tells when it is safe."""
    bench, partition = await leading()
    await lead_again_unsafe(bench, partition)
    with pytest.raises(CoordinatorLoadingError):
        bench.groups.fetch("g")
    assert partition.waiting_fetches
    bench.publish(partition)
    await turn()
    assert offset_of(bench) == 5
    assert not partition.waiting_fetches


@in_loop
async def test_load_that_waits_for_safety_ends_with_the_leadership() -> None:
    bench, partition = await leading()
    await lead_again_unsafe(bench, partition)
    bench.lose(partition, 4)
    await turn()
    assert not partition.waiting_fetches
    bench.publish(partition)
    await turn()
    assert bench.groups.shard(0) is None


@in_loop
async def test_loads_that_are_overtaken_stop_and_leave_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offsets_topic, "RECORDS_PER_TURN", 1)
    bench, partition = await leading()
    for number in range(30):
        await commit(bench, number, f"g{number}")
    replayed: list[int] = []
    replay = bench.groups.replay

    def noted(shard: Any, key: bytes, value: bytes | None) -> None:
        replayed.append(shard.generation)
        replay(shard, key, value)

    bench.groups.replay = noted
    for generation in range(2, 8):
        bench.lead(partition, generation)
        await turn(5)
        if generation % 2:
            bench.lose(partition, generation)
    bench.lead(partition, 8)
    await turn(100)
    assert replayed.count(8) == 30
    assert all(0 < replayed.count(generation) < 30 for generation in range(2, 8))
    assert replayed == sorted(replayed)
    assert len(bench.groups.list_groups()) == 30


@in_loop
async def test_records_of_an_earlier_leadership_still_in_the_queue_are_read_too() -> None:
    bench, partition = await leading()
    bench.core.is_turn_open = (
        True  # As while the server reads: what is handed in is written at the turn's end.
    )
    pending = committing(bench, 5)
    await turn()
    bench.lose(partition)
    bench.lead(partition, 3)
    await turn()
    with pytest.raises(CoordinatorLoadingError):
        bench.groups.fetch("g")
    assert partition.log.end_offset == 0
    bench.core.turn()
    await turn()
    with pytest.raises(NotCoordinatorError):
        await pending
    assert (partition.log.end_offset, offset_of(bench)) == (1, 5)


@pytest.mark.parametrize("failure", [StorageError("no"), ZeroDivisionError("defect")])
def test_load_that_failed_is_told_of_and_tried_again_when_asked(
    failure: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    @in_loop
    async def body() -> None:
        bench = ClusterBench(offsets_topic_num_partitions=2)
        partition = await bench.offsets_partition(1)
        bench.lead(partition)
        await turn()
        await commit(bench, 5, "a")
        replay = bench.groups.replay

        def fail(shard: Any, key: bytes, value: bytes | None) -> None:
            raise failure

        bench.groups.replay = fail
        bench.lead(partition, 2)
        bench.lead(await bench.offsets_partition(0), 2)
        await turn()
        assert "cannot be read back" in caplog.text
        assert bench.broker.groups_failed
        await commit(bench, 6, "b")
        with pytest.raises(CoordinatorLoadingError):
            bench.groups.fetch("a")
        bench.groups.replay = replay
        bench.lead(partition, 2)
        await turn()
        assert not bench.broker.groups_failed
        assert offset_of(bench, "a") == 5

    body()


@in_loop
async def test_stop_ends_loads_that_wait() -> None:
    bench, partition = await leading()
    await commit(bench, 5)
    bench.steer(partition)
    partition.high_watermark = partition.log.start_offset
    bench.lead(partition, 3)
    await turn()
    await bench.offsets_topic.stop()
    assert not partition.waiting_fetches


# --- appends that fail ------------------------------------------------------------------------------------


@in_loop
async def test_commit_is_refused_where_another_broker_writes() -> None:
    bench, partition = await leading()
    await commit(bench, 5)
    bench.steer(partition).leader = BrokerId(7)  # The partition knows before the coordinator is told.
    pending = committing(bench, 6)
    await turn()
    assert pending.done()
    assert isinstance(pending.exception(), NotCoordinatorError)
    assert (offset_of(bench), partition.log.end_offset) == (5, 1)


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        (NotOwnerError("lost"), NotCoordinatorError),
        (NotEnoughCopiesError("no follower"), CoordinatorNotAvailableError),
        (StorageError("full"), CoordinatorNotAvailableError),
    ],
)
def test_commit_the_log_gave_up_on_is_not_acknowledged_and_not_shown(
    failure: Any, expected: type[Exception]
) -> None:
    @in_loop
    async def body() -> None:
        bench = ClusterBench(offsets_topic_num_partitions=1)
        partition = await bench.offsets_partition()
        bench.lead(partition)
        await turn()
        await commit(bench, 5)
        bench.steer(partition)
        pending = committing(bench, 6)
        await turn()
        assert (pending.done(), offset_of(bench)) == (False, 5)
        partition.sync_failed(failure)
        with pytest.raises(expected):
            await pending
        assert offset_of(bench) == 5

    body()


@in_loop
async def test_commit_without_followers_is_answered_in_time() -> None:
    bench, partition = await leading()
    bench.steer(partition)
    pending = committing(bench, 6)
    await turn()
    partition.time_out(bench.clock.monotonic_ms() + offsets_topic.APPEND_TIMEOUT_MS - 1)
    await turn()
    assert not pending.done()
    partition.time_out(bench.clock.monotonic_ms() + offsets_topic.APPEND_TIMEOUT_MS)
    with pytest.raises(CoordinatorNotAvailableError):
        await pending
    assert offset_of(bench) is None


@in_loop
async def test_topic_that_cannot_be_made_now_makes_the_coordinator_unavailable() -> None:
    bench = ClusterBench()

    async def refuse(name: str) -> Any:
        raise NotControllerError("an election is under way")

    bench.topics.create_on_use = refuse
    with pytest.raises(CoordinatorNotAvailableError):
        await bench.offsets_topic.made()
