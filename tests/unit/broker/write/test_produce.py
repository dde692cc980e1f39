"""Produce: one answer for all partitions, in the order of a producer's requests."""

import gc
import weakref
from typing import Any

import pytest

from anabranch.broker.handlers import dispatch
from anabranch.broker.handlers.produce import UNPACKED_AT_ONCE_MAX
from anabranch.broker.requests.call import Call
from anabranch.broker.requests.turns import ROWS_PER_TURN
from anabranch.broker.write.append_queue import AppendJob
from anabranch.broker.write.intake import UNPACKED_BYTES_PER_ROW, WALKED_BYTES_PER_ROW
from anabranch.record.batch import HEADER_BYTES
from anabranch.record.builder import BatchBuilder
from anabranch.record.compression import Codec, compress, decompress
from anabranch.record.crc32c import crc32c
from anabranch.testing.in_process_client import InProcessClient, Pending
from anabranch.wire.api_keys import ApiKey
from anabranch.wire.codec import encode_request
from anabranch.wire.error_codes import ErrorCode
from anabranch.wire.header import parse_request_header, request_header
from support.broker_bench import Bench, batch_of, in_loop, turn
from support.workers import HeldWorkers

VERSION = 9
UNPACKED_MAX = 2**23


def produce(bench: Bench, *batches: tuple[str, int, bytes | None], acks: int = -1, **fields: Any) -> Pending:
    topics = [
        {"name": topic, "partition_data": [{"index": index, "records": records}]}
        for topic, index, records in batches
    ]
    body = {"acks": acks, "timeout_ms": 1000, "topic_data": topics, **fields}
    return InProcessClient(bench.broker).send(ApiKey.PRODUCE, VERSION, body)


def rows(pending: Pending) -> list[tuple[int, int]]:
    """(error code, base offset) of each partition."""
    assert pending.body is not None, pending.closed_because
    return [
        (row["error_code"], row["base_offset"])
        for topic in pending.body["responses"]
        for row in topic["partition_responses"]
    ]


def bomb(value_bytes: int = 3_000_000) -> bytes:
    """Small as sent, too large to be unpacked on the loop."""
    return bytes(batch_of(bytes(value_bytes), codec=Codec.GZIP))


@in_loop
async def test_all_partitions_are_answered_together() -> None:
    bench = Bench()
    await bench.topic("t", 2)
    pending = produce(bench, ("t", 0, bytes(batch_of(b"a"))), ("t", 1, bytes(batch_of(b"b"))), ("u", 0, b"x"))
    assert not pending.is_settled
    await turn()
    assert rows(pending) == [(0, 0), (0, 0), (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)]


@pytest.mark.parametrize("acks", [-1, 1, 0])
@in_loop
async def test_what_is_answered_is_freed_without_a_search_for_garbage(acks: int) -> None:
    bench = Bench()
    await bench.topic("t")
    gc.collect()
    gc.disable()
    try:
        pending = produce(bench, ("t", 0, bytes(batch_of(b"a"))), acks=acks)
        del pending
        await turn()
        assert not [each for each in gc.get_objects() if isinstance(each, AppendJob)]
    finally:
        gc.enable()


@in_loop
async def test_partition_named_twice_is_written_once() -> None:
    bench = Bench()
    partition = await bench.topic("t")
    pending = produce(bench, ("t", 0, bytes(batch_of(b"a"))), ("t", 0, bytes(batch_of(b"b"))))
    await turn()
    assert rows(pending) == [(0, 0), (ErrorCode.INVALID_REQUEST, -1)]
    assert partition.log.end_offset == 1


@in_loop
async def test_acks_none_is_not_answered_and_a_failure_closes_the_connection() -> None:
    bench = Bench()
    partition = await bench.topic("t")
    fine = produce(bench, ("t", 0, bytes(batch_of())), acks=0)
    bad = produce(bench, ("u", 0, bytes(batch_of())), acks=0)
    await turn()
    assert (fine.body, fine.closed_because, partition.log.end_offset) == (None, None, 1)
    assert "acks=0" in (bad.closed_because or "")


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"acks": 2}, ErrorCode.INVALID_REQUIRED_ACKS),
        ({"transactional_id": "x"}, ErrorCode.INVALID_REQUEST),
    ],
)
def test_request_as_a_whole_is_refused(fields: dict[str, Any], code: ErrorCode) -> None:
    @in_loop
    async def body() -> None:
        bench = Bench()
        partition = await bench.topic("t")
        pending = produce(bench, ("t", 0, bytes(batch_of())), **fields)
        await turn()
        assert rows(pending) == [(code, -1)]
        assert partition.log.end_offset == 0

    body()


@in_loop
async def test_topic_that_wants_more_copies_than_there_are_refuses_acks_all_only() -> None:
    bench = Bench()
    partition = await bench.topic("t", min_insync_replicas="2")
    refused = produce(bench, ("t", 0, bytes(batch_of())))
    await turn()
    assert (rows(refused), partition.log.end_offset) == ([(ErrorCode.NOT_ENOUGH_REPLICAS, -1)], 0)
    taken = produce(bench, ("t", 0, bytes(batch_of())), acks=1)
    await turn()
    assert rows(taken) == [(0, 0)]


