"""Fetch: what waits, what is answered at once, and what a disk that cannot read costs."""

import asyncio
import gc
from typing import Any, cast

import pytest

from anabranch.broker.handlers.fetch import (
    LOADED_BYTES_WHEN_SHORT,
    TURNED_AWAY_THROTTLE_MS,
    Fetch,
    Found,
)
from anabranch.broker.read.fetch_sessions import FetchItem
from anabranch.broker.read.fetch_wait import GATHER_PARTITIONS_MIN, GATHER_SECONDS_PER_PARTITION
from anabranch.broker.requests.turns import FREE_ROWS, LONG_OPEN_MAX, ROWS_PER_TURN
from anabranch.broker.topics.partition import Partition
from anabranch.record.batch import batch_spans
from anabranch.testing.fakes.disk import FakeFile
from anabranch.testing.in_process_client import InProcessClient, Pending
from anabranch.values import Offset
from anabranch.wire.api_keys import ApiKey
from anabranch.wire.error_codes import ErrorCode
from support.broker_bench import DATA, Bench, batch_of, in_loop, turn
from support.workers import HeldWorkers

VERSION = 12


FETCH_WAIT_SECONDS = 60


def fetch(bench: Bench, *partitions: tuple[str, int, int], **fields: Any) -> Pending:
    """Ask for (topic, partition, offset)."""
    topics = [
        {
            "topic": topic,
            "partitions": [
                {
                    "partition": index,
                    "fetch_offset": offset,
                    "current_leader_epoch": -1,
                    "partition_max_bytes": fields.get("partition_max_bytes", 2**20),
                }
            ],
        }
        for topic, index, offset in partitions
    ]
    body = {
        "max_wait_ms": fields.get("max_wait_ms", 1000 * FETCH_WAIT_SECONDS),
        "min_bytes": fields.get("min_bytes", 1),
        "max_bytes": fields.get("max_bytes", 2**20),
        "session_id": fields.get("session_id", 0),
        "session_epoch": fields.get("session_epoch", -1),
        "topics": topics,
        "forgotten_topics_data": fields.get("forgotten", []),
    }
    return InProcessClient(bench.broker).send(ApiKey.FETCH, VERSION, body)


def rows(pending: Pending) -> list[dict[str, Any]]:
    assert pending.is_settled, "the fetch still waits"
    assert pending.body is not None, pending.closed_because
    return [row for topic in pending.body["responses"] for row in topic["partitions"]]


def batches_in(row: dict[str, Any]) -> int:
    return len(list(batch_spans(row["records"] or b"")))


async def written(bench: Bench, name: str = "t", batches: int = 3, size: int = 100) -> Partition:
    partition = await bench.topic(name)
    for _ in range(batches):
        await bench.core.append(partition, batch_of(b"x" * size))
    return partition


@in_loop
async def test_records_that_are_there_are_answered_at_once() -> None:
    bench = Bench()
    await written(bench)
    (row,) = rows(fetch(bench, ("t", 0, 1)))
    assert (row["error_code"], row["high_watermark"], batches_in(row)) == (0, 3, 2)


@in_loop
async def test_fetch_at_the_end_waits_for_the_next_record() -> None:
    bench = Bench()
    partition = await written(bench)
    pending = fetch(bench, ("t", 0, 3))
    await turn()
    assert not pending.is_settled
    await bench.core.append(partition, batch_of())
    await turn()
    assert batches_in(rows(pending)[0]) == 1
    assert not partition.waiting_fetches


@in_loop
async def test_fetch_short_of_its_minimum_goes_on_waiting() -> None:
    bench = Bench()
    partition = await written(bench, batches=0)
    pending = fetch(bench, ("t", 0, 0), min_bytes=300)
    await bench.core.append(partition, batch_of(b"x" * 100))
    await turn()
    assert not pending.is_settled
    await bench.core.append(partition, batch_of(b"x" * 200))
    await turn()
    assert batches_in(rows(pending)[0]) == 2


