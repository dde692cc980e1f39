"""Where chunks come from: of the topic that was subscribed to, and of no other that has its name."""

import asyncio
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from anabranch.errors import BrokerRefusedError
from anabranch.gateway.read.record_source import BEHIND_AT_ONCE_MAX, RecordSource
from anabranch.gateway.record_json import record_json
from anabranch.record.builder import BatchBuilder
from anabranch.record.compression import Codec
from anabranch.wire.error_codes import ErrorCode
from support.fan_out_world import STREAM


class FakeCalls:
    def __init__(self, batches: bytes, *topic_ids: UUID | None) -> None:
        self._batches = batches
        self._topic_ids = list(topic_ids)
        self.end = 1
        self.waits: list[int] = []

    def known_topic(self, name: str) -> Any:
        topic_id = self._topic_ids.pop(0)
        return None if topic_id is None else SimpleNamespace(topic_id=topic_id)

    async def fetch(self, topic: str, partition: int, offset: int, *, bytes_max: int, wait_ms: int) -> Any:
        self.waits.append(wait_ms)
        return SimpleNamespace(batches=self._batches, high_watermark=self.end)

    async def decoded(self, batches: bytes, task: Any) -> Any:
        return task()


def loaded(batches: bytes, *topic_ids: UUID | None) -> list[Any]:
    calls: Any = FakeCalls(batches, *topic_ids)
    source = RecordSource(calls, record_json)
    return asyncio.run(source.load(STREAM, 0, 1000))


def batch(value: bytes, codec: Codec = Codec.NONE) -> bytes:
    builder = BatchBuilder(codec=codec)
    builder.add(None, value, timestamp_ms=1)
    return bytes(builder.build())


SAME, OTHER = STREAM.topic_id, UUID(int=99)


def test_nothing_comes_of_nothing() -> None:
    assert loaded(b"", SAME, SAME) == []


@pytest.mark.parametrize("topic_ids", [(None,), (OTHER,), (SAME, None), (SAME, OTHER)])
def test_a_topic_that_was_deleted_is_gone_though_another_has_its_name(topic_ids: tuple[UUID | None]) -> None:
    with pytest.raises(BrokerRefusedError, match="deleted") as refused:
        loaded(batch(b"x"), *topic_ids)
    assert refused.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_one_who_is_behind_is_not_left_waiting_and_one_at_the_end_is() -> None:
    calls: Any = FakeCalls(batch(b"x"), *[SAME] * 6)
    source = RecordSource(calls, record_json)

    async def load() -> None:
        for offset in (0, 0, 1):
            await source.load(STREAM, offset, 1000)

    asyncio.run(load())
    assert calls.waits == [1000, 0, 1000]


def test_only_a_few_of_those_behind_are_read_for_at_once() -> None:
    async def most() -> int:
        calls: Any = FakeCalls(batch(b"x"), *[SAME] * 1000)
        source = RecordSource(calls, record_json)
        await source.load(STREAM, 0, 1000)
        under_way = highest = 0

        async def fetch(*_: object, **__: object) -> Any:
            nonlocal under_way, highest
            under_way += 1
            highest = max(highest, under_way)
            await asyncio.sleep(0)
            under_way -= 1
            return SimpleNamespace(batches=batch(b"x"), high_watermark=1)

        calls.fetch = fetch
        await asyncio.gather(*(source.load(STREAM, 0, 1000) for _ in range(100)))
        return highest

    assert asyncio.run(most()) == BEHIND_AT_ONCE_MAX


def test_a_position_where_nothing_is_though_records_follow_is_waited_at() -> None:
    calls: Any = FakeCalls(b"", *[SAME] * 6)
    calls.end = 100
    source = RecordSource(calls, record_json)

    async def load() -> None:
        for _ in range(2):
            assert await source.load(STREAM, 7, 1000) == []

    asyncio.run(load())
    assert calls.waits == [1000, 0, 1000]
