"""The plain lane decides nothing of its own: whatever it takes ends as the general way would have ended it."""

import gc
import time
from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any
from uuid import UUID

import pytest

from anabranch.broker.call import Call
from anabranch.broker.handlers import dispatch
from anabranch.broker.partition import Partition
from anabranch.errors import AnabranchError
from anabranch.record.batch import read_header, seal
from anabranch.record.builder import BatchBuilder
from anabranch.record.compression import Codec, compress, decompress
from anabranch.record.form import COMPILED
from anabranch.wire.api_keys import ApiKey
from anabranch.wire.codec import encode_request
from anabranch.wire.error_codes import ErrorCode
from anabranch.wire.header import parse_request_header, request_header
from support.broker_bench import Bench, in_loop, turn
from support.mutations import MUTATIONS
from support.workers import HeldWorkers

pytestmark = pytest.mark.skipif(not COMPILED, reason="the lane is part of the compiled form")

VERSIONS = range(3, 14)
TOPIC_IDS_SINCE = 13
OTHER_ID = UUID("0c9a3a0e-5c0a-4f6e-8a37-6f3b9c4f2d10")
ID = UUID("6d0c8f6e-7c55-4c39-9a39-0d7d5b2f5c11")


class Client:
    """Stands where a connection does, and keeps the frames of its answers."""

    host = "test"
    local_address = ("127.0.0.1", 9092)

    def __init__(self) -> None:
        self.calls: deque[Call] = deque()
        self.frames: list[bytes] = []

    def answered(self, call: Call, pieces: list[Any] | None) -> None:
        self.frames.append(b"".join(pieces or ()))

    def settled(self) -> None:
        while self.calls and self.calls[0].is_settled:
            self.frames.append(b"".join(self.calls.popleft().pieces))

    def dropped(self, call: Call, reason: str) -> None:
        self.frames.append(b"closed")


def batch(
    *values: bytes | None, key: bytes | None = None, time_ms: int | None = None, **fields: Any
) -> bytes:
    builder = BatchBuilder(**fields)
    for number, value in enumerate(values or (b"v",)):
        stamp_ms = (time_ms if time_ms is not None else 1_700_000_000_000) + number
        builder.add(key, value, timestamp_ms=stamp_ms)
    return bytes(builder.build())


def frame(
    records: bytes | None,
    version: int = 9,
    topic: str | UUID = "t",
    index: int = 0,
    acks: int = 1,
    client_id: str | None = "client",
) -> bytes:
    return frame_of([(topic, [(index, records)])], version, acks, client_id)


Topics = list[tuple[str | UUID, list[tuple[int, bytes | None]]]]


def frame_of(topics: Topics, version: int = 9, acks: int = 1, client_id: str | None = "client") -> bytes:
    body = {
        "acks": acks,
        "timeout_ms": 1000,
        "topic_data": [
            {
                **({"topic_id": topic} if isinstance(topic, UUID) else {"name": topic}),
                "partition_data": [{"index": index, "records": records} for index, records in parts],
            }
            for topic, parts in topics
        ],
    }
    content = request_header(ApiKey.PRODUCE, version, 7, client_id)
    content += encode_request(ApiKey.PRODUCE, version, body)
    return len(content).to_bytes(4, "big") + content


def random_bytes(count: int) -> bytes:
    return Random(1).randbytes(count)


def plain_lane(bench: Bench) -> Any:
    from anabranch.broker.plain_lane import PlainLane

    return PlainLane(bench.broker)


def take(bench: Bench, view: memoryview, unpack: Any) -> list[Any]:
    """What the compiled module takes, given another way to unpack."""
    from anabranch.broker.plain_lane import PlainJob, take_plain

    topics = bench.topics
    return take_plain(
        PlainJob, Client(), view, 0, len(view), 64, topics.named, topics.numbered, unpack, 2**42, 0
    )


async def by_lane(bench: Bench, data: bytes) -> tuple[list[bytes], int]:
    """What the lane makes of these bytes: answers, and how many bytes it took."""
    client = Client()
    view = memoryview(bytearray(data))
    taken = plain_lane(bench).take(client, view, 0, len(view), client.calls, 64)
    await turn()
    return client.frames, taken


async def by_general_way(bench: Bench, data: bytes) -> list[bytes]:
    client = Client()
    view = memoryview(bytearray(data))
    header, body = parse_request_header(view, 4, len(view))
    call = Call(client, header, view, body, len(view))
    try:
        dispatch(bench.broker, call)
    except AnabranchError:
        return [b"closed"]
    await turn()
    return client.frames


