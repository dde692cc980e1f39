"""A topic in mode branch on one node: each start is a reign in a lane of its own, and readers notice nothing."""

import asyncio
import errno
from random import Random
from typing import Any

import pytest

from anabranch.broker.branch import branches
from anabranch.broker.branch import partition as branch_partition
from anabranch.broker.branch.branch_log import TUBE_FOLDER
from anabranch.broker.branch.partition import BranchPartition
from anabranch.errors import AnabranchError, InvalidConfigError, NotOwnerError, OutOfOrderSequenceError
from anabranch.modes.branch.rows import Lane, RowKind, first_offset
from anabranch.record.batch import batch_spans
from anabranch.record.builder import BatchBuilder
from anabranch.record.records import records_of
from anabranch.testing.in_process_client import InProcessClient
from anabranch.values import Offset
from anabranch.wire.api_keys import ApiKey
from anabranch.wire.error_codes import ErrorCode
from support.broker_bench import DATA, Bench, batch_of, in_loop, turn
from support.workers import HeldWorkers

SECOND = first_offset(Lane(1024))
"""Where the second reign of the only broker begins."""


async def made(**settings: Any) -> tuple[Bench, BranchPartition]:
    bench = Bench(flush="always", **settings)
    partition = await bench.topic(anabranch_mode="branch")
    assert isinstance(partition, BranchPartition)
    return bench, partition


def found(bench: Bench) -> BranchPartition:
    partition = bench.topics.partition("t", 0)
    assert isinstance(partition, BranchPartition)
    return partition


async def write(bench: Bench, *values: bytes, **fields: Any) -> int:
    """The base offset of a batch that was written, and is safe."""
    answered = bench.submit(found(bench), batch_of(*values, **fields))
    await turn()
    assert len(answered) == 1, "not answered"
    if answered[0].error is not None:
        raise answered[0].error
    return answered[0].base_offset


async def stopped(bench: Bench) -> Bench:
    await bench.broker.drain()
    await bench.broker.close()
    return bench.again()


def values(partition: BranchPartition, start: int = 0) -> list[tuple[int, bytes | None]]:
    """What a reader gets who begins at `start` and goes on where each answer ends."""
    read: list[tuple[int, bytes | None]] = []
    position = start
    while True:
        part = partition.log.slice(Offset(position), 1, partition.high_watermark)
        if not part.count:
            return read
        if not part.verified:
            part.verify()
        data = part.read()
        for first, last in batch_spans(data):
            records = [each for each in records_of(data[first:last]) if each.offset >= position]
            read += [(each.offset, each.value) for each in records]
            position = records[-1].offset + 1


@in_loop
async def test_the_first_reign_gives_offsets_from_0_on() -> None:
    bench, partition = await made()
    assert await write(bench, b"a", b"b") == 0
    assert await write(bench, b"c") == 2
    assert partition.reign == 0
    assert partition.high_watermark == 3
    assert values(partition) == [(0, b"a"), (1, b"b"), (2, b"c")]


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_start_is_a_reign_in_a_lane_of_its_own_behind_the_line_of_before(is_clean: bool) -> None:
    @in_loop
    async def body() -> None:
        bench, _ = await made()
        await write(bench, b"a", b"b")
        again = await stopped(bench) if is_clean else bench.again()
        assert await write(again, b"c") == SECOND
        third = await stopped(again) if is_clean else again.again()
        partition = found(third)
        assert partition.reign == 2048
        assert [value for _, value in values(partition)] == [b"a", b"b", b"c"]
        rows = [row for row in partition.tube.rows if row.kind is RowKind.OPENED]
        assert [(row.old, row.old_end, row.new) for row in rows] == [
            (-1, 0, 0),
            (0, 2, 1024),
            (1024, SECOND + 1, 2048),
        ]

    body()


@in_loop
async def test_a_crash_before_the_row_leaves_the_line_as_it_was() -> None:
    bench, partition = await made()
    await write(bench, b"a")
    await partition.end_reign(NotOwnerError("another reigns"))
    row = bench.broker.branches.next_row(partition)  # type: ignore[union-attr]
    partition.prepare_reign(row)
    again = found(bench.again())
    assert again.line[0].end == 1
    assert again.tip.lane != row.new, "a lane that was begun once is not begun again"
    assert values(again) == [(0, b"a")]


@in_loop
async def test_a_crash_behind_the_row_has_switched() -> None:
    bench, partition = await made()
    await write(bench, b"a")
    await partition.end_reign(NotOwnerError("another reigns"))
    row = bench.broker.branches.next_row(partition)  # type: ignore[union-attr]
    partition.prepare_reign(row)
    await partition.tube.add([row])
    again = found(bench.again())
    assert [span.lane for span in again.line] == [0, 1024, 2048]


