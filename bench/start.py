"""How fast a node is there and how little it needs: start to first acknowledged produce, and memory when idle.

    python bench/start.py [ROUNDS]

Each round starts `anabranch up` as a process on an empty folder, asks it to create a topic and acknowledge one
record with acks=all, and reads its resident memory a second later. Then the in-process fixture, and a restart
after kill -9 with 100 MB of small batches in one partition. Medians and the spread are printed; nothing is judged
here, because machines differ.
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from anabranch.record.builder import BatchBuilder
from anabranch.wire.api_keys import ApiKey
from support.node_process import NodeProcess
from support.raw_client import RawClient

ROUNDS = 7
LOG_BYTES = 100 * 2**20
RECORD_BYTES = 100


def _produce(client: RawClient, batch: bytes, *, acks: int = -1) -> None:
    partition = {"index": 0, "records": batch}
    body = {
        "acks": acks,
        "timeout_ms": 5000,
        "topic_data": [{"name": "bench", "partition_data": [partition]}],
    }
    answer = client.ask(ApiKey.PRODUCE, 9, body)
    assert answer["responses"][0]["partition_responses"][0]["error_code"] == 0, answer


def _batch(count: int) -> bytes:
    builder = BatchBuilder()
    for _ in range(count):
        builder.add(None, b"x" * RECORD_BYTES, timestamp_ms=int(time.time() * 1000))
    return bytes(builder.build())


def _first_produce(bootstrap: str) -> None:
    with RawClient(bootstrap) as client:
        client.ask(ApiKey.METADATA, 9, {"topics": [{"name": "bench"}]})
        _produce(client, _batch(1))


def _resident_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("the system does not say how much memory a process has")


def start_and_memory(folder: Path) -> tuple[float, float]:
    node = NodeProcess(folder, {})
    started = time.monotonic()
    node.start()
    _first_produce(node.bootstrap)
    seconds = time.monotonic() - started
    time.sleep(1.0)
    resident = _resident_mb(node.pid)
    node.stop()
    return seconds, resident


def fixture_ready(folder: Path) -> float:
    from anabranch.testing import EmbeddedBroker

    started = time.monotonic()
    with EmbeddedBroker(folder):
        return time.monotonic() - started


def restart_after_kill(folder: Path, records_per_batch: int) -> list[float]:
    node = NodeProcess(folder, {"flush": "os"}).start()
    batch = _batch(records_per_batch)
    with RawClient(node.bootstrap) as client:
        client.ask(ApiKey.METADATA, 9, {"topics": [{"name": "bench"}]})
        for _ in range(LOG_BYTES // len(batch)):
            _produce(client, batch, acks=1)
    seconds = []
    for _ in range(3):
        node.kill()
        started = time.monotonic()
        node.start()
        seconds.append(time.monotonic() - started)
    node.stop()
    return seconds


def _row(name: str, values: list[float], unit: str) -> None:
    middle, low, high = statistics.median(values), min(values), max(values)
    sys.stdout.write(
        f"{name:58} {middle:8.3f} {unit:3} (from {low:.3f} to {high:.3f}, {len(values)} rounds)\n"
    )


def _in_folder(measure: Callable[[Path], float]) -> float:
    with tempfile.TemporaryDirectory() as folder:
        return measure(Path(folder))


def main(rounds: int) -> None:
    seconds, resident = [], []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            one_start, one_resident = start_and_memory(Path(folder))
        seconds.append(one_start)
        resident.append(one_resident)
    _row("start to first acknowledged produce", seconds, "s")
    _row("resident memory, idle", resident, "MB")
    _in_folder(fixture_ready)  # The first one pays for imports that a test session pays once.
    _row("in-process fixture ready", [_in_folder(fixture_ready) for _ in range(rounds)], "s")
    for records in (1, 100):
        with tempfile.TemporaryDirectory() as folder:
            name = f"ready after kill -9 with 100 MB, {records} x 100 B per batch"
            _row(name, restart_after_kill(Path(folder), records), "s")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS)
