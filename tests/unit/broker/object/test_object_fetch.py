"""Fetch of partitions in the object store: limits as ever, few GETs, and a store that is slow, away or wrong."""

import asyncio
import gc
import logging
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest

from anabranch.broker.object.cache import blocks
from anabranch.broker.object.cache.block_cache import Answer
from anabranch.broker.object.fetch_loads import LOAD_MS_MIN, FetchLoads
from anabranch.broker.object.partition import ObjectPartition
from anabranch.broker.requests.call import Call, Piece
from anabranch.config import TopicSettings
from anabranch.errors import QuorumBusyError, StoreUnavailableError
from anabranch.record.batch import HEADER_BYTES, batch_spans, read_header
from anabranch.testing.fakes.clock import FakeClock
from anabranch.testing.in_process_client import InProcessClient, Pending
from anabranch.values import BrokerId, TopicPartition
from anabranch.wire.api_keys import ApiKey
from anabranch.wire.error_codes import ErrorCode
from support.broker_bench import Bench, batch_of
from support.object_world import ObjectWorld, batch, on_virtual_loop
from support.workers import HeldWorkers

VERSION = 12
MIB = 2**20
AWAY = StoreUnavailableError("no answer")


class FetchWorld(ObjectWorld):
    """A broker that serves partitions of the topic `t` out of the store."""

    def __init__(self, clock: FakeClock, partitions: int = 1, **more: Any) -> None:
        super().__init__(clock=clock, **more)
        self.bench = Bench(workers=self.workers)
        self.broker = self.bench.broker
        self.partitions = [self._partition(number) for number in range(partitions)]
        topics = self.broker.topics
        plain = topics.partition
        topics.partition = lambda name, index: (  # type: ignore[method-assign]
            self.partitions[index] if name == "t" else plain(name, index)
        )

    def _partition(self, number: int) -> ObjectPartition:
        return ObjectPartition(
            TopicPartition("t", number),
            self.topic,
            self.log(number),
            TopicSettings(),
            self.broker.metadata.table,
            broker_id=BrokerId(1),
            writing=NoWriting(),
            begin_reads=partial(FetchLoads, self.broker),
            on_publish=self.broker.core.wake_readers,
            finish=lambda job: None,
            finished=lambda size: None,
        )

    def publish(self, batches: dict[int, Sequence[bytes]], **how: Any) -> None:
        self.write(batches, **how)
        self.applied()

    def applied(self) -> None:
        for partition in self.partitions:
            partition.applied(0)

    def fetch(self, *asked: tuple[int, int], **fields: Any) -> Pending:
        """Ask for (partition, offset) of `t`; or (topic, partition, offset)."""
        topics: dict[str, list[dict[str, int]]] = {}
        for *topic, index, offset in asked:
            topics.setdefault(topic[0] if topic else "t", []).append(
                {
                    "partition": index,
                    "fetch_offset": offset,
                    "current_leader_epoch": -1,
                    "partition_max_bytes": fields.get("partition_max_bytes", MIB),
                }
            )
        body = {
            "max_wait_ms": fields.get("max_wait_ms", 500),
            "min_bytes": fields.get("min_bytes", 1),
            "max_bytes": fields.get("max_bytes", 50 * MIB),
            "session_id": fields.get("session_id", 0),
            "session_epoch": fields.get("session_epoch", -1),
            "isolation_level": fields.get("isolation_level", 0),
            "topics": [{"topic": topic, "partitions": rows} for topic, rows in topics.items()],
            "forgotten_topics_data": [],
        }
        client = fields.get("client") or InProcessClient(self.broker)
        pending: Pending = client.send(ApiKey.FETCH, VERSION, body)
        return pending

    @property
    def gets(self) -> int:
        return len(self.store.gets)


class NoWriting:
    def take(self, partition: Any, jobs: Any) -> None:
        raise AssertionError("nothing is written here")


def rows(pending: Pending) -> dict[int, dict[str, Any]]:
    assert pending.is_settled, "the fetch still waits"
    assert pending.body is not None, pending.closed_because
    return {row["partition_index"]: row for each in pending.body["responses"] for row in each["partitions"]}


def bases(row: dict[str, Any]) -> list[int]:
    data = row["records"] or b""
    return [read_header(data, first).base_offset for first, _ in batch_spans(data)]