@in_loop
async def test_group_log_takes_nothing_from_clients() -> None:
    bench = Bench(offsets_topic_num_partitions=1)
    state = await bench.topics.create_on_use("__consumer_offsets")
    pending = produce(bench, ("__consumer_offsets", 0, bytes(batch_of())))
    await turn()
    assert rows(pending) == [(ErrorCode.INVALID_TOPIC_EXCEPTION, -1)]
    assert state.partitions[0].log.end_offset == 0


@in_loop
async def test_large_batch_is_unpacked_in_a_worker_and_then_written() -> None:
    bench = Bench()
    partition = await bench.topic("t")
    workers = HeldWorkers()
    bench.broker.workers = workers
    pending = produce(bench, ("t", 0, bomb()))
    await turn()
    assert (pending.is_settled, len(workers.heavies)) == (False, 1)
    workers.run_heavy()
    await turn()
    assert rows(pending) == [(0, 0)]
    assert partition.log.end_offset == 1


@in_loop
async def test_many_compressed_batches_of_one_request_do_not_hold_up_the_loop() -> None:
    bench = Bench()
    await bench.topic("t", 20)
    workers = HeldWorkers()
    bench.broker.workers = workers
    packed = bytes(batch_of(b"x" * 500, codec=Codec.GZIP))
    pending = produce(bench, *(("t", index, packed) for index in range(20)))
    await turn()
    assert len(workers.heavies) == 20 - UNPACKED_AT_ONCE_MAX
    while workers.heavies:
        workers.run_heavy()
    await turn()
    assert rows(pending) == [(0, 0)] * 20


@in_loop
async def test_batch_whose_topic_went_while_it_was_unpacked_is_refused() -> None:
    bench = Bench()
    await bench.topic("t")
    workers = HeldWorkers()
    bench.broker.workers = workers
    pending = produce(bench, ("t", 0, bomb()))
    await bench.topics.delete("t")
    again = await bench.topic("t")
    workers.run_heavy()
    await turn()
    assert rows(pending) == [(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)]
    assert (again.log.end_offset, bench.core.queue.bytes_held) == (0, 0)


@in_loop
async def test_batch_that_unpacks_to_too_much_is_refused_by_the_worker() -> None:
    bench = Bench(batch_decompressed_bytes_max=2_000_000)
    await bench.topic("t")
    pending = produce(bench, ("t", 0, bomb()))
    await turn()
    assert rows(pending) == [(ErrorCode.MESSAGE_TOO_LARGE, -1)]


@in_loop
async def test_producer_whose_disk_hangs_is_told_when_its_time_is_up() -> None:
    bench = Bench(flush="always")
    partition = await bench.topic("t")
    workers = HeldWorkers()
    bench.core.syncer._workers = workers
    pending = produce(bench, ("t", 0, bytes(batch_of())))
    await turn()
    partition.time_out(bench.clock.monotonic_ms() + 999)
    assert not pending.is_settled
    partition.time_out(bench.clock.monotonic_ms() + 1000)
    assert rows(pending) == [(ErrorCode.REQUEST_TIMED_OUT, -1)]
    assert bench.core.queue.bytes_held == 0
    workers.run_sync()  # Late, but the record is safe all the same, and nobody is answered twice.
    assert partition.high_watermark == 1


@in_loop
async def test_log_append_time_is_told() -> None:
    bench = Bench()
    await bench.topic("t", message_timestamp_type="LogAppendTime")
    pending = produce(bench, ("t", 0, bytes(batch_of())))
    await turn()
    assert pending.body is not None
    row = pending.body["responses"][0]["partition_responses"][0]
    assert row["log_append_time_ms"] == bench.clock.wall_ms()


# --- what unpacking may take ---------------------------------------------------------------------------------------


def malformed(unpacked_bytes: int = 3_000_000) -> bytes:
    """A batch of a few hundred bytes with a true checksum that unpacks to millions of zeros, which are no records."""
    made = bytearray(batch_of(b"x")[:HEADER_BYTES]) + compress(Codec.ZSTD, bytes(unpacked_bytes))
    made[8:12] = (len(made) - 12).to_bytes(4, "big")
    made[21:23] = int(Codec.ZSTD).to_bytes(2, "big")
    made[17:21] = crc32c(bytes(made[21:])).to_bytes(4, "big")
    return bytes(made)