# --- what clients see ------------------------------------------------------------------------------------------------


def fetched(bench: Bench, offset: int, **fields: Any) -> dict[str, Any]:
    """The partition's row of an answer that does not wait."""
    asked = {
        "partition": 0,
        "fetch_offset": offset,
        "current_leader_epoch": fields.get("epoch", -1),
        "partition_max_bytes": fields.get("bytes_max", 2**20),
    }
    body = {
        "max_wait_ms": 0,
        "min_bytes": 1,
        "max_bytes": 2**20,
        "session_id": 0,
        "session_epoch": -1,
        "topics": [{"topic": "t", "partitions": [asked]}],
        "forgotten_topics_data": [],
    }
    pending = InProcessClient(bench.broker).send(ApiKey.FETCH, 12, body)
    assert pending.body is not None, pending.closed_because
    row: dict[str, Any] = pending.body["responses"][0]["partitions"][0]
    return row


async def offset_of(bench: Bench, timestamp: int) -> dict[str, Any]:
    asked = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": timestamp}
    body = {
        "replica_id": -1,
        "isolation_level": 0,
        "topics": [{"name": "t", "partitions": [asked]}],
    }
    pending = InProcessClient(bench.broker).send(ApiKey.LIST_OFFSETS, 7, body)
    await turn()
    assert pending.body is not None
    row: dict[str, Any] = pending.body["topics"][0]["partitions"][0]
    return row


def records_in(row: dict[str, Any]) -> list[bytes | None]:
    data = row["records"] or b""
    return [record.value for first, last in batch_spans(data) for record in records_of(data[first:last])]


async def over_two_lanes() -> Bench:
    """Three records in lane 0, two in lane 1024."""
    bench, _ = await made()
    await write(bench, b"a", b"b")
    await write(bench, b"c")
    again = bench.again()
    await write(again, b"d")
    await write(again, b"e")
    return again


@in_loop
async def test_a_fetch_goes_on_in_the_next_lane() -> None:
    bench = await over_two_lanes()
    assert records_in(fetched(bench, 0)) == [b"a", b"b", b"c"]
    for offset in (3, 4, 99, SECOND):
        row = fetched(bench, offset)
        assert (row["error_code"], records_in(row)) == (0, [b"d", b"e"]), offset
    assert row["high_watermark"] == SECOND + 2
    assert row["log_start_offset"] == 0


@pytest.mark.parametrize(
    "offset",
    [
        SECOND + 2,
        SECOND + 3,
        first_offset(Lane(2048)),
        2**62,
        first_offset(Lane(1)),
        first_offset(Lane(1023)) + 5,
    ],
)
def test_a_position_beyond_the_line_or_in_an_unknown_lane_is_answered_empty(offset: int) -> None:
    @in_loop
    async def body() -> None:
        row = fetched(await over_two_lanes(), offset)
        assert (row["error_code"], records_in(row)) == (0, [])

    body()


@in_loop
async def test_a_position_below_the_start_is_out_of_range() -> None:
    bench = await over_two_lanes()
    await bench.broker.kinds.of(found(bench)).delete_before(found(bench), Offset(2))
    assert fetched(bench, 1)["error_code"] == ErrorCode.OFFSET_OUT_OF_RANGE
    assert fetched(bench, -5)["error_code"] == ErrorCode.OFFSET_OUT_OF_RANGE
    row = fetched(bench, 2)
    assert (records_in(row), row["log_start_offset"]) == ([b"c"], 2)


@in_loop
async def test_offsets_are_found_by_time_over_all_lanes() -> None:
    bench = await at_times(1000, 5000, 3000)
    assert (await offset_of(bench, -2))["offset"] == 0
    assert (await offset_of(bench, -1))["offset"] == first_offset(Lane(2048)) + 1
    assert (await offset_of(bench, 1000))["offset"] == 0
    assert (await offset_of(bench, 1001))["offset"] == SECOND
    assert (await offset_of(bench, 5000))["offset"] == SECOND
    assert (await offset_of(bench, 5001))["offset"] == -1
    newest = await offset_of(bench, -3)
    assert (newest["offset"], newest["timestamp"], newest["leader_epoch"]) == (SECOND, 5000, -1)


@pytest.mark.parametrize("epoch", [-1, 0, 5])
def test_whatever_leader_epoch_a_client_says_is_right(epoch: int) -> None:
    @in_loop
    async def body() -> None:
        bench = await over_two_lanes()
        assert records_in(fetched(bench, 0, epoch=epoch)) == [b"a", b"b", b"c"]

    body()


