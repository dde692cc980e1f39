"""Hostile requests that a table cannot know: batches that unpack to a thousand times their size, sessions that grow
step by step, members with large metadata, lookups that have to unpack, one group named again and again, topics that are
really created."""

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple
from uuid import UUID

from anabranch.record.compression import Codec, compress
from anabranch.record.crc32c import crc32c
from anabranch.wire.api_keys import ApiKey
from anabranch.wire.codec import encode_request
from anabranch.wire.header import request_header
from hostile.cost import Frame
from hostile.kafka_requests import World
from support.raw_client import RawClient, batch_of
from support.waiting import wait_until

BOMB_BYTES = 63 * 2**20
SESSION_STEPS = 30


class Sequence(NamedTuple):
    """Requests that go one after the other on one connection."""

    name: str
    frames: list[Frame]


def frame(api_key: ApiKey, version: int, body: dict[str, object]) -> bytes:
    return request_header(api_key, version, 7, "hostile") + encode_request(api_key, version, body)


def bomb(unpacked_bytes: int = BOMB_BYTES) -> bytes:
    """A batch of a few kilobytes with a true checksum that unpacks to zeros, which are no records."""
    batch = bytearray(batch_of(b"x"))
    packed = compress(Codec.ZSTD, bytes(unpacked_bytes))
    head = bytearray(batch[:61])
    head[21:23] = int(Codec.ZSTD).to_bytes(2, "big")
    made = head + packed
    made[8:12] = (len(made) - 12).to_bytes(4, "big")
    made[17:21] = crc32c(bytes(made[21:])).to_bytes(4, "big")
    return bytes(made)


def special_requests(world: World) -> Iterator[Sequence]:
    yield _bombs(world)
    yield from _sessions(world)
    yield _waiting_repeats(world)
    yield _lookups(world)
    yield _one_group_again_and_again(world)
    yield from _members(world)
    yield from _created_topics()
    yield _wide_topic()


def _bombs(world: World) -> Sequence:
    rows = [{"index": index, "records": bomb()} for index in range(min(30, world.partitions))]
    body = {"acks": -1, "timeout_ms": 30_000, "topic_data": [{"name": world.topic, "partition_data": rows}]}
    one = frame(ApiKey.PRODUCE, 9, body)
    return Sequence(f"PRODUCE v9, {len(rows)} batches that unpack to {BOMB_BYTES} bytes, twice", [one, one])


def _sessions(world: World) -> Iterator[Sequence]:
    def step(epoch: int, session_id: int, first: int, count: int) -> bytes:
        partitions = [{"partition": first + each, "partition_max_bytes": 100} for each in range(count)]
        topics = [{"topic": "unknown", "partitions": partitions}] if count else []
        body = {"session_id": session_id, "session_epoch": epoch, "max_bytes": 2**20, "topics": topics}
        return frame(ApiKey.FETCH, 12, body)

    def grown(number: int, answer: bytes) -> bytes:
        session_id = int.from_bytes(
            answer[11:15], "big"
        )  # Behind correlation id, tags, throttle time and error code.
        return step(number, session_id, 1000 * number, 1000)

    yield Sequence("FETCH v12, a session of 19,000 unknown partitions", [step(0, 0, 0, 19_000)])
    yield Sequence(
        f"FETCH v12, a session grown by 1,000 unknown partitions {SESSION_STEPS} times",
        [step(0, 0, 0, 1000), *[partial(grown, number) for number in range(1, SESSION_STEPS)]],
    )
    yield Sequence(
        "FETCH v12, thirty sessions of 19,000 unknown partitions", [step(0, 0, 0, 19_000) for _ in range(30)]
    )


def _waiting_repeats(world: World) -> Sequence:
    partitions = [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 100}] * 19_000
    body = {
        "session_epoch": -1,
        "max_wait_ms": 500,
        "min_bytes": 2**20,
        "max_bytes": 2**20,
        "topics": [{"topic": world.empty_topic, "partitions": partitions}],
    }
    return Sequence("FETCH v12, one partition 19,000 times, waiting", [frame(ApiKey.FETCH, 12, body)])


def _lookups(world: World) -> Sequence:
    frames = []
    for timestamp in (-3, 1):
        partitions = [{"partition_index": each, "timestamp": timestamp} for each in range(world.partitions)]
        body = {"replica_id": -1, "topics": [{"name": world.packed_topic, "partitions": partitions}]}
        frames.append(frame(ApiKey.LIST_OFFSETS, 7, body))
    return Sequence(f"LIST_OFFSETS v7, {world.partitions} partitions by time, each to be unpacked", frames)


def _one_group_again_and_again(world: World) -> Sequence:
    groups = [{"group_id": world.group, "topics": None}] * 19_000
    return Sequence(
        "OFFSET_FETCH v8, one group 19,000 times", [frame(ApiKey.OFFSET_FETCH, 8, {"groups": groups})]
    )