@in_loop
async def test_batches_of_all_requests_share_the_memory_for_unpacking() -> None:
    bench = Bench(unpack_memory_bytes_max=2 * UNPACKED_MAX, batch_decompressed_bytes_max=UNPACKED_MAX)
    await bench.topic("t", 6)
    bench.broker.workers = workers = HeldWorkers()
    pending = [produce(bench, *[("t", part + index, malformed()) for index in range(3)]) for part in (0, 3)]
    await turn()
    assert (len(workers.heavies), bench.broker.unpack_memory.bytes_taken) == (2, 2 * UNPACKED_MAX)
    while workers.heavies:
        workers.run_heavy()
    await turn()
    assert [rows(each) for each in pending] == [[(ErrorCode.INVALID_RECORD, -1)] * 3] * 2
    assert bench.broker.unpack_memory.bytes_taken == 0


@in_loop
async def test_refused_batch_keeps_nothing_of_what_it_unpacked_to(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    await bench.topic("t", 2)
    bench.broker.workers = workers = HeldWorkers()
    unpacked: list[weakref.ref[Any]] = []

    class Payload(bytearray):
        """Bytes that can be watched."""

    def watched(codec: int, data: Any, bytes_max: int, *, fresh: bool) -> bytes:
        payload = Payload(decompress(codec, data, bytes_max, fresh=fresh))
        unpacked.append(weakref.ref(payload))
        return payload

    monkeypatch.setattr("anabranch.record.batch.decompress", watched)
    gc.collect()
    gc.disable()
    try:
        pending = produce(bench, ("t", 0, malformed()), ("t", 1, malformed()))
        await turn()
        workers.run_heavy()
        await turn()
        assert not pending.is_settled, "the other batch is still to be looked at"
        assert [each() for each in unpacked] == [None], "the refusal keeps the payload"
        workers.run_heavy()
    finally:
        gc.enable()


@in_loop
async def test_batches_that_wait_for_memory_leave_with_their_client() -> None:
    bench = Bench(unpack_memory_bytes_max=UNPACKED_MAX, batch_decompressed_bytes_max=UNPACKED_MAX)
    partition = await bench.topic("t", 3)
    bench.broker.workers = workers = HeldWorkers()
    client = InProcessClient(bench.broker)
    parts = [{"index": index, "records": malformed()} for index in range(3)]
    body = {"acks": -1, "timeout_ms": 1000, "topic_data": [{"name": "t", "partition_data": parts}]}
    client.send(ApiKey.PRODUCE, VERSION, body)
    await turn()
    client.hang_up()
    while workers.heavies:
        workers.run_heavy()
    await turn()
    assert (bench.broker.unpack_memory.bytes_taken, partition.log.end_offset) == (0, 0)
    assert not bench.broker.unpack_memory.is_short


class Bytes(bytearray):
    """A request that can be watched."""


@pytest.mark.parametrize("is_left", [False, True], ids=["answered", "left"])
@in_loop
async def test_request_unpacked_by_workers_is_freed_without_a_search_for_garbage(is_left: bool) -> None:
    bench = Bench(unpack_memory_bytes_max=UNPACKED_MAX, batch_decompressed_bytes_max=UNPACKED_MAX)
    await bench.topic("t", 3)
    bench.broker.workers = workers = HeldWorkers()
    parts = [{"index": index, "records": malformed()} for index in range(3)]
    body = {"acks": -1, "timeout_ms": 1000, "topic_data": [{"name": "t", "partition_data": parts}]}
    frame = Bytes(
        request_header(ApiKey.PRODUCE, VERSION, 1, "") + encode_request(ApiKey.PRODUCE, VERSION, body)
    )
    watched = weakref.ref(frame)
    view = memoryview(frame)
    client = InProcessClient(bench.broker)
    gc.collect()
    gc.disable()
    try:
        header, start = parse_request_header(view, 0, len(view))
        call = Call(client, header, view, start, len(view))
        dispatch(bench.broker, call)
        if is_left:
            assert call.on_close is not None
            call.on_close()
        del call, view, frame
        while workers.heavies:
            workers.run_heavy()
        await turn()
        assert watched() is None
    finally:
        gc.enable()


def from_the_future(count: int) -> bytes:
    builder = BatchBuilder()
    for _ in range(count):
        builder.add(None, b"", timestamp_ms=2**50)
    return bytes(builder.build())


@pytest.mark.parametrize(
    ("batch", "rows_each"),
    [
        (batch_of(bytes(900_000), codec=Codec.GZIP), 900_000 // UNPACKED_BYTES_PER_ROW),
        (from_the_future(3000), 3000 * 7 // WALKED_BYTES_PER_ROW),
    ],
    ids=["unpacked", "looked at one by one"],
)
@in_loop
async def test_requests_of_one_turn_share_what_is_done_at_once(batch: bytes, rows_each: int) -> None:
    bench = Bench()
    await bench.topic("t")
    bench.broker.workers = workers = HeldWorkers()
    for _ in range(40):
        produce(bench, ("t", 0, bytes(batch)))
    assert len(workers.heavies) >= 40 - (ROWS_PER_TURN // rows_each + 1)
    await turn()
    produce(bench, ("t", 0, bytes(batch)))
    assert len(workers.heavies) < 41, "the next turn has room again"
