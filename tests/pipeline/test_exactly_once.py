"""kill -9 at each step of a batch: afterwards every record of the topic is in the table, once.

The driver is a process of its own, killed together with its JVM; what counts is what the next one makes of the rest.
"""

import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import confluent_kafka
import pyarrow as pa
import pytest

from anabranch.pipeline.lake.formats.storage import listed
from anabranch.pipeline.lake.formats.table import open_table
from anabranch.pipeline.lake.maintain import sweep_orphans
from anabranch.pipeline.lake.settings import PipelineSettings
from support.lake_tables import read_rows
from support.node_process import NodeProcess
from support.topics import make_topic, send

PARTITIONS, RECORDS, PER_BATCH = 2, 4000, 1000
RUN_S_MAX = 900


def _settings(node: NodeProcess, folder: Path, topic: str, to: str) -> dict[str, Any]:
    return {
        "bootstrap": node.bootstrap,
        "topic": topic,
        "warehouse": str(folder / "warehouse"),
        "table": "kept",
        "to": to,
        "schema": "raw",
        "max_offsets_per_trigger": PER_BATCH,
        "once": True,
    }


def _fill(node: NodeProcess, topic: str) -> None:
    make_topic(node.bootstrap, topic, PARTITIONS)
    records = [(b"%d" % (number % 700), os.urandom(40) + b"%d" % number) for number in range(RECORDS)]
    for partition in range(PARTITIONS):
        send(node.bootstrap, topic, records[partition::PARTITIONS], partition)


def _drive(given: dict[str, Any], kill: dict[str, Any] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "support.pipeline_driver", json.dumps({"settings": given, "kill": kill})],
        capture_output=True,
        text=True,
        start_new_session=True,
        timeout=RUN_S_MAX,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )


def _kill(given: dict[str, Any], step: str, batch: int) -> None:
    run = _drive(given, {"step": step, "batch": batch})
    assert run.returncode == -signal.SIGKILL, f"it was not killed at {step}: {run.stderr[-3000:]}"


def _finish(given: dict[str, Any]) -> dict[str, int]:
    run = _drive(given)
    assert run.returncode == 0, run.stderr[-3000:]
    counts: dict[str, int] = json.loads(run.stdout.splitlines()[-1])
    return counts


def _log_content(node: NodeProcess, topic: str) -> set[tuple[int, int, bytes, bytes]]:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": node.bootstrap, "group.id": "check"})
    consumer.assign([confluent_kafka.TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    found: set[tuple[int, int, bytes, bytes]] = set()
    while len(found) < RECORDS:
        for message in consumer.consume(5000, 10):
            assert message.error() is None, message.error()
            found.add((message.partition(), message.offset(), message.key(), message.value()))
    consumer.close()
    return found


def _checksum(rows: Iterable[tuple[int, int, bytes, bytes]]) -> str:
    return hashlib.sha256(repr(sorted(rows)).encode()).hexdigest()


def _batch_in_table(settings: PipelineSettings) -> int:
    state = open_table(settings).state()
    return -1 if state is None else state.batch


def _commit_log(settings: PipelineSettings) -> set[str]:
    folder = settings.checkpoint_uri.removeprefix("file://") + "/commits"
    return {path.name for path in Path(folder).glob("[0-9]*")}


def _assert_same_as_log(node: NodeProcess, settings: PipelineSettings) -> None:
    rows: pa.Table = read_rows(settings)
    columns = [rows[name].to_pylist() for name in ("_partition", "_offset", "key", "value")]
    found = list(zip(*columns, strict=True))
    assert len(found) == len(set(found)) == RECORDS
    assert _checksum(found) == _checksum(_log_content(node, settings.topic))


def _assert_orphans_are_swept(settings: PipelineSettings, *, expected: bool) -> None:
    table = open_table(settings)
    live = {file.path for file in table.files()}
    before = {found.path for found in listed(table.data_folder) if found.path.endswith(".parquet")}
    assert (before > live) == expected
    sweep_orphans(settings, older_than_seconds=0)
    after = {found.path for found in listed(table.data_folder) if found.path.endswith(".parquet")}
    assert after == live


def test_iceberg_has_every_record_once_after_a_kill_at_each_step(
    node: NodeProcess, tmp_path: Path, unique: str
) -> None:
    _fill(node, unique)
    given = _settings(node, tmp_path, unique, "iceberg")
    settings = PipelineSettings(**given)

    _kill(given, "writing", 1)  # While executors write the second batch.
    assert _batch_in_table(settings) == 0
    _kill(given, "written", 0)  # The same batch again, up to the table's commit.
    assert _batch_in_table(settings) == 0
    _kill(given, "committed", 0)  # Once more, and through the commit.
    assert _batch_in_table(settings) == 1
    assert "1" not in _commit_log(settings)
    _kill(given, "done", 0)  # Batch 1 is skipped; batch 2 ends, and Spark does not hear of it.
    assert _batch_in_table(settings) == 2
    assert "2" not in _commit_log(settings)

    counts = _finish(given)
    assert counts["skipped"] == 1
    assert counts["read"] == counts["written"] == RECORDS - 3 * PER_BATCH
    _assert_same_as_log(node, settings)
    _assert_orphans_are_swept(settings, expected=True)
    _assert_same_as_log(node, settings)


@pytest.mark.parametrize("to", ["delta"])
def test_delta_has_every_record_once_after_a_kill_between_its_commit_and_sparks(
    node: NodeProcess, tmp_path: Path, unique: str, to: str
) -> None:
    _fill(node, unique)
    given = _settings(node, tmp_path, unique, to)
    settings = PipelineSettings(**given)
    _kill(given, "committed", 1)
    assert _batch_in_table(settings) == 1
    assert "1" not in _commit_log(settings)
    counts = _finish(given)
    assert counts["skipped"] == 1
    _assert_same_as_log(node, settings)
    _assert_orphans_are_swept(settings, expected=False)
