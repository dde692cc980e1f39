"""Topics: making, changing and removing them, with a disk that refuses at every step."""

import asyncio
import contextlib
import errno
import uuid

import pytest

from anabranch.broker.topics.topics import NAME_LENGTH_MAX, PARTITIONS_MAX, Topics
from anabranch.cluster.metadata.entries import encode_entry, topic_entry, topic_removed_entry
from anabranch.cluster.metadata.rows import Topic
from anabranch.errors import (
    InvalidConfigError,
    InvalidPartitionsError,
    InvalidTopicError,
    StorageError,
    TopicExistsError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)
from support.broker_bench import DATA, Bench, batch_of, in_loop, turn
from support.workers import HeldWorkers


@in_loop
async def test_topic_is_there_after_a_restart_with_its_partitions_and_configs() -> None:
    bench = Bench()
    await bench.topic("t", 3, retention_ms="1000")

    state = bench.again().topics.find("t")

    assert state is not None
    assert [partition.id.partition for partition in state.partitions] == [0, 1, 2]
    assert state.settings.retention_ms == 1000


@in_loop
async def test_topic_is_found_by_name_and_by_id() -> None:
    bench = Bench()
    partition = await bench.topic("t", 2)

    assert bench.topics.partition(partition.topic_id, 1) is bench.topics.partition("t", 1)
    assert len(bench.topics) == 1
    assert [state.topic.name for state in bench.topics] == ["t"]


@in_loop
async def test_unknown_topic_partition_and_id_are_told_apart() -> None:
    bench = Bench()
    partition = await bench.topic("t")
    with pytest.raises(UnknownTopicOrPartitionError):
        bench.topics.partition("u", 0)
    with pytest.raises(UnknownTopicOrPartitionError):
        bench.topics.partition(partition.topic_id, 1)
    with pytest.raises(UnknownTopicOrPartitionError):
        bench.topics.partition("t", -1)
    with pytest.raises(UnknownTopicIdError):
        bench.topics.partition(Topic("x", partition.topic_id, 1).topic_id.__class__(int=7), 0)


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/b", "a b", "ä", "a" * (NAME_LENGTH_MAX + 1), "a\n", "__cluster_metadata"]
)
def test_bad_name_is_refused(name: str) -> None:
    with pytest.raises(InvalidTopicError):
        Topics.check_name(name)


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "...", "a" * NAME_LENGTH_MAX, "__mine"])
def test_good_name_is_taken(name: str) -> None:
    Topics.check_name(name)


@in_loop
async def test_the_nodes_own_log_cannot_be_made_a_topic_on_use() -> None:
    bench = Bench()
    with pytest.raises(InvalidTopicError):
        await bench.topics.create_on_use("__cluster_metadata")
    await bench.topic("t")
    assert bench.again().topics.find("t") is not None


@in_loop
async def test_names_that_differ_in_dot_and_underscore_only_collide() -> None:
    bench = Bench()
    await bench.topic("a.b")
    with pytest.raises(InvalidTopicError, match="collides"):
        await bench.topic("a_b")
    with pytest.raises(TopicExistsError):
        await bench.topic("a.b")


@pytest.mark.parametrize("count", [0, -1, PARTITIONS_MAX + 1])
def test_number_of_partitions_has_bounds(count: int) -> None:
    @in_loop
    async def body() -> None:
        with pytest.raises(InvalidPartitionsError):
            Bench().topics.plan("t", count, {})

    body()


@in_loop
async def test_unknown_config_is_refused() -> None:
    with pytest.raises(InvalidConfigError):
        Bench().topics.plan("t", 1, {"no.such": "1"})


@in_loop
async def test_two_creations_of_one_name_give_one_topic() -> None:
    bench = Bench()
    first, second = bench.topics.plan("t", 1, {}), bench.topics.plan("t", 2, {})
    results = await asyncio.gather(
        bench.topics.create(first), bench.topics.create(second), return_exceptions=True
    )
    assert [type(result) for result in results] == [type(None), TopicExistsError]
    assert bench.topics.partition("t", 0).topic_id == first.topic_id


