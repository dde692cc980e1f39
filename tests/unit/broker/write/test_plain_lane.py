"""The plain lane decides nothing of its own: whatever it takes ends as the general way would have ended it."""

import gc
import socket
import time
from random import Random
from uuid import UUID

import pytest
from plain_requests import (
    ID,
    OTHER_ID,
    TOPIC_IDS_SINCE,
    Client,
    Topics,
    batch,
    by_general_way,
    by_lane,
    contents,
    frame,
    frame_of,
    plain_lane,
    two_nodes,
    two_nodes_of_two_topics,
    wrong_crc,
)

from anabranch.record.backend import COMPILED
from anabranch.record.batch import read_header
from anabranch.record.compression import Codec
from anabranch.server.connection import Connection
from anabranch.server.listener import Listener
from anabranch.wire.error_codes import ErrorCode
from support.broker_bench import Bench, in_loop, turn
from support.mutations import MUTATIONS
from support.workers import HeldWorkers

pytestmark = pytest.mark.skipif(not COMPILED, reason="the lane is part of the compiled form")

VERSIONS = range(3, 14)


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
async def test_buffer_can_be_given_back_while_a_request_waits_for_its_sync(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench, held = Bench(flush="always"), HeldWorkers()
    partition = await bench.topic("t", 1)
    bench.core.syncer._workers = held
    listener = Listener(bench.broker, bench.clock, 10, 10)
    listener.poller.start()
    listener.take_plain = plain_lane(bench).take
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    connection = Connection(listener, ours, "peer")
    listener.remember(connection)
    theirs.sendall(frame(batch(b"x" * 30_000), acks=-1))
    await turn(20)
    assert partition.log.end_offset == 1
    assert connection.free_bytes_held > 0
    assert listener.memory.take(listener.memory.bytes_max)
    listener.memory.wait(1, lambda: None)
    listener._sweep()
    assert (connection.is_closed, connection.free_bytes_held) == (False, 0), caplog.text
    held.run_sync()
    await turn()
    assert int.from_bytes(theirs.recv(1000)[17:19], "big") == 0
    await listener.close(1)
    theirs.close()


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