async def at_times(*times: int) -> Bench:
    """One record of each time, each in a lane of its own."""
    bench, _ = await made()
    for number, time in enumerate(times):
        bench = bench.again() if number else bench
        builder = BatchBuilder()
        builder.add(None, b"v", timestamp_ms=time)
        answered = bench.submit(found(bench), builder.build())
        await turn()
        assert answered[0].error is None
    return bench


@in_loop
async def test_there_is_no_leader_epoch() -> None:
    bench = await over_two_lanes()
    data = fetched(bench, 0)["records"]
    assert int.from_bytes(data[12:16], "big", signed=True) == -1
    body: dict[str, Any] = {"topics": [{"name": "t"}], "allow_auto_topic_creation": False}
    pending = InProcessClient(bench.broker).send(ApiKey.METADATA, 7, body)
    await turn()
    assert pending.body is not None
    assert pending.body["topics"][0]["partitions"][0]["leader_epoch"] == -1
    asked = {"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}
    pending = InProcessClient(bench.broker).send(
        ApiKey.OFFSET_FOR_LEADER_EPOCH,
        3,
        {"replica_id": -1, "topics": [{"topic": "t", "partitions": [asked]}]},
    )
    assert pending.body is not None
    row = pending.body["topics"][0]["partitions"][0]
    assert (row["error_code"], row["leader_epoch"], row["end_offset"]) == (0, -1, -1)


@in_loop
async def test_compaction_and_another_mode_are_refused() -> None:
    bench = Bench()
    with pytest.raises(InvalidConfigError, match="does not go with"):
        await bench.topic(anabranch_mode="branch", cleanup_policy="compact")
    await bench.topic(anabranch_mode="branch")
    with pytest.raises(InvalidConfigError, match="does not go with"):
        await bench.topics.alter("t", lambda state: {**state.topic.overrides, "cleanup.policy": "compact"})


@in_loop
async def test_added_partitions_can_be_written_to_at_once() -> None:
    bench, _ = await made()
    await bench.topics.add_partitions("t", 3)
    for index in range(3):
        partition = bench.topics.partition("t", index)
        assert isinstance(partition, BranchPartition)
        assert partition.reign == 0


# --- producers -------------------------------------------------------------------------------------------------------


def numbered(sequence: int, *values: bytes) -> dict[str, int]:
    return {"producer_id": 7, "producer_epoch": 0, "base_sequence": sequence}


@pytest.mark.parametrize("checkpoints", [True, False])
def test_a_repeat_is_known_across_lanes_and_a_gap_refused(checkpoints: bool) -> None:
    @in_loop
    async def body() -> None:
        bench, _ = await made()
        await write(bench, b"a", **numbered(0))
        await write(bench, b"b", **numbered(1))
        if checkpoints:
            await bench.broker.housekeeping.checkpoint()
        again = bench.again()
        assert await write(again, b"b", **numbered(1)) == 1, "a repeat has its first offset"
        with pytest.raises(OutOfOrderSequenceError):
            await write(again, b"d", **numbered(3))
        assert await write(again, b"c", **numbered(2)) == SECOND
        third = again.again()
        assert await write(third, b"c", **numbered(2)) == SECOND
        assert [value for _, value in values(found(third))] == [b"a", b"b", b"c"]

    body()


# --- removal ---------------------------------------------------------------------------------------------------------


@in_loop
async def test_deleted_records_stay_deleted_and_their_lanes_go() -> None:
    bench = await over_two_lanes()
    partition = found(bench)
    await bench.broker.kinds.of(partition).delete_before(partition, Offset(SECOND + 1))
    assert partition.log.start_offset == SECOND + 1
    assert values(partition, SECOND + 1) == [(SECOND + 1, b"e")]
    await bench.broker.housekeeping.retain()
    assert list(partition.lanes) == [1024]
    again = found(bench.again())
    assert list(again.lanes) == [1024, 2048]
    assert again.log.start_offset == SECOND + 1
    assert values(again, SECOND + 1) == [(SECOND + 1, b"e")]


@in_loop
async def test_lanes_in_which_nobody_wrote_go_and_readers_do_not_notice() -> None:
    bench = await over_two_lanes()
    for _ in range(3):
        bench = bench.again()
    assert list(found(bench).lanes) == [0, 1024, 2048, 3072, 4096]
    await bench.broker.housekeeping.retain()
    assert list(found(bench).lanes) == [0, 1024, 4096]
    await write(bench, b"f")
    again = bench.again()
    assert [value for _, value in values(found(again))] == [b"a", b"b", b"c", b"d", b"e", b"f"]
    assert found(again).reign == 5 * 1024


@in_loop
async def test_all_records_may_be_deleted() -> None:
    bench = await over_two_lanes()
    partition = found(bench)
    await bench.broker.kinds.of(partition).delete_before(partition, partition.high_watermark)
    await bench.broker.housekeeping.retain()
    assert partition.log.start_offset == partition.high_watermark == SECOND + 2
    assert await write(bench, b"f") == SECOND + 2
    assert values(partition, SECOND + 2) == [(SECOND + 2, b"f")]
    again = found(bench.again())
    assert values(again, SECOND + 2) == [(SECOND + 2, b"f")]


@in_loop
async def test_retention_by_time_takes_whole_lanes() -> None:
    bench = await over_two_lanes()
    partition = found(bench)
    bench.clock.advance(8 * 24 * 3600 * 1000)
    await bench.broker.housekeeping.retain()
    assert partition.log.start_offset == SECOND + 2
    assert list(partition.lanes) == [1024]
    assert await write(bench, b"f") == SECOND + 2


@in_loop
async def test_retention_by_size_counts_all_lanes_together() -> None:
    bench = Bench(flush="always")
    await bench.topic(anabranch_mode="branch", retention_bytes="3000", segment_bytes="1024")
    for number in range(6):
        bench = bench.again() if number in (2, 4) else bench
        await write(bench, b"x" * 900)
    partition = found(bench)
    before = partition.log.size_bytes
    assert before > 5400
    await bench.broker.housekeeping.retain()
    assert 3000 <= partition.log.size_bytes < 3000 + before // 6
    assert partition.log.start_offset == 2, "all of the first lane"
    assert values(partition, partition.log.start_offset)[-1][1] == b"x" * 900


# --- lanes that are full, disks that fail ----------------------------------------------------------------------------


@in_loop
async def test_a_lane_that_is_nearly_full_is_followed_by_another(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, partition = await made()
    monkeypatch.setattr(branch_partition, "ROOM_SCARCE", 2**32 - 1)
    assert await write(bench, b"a", b"b") == 0
    monkeypatch.setattr(branch_partition, "ROOM_SCARCE", 2**29)
    await turn()
    assert partition.reign == 1024
    assert await write(bench, b"c") == SECOND
    assert [value for _, value in values(partition)] == [b"a", b"b", b"c"]


@in_loop
async def test_a_full_lane_takes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, partition = await made()
    monkeypatch.setattr(branch_partition, "ROOM_MIN", 2**32 + 1)
    with pytest.raises(NotOwnerError, match="is full"):
        await write(bench, b"a")
    assert partition.log.end_offset == 0


@in_loop
async def test_an_end_of_a_reign_refuses_writers_and_is_a_row() -> None:
    bench, partition = await made()
    await write(bench, b"a")
    tip = await partition.end_reign(NotOwnerError("another reigns"))
    assert tip == (0, 1)
    with pytest.raises(NotOwnerError):
        await write(bench, b"b")
    assert partition.branches.sealed == {0: 1}
    assert partition.plain_limits is None
    assert records_in(fetched(bench, 0)) == [b"a"], "whoever reads goes on"


@in_loop
async def test_a_start_on_a_full_disk_serves_readers_and_takes_records_when_there_is_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(branches, "AGAIN_SECONDS", 0.001)
    bench, _ = await made()
    await write(bench, b"a")
    bench.disk.fail_next("create", errno.ENOSPC, path_contains="lane-0000001024")
    again = bench.again()
    assert found(again).reign is None
    assert records_in(fetched(again, 0)) == [b"a"]
    assert (await offset_of(again, -1))["offset"] == 1
    with pytest.raises(NotOwnerError):
        await write(again, b"b")
    await asyncio.wait_for(again.broker.branches._retry, 30)  # type: ignore[union-attr, arg-type]
    assert await write(again, b"b") >= SECOND
    assert [value for _, value in values(found(again))] == [b"a", b"b"]


@pytest.mark.parametrize("is_garbled", [True, False])
def test_a_node_alone_finds_its_line_without_the_file_that_says_where_it_ends(is_garbled: bool) -> None:
    @in_loop
    async def body() -> None:
        bench = await over_two_lanes()
        path = f"{DATA}/t-0/branch"
        if is_garbled:
            bench.disk.flip_bit(path, 5)
        else:
            bench.disk.unlink(path)
        assert [value for _, value in values(found(bench.again()))] == [b"a", b"b", b"c", b"d", b"e"]

    body()


@in_loop
async def test_a_row_that_cannot_be_synced_changes_nothing() -> None:
    bench, partition = await made()
    await write(bench, b"a")
    await partition.end_reign(NotOwnerError("another reigns"))
    row = bench.broker.branches.next_row(partition)  # type: ignore[union-attr]
    bench.disk.fail_next("sync", path_contains="__branch_log")
    with pytest.raises(AnabranchError):
        await partition.begin_reign(row)
    assert partition.reign is None
    assert row.new not in partition.branches.opened
    again = bench.again()
    assert [value for _, value in values(found(again))] == [b"a"]
    assert await write(again, b"b") >= SECOND


@in_loop
async def test_a_reign_that_nobody_waits_for_any_more_begins_or_ends_all_the_same() -> None:
    """What a worker writes for it must not meet the next one half way."""
    workers = HeldWorkers()
    bench = Bench(workers=workers, flush="always")
    making = asyncio.ensure_future(bench.topic(anabranch_mode="branch"))
    for _ in range(100):
        await turn(2)
        if workers.syncs:
            workers.run_sync()
        elif workers.heavies:
            workers.run_heavy()
    assert making.done()
    partition = found(bench)
    for begins in (False, True):
        row = bench.broker.branches.next_row(partition)  # type: ignore[union-attr]
        work = partition.begin_reign(row) if begins else partition.end_reign(NotOwnerError("another reigns"))
        task = asyncio.ensure_future(work)  # type: ignore[arg-type]
        await turn()
        task.cancel()
        await turn()
        assert not task.done(), "it is over when it is over"
        for _ in range(10):
            await turn()
            if workers.heavies:
                workers.run_heavy()
        assert task.cancelled()
        assert (partition.reign is not None) == begins
    assert [span.lane for span in found(bench.again()).line] == [0, 1024, 2048]


@in_loop
async def test_a_lane_that_is_copied_is_not_too_old_before_it_is_in_the_line() -> None:
    bench, partition = await made()
    await write(bench, b"a")
    bench.clock.advance(8 * 24 * 3600 * 1000)
    for lane in (Lane(5), Lane(1023)):
        partition.lanes.make(lane, first_offset(lane))
        partition.lanes.append_copied(lane, batch_of(b"old", base_offset=first_offset(lane)), 0)
    await bench.broker.housekeeping.retain()
    assert list(partition.lanes) == [0, 5, 1023]


@pytest.mark.parametrize("seed", range(30))
def test_a_power_cut_loses_nothing_that_was_acknowledged(seed: int) -> None:
    """Many lives, each ended by a power cut in the middle of something."""

    @in_loop
    async def body() -> None:
        random = Random(seed)
        bench, _ = await made()
        kept: list[tuple[int, bytes]] = []
        for life in range(5):
            for number in range(random.randrange(6)):
                value = b"%d-%d" % (life, number)
                kept.append((await write(bench, value), value))
                if random.random() < 0.2:
                    await bench.broker.housekeeping.checkpoint()
            bench.submit(found(bench), batch_of(b"not acknowledged"))
            if random.random() < 0.5:
                await turn(random.randrange(3))
            bench.disk.crash(random)
            bench = bench.again()
            read = [pair for pair in values(found(bench)) if pair[1] != b"not acknowledged"]
            assert read == kept
        offsets = [offset for offset, _ in values(found(bench))]
        assert offsets == sorted(set(offsets))

    body()


@in_loop
async def test_topics_that_are_gone_leave_no_rows_behind() -> None:
    bench, _ = await made()
    await write(bench, b"a")
    await bench.topics.delete("t")
    await turn()
    again = bench.again()
    assert again.broker.branches is None, "nobody needs it"
    await again.topic("u", anabranch_mode="branch")
    assert again.broker.branches is not None
    assert {row.topic_id for row in again.broker.branches.tube.rows} == {
        again.topics.known("u").topic.topic_id
    }
    third = again.again()
    assert third.topics.partition("u", 0).log.end_offset == SECOND
    assert not [name for name in third.disk.list(DATA) if name.startswith("t-")]


@in_loop
async def test_a_topic_made_again_under_its_name_begins_anew() -> None:
    bench, _ = await made()
    await write(bench, b"a")
    await bench.topics.delete("t")
    await bench.topic(anabranch_mode="branch")
    assert await write(bench, b"b") == 0
    again = bench.again()
    assert [value for _, value in values(found(again))] == [b"b"]


@in_loop
async def test_recovery_point_of_the_branch_log_is_kept_although_no_checkpoint_came_before_the_stop() -> None:
    bench, _ = await made()
    await write(bench, b"a")
    again = await stopped(bench)
    assert TUBE_FOLDER in again.broker.state.recovery_points
