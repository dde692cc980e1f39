"""What the plain lane leaves to the general way: everything that wants more than to be kept as it came."""

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from plain_requests import (
    Client,
    Topics,
    batch,
    by_lane,
    contents,
    frame,
    frame_of,
    random_bytes,
    two_nodes,
    two_nodes_of_two_topics,
    wrong_crc,
)

from anabranch.record.backend import COMPILED
from anabranch.record.batch import seal
from anabranch.record.compression import Codec, compress, decompress
from support.broker_bench import Bench, in_loop

pytestmark = pytest.mark.skipif(not COMPILED, reason="the lane is part of the compiled form")


def take(bench: Bench, view: memoryview, unpack: Any) -> list[Any]:
    """What the compiled module takes, given another way to unpack."""
    from anabranch.broker.write.plain_lane import PlainJob, take_plain

    topics = bench.topics
    return take_plain(
        PlainJob, Client(), view, 0, len(view), 64, topics.named, topics.numbered, unpack, 2**42, 0
    )


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
