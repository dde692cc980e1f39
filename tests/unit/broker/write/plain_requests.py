"""Produce requests, and two nodes to compare: one takes them by the plain lane, the other by the general way."""

from collections import deque
from random import Random
from typing import Any
from uuid import UUID

from anabranch.broker.handlers import dispatch
from anabranch.broker.requests.call import Call
from anabranch.broker.topics.partition import Partition
from anabranch.errors import AnabranchError
from anabranch.record.builder import BatchBuilder
from anabranch.wire.api_keys import ApiKey
from anabranch.wire.codec import encode_request
from anabranch.wire.header import parse_request_header, request_header
from support.broker_bench import Bench, turn

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


def wrong_crc() -> bytes:
    spoiled = bytearray(batch(b"value"))
    spoiled[-3] ^= 1
    return bytes(spoiled)


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
    from anabranch.broker.write.plain_lane import PlainLane

    return PlainLane(bench.broker)


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


async def two_nodes_of_two_topics(flush: str = "os") -> list[Bench]:
    """Both know the topics by the same ids, so that their answers can be compared."""
    benches = await two_nodes(flush)
    for bench in benches:
        await bench.topic("second", 130)
        for name, topic_id in (("t", ID), ("second", OTHER_ID)):
            bench.topics.numbered[topic_id.bytes] = bench.topics.named[name.encode()]
            bench.topics._states[topic_id] = bench.topics.known(name)
    return benches