@in_loop
async def test_minimum_above_the_maximum_is_reached_at_the_maximum() -> None:
    bench = Bench()
    await written(bench, batches=20)
    pending = fetch(bench, ("t", 0, 0), min_bytes=2**20, max_bytes=500)
    assert rows(pending)[0]["records"]


@in_loop
async def test_end_of_a_segment_is_no_reason_to_wait() -> None:
    bench = Bench()
    partition = await bench.topic("t", segment_bytes="1024")
    for _ in range(3):
        await bench.core.append(partition, batch_of(b"x" * 600))
    pending = fetch(bench, ("t", 0, 0), min_bytes=1000)
    assert batches_in(rows(pending)[0]) == 1


@in_loop
async def test_end_of_a_segment_is_no_reason_to_wait_while_nothing_was_written_to_the_newest_one() -> None:
    bench = Bench()
    partition = await bench.topic("t", segment_bytes="1024")
    for _ in range(6):
        await bench.core.append(partition, batch_of(b"x" * 600))
    partition.log.advance_end(Offset(9 << 32))
    partition.has_gaps, partition.high_watermark = True, partition.log.end_offset
    (row,) = rows(fetch(bench, ("t", 0, 0), min_bytes=100_000))
    assert (row["high_watermark"], batches_in(row)) == (6, 1)
    assert not fetch(bench, ("t", 0, 6)).is_settled, "whoever has read everything waits"
    assert not fetch(bench, ("t", 0, 5 << 32)).is_settled, "so does who was told another end before"


@in_loop
async def test_deadline_answers_with_what_there_is() -> None:
    bench = Bench()
    partition = await written(bench, batches=1)
    pending = fetch(bench, ("t", 0, 0), min_bytes=100_000, max_wait_ms=1)
    settled = asyncio.Event()
    pending.on_settled = lambda _: settled.set()
    await settled.wait()
    assert batches_in(rows(pending)[0]) == 1
    assert not partition.waiting_fetches


@in_loop
async def test_fetch_of_nothing_is_answered_at_once() -> None:
    assert rows(fetch(Bench())) == []


