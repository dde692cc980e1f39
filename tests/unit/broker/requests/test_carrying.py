"""Requests without a connection: what they hold, and that they let go of it."""

import asyncio
from typing import Any

import pytest

from anabranch.broker.peers.messages import ForwardRequest
from anabranch.broker.requests import local_dispatch as carrying
from anabranch.broker.requests.local_dispatch import carry_out
from anabranch.broker.topics.partition import Partition
from anabranch.errors import StorageError, UnsupportedVersionError
from anabranch.testing.fakes.disk import FakeFile
from anabranch.wire.api_keys import ApiKey
from anabranch.wire.codec import decode_response, encode_request
from support.broker_bench import Bench, batch_of, in_loop, turn
from support.workers import HeldWorkers


def fetch(topic: str = "t", offset: int = 0, wait_ms: int = 0) -> ForwardRequest:
    part = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": 2**20}
    body = {
        "max_wait_ms": wait_ms,
        "min_bytes": 1,
        "max_bytes": 2**20,
        "isolation_level": 0,
        "session_id": 0,
        "session_epoch": -1,
        "topics": [{"topic": topic, "partitions": [part]}],
        "forgotten_topics_data": [],
        "rack_id": "",
    }
    return ForwardRequest(ApiKey.FETCH, 11, "test", "", encode_request(ApiKey.FETCH, 11, body))


def pins_of_slices(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Has slices leave as those of real files do; 1 for each that is pinned, -1 for each that is not any more."""
    pins: list[int] = []
    monkeypatch.setattr(carrying.Slice, "fileno", lambda self: 3)
    monkeypatch.setattr(carrying.Slice, "pin", lambda self: pins.append(1))
    monkeypatch.setattr(carrying.Slice, "unpin", lambda self: pins.append(-1))
    return pins


def verify(partition: Partition, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a log remember that it was read and held, so that it is served by its file."""
    monkeypatch.setattr(FakeFile, "stamp", lambda _: 1)
    part = partition.log.slice(partition.log.start_offset, 2**20, partition.log.end_offset)
    part.checked()
    part.mark_verified()


def row_of(answer: memoryview) -> dict[str, Any]:
    found = decode_response(ApiKey.FETCH, 11, answer, 0, len(answer))
    row: dict[str, Any] = found["responses"][0]["partitions"][0]
    return row


@in_loop
async def test_fetch_waits_and_is_forgotten_when_nobody_waits_for_it() -> None:
    bench = Bench()
    partition = await bench.topic("t")
    waiting = asyncio.ensure_future(carry_out(bench.broker, fetch(wait_ms=60_000), is_far=False))
    await turn()
    assert partition.waiting_fetches
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert not partition.waiting_fetches


@in_loop
async def test_large_slices_are_read_by_a_worker_and_pinned_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench()
    partition = await bench.topic("t")
    await bench.core.append(partition, batch_of(b"x" * 100_000))
    verify(partition, monkeypatch)
    held = HeldWorkers()
    bench.broker.workers = held
    pins = pins_of_slices(monkeypatch)
    reading = asyncio.ensure_future(carry_out(bench.broker, fetch(), is_far=False))
    await turn()
    assert (sum(pins), reading.done()) == (1, False)
    held.run_heavy()
    await turn()
    assert len(row_of(await reading)["records"]) > 100_000
    assert sum(pins) == 0


@in_loop
async def test_reader_that_leaves_while_a_worker_reads_leaves_no_pin(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    partition = await bench.topic("t")
    await bench.core.append(partition, batch_of(b"x" * 100_000))
    verify(partition, monkeypatch)
    held = HeldWorkers()
    bench.broker.workers = held
    pins = pins_of_slices(monkeypatch)
    reading = asyncio.ensure_future(carry_out(bench.broker, fetch(), is_far=False))
    await turn()
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    assert sum(pins) == 1, "the worker still reads it"
    held.run_heavy()
    await turn()
    assert sum(pins) == 0


@in_loop
async def test_file_that_is_gone_meanwhile_is_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    partition = await bench.topic("t")
    await bench.core.append(partition, batch_of(b"x" * 100_000))
    verify(partition, monkeypatch)
    pins_of_slices(monkeypatch)

    def gone(self: carrying.Slice) -> None:
        raise StorageError("t-0 is gone")

    monkeypatch.setattr(carrying.Slice, "pin", gone)
    with pytest.raises(StorageError, match="gone"):
        await carry_out(bench.broker, fetch(), is_far=False)


@in_loop
async def test_unknown_request_is_refused() -> None:
    bench = Bench()
    with pytest.raises(UnsupportedVersionError):
        await carry_out(bench.broker, ForwardRequest(9999, 0, None, "", b""), is_far=True)