def contents(partition: Partition) -> bytes:
    return partition.log.slice(partition.log.start_offset, 2**30, partition.log.end_offset).read()


async def two_nodes(flush: str = "os", **overrides: str) -> list[Bench]:
    benches = [Bench(flush=flush), Bench(flush=flush)]
    for bench in benches:
        await bench.topic("t", 2, **overrides)
    return benches


def key_of(bench: Bench, version: int) -> str | UUID:
    return bench.topics.known("t").topic.topic_id if version >= TOPIC_IDS_SINCE else "t"


@pytest.mark.parametrize("flush", ["os", "always"])
@pytest.mark.parametrize("acks", [1, -1])
@pytest.mark.parametrize("version", VERSIONS)
@in_loop
async def test_answer_and_log_are_those_of_the_general_way(version: int, acks: int, flush: str) -> None:
    lane, general = await two_nodes(flush)
    for records in (
        batch(),
        batch(b"a", None, b"c" * 300),
        batch(b"x", producer_id=5, producer_epoch=0, base_sequence=0),
        batch(b"packed" * 50, codec=Codec.LZ4),
    ):
        answers = []
        frames, taken = await by_lane(lane, frame(records, version, key_of(lane, version), 1, acks))
        assert taken, "the lane takes this"
        answers.append(frames)
        answers.append(
            await by_general_way(general, frame(records, version, key_of(general, version), 1, acks))
        )
        if version >= TOPIC_IDS_SINCE:
            ids = [bench.topics.known("t").topic.topic_id.bytes for bench in (lane, general)]
            answers = [
                [part.replace(topic_id, b"id") for part in each]
                for each, topic_id in zip(answers, ids, strict=True)
            ]
        assert answers[0] == answers[1]
        assert len(answers[0]) == 1
    assert contents(lane.topics.partition("t", 1)) == contents(general.topics.partition("t", 1))
    assert lane.topics.partition("t", 1).log.end_offset == 6


@in_loop
async def test_several_requests_in_one_buffer_are_taken_in_order() -> None:
    bench, _ = await two_nodes()
    data = frame(batch(b"a"), index=0) + frame(batch(b"b"), index=1) + frame(batch(b"c", b"d"), index=0)
    frames, taken = await by_lane(bench, data + b"\0\0")
    assert taken == len(data)
    assert len(frames) == 3
    assert [bench.topics.partition("t", index).log.end_offset for index in (0, 1)] == [3, 1]


async def two_nodes_of_two_topics(flush: str = "os") -> list[Bench]:
    """Both know the topics by the same ids, so that their answers can be compared."""
    benches = await two_nodes(flush)
    for bench in benches:
        await bench.topic("second", 130)
        for name, topic_id in (("t", ID), ("second", OTHER_ID)):
            bench.topics.numbered[topic_id.bytes] = bench.topics.named[name.encode()]
            bench.topics._states[topic_id] = bench.topics.known(name)
    return benches


def keys_of(version: int) -> tuple[str | UUID, str | UUID]:
    return (ID, OTHER_ID) if version >= TOPIC_IDS_SINCE else ("t", "second")


def assert_same_logs(lane: Bench, general: Bench) -> None:
    for name, count in (("t", 2), ("second", 130)):
        for index in range(count):
            ours, theirs = (bench.topics.partition(name, index) for bench in (lane, general))
            assert contents(ours) == contents(theirs), (name, index)


@pytest.mark.parametrize("flush", ["os", "always"])
@pytest.mark.parametrize("acks", [1, -1])
@pytest.mark.parametrize("version", VERSIONS)
@in_loop
async def test_several_batches_of_one_request_are_answered_as_in_the_general_way(
    version: int, acks: int, flush: str
) -> None:
    lane, general = await two_nodes_of_two_topics(flush)
    first, second = keys_of(version)
    ours = {"producer_id": 5, "producer_epoch": 0, "base_sequence": 0}
    requests: list[Topics] = [
        [(first, [(1, batch(b"a")), (0, batch(b"b", b"c"))])],
        [(first, [(0, batch())]), (second, [(3, batch(b"x" * 300)), (1, batch(**ours))])],
        [(second, [(7, batch())]), (first, [(1, batch())]), (second, [(8, batch())])],
        [(second, [(index, batch(b"%d" % index)) for index in range(130)])],
        [(second, [(1, batch(**ours)), (2, batch(**ours))])],
    ]
    for topics in requests:
        data = frame_of(topics, version, acks)
        frames, taken = await by_lane(lane, data)
        assert taken == len(data)
        assert frames == await by_general_way(general, data)
        assert len(frames) == 1
    assert_same_logs(lane, general)


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("version", [3, 6, 7, 12])
@in_loop
async def test_compressed_batches_are_kept_as_in_the_general_way(version: int, codec: Codec) -> None:
    lane, general = await two_nodes_of_two_topics()
    packed = batch(b"abc" * 100, None, b"d", codec=codec)
    data = frame_of([("t", [(0, packed), (1, batch())])], version)
    frames, taken = await by_lane(lane, data)
    if codec == Codec.ZSTD and version < 7:
        assert (frames, taken) == ([], 0)
        return
    assert taken
    assert frames == await by_general_way(general, data)
    assert_same_logs(lane, general)