def total(pending: Pending) -> int:
    return sum(len(row["records"] or b"") for row in rows(pending).values())


async def settled(pending: Pending, seconds_max: float = 60) -> None:
    for _ in range(round(seconds_max * 1000)):
        if pending.is_settled:
            return
        await asyncio.sleep(0.001)
    raise AssertionError("the fetch still waits")


# --- what is there ---------------------------------------------------------------------------------------------


@on_virtual_loop
async def test_what_this_broker_wrote_is_answered_at_once_and_without_a_get(clock: FakeClock) -> None:
    world = FetchWorld(clock)
    world.publish({0: [batch(b"a", b"b"), batch(b"c")]}, keep=True)
    row = rows(world.fetch((0, 1)))[0]
    assert (row["error_code"], row["high_watermark"], row["log_start_offset"]) == (0, 3, 0)
    assert (bases(row), world.gets) == ([0, 2], 0)


@on_virtual_loop
async def test_both_isolation_levels_see_the_same(clock: FakeClock) -> None:
    world = FetchWorld(clock)
    world.publish({0: [batch(b"a")]}, keep=True)
    for level in (0, 1):
        row = rows(world.fetch((0, 0), isolation_level=level))[0]
        assert (bases(row), row["last_stable_offset"]) == ([0], 1)


@on_virtual_loop
async def test_what_others_wrote_is_loaded_while_the_fetch_waits(clock: FakeClock) -> None:
    world = FetchWorld(clock)
    world.publish({0: [batch(b"a")]})
    pending = world.fetch((0, 0))
    assert not pending.is_settled
    await settled(pending, 1)
    assert (bases(rows(pending)[0]), world.gets) == ([0], 1)


@on_virtual_loop
async def test_a_long_poll_is_woken_by_what_is_published_here_and_elsewhere(clock: FakeClock) -> None:
    world = FetchWorld(clock)
    for keep in (True, False):
        end = world.log().end_offset
        pending = world.fetch((0, end), max_wait_ms=60_000)
        await asyncio.sleep(10)
        assert not pending.is_settled
        world.publish({0: [batch(b"a")]}, keep=keep)
        await settled(pending, 1)
        assert bases(rows(pending)[0]) == [end]


@on_virtual_loop
async def test_a_fetch_that_finds_nothing_new_ends_with_its_wait(clock: FakeClock) -> None:
    world = FetchWorld(clock)
    world.publish({0: [batch(b"a")]}, keep=True)
    pending = world.fetch((0, 1))
    await asyncio.sleep(0.45)
    assert not pending.is_settled
    await settled(pending, 1)
    assert bases(rows(pending)[0]) == []


@on_virtual_loop
async def test_too_few_bytes_are_waited_for_unless_the_answer_is_full(clock: FakeClock) -> None:
    world = FetchWorld(clock)
    world.publish({0: [batch(b"x" * 100)] * 3}, keep=True)
    size = len(batch(b"x" * 100))
    pending = world.fetch((0, 0), min_bytes=5 * size, max_wait_ms=5000)
    await asyncio.sleep(1)
    assert not pending.is_settled
    world.publish({0: [batch(b"x" * 100)] * 2}, keep=True)
    await settled(pending, 0.1)
    assert len(bases(rows(pending)[0])) == 5
    cut = world.fetch((0, 0), min_bytes=5 * size, max_wait_ms=5000, partition_max_bytes=2 * size)
    assert bases(rows(cut)[0]) == [0, 1], "more can never be in this answer"


@pytest.mark.parametrize(
    ("max_bytes", "partition_max_bytes"), [(1, MIB), (MIB, 1), (350, MIB), (MIB, 350), (500, 350)]
)
@on_virtual_loop
async def test_limits_are_the_same_as_for_a_topic_on_the_disk(
    max_bytes: int, partition_max_bytes: int, clock: FakeClock
) -> None:
    world = FetchWorld(clock, partitions=3)
    await world.bench.topic("plain", 3)
    for number in range(3):
        values = [b"x" * size for size in (30, 100, 60)]
        world.publish({number: [batch(value) for value in values]}, keep=True)
        for value in values:
            await world.bench.core.append(world.broker.topics.partition("plain", number), batch_of(value))
    limits = {"max_bytes": max_bytes, "partition_max_bytes": partition_max_bytes}
    stored = world.fetch(*[(number, 0) for number in range(3)], **limits)
    plain = world.fetch(*[("plain", number, 0) for number in range(3)], **limits)  # type: ignore[arg-type]
    assert [bases(row) for row in rows(stored).values()] == [bases(row) for row in rows(plain).values()]


