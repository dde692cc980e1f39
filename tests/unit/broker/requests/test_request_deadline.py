"""Rows of a request that are not begun within its timeout_ms are refused; those that have begun are finished."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from anabranch.testing.in_process_client import InProcessClient
from anabranch.wire.api_keys import ApiKey
from anabranch.wire.error_codes import ErrorCode
from support.broker_bench import Bench, in_loop, turn

NAMES = "abc"
CREATED = [
    {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
    for name in NAMES
]
WIDENED = [{"name": name, "count": 2, "assignments": None} for name in NAMES]


def slowed(bench: Bench, change: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    """The same change of a topic, which takes 60 ms."""

    async def slowly(*args: Any) -> None:
        bench.clock.advance(60)
        await change(*args)

    return slowly


@pytest.mark.parametrize(
    ("api_key", "version", "rows", "change"),
    [
        (ApiKey.CREATE_TOPICS, 7, {"topics": CREATED}, "create"),
        (ApiKey.CREATE_PARTITIONS, 3, {"topics": WIDENED}, "add_partitions"),
        (ApiKey.DELETE_TOPICS, 5, {"topic_names": list(NAMES)}, "delete"),
    ],
    ids=lambda each: each.name if isinstance(each, ApiKey) else "",
)
@pytest.mark.parametrize(
    ("timeout_ms", "expected"),
    [
        (100, [0, 0, ErrorCode.REQUEST_TIMED_OUT]),
        (1000, [0, 0, 0]),
        (0, [0, 0, 0]),
    ],
)
def test_topics_not_begun_in_time_are_refused(
    timeout_ms: int, expected: list[int], api_key: ApiKey, version: int, rows: dict[str, Any], change: str
) -> None:
    @in_loop
    async def run() -> None:
        bench = Bench()
        bench.broker.start()
        await turn()
        topics, client = bench.broker.topics, InProcessClient(bench.broker)
        if api_key != ApiKey.CREATE_TOPICS:
            await client.ask(ApiKey.CREATE_TOPICS, 7, {"topics": CREATED, "timeout_ms": 1000})
        setattr(topics, change, slowed(bench, getattr(topics, change)))
        answer = await client.ask(api_key, version, {**rows, "timeout_ms": timeout_ms})
        (answered,) = [each for each in answer.values() if isinstance(each, list)]
        assert [row["error_code"] for row in answered] == expected
        await bench.broker.close()

    run()
