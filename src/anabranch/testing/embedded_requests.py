"""The requests behind the helpers of `EmbeddedBroker`, and what they answer. All run in the broker's loop.

Those that change something are real requests and are refused as a client's would be (RequestRefusedError); records
are read from the logs themselves, which needs no fetch loop and sees what a consumer may see.
"""

import time
from collections.abc import Iterable, Mapping
from itertools import takewhile
from typing import NamedTuple

from anabranch.broker.broker import Broker
from anabranch.broker.metadata.metadata_log import read_records
from anabranch.broker.topics.partition import Partition
from anabranch.record.batch import batch_spans, read_header
from anabranch.record.builder import BatchBuilder
from anabranch.record.partitioner import partition_for
from anabranch.record.records import Record, records_of
from anabranch.testing.in_process_client import InProcessClient, check
from anabranch.wire.api_keys import ApiKey

Text = bytes | str | None
Headers = tuple[tuple[str, bytes | None], ...]
NewRecord = Text | tuple[Text, Text] | tuple[Text, Text, Headers]
REQUEST_TIMEOUT_MS = 30_000
READ_BYTES = 2**20


class StoredRecord(NamedTuple):
    """A record as a consumer gets it."""

    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp: int
    partition: int
    offset: int


class GroupState(NamedTuple):
    """A consumer group: "Dead" if nobody knows it."""

    state: str
    members: tuple[str, ...]


async def create_topic(
    client: InProcessClient, name: str, partitions: int, configs: Mapping[str, object]
) -> None:
    topic = {
        "name": name,
        "num_partitions": partitions,
        "replication_factor": 1,
        "configs": [
            {"name": key.replace("_", "."), "value": _config_text(value)} for key, value in configs.items()
        ],
    }
    answer = await client.ask(ApiKey.CREATE_TOPICS, 7, {"topics": [topic], "timeout_ms": REQUEST_TIMEOUT_MS})
    made = answer["topics"][0]
    check(made["error_code"], f"Topic {name} was not made ({made['error_message']})")


def _config_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


async def delete_topic(client: InProcessClient, name: str) -> None:
    request = {"topic_names": [name], "timeout_ms": REQUEST_TIMEOUT_MS}
    answer = await client.ask(ApiKey.DELETE_TOPICS, 5, request)
    check(answer["responses"][0]["error_code"], f"Topic {name} was not deleted")


async def produce(
    broker: Broker,
    client: InProcessClient,
    topic: str,
    partition: int | None,
    records: list[NewRecord],
    acks: int,
) -> list[int]:
    """Answers the offset of each record. `partition` None: the key decides, and 0 takes what has none."""
    full = [_in_full(record) for record in records]
    places = [partition if partition is not None else _partition_of(broker, topic, key) for key, _, _ in full]
    offsets = [0] * len(full)
    for index in sorted(set(places)) or [partition or 0]:
        mine = [number for number, place in enumerate(places) if place == index]
        base_offset = await _produce_batch(client, topic, index, [full[number] for number in mine], acks)
        for position, number in enumerate(mine):
            offsets[number] = base_offset + position
    return offsets


def _partition_of(broker: Broker, topic: str, key: bytes | None) -> int:
    state = broker.topics.find(topic)
    if key is None or state is None:  # What the topic lacks is said by the answer to the request.
        return 0
    return partition_for(key, len(state.partitions), state.settings.anabranch_partitioner) or 0


async def _produce_batch(
    client: InProcessClient,
    topic: str,
    partition: int,
    records: "list[tuple[bytes | None, bytes | None, Headers]]",
    acks: int,
) -> int:
    """Answers the offset of the first."""
    builder = BatchBuilder()
    now_ms = time.time_ns() // 1_000_000
    for key, value, headers in records:
        builder.add(key, value, headers, timestamp_ms=now_ms)
    data = {"index": partition, "records": bytes(builder.build())}
    request = {
        "acks": acks,
        "timeout_ms": REQUEST_TIMEOUT_MS,
        "topic_data": [{"name": topic, "partition_data": [data]}],
    }
    answer = await client.ask(ApiKey.PRODUCE, 9, request)
    answered = answer["responses"][0]["partition_responses"][0]
    check(answered["error_code"], f"{topic}-{partition} took no records ({answered['error_message']})")
    return int(answered["base_offset"])


def _in_full(record: NewRecord) -> tuple[bytes | None, bytes | None, Headers]:
    if not isinstance(record, tuple):
        return None, _bytes(record), ()
    headers = record[2] if len(record) == 3 else ()
    return _bytes(record[0]), _bytes(record[1]), headers


def _bytes(text: Text) -> bytes | None:
    return text.encode() if isinstance(text, str) else text


async def stored_records(
    broker: Broker, topic: str, partition: int | None, *, missing_ok: bool = False
) -> list[StoredRecord]:
    if missing_ok and broker.topics.find(topic) is None:
        return []
    partitions = broker.topics.known(topic).partitions
    if partition is not None:
        partitions = [broker.topics.partition(topic, partition)]
    return [record for each in partitions if each is not None for record in await _visible(each)]


async def _visible(partition: Partition) -> list[StoredRecord]:
    if not partition.has_files:
        records: Iterable[Record] = await _records_in_store(partition)
    else:
        records = read_records(partition.log, partition.log.start_offset)
    return [
        StoredRecord(
            record.key, record.value, record.headers, record.timestamp, partition.id.partition, record.offset
        )
        for record in takewhile(lambda record: record.offset < partition.high_watermark, records)
    ]


async def _records_in_store(partition: Partition) -> list[Record]:
    from anabranch.broker.object.log import ObjectLog  # Not for a broker without an object store.

    assert isinstance(partition.log, ObjectLog)
    log: ObjectLog = partition.log
    records: list[Record] = []
    start = log.start_offset
    while start < partition.high_watermark:
        data = bytes((await log.loaded(start, READ_BYTES, partition.high_watermark)).read())
        if not data:
            break  # What was there is compacted away.
        for first, last in batch_spans(data):
            records += [each for each in records_of(data[first:last]) if each.offset >= start]
            start = read_header(data, first).next_offset
    return records


async def describe_group(client: InProcessClient, group_id: str) -> GroupState:
    answer = await client.ask(ApiKey.DESCRIBE_GROUPS, 5, {"groups": [group_id]})
    group = answer["groups"][0]
    check(group["error_code"], f"Group {group_id} cannot be described")
    return GroupState(group["group_state"], tuple(member["member_id"] for member in group["members"]))


async def committed_offsets(
    client: InProcessClient, group_id: str, topic: str, partitions: int
) -> dict[int, int]:
    asked = [{"name": topic, "partition_indexes": list(range(partitions))}]
    answer = await client.ask(
        ApiKey.OFFSET_FETCH, 8, {"groups": [{"group_id": group_id, "topics": asked}], "require_stable": False}
    )
    group = answer["groups"][0]
    check(group["error_code"], f"The offsets of group {group_id} cannot be read")
    return {
        each["partition_index"]: each["committed_offset"]
        for found in group["topics"]
        for each in found["partitions"]
        if each["committed_offset"] >= 0
    }
