"""A branch as a topic of its own, through the door that Kafka clients use: `t@1024` by name and by id."""

from typing import Any
from uuid import UUID

import pytest

from anabranch.broker.branch import views as branch_views
from anabranch.broker.branch.views import BranchView, view_id
from anabranch.errors import ReadOnlyBranchError
from anabranch.modes.branch.rows import Lane, first_offset
from anabranch.record.batch import batch_spans
from anabranch.record.records import records_of
from anabranch.testing.in_process_client import InProcessClient, Pending
from anabranch.values import Offset
from anabranch.wire.api_keys import ApiKey
from anabranch.wire.error_codes import ErrorCode as E
from support.broker_bench import Bench, batch_of, in_loop, turn

SECOND, THIRD = first_offset(Lane(1024)), first_offset(Lane(2048))
NO_ID = UUID(int=0)


async def two_branches(partitions: int = 1) -> Bench:
    """Two records in lane 0 and one in lane 1024, of the first partition."""
    bench = Bench(flush="always")
    await bench.topic("t", partitions, anabranch_mode="branch")
    await write(bench, b"a", b"b")
    bench = bench.again()
    await write(bench, b"c")
    return bench


async def write(bench: Bench, *values: bytes) -> None:
    answered = bench.submit(bench.topics.partition("t", 0), batch_of(*values))
    await turn()
    assert answered[0].error is None


def send(bench: Bench, api: ApiKey, version: int, body: dict[str, Any]) -> Pending:
    return InProcessClient(bench.broker).send(api, version, body)


def ask(bench: Bench, api: ApiKey, version: int, body: dict[str, Any]) -> dict[str, Any]:
    pending = send(bench, api, version, body)
    assert pending.body is not None, pending.closed_because
    return pending.body


def fetch_body(topic: str | UUID, offset: int, wait_ms: int = 0, partition: int = 0) -> dict[str, Any]:
    asked = {"partition": partition, "fetch_offset": offset, "partition_max_bytes": 2**20}
    named = {"topic_id": topic} if isinstance(topic, UUID) else {"topic": topic}
    return {
        "max_wait_ms": wait_ms,
        "min_bytes": 1,
        "max_bytes": 2**20,
        "session_epoch": -1,
        "topics": [{**named, "partitions": [asked]}],
        "forgotten_topics_data": [],
    }


def row_of(body: dict[str, Any]) -> dict[str, Any]:
    row: dict[str, Any] = body["responses"][0]["partitions"][0]
    return row


def values(row: dict[str, Any]) -> list[bytes | None]:
    data = row["records"] or b""
    return [record.value for first, last in batch_spans(data) for record in records_of(data[first:last])]


@in_loop
async def test_a_branch_is_fetched_by_name_and_by_an_id_that_every_broker_knows() -> None:
    bench = await two_branches()
    topic_id = view_id(bench.topics.known("t").topic.topic_id, Lane(0))
    by_id = row_of(ask(bench, ApiKey.FETCH, 16, fetch_body(topic_id, 0)))
    by_name = row_of(ask(bench, ApiKey.FETCH, 12, fetch_body("t@0", 0)))
    for row in (by_id, by_name):
        assert (row["error_code"], values(row), row["high_watermark"]) == (0, [b"a", b"b"], 2)
    asked = {"topics": [{"topic_id": NO_ID, "name": "t@0"}], "allow_auto_topic_creation": False}
    (told,) = (await metadata(bench, asked))["topics"]
    assert (told["topic_id"], told["partitions"][0]["leader_id"]) == (topic_id, bench.broker.id)


async def metadata(bench: Bench, body: dict[str, Any]) -> dict[str, Any]:
    pending = send(bench, ApiKey.METADATA, 12, body)
    await turn()
    assert pending.body is not None
    return pending.body


@in_loop
async def test_a_branch_that_is_written_to_wakes_who_waits_at_it() -> None:
    bench = await two_branches()
    pending = send(bench, ApiKey.FETCH, 12, fetch_body("t@1024", SECOND + 1, wait_ms=60_000))
    other = send(bench, ApiKey.FETCH, 12, fetch_body("t@0", 2, wait_ms=60_000))
    assert pending.body is None
    await write(bench, b"d")
    await turn()
    assert pending.body is not None
    assert values(row_of(pending.body)) == [b"d"]
    assert other.body is None, "nothing is ever added to a branch that is over"