@on_virtual_loop
async def test_offsets_outside_are_refused(clock: FakeClock) -> None:
    world = FetchWorld(clock)
    world.publish({0: [batch(b"a"), batch(b"b")]}, keep=True)
    world.rows.starts[world.key()] = world.rows.by_key[world.key()][0].next_offset - 1  # type: ignore[assignment]
    for offset in (0, 3):
        row = rows(world.fetch((0, offset)))[0]
        assert row["error_code"] == ErrorCode.OFFSET_OUT_OF_RANGE


# --- many partitions -------------------------------------------------------------------------------------------


@on_virtual_loop
async def test_a_thousand_partitions_of_one_object_cost_one_get(clock: FakeClock) -> None:
    world = FetchWorld(clock, partitions=1000)
    world.publish({number: [batch(b"x" * 100)] for number in range(1000)})
    pending = world.fetch(*[(number, 0) for number in range(1000)])
    await settled(pending, 1)
    assert all(bases(row) == [0] for row in rows(pending).values())
    assert world.gets == 1


@on_virtual_loop
async def test_a_consumer_of_many_partitions_reads_everything_with_one_get_for_each_object(
    clock: FakeClock,
) -> None:
    world = FetchWorld(clock, partitions=50)
    for _ in range(30):
        world.publish({number: [batch(b"x" * 100)] for number in range(50)})
    at = dict.fromkeys(range(50), 0)
    while any(offset < 30 for offset in at.values()):
        pending = world.fetch(*at.items())
        await settled(pending)
        for number, row in rows(pending).items():
            assert bases(row) == list(range(at[number], at[number] + len(bases(row))))
            at[number] += len(bases(row))
    assert world.gets == 30


@on_virtual_loop
async def test_a_session_is_told_of_news_only(clock: FakeClock) -> None:
    world = FetchWorld(clock, partitions=10)
    world.publish({number: [batch(b"x")] for number in range(10)})
    first = world.fetch(*[(number, 1) for number in range(10)], session_epoch=0)
    await settled(first)
    assert first.body is not None
    session = first.body["session_id"]
    assert session
    waiting = world.fetch(session_id=session, session_epoch=1, max_wait_ms=60_000)
    await asyncio.sleep(5)
    assert not waiting.is_settled
    world.publish({7: [batch(b"y")]})
    await settled(waiting, 1)
    assert {number: bases(row) for number, row in rows(waiting).items()} == {7: [1]}


# --- a slow store, and one that is away ------------------------------------------------------------------------


@on_virtual_loop
async def test_a_slow_store_leaves_the_fetch_empty_when_its_wait_ends_and_serves_the_next(
    clock: FakeClock,
) -> None:
    world = FetchWorld(clock)
    world.publish({0: [batch(b"a")]})
    world.store.open.clear()
    before = clock.monotonic_ms()
    pending = world.fetch((0, 0), max_wait_ms=800)
    await settled(pending, 2)
    row = rows(pending)[0]
    assert (row["error_code"], row["high_watermark"], bases(row)) == (0, 1, [])
    assert 795 <= clock.monotonic_ms() - before <= 810
    again = world.fetch((0, 0), max_wait_ms=800)
    await asyncio.sleep(0.1)
    world.store.open.set()
    await settled(again, 0.1)
    assert (bases(rows(again)[0]), world.gets) == ([0], 1)


@on_virtual_loop
async def test_a_client_that_would_not_wait_waits_for_what_is_on_its_way(clock: FakeClock) -> None:
    world = FetchWorld(clock)
    world.publish({0: [batch(b"a")]})
    pending = world.fetch((0, 0), max_wait_ms=0)
    await settled(pending, 0.1)
    assert bases(rows(pending)[0]) == [0]
    world.publish({0: [batch(b"b")]})
    world.store.open.clear()
    late = world.fetch((0, 1), max_wait_ms=0)
    await asyncio.sleep((LOAD_MS_MIN - 10) / 1000)
    assert not late.is_settled
    await settled(late, 0.02)
    assert bases(rows(late)[0]) == []


