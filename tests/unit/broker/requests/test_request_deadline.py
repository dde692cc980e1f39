"""Rows of a request that are not begun within its timeout_ms are refused; those that have begun are finished."""

from typing import Any

import pytest

from anabranch.testing.in_process_client import InProcessClient
from anabranch.wire.api_keys import ApiKey
from anabranch.wire.error_codes import ErrorCode
from support.broker_bench import Bench, in_loop, turn


async def codes(bench: Bench, timeout_ms: int) -> list[int]:
    """Create three topics, each of which takes 60 ms."""
    create = bench.broker.topics.create

    async def slowly(topic: Any) -> None:
        bench.clock.advance(60)
        await create(topic)

    bench.broker.topics.create = slowly  # type: ignore[method-assign]
    asked = [
        {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
        for name in "abc"
    ]
    client = InProcessClient(bench.broker)
    answer = await client.ask(ApiKey.CREATE_TOPICS, 7, {"topics": asked, "timeout_ms": timeout_ms})
    return [row["error_code"] for row in answer["topics"]]


@pytest.mark.parametrize(
    ("timeout_ms", "expected"),
    [
        (100, [0, 0, ErrorCode.REQUEST_TIMED_OUT]),
        (1000, [0, 0, 0]),
        (0, [0, 0, 0]),
    ],
)
def test_topics_not_begun_in_time_are_refused(timeout_ms: int, expected: list[int]) -> None:
    @in_loop
    async def run() -> None:
        bench = Bench()
        bench.broker.start()
        await turn()
        assert await codes(bench, timeout_ms) == expected
        await bench.broker.close()

    run()
