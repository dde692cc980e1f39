"""A node looks after its object store: retention, compaction, DeleteRecords, deleted topics and merges, on a folder and
on a server that speaks S3, across restarts."""

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import UUID

import pytest

from anabranch.broker.workers import ThreadWorkers
from anabranch.clock import RealClock
from anabranch.log.disk.real_files import RealFiles
from anabranch.objects.stores import open_store
from anabranch.record.batch import batch_spans
from anabranch.record.builder import BatchBuilder
from anabranch.record.records import Record, records_of
from anabranch.wire.api_keys import ApiKey
from support.node_process import NodeProcess
from support.raw_client import RawClient
from support.waiting import wait_until

SETTINGS = {
    "object.gather.ms": "5",
    "object.merge.bytes": "6000",
    "object.collect.ms": "1000",
    "object.snapshot.ms": "300",
    "log.retention.check.interval.ms": "200",
    "log.cleaner.backoff.ms": "200",
}
GONE_S_MAX = 30.0


@pytest.fixture(params=["file", "s3"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "file":
        return f"file://{tmp_path}/store"
    found: str = request.getfixturevalue("s3_url")
    return found


@pytest.fixture
def node(tmp_path: Path, url: str) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path, {**SETTINGS, "object.store": url}) as running:
        yield running


def names_in(url: str) -> set[str]:
    """What lies in the store, but for snapshots."""

    async def listed() -> set[str]:
        workers = ThreadWorkers(asyncio.get_running_loop(), 1, 1)
        store = open_store(url, files=RealFiles(), workers=workers, clock=RealClock())
        found = {
            each.name
            for folder in ("segments/", "merged/")
            async for page in store.list(folder)
            for each in page
        }
        await store.close()
        workers.close()
        return found

    return asyncio.run(listed())


def produce(
    client: RawClient, topic: str, *pairs: tuple[bytes, bytes | None], time_ms: int | None = None
) -> None:
    """One request, and so one object, for each."""
    for key, value in pairs:
        builder = BatchBuilder()
        builder.add(key, value, timestamp_ms=int(time.time() * 1000) if time_ms is None else time_ms)
        assert client.produce(topic, 0, bytes(builder.build()))["error_code"] == 0


def start_of(client: RawClient, topic: str) -> int:
    asked = {"partition_index": 0, "timestamp": -2}
    answer = client.ask(
        ApiKey.LIST_OFFSETS, 7, {"replica_id": -1, "topics": [{"name": topic, "partitions": [asked]}]}
    )
    offset: int = answer["topics"][0]["partitions"][0]["offset"]
    return offset


def read(client: RawClient, topic: str) -> list[Record]:
    found: list[Record] = []
    offset, end = start_of(client, topic), client.end_offset(topic)
    while offset < end:
        data = client.fetch(topic, 0, offset)["records"] or b""
        for start, stop in batch_spans(data):
            found += [each for each in records_of(bytes(data[start:stop])) if each.offset >= offset]
        offset = found[-1].offset + 1 if found else end
    return found


def soon(check: Callable[[], bool], what: str) -> None:
    wait_until(check, what, GONE_S_MAX)


def test_small_objects_become_few_and_every_record_stays_across_a_restart(
    node: NodeProcess, url: str
) -> None:
    with RawClient(node.bootstrap) as client:
        client.create_topic("orders", anabranch_mode="object")
        produce(client, "orders", *[(b"%d" % number, b"v" * 100) for number in range(60)])
        before = read(client, "orders")
        assert len(before) == 60
        soon(lambda: any(name.startswith("merged/") for name in names_in(url)), "a merged object")
        soon(lambda: len(names_in(url)) < 40, "the small objects to go")
        assert read(client, "orders") == before
    node.stop()
    node.start()
    with RawClient(node.bootstrap) as client:
        assert read(client, "orders") == before


def test_what_is_too_old_goes_and_its_objects_too(node: NodeProcess, url: str) -> None:
    with RawClient(node.bootstrap) as client:
        client.create_topic("orders", anabranch_mode="object", retention_ms="60000")
        old_ms = int(time.time() * 1000) - 120_000
        produce(client, "orders", *[(b"%d" % number, b"old") for number in range(5)], time_ms=old_ms)
        produce(client, "orders", (b"new", b"new"))
        soon(lambda: start_of(client, "orders") == 5, "retention")
        assert [record.key for record in read(client, "orders")] == [b"new"]
        soon(lambda: len(names_in(url)) == 1, "the old objects to go")


def test_more_than_retention_bytes_goes(node: NodeProcess) -> None:
    with RawClient(node.bootstrap) as client:
        client.create_topic("orders", anabranch_mode="object", retention_bytes="1000")
        produce(client, "orders", *[(b"%d" % number, b"v" * 200) for number in range(20)])
        soon(lambda: start_of(client, "orders") >= 15, "retention by size")
        assert read(client, "orders")[-1].offset == 19


def test_a_compacted_topic_keeps_the_latest_of_each_key(node: NodeProcess, url: str) -> None:
    with RawClient(node.bootstrap) as client:
        client.create_topic("orders", anabranch_mode="object", cleanup_policy="compact")
        produce(client, "orders", *[(b"%d" % (number % 4), b"%d" % number) for number in range(20)])
        soon(lambda: len(read(client, "orders")) == 4, "compaction")
        assert [(record.offset, record.value) for record in read(client, "orders")] == [
            (number, b"%d" % number) for number in range(16, 20)
        ]
        produce(client, "orders", (b"0", b"again"))
        assert client.end_offset("orders") == 21
        soon(lambda: len(names_in(url)) <= 2, "what was compacted to go")


def test_deleted_records_and_a_deleted_topic_leave_nothing_behind(node: NodeProcess, url: str) -> None:
    with RawClient(node.bootstrap) as client:
        client.create_topic("orders", anabranch_mode="object")
        produce(client, "orders", *[(b"%d" % number, b"v") for number in range(6)])
        row = {"partition_index": 0, "offset": 4}
        topics = [{"name": "orders", "partitions": [row]}]
        answer = client.ask(ApiKey.DELETE_RECORDS, 2, {"topics": topics, "timeout_ms": 10_000})
        assert answer["topics"][0]["partitions"][0] == {
            "partition_index": 0,
            "low_watermark": 4,
            "error_code": 0,
        }
        assert [record.offset for record in read(client, "orders")] == [4, 5]
        soon(lambda: len(names_in(url)) == 2, "the deleted records' objects to go")
        asked = {"topics": [{"name": "orders"}], "timeout_ms": 10_000}
        assert client.ask(ApiKey.DELETE_TOPICS, 6, asked)["responses"][0]["error_code"] == 0
        soon(lambda: not names_in(url), "the deleted topic's objects to go")


def test_a_client_that_replaces_rows_by_nothing_erases_nothing(tmp_path: Path) -> None:
    settings = {**SETTINGS, "object.store": f"file://{tmp_path}/store", "log.cleaner.enable": "false"}
    with NodeProcess(tmp_path, settings) as node, RawClient(node.bootstrap) as client:
        client.create_topic("orders", anabranch_mode="object", cleanup_policy="compact")
        produce(client, "orders", *[(b"%d" % number, b"v") for number in range(5)])
        (topic,) = client.ask(ApiKey.METADATA, 12, {"topics": [{"topic_id": UUID(int=0), "name": "orders"}]})[
            "topics"
        ]
        place = {"topic_id": topic["topic_id"], "partition_index": 0}
        rows = client.ask(ApiKey.DESCRIBE_OBJECTS, 0, {**place, "start_offset": 0})["rows"]
        asked = {"partitions": [{**place, "old_rows": rows, "new_rows": b""}]}
        (answer,) = client.ask(ApiKey.REPLACE_OBJECTS, 0, asked)["partitions"]
        assert not answer["is_replaced"]
        assert "nothing replaces it" in answer["reason"]
        assert len(read(client, "orders")) == 5