@in_loop
async def test_where_a_partition_has_no_branch_of_that_number_the_view_is_empty() -> None:
    bench = await two_branches(2)
    view = bench.topics.readable("t@1024")
    assert len(view.partitions) == 2
    row = row_of(ask(bench, ApiKey.FETCH, 12, fetch_body("t@0", 0, partition=1)))
    assert (row["error_code"], values(row)) == (0, [])
    assert bench.topics.find_view("t@77") is None
    for strange in ("t@", "t@-1", "t@01", "t@x", "t@99999999999", "@0", "nowhere@0", "t@0@0"):
        assert bench.topics.find_view(strange) is None, strange
    row = row_of(ask(bench, ApiKey.FETCH, 12, fetch_body("t@0", 0, partition=7)))
    assert row["error_code"] == E.UNKNOWN_TOPIC_OR_PARTITION


@in_loop
async def test_what_was_removed_is_removed_of_a_branch_too() -> None:
    bench = await two_branches()
    bench.topics.readable("t@0")
    await bench.broker.kinds.of(bench.topics.partition("t", 0)).delete_before(
        bench.topics.partition("t", 0), Offset(1)
    )
    assert row_of(ask(bench, ApiKey.FETCH, 12, fetch_body("t@0", 0)))["error_code"] == E.OFFSET_OUT_OF_RANGE
    row = row_of(ask(bench, ApiKey.FETCH, 12, fetch_body("t@0", 1)))
    assert (row["log_start_offset"], values(row)[-1:]) == (1, [b"b"])


@in_loop
async def test_offsets_of_a_branch_are_found() -> None:
    bench = await two_branches()
    asked = [{"partition_index": 0, "timestamp": timestamp} for timestamp in (-1,)]
    body = {"replica_id": -1, "topics": [{"name": "t@0", "partitions": asked}]}
    (topic,) = ask(bench, ApiKey.LIST_OFFSETS, 7, body)["topics"]
    assert [(row["offset"], row["leader_epoch"]) for row in topic["partitions"]] == [(2, -1)]


@pytest.mark.parametrize("way", ["name", "id"])
def test_nothing_but_reading_is_done_to_a_branch(way: str) -> None:
    @in_loop
    async def body() -> None:
        bench = await two_branches()
        key: Any = "t@0" if way == "name" else view_id(bench.topics.known("t").topic.topic_id, Lane(0))
        for refuse in (bench.topics.known, lambda key: bench.topics.partition(key, 0)):
            with pytest.raises(ReadOnlyBranchError, match="t@0 is branch 0 of topic t, and only for reading"):
                refuse(key)

    body()


@in_loop
async def test_only_so_many_views_are_remembered_beyond_those_that_somebody_waits_at() -> None:
    bench = await two_branches()
    bench = bench.again()
    await write(bench, b"d")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(branch_views, "VIEWS_MAX", 1)
        pending = send(bench, ApiKey.FETCH, 12, fetch_body("t@2048", THIRD + 1, wait_ms=60_000))
        first = bench.topics.readable("t@0").partitions[0]
        second = bench.topics.readable("t@1024").partitions[0]
        assert isinstance(first, BranchView)
        assert isinstance(second, BranchView)
        assert (first.is_gone, second.is_gone) == (True, False)
        assert len(second.base.waiting_fetches) == 2
        assert bench.topics.readable("t@0").partitions[0] is not first
        await write(bench, b"e")
        await turn()
    assert pending.body is not None
    assert values(row_of(pending.body)) == [b"e"]


@in_loop
async def test_a_deleted_topic_has_no_branches() -> None:
    bench = await two_branches()
    pending = send(bench, ApiKey.FETCH, 12, fetch_body("t@0", 2, wait_ms=60_000))
    await bench.topics.delete("t")
    await turn()
    assert bench.topics.find_view("t@0") is None
    assert pending.body is not None
    assert row_of(pending.body)["error_code"] == E.UNKNOWN_TOPIC_OR_PARTITION