@in_loop
async def test_a_topic_that_another_leader_made_meanwhile_stays_and_the_second_is_refused() -> None:
    bench = Bench()
    topics, metadata = bench.broker.topics, bench.broker.metadata
    prepare, first = topics._prepare, topics.plan("t", 1, {})

    async def overtaken(topic: Topic, indexes: list[int]) -> None:
        await prepare(topic, indexes)
        await metadata._committed(metadata.quorum.propose([encode_entry(topic_entry(first))]))

    topics._prepare = overtaken  # type: ignore[method-assign]
    with pytest.raises(TopicExistsError):
        await topics.create(topics.plan("t", 1, {}))
    await topics.settled()
    assert metadata.table.topics == {"t": first}
    assert list(metadata.table.topics_by_id) == [first.topic_id]
    assert topics.known("t").topic == first


@in_loop
async def test_two_who_use_a_topic_first_get_the_same_one() -> None:
    bench = Bench()
    one, other = await asyncio.gather(bench.topics.create_on_use("t"), bench.topics.create_on_use("t"))
    assert one is other


@in_loop
async def test_topics_made_at_once_stay_within_what_a_broker_may_keep() -> None:
    bench = Bench(partitions_max=100)
    planned = [bench.topics.plan(name, 60, {}) for name in ("a", "b", "c")]
    results = await asyncio.gather(*map(bench.topics.create, planned), return_exceptions=True)
    assert sorted(type(result).__name__ for result in results) == [
        "InvalidPartitionsError",
        "InvalidPartitionsError",
        "NoneType",
    ]
    (name,) = bench.broker.metadata.table.topics
    grown = [bench.topics.add_partitions(name, count) for count in (99, 101)]
    results = await asyncio.gather(*grown, return_exceptions=True)
    assert [type(result) for result in results] == [type(None), InvalidPartitionsError]
    assert len(bench.topics.known(name).partitions) == 99
    await bench.topics.delete(name)
    assert bench.broker.metadata.table.partitions_by_replicas.total() == 0
    await bench.topic("d", 100)


@in_loop
async def test_offsets_topic_has_room_on_a_full_broker_at_its_usual_width_alone() -> None:
    bench = Bench(partitions_max=100, offsets_topic_num_partitions=7)
    await bench.topic("full", 100)
    for count, is_possible in ((8, False), (7, True)):
        with contextlib.nullcontext() if is_possible else pytest.raises(InvalidPartitionsError):
            await bench.topics.create(bench.topics.plan("__consumer_offsets", count, {}))


@in_loop
async def test_offsets_topic_is_compacted_and_as_wide_as_the_setting_says() -> None:
    bench = Bench(offsets_topic_num_partitions=3)
    state = await bench.topics.create_on_use("__consumer_offsets")
    assert len(state.partitions) == 3
    assert state.settings.is_compacted


@in_loop
async def test_creation_that_cannot_be_committed_leaves_no_topic_and_no_folder() -> None:
    bench = Bench()
    bench.disk.fail_next("write", errno.ENOSPC, path_contains="__cluster_metadata")
    with pytest.raises(StorageError):
        await bench.topic("t", 2)
    assert bench.topics.find("t") is None
    assert not [name for name in bench.disk.list(DATA) if name.startswith("t-") or name.endswith(".deleted")]
    await bench.topic("t", 2)  # And the next one may succeed.


@in_loop
async def test_creation_that_fails_at_the_second_log_takes_the_first_one_back() -> None:
    bench = Bench()
    bench.disk.fail_next("create", errno.ENOSPC, path_contains="t-1/")
    with pytest.raises(StorageError):
        await bench.topic("t", 2)
    assert bench.topics.find("t") is None
    assert not bench.disk.exists(f"{DATA}/t-0")
    assert bench.again().topics.find("t") is None


@in_loop
async def test_partitions_are_added_and_still_there_after_a_restart() -> None:
    bench = Bench()
    await bench.topic("t", 1)
    await bench.topics.add_partitions("t", 3)
    state = bench.topics.find("t")
    assert state is not None
    assert (len(state.partitions), state.topic.partition_count) == (3, 3)
    assert bench.again().topics.partition("t", 2).topic_id == state.topic.topic_id


