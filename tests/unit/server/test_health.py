"""What `/healthz` and `/metrics` say of a broker."""

import json
from typing import Any

import pytest

from anabranch.errors import StorageError
from anabranch.server.health import health
from anabranch.server.listener import Listener
from anabranch.server.metrics import render
from support.broker_bench import Bench, batch_of, in_loop, turn


def seen(bench: Bench) -> tuple[bool, dict[str, Any]]:
    is_well, body = health(bench.broker)
    return is_well, json.loads(body)


def metrics(bench: Bench) -> str:
    return render(bench.broker, Listener(bench.broker, bench.clock, 10, 10)).decode()


@in_loop
async def test_health_is_good_until_a_partition_is_fenced() -> None:
    bench = Bench()
    partition = await bench.topic("t")
    assert seen(bench) == (True, {"status": "ok", "fenced_partitions": [], "groups": "ok"})
    bench.disk.fail_next("sync", path_contains="t-0")
    bench.submit(partition)
    await turn()
    assert seen(bench) == (False, {"status": "degraded", "fenced_partitions": ["t-0"], "groups": "ok"})


@in_loop
async def test_health_is_bad_when_groups_cannot_be_read_back() -> None:
    bench = Bench()
    bench.broker.offsets_topic.failed.add(0)
    assert seen(bench)[1]["groups"] == "failed"


@in_loop
async def test_health_is_bad_when_topics_cannot_be_written_down() -> None:
    bench = Bench()
    bench.disk.fail_next("sync", path_contains="__cluster_metadata")
    with pytest.raises(StorageError):
        await bench.topic("t")
    assert seen(bench)[1]["fenced_partitions"] == ["__cluster_metadata-0"]
    assert "anabranch_fenced_partitions 1.0" in metrics(bench)


@in_loop
async def test_metrics_count_what_happened() -> None:
    bench = Bench()
    partition = await bench.topic("t", 2)
    batch = batch_of(b"x")
    await bench.core.append(partition, batch)
    bench.broker.corrupt_reads_total = 3
    metadata_bytes = bench.core.bytes_in_total - len(batch)
    for line in (
        "anabranch_topics 1.0",
        "anabranch_partitions 2.0",
        f"anabranch_bytes_in_total {float(metadata_bytes + len(batch))}",
        f"anabranch_log_bytes {float(len(batch))}",
        "anabranch_corrupt_reads_total 3.0",
        "anabranch_append_queue_bytes 0.0",
        "anabranch_fenced_partitions 0.0",
        "anabranch_losses_at_start 0.0",
    ):
        assert line in metrics(bench).splitlines(), line
