"""Requests that name one thing again and again are answered once, and lookups that unpack leave the loop alone."""

from typing import Any

from anabranch.broker.handlers.answers import ANSWER_BYTES_WHEN_SHORT
from anabranch.record.compression import Codec
from anabranch.testing.in_process_client import InProcessClient
from anabranch.wire.api_keys import ApiKey
from anabranch.wire.error_codes import ErrorCode
from support.broker_bench import Bench, batch_of, in_loop, turn
from support.workers import HeldWorkers


async def with_commits(bench: Bench, metadata: str) -> InProcessClient:
    await bench.topic("t", 2)
    bench.broker.start()
    await turn()
    client = InProcessClient(bench.broker)
    rows = [
        {"partition_index": index, "committed_offset": 5, "committed_metadata": metadata}
        for index in range(2)
    ]
    body = {
        "group_id": "g",
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "topics": [{"name": "t", "partitions": rows}],
    }
    answer = await client.ask(ApiKey.OFFSET_COMMIT, 5, body)
    assert [row["error_code"] for row in answer["topics"][0]["partitions"]] == [0, 0]
    return client


@in_loop
async def test_group_named_a_thousand_times_is_answered_once() -> None:
    bench = Bench()
    client = await with_commits(bench, "m" * 4000)
    groups = [{"group_id": "g", "topics": None}] * 1000
    answer = await client.ask(ApiKey.OFFSET_FETCH, 8, {"groups": groups})
    (group,) = answer["groups"]
    assert [row["committed_offset"] for row in group["topics"][0]["partitions"]] == [5, 5]
    await bench.broker.close()


@in_loop
async def test_answer_beyond_its_limit_is_refused_group_by_group() -> None:
    bench = Bench(request_answer_bytes_max=65536)
    client = await with_commits(bench, "m" * 4000)
    asked: list[dict[str, Any]] = [
        {"group_id": "g", "topics": [{"name": "t", "partition_indexes": [0, 1] * 20}]},
        {"group_id": "other", "topics": None},
    ]
    answer = await client.ask(ApiKey.OFFSET_FETCH, 8, {"groups": asked})
    assert [group["error_code"] for group in answer["groups"]] == [ErrorCode.INVALID_REQUEST, 0]
    await bench.broker.close()


@in_loop
async def test_producers_of_a_partition_named_a_hundred_times_are_told_once() -> None:
    bench = Bench()
    await bench.core.append(
        await bench.topic("t"), batch_of(producer_id=7, producer_epoch=0, base_sequence=0)
    )
    topics = [{"name": "t", "partition_indexes": [0] * 50}] * 2
    answer = await InProcessClient(bench.broker).ask(ApiKey.DESCRIBE_PRODUCERS, 0, {"topics": topics})
    (partition,) = [row for topic in answer["topics"] for row in topic["partitions"]]
    assert [row["producer_id"] for row in partition["active_producers"]] == [7]


@in_loop
async def test_lookup_by_time_unpacks_in_a_worker() -> None:
    bench = Bench()
    await bench.core.append(await bench.topic("t"), batch_of(b"x" * 1000, codec=Codec.ZSTD))
    bench.broker.workers = workers = HeldWorkers()
    for timestamp in (-3, 1):
        rows = [{"partition_index": 0, "timestamp": timestamp}]
        body = {"replica_id": -1, "topics": [{"name": "t", "partitions": rows}]}
        pending = InProcessClient(bench.broker).send(ApiKey.LIST_OFFSETS, 7, body)
        await turn()
        assert (pending.is_settled, len(workers.heavies)) == (False, 1)
        assert bench.broker.unpack_memory.bytes_taken > 0
        workers.run_heavy()
        await turn()
        assert pending.body is not None
        assert pending.body["topics"][0]["partitions"][0]["offset"] == 0
    assert bench.broker.unpack_memory.bytes_taken == 0


@in_loop
async def test_answers_are_short_while_readers_leave_many_of_them_in_memory() -> None:
    bench = Bench()
    client = await with_commits(bench, "m" * 4000)

    async def code(times: int) -> int:
        topics = [{"name": "t", "partition_indexes": [0] * times}]
        answer = await client.ask(ApiKey.OFFSET_FETCH, 7, {"group_id": "g", "topics": topics})
        return int(answer["error_code"])

    many = 2 * ANSWER_BYTES_WHEN_SHORT // 4000
    assert await code(many) == 0
    bench.broker.answers_held.count = bench.broker.settings.request_memory_bytes_max + 1
    assert (await code(many), await code(10)) == (ErrorCode.INVALID_REQUEST, 0)


@in_loop
async def test_log_dirs_of_a_topic_named_twice_are_told_of_all_its_partitions() -> None:
    bench = Bench()
    await bench.topic("t", 3)
    topics = [{"topic": "t", "partitions": [0, 1]}, {"topic": "t", "partitions": [1, 2]}]
    answer = await InProcessClient(bench.broker).ask(ApiKey.DESCRIBE_LOG_DIRS, 4, {"topics": topics})
    (found,) = answer["results"][0]["topics"]
    assert [row["partition_index"] for row in found["partitions"]] == [0, 1, 2]