@on_virtual_loop
async def test_a_store_that_is_away_keeps_nobody_from_what_is_at_hand(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    world = FetchWorld(clock, partitions=2)
    world.publish({0: [batch(b"old")]})
    world.publish({1: [batch(b"new")]}, keep=True)
    world.store.is_away = AWAY
    with caplog.at_level(logging.INFO):
        for _ in range(20):
            row = rows(world.fetch((0, 0), (1, 0)))
            assert (row[0]["error_code"], bases(row[0]), bases(row[1])) == (0, [], [0])
            pending = world.fetch((0, 0))
            await settled(pending, 1)
            assert (rows(pending)[0]["error_code"], bases(rows(pending)[0])) == (0, [])
        before = clock.monotonic_ms()
        at_once = world.fetch((0, 0), max_wait_ms=0)
        assert at_once.is_settled, "nothing is on its way that would be worth the wait"
        assert clock.monotonic_ms() == before
        world.store.is_away = None
        pending = world.fetch((0, 0), max_wait_ms=10_000)
        await settled(pending, 5)
    assert bases(rows(pending)[0]) == [0]
    said = [record.getMessage() for record in caplog.records if "memory:test" in record.getMessage()]
    assert ["does not answer" in said[0], "answers again" in said[1], len(said)] == [True, True, 2]


@on_virtual_loop
async def test_large_batches_elsewhere_do_not_hide_what_is_at_hand(clock: FakeClock) -> None:
    world = FetchWorld(clock, partitions=2)
    world.publish({0: [batch(bytes(1000))]})
    world.publish({1: [batch(bytes(1000))]}, keep=True)
    world.store.is_away = AWAY
    pending = world.fetch((0, 0), (1, 0), max_bytes=10, partition_max_bytes=10)
    assert bases(rows(pending)[1]) == [0]


@on_virtual_loop
async def test_a_fetch_that_has_ended_leaves_nobody_waiting_for_the_store(clock: FakeClock) -> None:
    world = FetchWorld(clock)
    world.publish({0: [batch(b"a")]})
    world.store.is_away = AWAY
    pending = world.fetch((0, 0), max_wait_ms=1000)
    await settled(pending, 2)
    await asyncio.sleep(60)
    gets = world.gets
    await asyncio.sleep(600)
    assert world.gets == gets, "nobody waits any longer"
    assert not world.broker.core.fetch_waits.waiting


@on_virtual_loop
async def test_a_client_that_goes_away_waits_for_nothing_any_longer(clock: FakeClock) -> None:
    world = FetchWorld(clock)
    world.publish({0: [batch(b"a")]})
    world.store.is_away = AWAY
    client = InProcessClient(world.broker)
    world.fetch((0, 0), max_wait_ms=3_600_000, client=client)
    await asyncio.sleep(1)
    (call,) = client._pending
    assert call.on_close is not None
    call.on_close()
    gets = world.gets
    await asyncio.sleep(600)
    assert world.gets <= gets + 1
    assert not world.broker.core.fetch_waits.waiting


@on_virtual_loop
async def test_a_node_that_stops_answers_who_waits_for_the_store(clock: FakeClock) -> None:
    world = FetchWorld(clock)
    world.publish({0: [batch(b"a")]})
    world.store.open.clear()
    pending = world.fetch((0, 0), max_wait_ms=60_000)
    await asyncio.sleep(0.1)
    world.broker.core.fetch_waits.end_all()
    assert bases(rows(pending)[0]) == []
    await world.cache.close()


@on_virtual_loop
async def test_memory_stays_within_its_limit_with_many_readers_of_old_records(clock: FakeClock) -> None:
    world = FetchWorld(clock, partitions=200, bytes_max=8 * MIB)
    for number in range(200):
        world.publish({number: [batch(bytes(100_000))]})
    fetches = [world.fetch((number, 0), max_wait_ms=60_000) for number in range(200)]
    held = []
    while not all(each.is_settled for each in fetches):
        held.append(world.cache.bytes_held)
        await asyncio.sleep(0.001)
    assert all(bases(rows(each)[number]) == [0] for number, each in enumerate(fetches))
    assert max(held) <= 8 * MIB
    assert world.gets == 200


@on_virtual_loop
async def test_an_answer_takes_a_part_of_memory_only_and_the_rest_comes_next(clock: FakeClock) -> None:
    world = FetchWorld(clock, bytes_max=8 * MIB)
    world.publish({0: [batch(bytes(100_000)) for _ in range(30)]}, keep=True)
    pending = world.fetch((0, 0), partition_max_bytes=50 * MIB)
    await settled(pending, 1)
    assert 0.9 * MIB < total(pending) <= MIB
    assert world.cache.answer_bytes == 0, "what was sent is forgotten at once"


@on_virtual_loop
async def test_a_batch_larger_than_memory_is_not_pushed_out_while_it_is_looked_at(clock: FakeClock) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "BLOCK_BYTES", 512 * 1024)
        world = FetchWorld(clock, partitions=2, bytes_max=MIB)
        for number in range(2):
            world.write_merged([(0, batch(bytes(2 * MIB)))], 1, partition=number)
        world.applied()
        for number in range(2):
            pending = world.fetch((number, 0), max_wait_ms=3000)
            await settled(pending, 4)
            assert bases(rows(pending)[number]) == [0]
        assert world.cache._lent == {}
        assert world.cache._loans == {}
        assert world.gets == 2 * 5, "each block is read once"