def packed_as(records: bytes, codec: Codec) -> bytes:
    """A batch whose records are those bytes, whatever they are."""
    changed = bytearray(batch(b"v", codec=codec)[:61]) + records
    changed[8:12] = (len(changed) - 12).to_bytes(4, "big")
    seal(changed)
    return bytes(changed)


@pytest.mark.parametrize(
    "topics",
    [
        [("t", [(0, batch()), (0, batch())])],
        [("t", [(0, batch())]), ("t", [(0, batch())])],
        [("t", [(0, batch()), (2, batch())])],
        [("t", [(0, batch()), (1, None)])],
        [("t", [(0, batch()), (1, batch()[:-1])])],
        [("t", [(0, batch())]), ("unknown", [(0, batch())])],
        [("t", [(0, batch())]), ("second", [])],
        [("t", [])],
        [],
        [("t", [(0, packed_as(b"no frame at all", Codec.LZ4))])],
        [("t", [(0, packed_as(compress(Codec.ZSTD, b"no records"), Codec.ZSTD))])],
        [("t", [(0, packed_as(compress(Codec.GZIP, bytes(2**24)), Codec.GZIP))])],
        [("t", [(0, batch(random_bytes(100_000), codec=Codec.LZ4))])],
    ],
)
@pytest.mark.parametrize("version", [3, 9])
@in_loop
async def test_request_with_anything_that_is_not_plain_is_left_alone_as_a_whole(
    version: int, topics: Topics
) -> None:
    bench, _ = await two_nodes_of_two_topics()
    assert await by_lane(bench, frame_of(topics, version)) == ([], 0)
    assert not contents(bench.topics.partition("t", 0))


@pytest.mark.parametrize("version", [3, 8, 9, 13])
@in_loop
async def test_batch_that_fails_is_told_beside_those_that_do_not(version: int) -> None:
    lane, general = await two_nodes_of_two_topics()
    first, second = keys_of(version)
    gap = batch(producer_id=9, producer_epoch=0, base_sequence=7)
    for sequence in (0, 3):
        good = batch(producer_id=9, producer_epoch=0, base_sequence=sequence)
        for topics in (
            [(first, [(0, good), (1, batch())]), (second, [(0, batch()), (1, gap)])],
            [(second, [(1, gap)]), (first, [(1, batch()), (0, good)])],
        ):
            data = frame_of(topics, version)
            frames, taken = await by_lane(lane, data)
            assert taken
            assert frames == await by_general_way(general, data)
    assert_same_logs(lane, general)


@in_loop
async def test_request_is_answered_when_the_last_of_its_batches_is_safe() -> None:
    bench, held = Bench(flush="always"), HeldWorkers()
    await bench.topic("t", 2)
    bench.core.syncer._workers = held
    client, lane = Client(), plain_lane(bench)
    data = memoryview(bytearray(frame_of([("t", [(0, batch()), (1, batch())])], acks=-1)))
    assert lane.take(client, data, 0, len(data), client.calls, 64)
    await turn()
    held.run_sync()
    await turn()
    assert not client.frames
    held.run_sync()
    await turn()
    assert len(client.frames) == 1


@in_loop
async def test_request_taken_or_not_leaves_nothing_to_the_collector() -> None:
    bench, _ = await two_nodes_of_two_topics()
    gc.collect()
    gc.disable()
    try:
        await by_lane(bench, frame_of([("t", [(0, batch()), (1, batch())])]))
        await by_lane(bench, frame_of([("t", [(0, batch()), (1, wrong_crc())])]))
        await by_lane(bench, frame_of([("t", [(0, batch()), (9, batch())])]))
        await by_lane(bench, frame_of([("t", [(0, batch()), (1, batch())]), ("t", [])]))
        assert not [kept for kept in gc.get_objects() if type(kept).__name__ == "PlainJob"]
    finally:
        gc.enable()


