"""A node without peers: the sole voter of its own quorum, whose folder stays what it was before there were quorums."""

import errno

import pytest

from anabranch.broker.metadata import metadata_log
from anabranch.broker.metadata.quorum_store import QuorumState, QuorumStore
from anabranch.cluster.metadata.entries import encode_entry, producer_ids_entry
from anabranch.cluster.raft.messages import Member, Members, Snapshot
from anabranch.errors import CorruptDataError, StorageError
from anabranch.log.disk.checkpoint import write_checkpoint
from anabranch.log.log import Log
from anabranch.log.settings import LogConfig
from anabranch.record.batch import read_header
from anabranch.record.builder import BatchBuilder
from anabranch.testing.fakes.disk import FakeDisk
from anabranch.values import Offset
from support.broker_bench import DATA, Bench, in_loop
from support.metadata_world import topic_named

FOLDER = f"{DATA}/__cluster_metadata-0"
SNAPSHOT = f"{DATA}/metadata-snapshot"
STATE = f"{DATA}/quorum-state"


def old_log(disk: FakeDisk, names: list[str], start: int) -> None:
    """As the last version before the quorum wrote it: one batch per entry, all of generation 0."""
    disk.make_folder(DATA)
    log = Log.open(disk, FOLDER, LogConfig(), clean=False, start_offset=Offset(start))
    for offset, name in enumerate(names, start):
        builder = BatchBuilder(base_offset=offset, generation=0)
        builder.add(None, encode_entry(topic_named(name)), timestamp_ms=1_700_000_000_000)
        log.append([(builder.build(), Offset(offset), Offset(offset), 1_700_000_000_000)], 0)
    log.sync()
    log.close(clean=False)


def old_snapshot(disk: FakeDisk, names: list[str], offset: int) -> None:
    topics = [dict(topic_named(name)) for name in names]
    table = {"topics": topics, "producer_id_next": 3000}
    write_checkpoint(disk, SNAPSHOT, {"offset": offset, "table": table})


async def commit(bench: Bench, number: int) -> Offset:
    async with bench.broker.metadata.lock:
        return await bench.broker.metadata.commit(producer_ids_entry(number))


@in_loop
async def test_log_of_the_version_before_is_read_and_gone_on_with() -> None:
    disk = FakeDisk()
    old_log(disk, ["a", "b"], 0)
    bench = Bench(disk)
    metadata = bench.broker.metadata
    assert list(metadata.table.topics) == ["a", "b"]
    assert metadata.is_leader
    assert metadata.members == Members(frozenset({metadata.me}))
    assert await commit(bench, 5000) == 2
    headers = list(metadata.partition.log.batch_headers(Offset(0)))
    assert [(header.base_offset, header.generation) for header in headers] == [(0, 0), (1, 0), (2, 0)]
    again = bench.again().broker.metadata
    assert (list(again.table.topics), again.table.producer_id_next) == (["a", "b"], 5000)