@on_virtual_loop
async def test_answers_that_nobody_takes_leave_room_for_small_ones_only(clock: FakeClock) -> None:
    world = FetchWorld(clock, partitions=2, bytes_max=8 * MIB)
    world.publish({0: [batch(bytes(100_000))], 1: [batch(bytes(1000))]}, keep=True)
    stuck = Answer(8 * MIB, world.cache)
    pending = world.fetch((0, 0))
    await settled(pending, 1)
    assert (rows(pending)[0]["error_code"], bases(rows(pending)[0])) == (0, [])
    assert bases(rows(world.fetch((0, 0), (1, 0)))[1]) == [0]
    del stuck
    assert bases(rows(world.fetch((0, 0)))[0]) == [0]


class KeepingClient(InProcessClient):
    """As a connection does: the call has its answer until it is sent."""

    def answered(self, call: Call, pieces: list[Piece] | None) -> None:
        call.pieces = list(pieces or [])
        del self._pending[call]


@pytest.mark.parametrize("keep", [True, False])
@on_virtual_loop
async def test_an_answer_is_free_without_a_garbage_collection_once_its_call_is_gone(
    keep: bool, clock: FakeClock
) -> None:
    world = FetchWorld(clock)
    client = KeepingClient(world.broker)
    gc.disable()
    try:
        waiting = world.fetch((0, 0), max_wait_ms=1000, client=client)
        await asyncio.sleep(0.1)
        world.publish({0: [batch(bytes(100_000))]}, keep=keep)
        at_once = world.fetch((0, 0), max_wait_ms=1000, client=client)
        await asyncio.sleep(0.5)
        del waiting, at_once
        assert not client._pending, "both are answered"
        assert world.cache.answer_bytes == 0
    finally:
        gc.enable()


# --- bytes that are wrong --------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 5000])
@on_virtual_loop
async def test_damage_on_the_way_is_healed_within_the_fetch(count: int, clock: FakeClock) -> None:
    world = FetchWorld(clock)
    world.publish({0: [batch(b"x" * 200) for _ in range(count)]})
    damaged = [True]
    world.store.damage = lambda data: _flipped(data) if damaged and damaged.pop() else data
    pending = world.fetch((0, 0))
    await settled(pending, 1)
    assert (rows(pending)[0]["error_code"], bases(rows(pending)[0])[0]) == (0, 0)
    assert (world.gets, world.broker.corrupt_reads_total) == (2, 0)