@in_loop
async def test_partitions_are_never_taken_away() -> None:
    bench = Bench()
    await bench.topic("t", 2)
    for count in (1, 2, PARTITIONS_MAX + 1):
        with pytest.raises(InvalidPartitionsError):
            await bench.topics.add_partitions("t", count)
    with pytest.raises(UnknownTopicOrPartitionError):
        await bench.topics.add_partitions("u", 3)


@in_loop
async def test_partitions_that_cannot_be_committed_are_taken_back() -> None:
    bench = Bench()
    await bench.topic("t", 1)
    bench.disk.fail_next("write", errno.ENOSPC, path_contains="__cluster_metadata")
    with pytest.raises(StorageError):
        await bench.topics.add_partitions("t", 2)
    assert bench.topics.find_partition("t", 1) is None
    assert not bench.disk.exists(f"{DATA}/t-1")


@in_loop
async def test_altered_configs_reach_the_log_and_the_next_start() -> None:
    bench = Bench()
    partition = await bench.topic("t")
    await bench.topics.alter("t", lambda state: {"cleanup.policy": "compact", "segment.bytes": "2048"})
    assert partition.settings.is_compacted
    assert partition.log.config.segment_bytes == 2048
    again = bench.again().topics.partition("t", 0)
    assert (again.settings.is_compacted, again.log.config.segment_bytes) == (True, 2048)


@in_loop
async def test_two_alterations_at_once_both_count() -> None:
    bench = Bench(workers=(workers := HeldWorkers()))
    creating = asyncio.create_task(bench.topic("t"))
    await settle(workers, creating)

    def adding(name: str) -> "asyncio.Task[None]":
        return asyncio.create_task(
            bench.topics.alter("t", lambda state: {**state.topic.overrides, name: "1234567"})
        )

    altering = [adding("retention.ms"), adding("segment.bytes")]
    await settle(workers, *altering)
    state = bench.topics.find("t")
    assert state is not None
    assert set(state.topic.overrides) == {"retention.ms", "segment.bytes"}


async def settle(workers: HeldWorkers, *tasks: "asyncio.Task[object]") -> None:
    """Run workers and loop until the tasks are done."""
    for _ in range(100):
        await turn()
        if all(task.done() for task in tasks):
            break
        for held, run in ((workers.heavies, workers.run_heavy), (workers.syncs, workers.run_sync)):
            if held:
                run()
    await asyncio.gather(*tasks)


@in_loop
async def test_deleted_topic_is_gone_with_its_files_and_after_a_restart() -> None:
    bench = Bench()
    partition = await bench.topic("t", 2)
    await bench.topics.delete("t")
    assert bench.topics.find("t") is None
    assert bench.topics.find(partition.topic_id) is None
    assert not [name for name in bench.disk.list(DATA) if name.startswith("t-") or "deleted" in name]
    assert bench.again().topics.find("t") is None


@in_loop
async def test_topic_made_again_under_an_old_name_inherits_nothing() -> None:
    bench = Bench()
    partition = await bench.topic("t")
    await bench.core.append(partition, batch_of(b"old"))
    await bench.topics.delete("t")
    again = await bench.topic("t")
    assert (again.log.end_offset, again.topic_id == partition.topic_id) == (0, False)


@in_loop
async def test_deletion_by_id_leaves_a_topic_alone_that_got_the_name_meanwhile() -> None:
    bench = Bench()
    await bench.topic("t")
    topics, metadata = bench.broker.topics, bench.broker.metadata
    old, new = topics.known("t").topic.topic_id, uuid.uuid4()
    async with metadata.lock:
        deleting = asyncio.create_task(topics.delete(old))
        await turn()
        await metadata.commit(topic_removed_entry("t"))
        await metadata.commit(topic_entry(Topic("t", new, 1)))
    with pytest.raises(UnknownTopicIdError):
        await deleting
    assert metadata.table.topics["t"].topic_id == new


@in_loop
async def test_topic_with_the_longest_name_can_be_deleted() -> None:
    bench = Bench()
    name = "n" * NAME_LENGTH_MAX
    await bench.topic(name)
    longest = 0
    rename = bench.disk.rename

    def measured(old: str, new: str) -> None:
        nonlocal longest
        longest = max(longest, len(new.rpartition("/")[2]))
        rename(old, new)

    bench.disk.rename = measured
    await bench.topics.delete(name)
    assert 0 < longest <= 255  # What file systems allow for a name.