@in_loop
async def test_snapshot_of_the_version_before_is_read_and_followed_by_one_of_this(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(metadata_log, "ENTRIES_PER_SNAPSHOT", 2)
    disk = FakeDisk()
    old_log(disk, ["c"], 7)
    old_snapshot(disk, ["a", "b"], 7)
    bench = Bench(disk)
    table = bench.broker.metadata.table
    assert (list(table.topics), table.producer_id_next) == (["a", "b", "c"], 3000)
    await commit(bench, 5000)
    assert bench.broker.metadata.partition.log.start_offset == 9
    again = bench.again().broker.metadata
    assert (list(again.table.topics), again.table.producer_id_next) == (["a", "b", "c"], 5000)
    assert again.members == Members(frozenset({again.me}))


@in_loop
async def test_start_alone_writes_nothing_for_the_quorum() -> None:
    bench = Bench()
    await commit(bench, 7)
    again = bench.again()
    assert not again.disk.exists(STATE)
    assert again.broker.metadata.partition.log.end_offset == 1
    assert (again.broker.metadata.term, again.broker.metadata.leader_id) == (0, again.broker.id)


@in_loop
async def test_one_change_costs_one_write_and_one_sync() -> None:
    bench = Bench()
    await commit(bench, 7)
    operations = bench.disk.operations
    await commit(bench, 8)
    assert bench.disk.operations - operations == 2


@in_loop
async def test_full_disk_is_no_end_for_a_node_alone() -> None:
    bench = Bench()
    await commit(bench, 7)
    bench.disk.fail_next("write", errno.ENOSPC)
    with pytest.raises(StorageError):
        await commit(bench, 8)
    assert await commit(bench, 9) == 1
    assert bench.broker.metadata.table.producer_id_next == 9
    assert bench.again().broker.metadata.table.producer_id_next == 9


@in_loop
async def test_failed_sync_is_the_end_until_a_restart() -> None:
    bench = Bench()
    await commit(bench, 7)
    bench.disk.fail_next("sync", path_contains="__cluster_metadata")
    for number in (8, 9):
        with pytest.raises(StorageError):
            await commit(bench, number)
    assert bench.broker.metadata.table.producer_id_next == 7
    assert not bench.broker.metadata.is_leader
    await commit(bench.again(), 10)


@in_loop
async def test_everything_is_read_at_once_by_a_node_alone() -> None:
    bench = Bench()
    await commit(bench, 7)
    await bench.broker.metadata.caught_up()
    assert await bench.broker.metadata.read_index() == 1


@in_loop
async def test_folder_of_a_cluster_is_refused_without_peers() -> None:
    bench = Bench()
    me, other = bench.broker.metadata.me, Member(2, "directory-2")
    bench.disk.kill()
    store = QuorumStore(bench.disk, SNAPSHOT, STATE)
    store.write_snapshot(
        Snapshot(0, 0, Members(frozenset({me, other}))), {"topics": [], "producer_id_next": 0}
    )
    with pytest.raises(StorageError, match=f"brokers {me.broker_id}, 2: start the broker with --peer-listen"):
        Bench(bench.disk)


@in_loop
async def test_term_that_others_may_know_is_not_used_again_alone() -> None:
    bench = Bench()
    await commit(bench, 7)
    me = bench.broker.metadata.me
    bench.disk.kill()
    QuorumStore(bench.disk, SNAPSHOT, STATE).write_state(QuorumState(5, me, is_alone=False))
    bench = Bench(bench.disk)
    assert bench.broker.metadata.term == 6
    await commit(bench, 8)
    bench = bench.again()
    assert bench.broker.metadata.term == 6  # Nobody has heard of it.
    last = list(bench.broker.metadata.partition.log.batch_headers(Offset(1)))[-1]
    assert (last.generation, bench.broker.metadata.table.producer_id_next) == (6, 8)


@in_loop
async def test_damaged_vote_is_refused_rather_than_forgotten() -> None:
    bench = Bench()
    me = bench.broker.metadata.me
    QuorumStore(bench.disk, SNAPSHOT, STATE).write_state(QuorumState(5, me, is_alone=False))
    bench.disk.flip_bit(STATE, 30)
    with pytest.raises(StorageError, match="whom this broker has voted for"):
        bench.again()


@in_loop
async def test_lost_vote_is_refused_as_well() -> None:
    bench = Bench()
    me = bench.broker.metadata.me
    QuorumStore(bench.disk, SNAPSHOT, STATE).write_state(QuorumState(5, me, is_alone=True))
    bench = bench.again()
    await commit(bench, 7)
    bench.disk.unlink(STATE)
    with pytest.raises(CorruptDataError, match="entries of term 5, but quorum-state knows only term 0"):
        bench.again()


@pytest.mark.parametrize(
    ("key", "value", "complaint"),
    [
        (b"newer", b"{}", "unknown kind"),
        (b"members", b"[1]", "does not name members"),
        (b"members", None, "empty"),
    ],
)
def test_entry_that_makes_no_sense_stops_the_start(key: bytes, value: bytes | None, complaint: str) -> None:
    @in_loop
    async def body() -> None:
        bench = Bench()
        builder = BatchBuilder()
        builder.add(key, value, timestamp_ms=0)
        batch = builder.build()
        assert read_header(batch).record_count == 1
        await bench.core.append(bench.broker.metadata.partition, batch)
        with pytest.raises(CorruptDataError, match=complaint):
            bench.again()

    body()
