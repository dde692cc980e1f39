"""A disk that is full: writes are refused by name, reads go on, and writing resumes when there is room again."""

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest

from support.node_process import NodeProcess

DISK_BYTES = 24 * 2**20
FILLER_BYTES = 12 * 2**20
TOPIC = "full"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of its own, 24 MB, half of it taken by a file that can be removed."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)],
        capture_output=True,
        text=True,
    )
    if mounted.returncode:
        reason = f"a small disk needs the right to mount one: {mounted.stderr.strip()}"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    try:
        (folder / "filler").write_bytes(bytes(FILLER_BYTES))
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def _produce(bootstrap: str, values: list[bytes]) -> tuple[list[bytes], list[confluent_kafka.KafkaError]]:
    """Which of the values were acknowledged, and what was said of the others; nothing is tried again."""
    kept: list[bytes] = []
    errors: list[confluent_kafka.KafkaError] = []

    def on_delivery(error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message) -> None:
        if error is None:
            kept.append(message.value())
        else:
            errors.append(error)

    producer = confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap, "acks": "all", "retries": 0, "linger.ms": 0}
    )
    for value in values:
        producer.produce(TOPIC, value, partition=0, on_delivery=on_delivery)
        producer.flush(10)
    return kept, errors


def _consume(bootstrap: str, count: int) -> list[bytes]:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": "reader"})
    consumer.assign([confluent_kafka.TopicPartition(TOPIC, 0, 0)])
    values: list[bytes] = []
    deadline = time.monotonic() + 20
    while len(values) < count:
        assert time.monotonic() < deadline, f"read {len(values)} of {count}"
        values += [message.value() for message in consumer.consume(count, 0.5) if message.error() is None]
    consumer.close()
    return values


def test_a_full_disk_refuses_writes_serves_reads_and_resumes(small_disk: Path, tmp_path: Path) -> None:
    values = [b"%06d" % number + os.urandom(500_000) for number in range(40)]
    with NodeProcess(tmp_path, {}, data_folder=small_disk / "data") as node:
        kept, errors = _produce(node.bootstrap, values)
        assert kept, "the disk had room for some"
        assert {error.code() for error in errors} == {confluent_kafka.KafkaError.KAFKA_STORAGE_ERROR}
        assert _consume(node.bootstrap, len(kept)) == kept

        (small_disk / "filler").unlink()
        later, errors_later = _produce(node.bootstrap, [b"later %d" % number for number in range(10)])
        assert not errors_later
        assert len(later) == 10
        assert _consume(node.bootstrap, len(kept) + 10) == kept + later
    with NodeProcess(tmp_path, {}, data_folder=small_disk / "data") as node:
        assert _consume(node.bootstrap, len(kept) + 10) == kept + later


def test_records_survive_a_kill_while_the_disk_is_full(small_disk: Path, tmp_path: Path) -> None:
    values = [b"%06d" % number + os.urandom(500_000) for number in range(40)]
    node = NodeProcess(tmp_path, {}, data_folder=small_disk / "data").start()
    kept, errors = _produce(node.bootstrap, values)
    assert errors
    node.kill()
    node.start()
    assert _consume(node.bootstrap, len(kept)) == kept
    (small_disk / "filler").unlink()
    later, errors_later = _produce(node.bootstrap, [b"later"])
    assert (later, errors_later) == ([b"later"], [])
    node.stop()