def wrong_crc() -> bytes:
    spoiled = bytearray(batch(b"value"))
    spoiled[-3] ^= 1
    return bytes(spoiled)


def resealed(change: Callable[[bytearray], None]) -> bytes:
    changed = bytearray(batch(b"value", b"other"))
    change(changed)
    seal(changed)
    return bytes(changed)


def wrong_newest(data: bytearray) -> None:
    data[35:43] = (5).to_bytes(8, "big")


def wrong_delta(data: bytearray) -> None:
    data[-1] ^= 1


@pytest.mark.parametrize(
    "data",
    [
        frame(wrong_crc()),
        frame(resealed(wrong_newest)),
        frame(resealed(wrong_delta)),
        frame(None),
        frame(b""),
        frame(batch() + batch()),
        frame(batch(), acks=0),
        frame(batch(), acks=7),
        frame(batch(), topic="unknown"),
        frame(batch(), index=2),
        frame(batch(), index=-1),
        frame(batch(time_ms=2**62)),
        frame(bytes(resealed(lambda data: data.__setitem__(7, 1)))),
        frame(resealed(lambda data: data.__setitem__(22, 0x10))),
        frame(resealed(lambda data: data.__setitem__(22, 0x20))),
        frame(batch())[:-1],
    ],
)
@in_loop
async def test_what_is_not_plain_is_left_alone(data: bytes) -> None:
    bench, _ = await two_nodes()
    frames, taken = await by_lane(bench, data)
    assert (frames, taken) == ([], 0)
    assert not contents(bench.topics.partition("t", 0))


@pytest.mark.parametrize(
    "overrides",
    [
        {"cleanup_policy": "compact"},
        {"message_timestamp_type": "LogAppendTime"},
        {"compression_type": "gzip"},
        {"message_timestamp_before_max_ms": "1000"},
        {"max_message_bytes": "50"},
    ],
)
@in_loop
async def test_topic_that_wants_more_than_plain_batches_is_left_to_the_general_way(
    overrides: dict[str, str],
) -> None:
    bench, _ = await two_nodes(**overrides)
    assert await by_lane(bench, frame(batch())) == ([], 0)


@in_loop
async def test_compressed_batch_for_a_topic_that_keeps_none_is_left_to_the_general_way() -> None:
    bench, _ = await two_nodes(compression_type="uncompressed")
    assert (await by_lane(bench, frame(batch())))[1]
    assert await by_lane(bench, frame(batch(codec=Codec.LZ4))) == ([], 0)


@in_loop
async def test_nothing_is_unpacked_for_a_request_that_can_be_refused_without() -> None:
    bench, _ = await two_nodes()
    packed = batch(b"x" * 999, codec=Codec.GZIP)
    unpacked: list[int] = []

    def unpack(codec: int, records: memoryview, bytes_left: int) -> None:
        unpacked.append(bytes_left)

    for topics in ([("t", [(0, packed), (0, packed)])], [("t", [(0, packed), (7, packed)])]):
        data = memoryview(bytearray(frame_of(topics)))
        assert not take(bench, data, unpack)
    assert not unpacked


@in_loop
async def test_what_requests_unpack_to_is_limited_in_all() -> None:
    bench, _ = await two_nodes()
    data = frame_of([("t", [(index, batch(bytes(2**19), codec=Codec.GZIP)) for index in (0, 1)])]) * 9
    left: list[int] = []

    def unpack(codec: int, records: memoryview, bytes_left: int) -> bytes | None:
        left.append(bytes_left)
        records = decompress(codec, records, 2**20)
        return records if len(records) <= bytes_left else None

    taken = take(bench, memoryview(bytearray(data)), unpack)
    assert len(taken) == 3
    assert left == sorted(left, reverse=True)
    assert 0 <= left[-1] < 2**20


@in_loop
async def test_copies_that_are_not_there_are_missed_by_the_general_way() -> None:
    bench, _ = await two_nodes(min_insync_replicas="2")
    assert (await by_lane(bench, frame(batch(), acks=-1)))[1] == 0
    assert (await by_lane(bench, frame(batch(), acks=1)))[1] > 0


@in_loop
async def test_internal_topic_is_left_to_the_general_way_whatever_its_settings() -> None:
    bench = Bench(flush="os")
    await bench.topic("__consumer_offsets", 1)
    assert await by_lane(bench, frame(batch(), topic="__consumer_offsets")) == ([], 0)