def _members(world: World) -> Iterator[Sequence]:
    for size in (15 * 2**20, 2**20):
        frames = [
            frame(
                ApiKey.JOIN_GROUP,
                3,
                {
                    "group_id": f"large-{number}",
                    "session_timeout_ms": 1_800_000,
                    "rebalance_timeout_ms": 100,
                    "protocol_type": "consumer",
                    "protocols": [{"name": "range", "metadata": b"\0" * size}],
                },
            )
            for number in range(8 if size > 2**21 else 40)
        ]
        yield Sequence(f"JOIN_GROUP v3, {len(frames)} members with {size} bytes of metadata", frames)


def created(*counts: int) -> bytes:
    topics = [
        {
            "name": f"crowd-{number}",
            "num_partitions": count,
            "replication_factor": 1,
            "assignments": [],
            "configs": [],
        }
        for number, count in enumerate(counts)
    ]
    return frame(ApiKey.CREATE_TOPICS, 7, {"topics": topics, "timeout_ms": 30_000})


def deleted(count: int) -> bytes:
    names = [f"crowd-{number}" for number in range(count)]
    return frame(ApiKey.DELETE_TOPICS, 5, {"topic_names": names, "timeout_ms": 30_000})


def _wide_topic() -> Sequence:
    """Short requests that are answered with thousands of rows."""
    partitions = range(9000)
    named = {
        "name": "crowd-0",
        "partitions": [{"partition_index": each, "timestamp": 1} for each in partitions],
    }
    asked = [
        frame(ApiKey.METADATA, 9, {"topics": None, "allow_auto_topic_creation": False}),
        frame(
            ApiKey.DESCRIBE_TOPIC_PARTITIONS,
            0,
            {"topics": [{"name": "crowd-0"}], "response_partition_limit": 2000},
        ),
        frame(ApiKey.DESCRIBE_LOG_DIRS, 4, {"topics": None}),
        frame(ApiKey.LIST_OFFSETS, 7, {"replica_id": -1, "topics": [named]}),
    ]
    frames: list[Frame] = [created(len(partitions)), *asked * 5, deleted(1)]
    return Sequence("METADATA v9 and others, a topic of 9,000 partitions", frames)


def _created_topics() -> Iterator[Sequence]:
    yield Sequence("CREATE_TOPICS v7, 9,000 partitions, deleted again", [created(9000), deleted(1)])
    yield Sequence("CREATE_TOPICS v7, 30 topics of 10,000 partitions", [created(*[10_000] * 30)])
    yield Sequence("CREATE_TOPICS v7, 1,000 topics, deleted again", [created(*[1] * 1000), deleted(1000)])
    named = {"topics": [{"name": f"crowd-{number}"} for number in range(1000)]}
    used = frame(ApiKey.METADATA, 9, {**named, "allow_auto_topic_creation": True})
    yield Sequence("METADATA v9, 1,000 topics created on first use, deleted again", [used, deleted(1000)])


def prepare(client: RawClient, partitions: int, broker_id: int = 0) -> World:
    """Make what the requests ask for, all of it on the broker that the client is connected to."""
    topic_id = create(client, "hostile", partitions, broker_id)
    create(client, "empty", 1, broker_id)
    create(client, "packed", partitions, broker_id)
    for index in range(partitions):
        wait_until(partial(is_written, client, index), "the broker leads its partitions")
    group = group_of(client, broker_id)
    rows = [
        {"partition_index": index, "committed_offset": 1, "committed_metadata": "m" * 2000}
        for index in range(partitions)
    ]
    body = {
        "group_id": group,
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "topics": [{"name": "hostile", "partitions": rows}],
    }
    answer = client.ask(ApiKey.OFFSET_COMMIT, 5, body)
    assert all(row["error_code"] == 0 for row in answer["topics"][0]["partitions"]), answer
    return World("hostile", topic_id, partitions, group, "packed", "empty")


def is_written(client: RawClient, index: int) -> bool:
    return bool(client.produce("packed", index, packed_records())["error_code"] == 0)


def create(client: RawClient, name: str, partitions: int, broker_id: int) -> UUID:
    places = [{"partition_index": index, "broker_ids": [broker_id]} for index in range(partitions)]
    topic = {"name": name, "num_partitions": -1, "replication_factor": -1, "assignments": places}
    (row,) = client.ask(ApiKey.CREATE_TOPICS, 7, {"topics": [topic], "timeout_ms": 30_000})["topics"]
    assert row["error_code"] == 0, row
    topic_id: UUID = row["topic_id"]
    return topic_id


def group_of(client: RawClient, broker_id: int) -> str:
    """A name of a group that this broker coordinates."""

    def found() -> str | None:
        names = [f"readers-{number}" for number in range(200)]
        answer = client.ask(ApiKey.FIND_COORDINATOR, 4, {"key_type": 0, "coordinator_keys": names})
        rows = [row for row in answer["coordinators"] if row["error_code"] == 0]
        return next((row["key"] for row in rows if row["node_id"] == broker_id), None)

    name = wait_until(found, "the broker coordinates some group")
    assert name is not None
    return name


def packed_records(count: int = 60) -> bytes:
    """A small batch of a few dozen large records of zeros: 20 MB when it is unpacked."""
    return batch_of(*[bytes(350_000)] * count, codec=Codec.ZSTD)