@pytest.mark.parametrize("count", [1, 5000])
@on_virtual_loop
async def test_damage_in_the_store_is_told_to_its_reader_alone_and_counted(
    count: int, clock: FakeClock
) -> None:
    world = FetchWorld(clock, partitions=2)
    world.publish({0: [batch(b"x" * 200) for _ in range(count)]})
    world.publish({1: [batch(b"y")]}, keep=True)
    world.store.damage = _flipped
    pending = world.fetch((0, 0))
    await settled(pending, 1)
    assert rows(pending)[0]["error_code"] == ErrorCode.CORRUPT_MESSAGE
    assert (world.gets, world.broker.corrupt_reads_total) == (2, 1)
    both = world.fetch((0, 0), (1, 0))
    await settled(both, 1)
    assert rows(both)[0]["error_code"] == ErrorCode.CORRUPT_MESSAGE
    assert bases(rows(both)[1]) == [0]
    assert world.gets == 2


@on_virtual_loop
async def test_an_object_that_the_store_has_lost_is_a_storage_error(clock: FakeClock) -> None:
    world = FetchWorld(clock)
    world.publish({0: [batch(b"a")]})
    world.store.objects.clear()
    pending = world.fetch((0, 0))
    await settled(pending, 1)
    assert rows(pending)[0]["error_code"] == ErrorCode.KAFKA_STORAGE_ERROR


@on_virtual_loop
async def test_a_fetch_follows_records_that_were_merged_under_it(clock: FakeClock) -> None:
    world = FetchWorld(clock)
    old = world.write({0: [batch(b"a"), batch(b"b")]})
    world.applied()
    world.store.open.clear()
    pending = world.fetch((0, 0))
    await asyncio.sleep(0.1)
    world.rows.by_key[world.key()].clear()
    world.write_merged([(0, batch(b"a")), (1, batch(b"b"))], 2)
    del world.store.objects[old.name]
    world.store.open.set()
    await settled(pending, 0.2)
    assert bases(rows(pending)[0]) == [0, 1]


def _flipped(data: bytes) -> bytes:
    """A record of the batch in the middle is not what it was."""
    size = read_header(data).size_bytes
    changed = bytearray(data)
    changed[len(data) // size // 2 * size + HEADER_BYTES + 1] ^= 1
    return bytes(changed)


@on_virtual_loop
async def test_what_a_worker_looks_at_is_answered_when_it_has(clock: FakeClock) -> None:
    workers = HeldWorkers()
    world = FetchWorld(clock, workers=workers)
    world.publish({0: [batch(b"x" * 200) for _ in range(5000)]})
    pending = world.fetch((0, 0), max_wait_ms=300)
    await asyncio.sleep(5)
    assert not pending.is_settled
    workers.run_heavy()
    assert len(bases(rows(pending)[0])) > 3000


# --- beyond the end --------------------------------------------------------------------------------------------


@on_virtual_loop
async def test_an_offset_that_another_broker_has_given_is_not_out_of_range(clock: FakeClock) -> None:
    world = FetchWorld(clock)
    world.publish({0: [batch(b"a")]}, keep=True)
    world.broker.is_alone = False
    agreed = asyncio.Event()

    async def caught_up() -> None:
        await agreed.wait()
        if world.log().end_offset == 1:
            world.publish({0: [batch(b"b"), batch(b"c")]}, keep=True)

    world.broker.metadata.caught_up = caught_up  # type: ignore[method-assign]
    pending = world.fetch((0, 2), max_wait_ms=60_000)
    await asyncio.sleep(1)
    assert not pending.is_settled
    agreed.set()
    await settled(pending, 0.1)
    assert bases(rows(pending)[0]) == [2]
    beyond = world.fetch((0, 4), max_wait_ms=60_000)
    await settled(beyond, 0.1)
    assert rows(beyond)[0]["error_code"] == ErrorCode.OFFSET_OUT_OF_RANGE


@on_virtual_loop
async def test_without_a_leader_a_fetch_beyond_the_end_stays_empty(clock: FakeClock) -> None:
    world = FetchWorld(clock, partitions=2)
    world.publish({0: [batch(b"a")], 1: [batch(b"a")]}, keep=True)
    world.broker.is_alone = False

    async def caught_up() -> None:
        raise QuorumBusyError("nobody leads")

    world.broker.metadata.caught_up = caught_up  # type: ignore[method-assign]
    pending = world.fetch((0, 5))
    await settled(pending, 1)
    assert (rows(pending)[0]["error_code"], bases(rows(pending)[0])) == (0, [])
    both = world.fetch((0, 5), (1, 0))
    assert (rows(both)[0]["error_code"], bases(rows(both)[1])) == (0, [0])