@in_loop
async def test_id_that_spells_the_name_of_a_topic_does_not_name_it() -> None:
    bench = Bench(flush="os")
    name = "orders-eu-west-1"
    await bench.topic(name, 1)
    assert (await by_lane(bench, frame(batch(), 12, topic=name)))[1]
    assert await by_lane(bench, frame(batch(), 13, topic=UUID(bytes=name.encode()))) == ([], 0)


@pytest.mark.parametrize("acks", [1, -1])
@in_loop
async def test_only_acks_all_waits_for_the_sync_and_hears_of_its_failure(acks: int) -> None:
    bench, held = Bench(flush="always"), HeldWorkers()
    await bench.topic("t", 1)
    bench.core.syncer._workers = held
    client, lane = Client(), plain_lane(bench)
    data = memoryview(bytearray(frame(batch(), acks=acks)))
    assert lane.take(client, data, 0, len(data), client.calls, 64)
    bench.disk.fail_next("sync", path_contains="t-0/")
    await turn()
    assert len(client.frames) == (acks == 1)
    held.run_sync()
    await turn()
    assert len(client.frames) == 1
    code = int.from_bytes(client.frames[0][17:19], "big")
    assert code == (0 if acks == 1 else ErrorCode.KAFKA_STORAGE_ERROR)


@in_loop
async def test_change_of_settings_counts_from_the_next_request_on() -> None:
    bench, _ = await two_nodes()
    await bench.topics.alter("t", lambda _: {"cleanup.policy": "compact"})
    assert await by_lane(bench, frame(batch())) == ([], 0)


@in_loop
async def test_topic_that_is_deleted_and_made_again_is_found() -> None:
    bench, _ = await two_nodes()
    assert (await by_lane(bench, frame(batch())))[1]
    await bench.topics.delete("t")
    assert await by_lane(bench, frame(batch())) == ([], 0)
    await bench.topic("t", 1)
    assert (await by_lane(bench, frame(batch())))[1]
    assert bench.topics.partition("t", 0).log.end_offset == 1


@in_loop
async def test_gap_of_an_idempotent_producer_is_refused_as_in_the_general_way() -> None:
    lane, general = await two_nodes()
    for sequence in (0, 5, 0):
        data = frame(batch(b"x", producer_id=9, producer_epoch=1, base_sequence=sequence))
        frames, taken = await by_lane(lane, data)
        assert taken
        assert frames == await by_general_way(general, data)


@in_loop
async def test_disk_that_takes_no_write_is_told_as_in_the_general_way() -> None:
    lane, general = await two_nodes()
    for bench in (lane, general):
        assert (await by_general_way(bench, frame(batch())))[0]
        bench.disk.capacity_bytes = 1
    frames, taken = await by_lane(lane, frame(batch(b"x" * 500)))
    assert taken
    assert frames == await by_general_way(general, frame(batch(b"x" * 500)))
    assert read_header(contents(lane.topics.partition("t", 0))).record_count == 1


@pytest.mark.parametrize("version", [3, 7, 9, 12, 13])
def test_spoiled_requests_end_as_in_the_general_way(version: int) -> None:
    """One seed, many frames; a failure prints which."""
    seed = time.time_ns()
    rng = Random(seed)

    @in_loop
    async def run() -> None:
        lane, general = await two_nodes()
        for bench in (lane, general):
            bench.topics.numbered[ID.bytes] = bench.topics.named[b"t"]
            bench.topics._states[ID] = bench.topics.known("t")
        key = ID if version >= TOPIC_IDS_SINCE else "t"
        good = [
            frame(batch(b"a", b"b"), version, key)[4:],
            frame(batch(b"z" * 200, key=b"k"), version, key, index=1)[4:],
            frame_of([(key, [(0, batch(b"1")), (1, batch(b"2", b"3"))])], version)[4:],
            frame_of([(key, [(1, batch(b"4" * 99, codec=Codec.LZ4))]), (key, [(0, batch())])], version)[4:],
        ]
        taken_count = 0
        for number in range(400):
            spoiled = rng.choice(MUTATIONS)(rng, rng.choice(good), good)
            data = len(spoiled).to_bytes(4, "big") + spoiled
            frames, taken = await by_lane(lane, data)
            if not taken:
                continue
            taken_count += 1
            assert frames == await by_general_way(general, data), (seed, number, data.hex())
        assert taken_count > 10, "the lane takes what is still good"
        for index in (0, 1):
            assert contents(lane.topics.partition("t", index)) == contents(
                general.topics.partition("t", index)
            ), seed

    run()