@in_loop
async def test_error_of_one_partition_answers_all_at_once() -> None:
    bench = Bench()
    await written(bench, batches=0)
    good, bad = rows(fetch(bench, ("t", 0, 0), ("u", 0, 0)))
    assert (good["error_code"], bad["error_code"]) == (0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


@pytest.mark.parametrize("offset", [-1, 4, 2**40])
def test_offset_that_is_not_there_is_out_of_range(offset: int) -> None:
    @in_loop
    async def body() -> None:
        bench = Bench()
        await written(bench)
        assert rows(fetch(bench, ("t", 0, offset)))[0]["error_code"] == ErrorCode.OFFSET_OUT_OF_RANGE

    body()


@in_loop
async def test_records_that_are_not_safe_yet_are_not_shown() -> None:
    bench = Bench(flush="always")
    partition = await written(bench)
    workers = HeldWorkers()
    bench.core.syncer._workers = workers
    bench.submit(partition)
    await turn()
    (row,) = rows(fetch(bench, ("t", 0, 0)))
    assert (row["high_watermark"], batches_in(row)) == (3, 3)


@in_loop
async def test_first_batch_comes_whole_and_the_limits_hold_behind_it() -> None:
    bench = Bench()
    await written(bench, "a", size=1000)
    await written(bench, "b", size=1000)
    first, second = rows(fetch(bench, ("a", 0, 0), ("b", 0, 0), max_bytes=10))
    assert (batches_in(first), batches_in(second)) == (1, 0)


@in_loop
async def test_small_slice_that_cannot_be_read_is_told_and_the_others_are_answered() -> None:
    bench = Bench()
    await written(bench, "a")
    await written(bench, "b")
    bench.disk.fail_next("read", path_contains="a-0")
    bad, good = rows(fetch(bench, ("a", 0, 0), ("b", 0, 0)))
    assert (bad["error_code"], batches_in(good)) == (ErrorCode.KAFKA_STORAGE_ERROR, 3)


@in_loop
async def test_waiting_fetch_whose_disk_fails_is_answered_and_wakes_nobody_less() -> None:
    bench = Bench()
    partition = await written(bench, batches=0)
    first, second = fetch(bench, ("t", 0, 0)), fetch(bench, ("t", 0, 0))
    bench.disk.fail_next("read", path_contains="t-0")
    await bench.core.append(partition, batch_of())
    await turn()
    codes = {rows(each)[0]["error_code"] for each in (first, second)}
    assert codes == {0, ErrorCode.KAFKA_STORAGE_ERROR}
    assert not partition.waiting_fetches


@in_loop
async def test_defect_in_a_waiting_fetch_closes_its_connection_and_wakes_the_others() -> None:
    bench = Bench()
    partition = await written(bench, batches=0)
    pendings = [fetch(bench, ("t", 0, 0)), fetch(bench, ("t", 0, 0))]
    slice_of, failures = partition.log.slice, [ZeroDivisionError()]

    def broken(*args: Any, **kwargs: Any) -> Any:
        if failures:
            raise failures.pop()
        return slice_of(*args, **kwargs)

    partition.log.slice = broken
    await bench.core.append(partition, batch_of())
    await turn()
    assert sorted(pending.closed_because is None for pending in pendings) == [False, True]
    assert not partition.waiting_fetches


@in_loop
async def test_cold_bytes_are_verified_before_they_leave() -> None:
    bench = Bench(workers=(workers := HeldWorkers()))
    making = asyncio.create_task(written(bench))
    while not making.done():
        for held, run in ((workers.heavies, workers.run_heavy), (workers.syncs, workers.run_sync)):
            if held:
                run()
        await turn()
    making.result()
    await bench.broker.close()
    again = bench.again()
    pending = fetch(again, ("t", 0, 0))
    assert not pending.is_settled
    workers.run_heavy()
    assert batches_in(rows(pending)[0]) == 3
    assert rows(fetch(again, ("t", 0, 0)))[0]["error_code"] == 0  # Once is enough: no worker is asked again.


@in_loop
async def test_rotten_bytes_are_called_corrupt_and_counted() -> None:
    bench = Bench()
    await written(bench)
    await bench.broker.close()
    bench.disk.flip_bit(f"{DATA}/t-0/{0:020}.log", 150)
    again = bench.again()
    (row,) = rows(fetch(again, ("t", 0, 0)))
    assert (row["error_code"], row["records"] or b"") == (ErrorCode.CORRUPT_MESSAGE, b"")
    assert again.broker.corrupt_reads_total == 1


@in_loop
async def test_cold_bytes_that_cannot_be_read_are_told_and_the_others_are_answered() -> None:
    bench = Bench()
    await written(bench)
    await written(bench, "u")
    await bench.broker.close()
    again = bench.again()
    again.disk.fail_next("read", path_contains=f"t-0/{0:020}.log", times=10)
    failed, fine = rows(fetch(again, ("t", 0, 0), ("u", 0, 0)))
    assert (failed["error_code"], failed["records"] or b"") == (ErrorCode.KAFKA_STORAGE_ERROR, b"")
    assert batches_in(fine) == 3
    assert again.broker.corrupt_reads_total == 0


@in_loop
async def test_session_is_told_only_what_has_changed() -> None:
    bench = Bench()
    await written(bench, "a", batches=1)
    partition = await written(bench, "b", batches=1)
    opening = fetch(bench, ("a", 0, 1), ("b", 0, 1), session_epoch=0, max_wait_ms=0)
    assert len(rows(opening)) == 2
    assert opening.body is not None
    session_id = opening.body["session_id"]
    assert session_id > 0
    quiet = fetch(bench, session_id=session_id, session_epoch=1, max_wait_ms=0)
    assert rows(quiet) == []
    waiting = fetch(bench, session_id=session_id, session_epoch=2)
    await bench.core.append(partition, batch_of())
    await turn()
    (row,) = rows(waiting)
    assert (row["high_watermark"], batches_in(row)) == (2, 1)


@in_loop
async def test_unknown_session_is_told_as_a_whole() -> None:
    pending = fetch(Bench(), session_id=77, session_epoch=3)
    assert pending.body is not None
    assert pending.body["error_code"] == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


@in_loop
async def test_woken_fetch_looks_only_at_those_that_have_news(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    await bench.topic("t", partitions=5)
    looked: list[int] = []
    look = Fetch._look

    def noted(fetch: Fetch, number: int, item: FetchItem) -> Found:
        looked.append(item.partition)
        return look(fetch, number, item)

    monkeypatch.setattr(Fetch, "_look", noted)
    pending = fetch(bench, *(("t", index, 0) for index in range(5)), min_bytes=150)
    assert looked == [0, 1, 2, 3, 4]
    for index in (3, 1):
        looked.clear()
        await bench.core.append(bench.topics.partition("t", index), batch_of(b"x" * 50))
        await turn()
        assert looked == [index]
    assert [batches_in(row) for row in rows(pending)] == [0, 1, 0, 1, 0]
    assert [row["high_watermark"] for row in rows(pending)] == [0, 1, 0, 1, 0]


@in_loop
async def test_partition_that_is_asked_for_twice_is_answered_once() -> None:
    bench = Bench()
    partition = await written(bench, batches=1)
    pending = fetch(bench, ("t", 0, 1), ("t", 0, 1))
    await bench.core.append(partition, batch_of())
    await turn()
    assert [batches_in(row) for row in rows(pending)] == [1]


@in_loop
async def test_session_finds_a_topic_that_was_made_anew() -> None:
    bench = Bench()
    await written(bench, batches=1)
    opening = fetch(bench, ("t", 0, 1), session_epoch=0, max_wait_ms=0)
    assert opening.body is not None
    session_id = opening.body["session_id"]
    waiting = fetch(bench, session_id=session_id, session_epoch=1)
    await bench.topics.delete("t")
    await turn()
    assert [row["error_code"] for row in rows(waiting)] == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    await written(bench, batches=2)
    (row,) = rows(fetch(bench, session_id=session_id, session_epoch=2))
    assert (row["high_watermark"], batches_in(row)) == (2, 1)


@in_loop
async def test_what_is_published_while_many_partitions_are_looked_at_is_noticed() -> None:
    count = FREE_ROWS + ROWS_PER_TURN + 100
    bench = Bench()
    await bench.topic("t", partitions=count)
    await turn()
    pending = fetch(bench, *[("t", index, 0) for index in range(count)])
    assert not pending.is_settled, "it takes more than a turn to look at all"
    bench.submit(bench.topics.partition("t", 0), batch_of())
    is_settled = asyncio.Event()
    pending.on_settled = lambda _: is_settled.set()
    async with asyncio.timeout(FETCH_WAIT_SECONDS / 2):
        await is_settled.wait()
    found = [row for row in rows(pending) if batches_in(row)]
    assert [row["partition_index"] for row in found] == [0]


@in_loop
async def test_fetch_of_many_partitions_lets_more_gather_before_it_is_answered() -> None:
    bench = Bench()
    await bench.topic("t", partitions=GATHER_PARTITIONS_MIN)
    places = [("t", index, 0) for index in range(GATHER_PARTITIONS_MIN)]
    await bench.core.append(bench.topics.partition("t", 0), batch_of())
    assert len(rows(fetch(bench, *places, max_wait_ms=0))) == GATHER_PARTITIONS_MIN
    assert rows(fetch(bench, *places, min_bytes=0))

    await turn()  # Two fetches of so many have used up what one turn of the loop has.
    pending = fetch(bench, *places)
    assert not pending.is_settled
    await bench.core.append(bench.topics.partition("t", 1), batch_of())
    await asyncio.sleep(
        2 * GATHER_PARTITIONS_MIN * GATHER_SECONDS_PER_PARTITION
    )  # A timer that is due later.
    await turn()
    assert [batches_in(row) for row in rows(pending)][:3] == [1, 1, 0]


@in_loop
async def test_answers_are_short_while_readers_leave_many_of_them_in_memory() -> None:
    bench = Bench()
    await written(bench, batches=30, size=10_000)
    (row,) = rows(fetch(bench, ("t", 0, 0)))
    assert batches_in(row) == 30
    bench.broker.answers_held.count = bench.broker.settings.request_memory_bytes_max + 1
    (row,) = rows(fetch(bench, ("t", 0, 0)))
    assert 1 <= batches_in(row) <= LOADED_BYTES_WHEN_SHORT // 10_000


@in_loop
async def test_damage_in_the_active_segment_is_refused_and_counted_and_its_neighbours_are_served() -> None:
    bench = Bench()
    partition = await written(bench, batches=9)
    segment = partition.log.segments[-1]
    size = segment.published_bytes // 9
    segment.file.pwritev([b"?"], 4 * size + 70)
    (row,) = rows(fetch(bench, ("t", 0, 4)))
    assert (row["error_code"], row["records"] or b"") == (ErrorCode.CORRUPT_MESSAGE, b"")
    assert bench.broker.corrupt_reads_total == 1
    (row,) = rows(fetch(bench, ("t", 0, 0)))
    assert (row["error_code"], batches_in(row)) == (0, 4)
    (row,) = rows(fetch(bench, ("t", 0, 5)))
    assert (row["error_code"], batches_in(row)) == (0, 4)


@in_loop
async def test_a_segment_that_somebody_has_removed_is_answered_and_counted_like_damage() -> None:
    bench = Bench()
    partition = await written(bench, batches=3)
    file = cast(FakeFile, partition.log.segments[0].file)
    partition.log.roll()
    bench.disk.unlink(file.path)
    file._inode = None  # Its descriptor was given up for another file's.
    (row,) = rows(fetch(bench, ("t", 0, 0)))
    assert row["error_code"] == ErrorCode.CORRUPT_MESSAGE
    assert bench.broker.corrupt_reads_total == 1


def alive(kind: type) -> list[Any]:
    return [each for each in gc.get_objects() if isinstance(each, kind)]


@in_loop
async def test_fetch_whose_client_leaves_is_freed_without_a_search_for_garbage() -> None:
    bench = Bench()
    await written(bench)
    client = InProcessClient(bench.broker)
    gc.collect()
    gc.disable()
    try:
        body = {"max_wait_ms": 60_000, "min_bytes": 1, "max_bytes": 2**20, "session_epoch": -1}
        asked = {"partition": 0, "fetch_offset": 3, "partition_max_bytes": 100}
        body |= {"topics": [{"topic": "t", "partitions": [asked]}], "forgotten_topics_data": []}
        client.send(ApiKey.FETCH, VERSION, body)
        assert len(alive(Fetch)) == 1
        client.hang_up()
        assert not alive(Fetch)
    finally:
        gc.enable()


@in_loop
async def test_waiting_fetch_keeps_each_partition_once() -> None:
    bench = Bench()
    await written(bench)
    gc.collect()
    before = len(gc.get_objects())
    pending = fetch(bench, *[("t", 0, 3)] * 5000)
    while not bench.core.fetch_waits.waiting:
        await turn(1)
    gc.collect()
    assert not pending.is_settled
    assert len(gc.get_objects()) - before < 1000


MANY = FREE_ROWS + 1500
"""More than one fetch may wait for where only 1,000 partitions are waited for."""


async def settled(pending: Pending) -> None:
    is_settled = asyncio.Event()
    pending.on_settled = lambda _: is_settled.set()
    if not pending.is_settled:
        async with asyncio.timeout(FETCH_WAIT_SECONDS / 2):
            await is_settled.wait()


async def waiting(bench: Bench, count: int = 1) -> None:
    while len(bench.core.fetch_waits.waiting) < count:
        await turn(1)


def items_of(client: InProcessClient, count: int, **fields: Any) -> Pending:
    asked = [{"partition": number, "fetch_offset": 0, "partition_max_bytes": 100} for number in range(count)]
    body = {"max_wait_ms": 60_000, "min_bytes": 1, "max_bytes": 2**20, "session_epoch": -1, **fields}
    body |= {"topics": [{"topic": "t", "partitions": asked}] if count else [], "forgotten_topics_data": []}
    return client.send(ApiKey.FETCH, VERSION, body)


@in_loop
async def test_fetch_that_finds_no_room_to_wait_keeps_nothing_of_its_partitions_and_is_answered_without_any() -> (
    None
):
    bench = Bench(fetch_waiting_partitions_max=1000)
    await bench.topic("t", partitions=MANY)
    pending = items_of(InProcessClient(bench.broker), MANY)
    await waiting(bench)
    gc.collect()
    assert (alive(FetchItem), bench.core.fetch_waits.partitions) == ([], 0)
    await settled(pending)
    assert rows(pending) == []
    assert pending.body is not None
    assert (pending.body["error_code"], pending.body["throttle_time_ms"]) == (0, TURNED_AWAY_THROTTLE_MS)


@in_loop
async def test_fetch_that_finds_no_room_to_wait_is_answered_with_the_records_that_are_there() -> None:
    bench = Bench(fetch_waiting_partitions_max=1000)
    await bench.topic("t", partitions=MANY)
    await bench.core.append(bench.topics.partition("t", 7), batch_of())
    pending = items_of(InProcessClient(bench.broker), MANY, min_bytes=2**19)
    await settled(pending)
    assert [row["partition_index"] for row in rows(pending) if batches_in(row)] == [7]


@in_loop
async def test_session_that_finds_no_room_at_its_beginning_is_over() -> None:
    bench = Bench(fetch_waiting_partitions_max=1000)
    await bench.topic("t", partitions=MANY)
    pending = items_of(InProcessClient(bench.broker), MANY, session_epoch=0)
    await settled(pending)
    assert pending.body is not None
    assert (pending.body["session_id"], len(bench.broker.fetch_sessions)) == (0, 0)


@in_loop
async def test_session_that_finds_no_room_later_goes_on() -> None:
    bench = Bench(fetch_waiting_partitions_max=1000)
    await bench.topic("t", partitions=MANY)
    client = InProcessClient(bench.broker)
    opening = items_of(client, MANY, session_epoch=0, max_wait_ms=0)
    await settled(opening)
    assert opening.body is not None
    session_id = opening.body["session_id"]
    quiet = items_of(client, 0, session_id=session_id, session_epoch=1)
    await settled(quiet)
    assert quiet.body is not None
    assert (rows(quiet), quiet.body["session_id"], quiet.body["throttle_time_ms"]) == ([], session_id, 0)
    await bench.core.append(bench.topics.partition("t", 7), batch_of())
    later = items_of(client, 0, session_id=session_id, session_epoch=2)
    await settled(later)
    assert [row["partition_index"] for row in rows(later)] == [7]


@in_loop
async def test_waiting_fetch_keeps_nothing_found_at_partitions_without_news() -> None:
    bench = Bench()
    await bench.topic("t", partitions=100)
    items_of(InProcessClient(bench.broker), 100)
    await waiting(bench)
    assert not alive(Found)


@in_loop
async def test_fetch_of_many_partitions_whose_client_leaves_is_freed_without_a_search_for_garbage() -> None:
    bench = Bench()
    await bench.topic("t", partitions=MANY)
    client = InProcessClient(bench.broker)
    items_of(client, MANY)
    await waiting(bench)
    gc.collect()
    gc.disable()
    try:
        client.hang_up()
        await turn()
        assert not alive(FetchItem)
        assert not any(partition.waiting_fetches for partition in bench.broker.partitions())
    finally:
        gc.enable()


@in_loop
async def test_few_fetches_of_many_partitions_are_in_memory_before_they_may_wait() -> None:
    bench = Bench()
    await bench.topic("t", partitions=MANY)
    clients = [InProcessClient(bench.broker) for _ in range(20)]
    for client in clients:
        items_of(client, MANY)
    most, waits = 0, bench.core.fetch_waits
    while len(waits.waiting) < len(clients):
        await turn(1)
        most = max(most, len(alive(Fetch)) - len(waits.waiting))
    assert most <= LONG_OPEN_MAX + 1
    for client in clients:
        client.hang_up()
    await turn()