@in_loop
async def test_folders_that_cannot_be_moved_do_not_keep_a_topic_from_being_deleted_nor_made_again() -> None:
    bench = Bench()
    partition = await bench.topic("t")
    await bench.core.append(partition, batch_of(b"old"))
    bench.disk.fail_next("rename", path_contains=".deleted")
    await bench.topics.delete("t")
    assert bench.topics.find("t") is None

    again = await bench.topic("t")

    assert again.log.end_offset == 0, "a new topic shows the records of a deleted one"
    assert bench.disk.list(f"{DATA}/quarantine") == ["t-0"]


@in_loop
async def test_leftover_folder_that_cannot_be_moved_refuses_the_new_topic() -> None:
    bench = Bench()
    bench.disk.make_folder(f"{DATA}/t-0")
    bench.disk.fail_next("rename", path_contains="quarantine")
    with pytest.raises(StorageError):
        await bench.topic("t")
    assert bench.topics.find("t") is None


@in_loop
async def test_internal_topic_cannot_be_deleted_but_two_underscores_alone_make_none() -> None:
    bench = Bench()
    await bench.topics.create_on_use("__consumer_offsets")
    with pytest.raises(InvalidTopicError):
        await bench.topics.delete("__consumer_offsets")
    await bench.topic("__canary")
    await bench.topics.delete("__canary")
    assert bench.topics.find("__canary") is None


@in_loop
async def test_deletion_that_cannot_be_committed_keeps_the_topic() -> None:
    bench = Bench()
    partition = await bench.topic("t")
    bench.disk.fail_next("write", errno.ENOSPC, path_contains="__cluster_metadata")
    with pytest.raises(StorageError):
        await bench.topics.delete("t")
    assert bench.topics.partition("t", 0) is partition
    await bench.core.append(partition, batch_of())


@in_loop
async def test_job_queued_before_a_deletion_is_refused_after_it() -> None:
    bench = Bench()
    partition = await bench.topic("t")
    await bench.topics.delete("t")
    again = await bench.topic("t")
    answered = bench.submit(partition)  # As a batch does that was checked in a worker meanwhile.
    await turn()
    assert isinstance(answered[0].error, UnknownTopicOrPartitionError)
    assert (again.log.end_offset, bench.core.queue.bytes_held) == (0, 0)


@in_loop
async def test_fetch_that_waits_for_a_deleted_topic_is_woken_at_once() -> None:
    bench = Bench()
    partition = await bench.topic("t")
    woken: list[bool] = []

    def retry(final: bool) -> bool:
        woken.append(final)
        return True

    bench.core.fetch_waits.wait(retry, [partition], 60_000)
    await bench.topics.delete("t")
    await turn()
    assert woken == [False]


@in_loop
async def test_deletion_waits_for_a_sync_that_is_under_way() -> None:
    workers = HeldWorkers()
    bench = Bench(workers=workers, flush="always")
    await settle(workers, creating := asyncio.create_task(bench.topic("t")))
    partition = creating.result()
    answered = bench.submit(partition)
    await turn()
    deleting = asyncio.create_task(bench.topics.delete("t"))
    await turn()
    workers.syncs.rotate(-1)  # The metadata log's sync first, the topic's is slow.
    workers.run_sync()
    await turn()
    assert answered
    assert isinstance(answered[0].error, UnknownTopicOrPartitionError)
    assert bench.disk.exists(f"{DATA}/t-0")
    await settle(workers, deleting)
    assert not bench.disk.exists(f"{DATA}/t-0")


@in_loop
async def test_deletion_waits_for_upkeep_of_the_files() -> None:
    bench = Bench()
    partition = await bench.topic("t")
    async with partition.upkeep:
        deleting = asyncio.create_task(bench.topics.delete("t"))
        await turn()
        assert bench.disk.exists(f"{DATA}/t-0")
    await deleting
    assert not bench.disk.exists(f"{DATA}/t-0")
