"""The same topics through `format("anabranch")` and through Spark's own Kafka connector: identical rows.

The connector runs in an environment of its own, with the Spark it belongs to, once for all reads of this file; our
reads run in the Spark of this process. Both write Parquet, and what is compared are all rows with all columns that
both have.
"""

import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from anabranch.pipeline.spark.java import find_java
from anabranch.record.batch import batch_spans, read_header
from anabranch.record.builder import BatchBuilder
from clients.registries import or_skip
from clients.spark_connector import spark_connector
from support.node_process import NodeProcess
from support.raw_client import RawClient
from support.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.interop

CONNECTOR_SECONDS_MAX = 240.0
COLUMNS = ("key", "value", "headers", "topic", "partition", "offset", "timestamp", "timestampType")
START_MS = 1_600_000_000_123
PARTITIONS = 2
ROUNDS = 30
EVERY_BYTE = bytes(range(256))
# The cleaner works at once, so that one of the topics has gaps; retention would take records as old as these.
SETTINGS = {
    "log.cleaner.backoff.ms": "50",
    "log.cleaner.min.cleanable.ratio": "0.01",
    "log.retention.ms": "-1",
}

CONTENTS: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]], int]] = [
    (b"key", b"value", [], 0),
    (None, b"no key", [("one", b"1")], -5_000),
    (b"no value", None, [("twice", b"1"), ("twice", b"2"), ("", b"no name")], 1),
    (None, None, [("null", None), ("empty", b"")], 2),
    (b"", b"", [("Schlüssel", "Größe".encode()), ("bytes", EVERY_BYTE)], 999),
    (EVERY_BYTE, EVERY_BYTE * 20, [], 3_600),
]


def by_time(start_ms: int, end_ms: int) -> dict[str, str]:
    return {"startingTimestamp": str(start_ms), "endingTimestamp": str(end_ms)}


def by_offset(topic: str) -> dict[str, str]:
    return {
        "startingOffsets": json.dumps({topic: {"0": 7, "1": -2}}),
        "endingOffsets": json.dumps({topic: {"0": 61, "1": -1}}),
    }


READS: dict[str, Mapping[str, str]] = {
    "all codecs": {"subscribe": "codecs"},
    "log append time": {"subscribe": "stamped"},
    "compacted gaps": {"subscribe": "compacted"},
    "an empty topic": {"subscribe": "empty"},
    "several topics": {"subscribe": "codecs,stamped,empty"},
    "a pattern": {"subscribePattern": "compac.*ed"},
    "a pattern for a part of the name": {"subscribePattern": " (ompac|pty$)"},
    "one partition": {"assign": json.dumps({"codecs": [1]})},
    "a range of offsets": {"subscribe": "codecs", **by_offset("codecs")},
    "a range of offsets with gaps": {"subscribe": "compacted", **by_offset("compacted")},
    "a range of times": {"subscribe": "codecs", **by_time(START_MS + 5_000, START_MS + 20_000)},
    "a range of times with gaps": {"subscribe": "compacted", **by_time(START_MS + 5_000, START_MS + 28_000)},
    "more tasks than partitions": {"subscribe": "codecs", "minPartitions": "7"},
}


class Compared(NamedTuple):
    bootstrap: str
    theirs: Path
    """Holds a folder per read."""


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Compared]:
    connector = or_skip(spark_connector)
    with NodeProcess(tmp_path_factory.mktemp("compared-node"), SETTINGS) as node:
        fill(node)
        theirs = tmp_path_factory.mktemp("theirs")
        reads = [
            {"options": options_of(node.bootstrap, name), "folder": str(theirs / name)} for name in READS
        ]
        run_connector(theirs / "job.json", connector.python, [str(jar) for jar in connector.jars], reads)
        yield Compared(node.bootstrap, theirs)


def options_of(bootstrap: str, name: str) -> dict[str, str]:
    return {"kafka.bootstrap.servers": bootstrap, "includeHeaders": "true", **READS[name]}


def run_connector(job: Path, python: Path, jars: list[str], reads: list[dict[str, Any]]) -> None:
    job.write_text(json.dumps({"jars": jars, "reads": reads}))
    java = find_java()
    program = Path(__file__).with_name("connector_rows.py")
    environment = {**os.environ, "JAVA_HOME": str(java.home), "PYSPARK_PYTHON": str(python), "PYTHONPATH": ""}
    environment.pop("SPARK_HOME", None)
    done = subprocess.run(
        [str(python), str(program), str(job)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=CONNECTOR_SECONDS_MAX,
    )
    assert done.returncode == 0, done.stderr[-3000:]


# --- what is in the topics -------------------------------------------------------------------------------------


def fill(node: NodeProcess) -> None:
    with RawClient(node.bootstrap) as client:
        client.create_topic("codecs", PARTITIONS, segment_bytes="20000")
        client.create_topic("stamped", 1, message_timestamp_type="LogAppendTime")
        client.create_topic("compacted", PARTITIONS, cleanup_policy="compact", segment_bytes="4000")
        client.create_topic("empty", PARTITIONS)
        for number in range(ROUNDS):
            for partition in range(PARTITIONS):
                send(client, "codecs", partition, contents(number))
                send(client, "compacted", partition, versions(number))
            send(client, "stamped", 0, contents(number))
        wait_until(lambda: all(has_gaps(client, partition) for partition in range(PARTITIONS)), 30)


def send(client: RawClient, topic: str, partition: int, batch: bytes) -> None:
    assert client.produce(topic, partition, batch)["error_code"] == 0


def contents(number: int) -> bytes:
    builder = BatchBuilder(codec=number % 5)
    for key, value, headers, later_ms in CONTENTS:
        builder.add(key, value, headers, timestamp_ms=START_MS + number * 1000 + later_ms)
    return bytes(builder.build())


def versions(number: int) -> bytes:
    builder = BatchBuilder(codec=number % 5)
    for key in range(number % 4, 12):
        value = None if (key + number) % 9 == 0 else b"version %d" % number * 3
        builder.add(b"key %d" % key, value, [("n", b"%d" % number)], timestamp_ms=START_MS + number * 1000)
    return bytes(builder.build())


def has_gaps(client: RawClient, partition: int) -> bool:
    records = bytes(client.fetch("compacted", partition, 0)["records"])
    headers = [read_header(records, start) for start, _ in batch_spans(records)]
    return any(header.record_count <= header.last_offset_delta for header in headers)


# --- the rows ---------------------------------------------------------------------------------------------------


def rows_of(folder: Path) -> list[tuple[Any, ...]]:
    """All rows in a Parquet folder, in the order of the log."""
    import pyarrow.parquet as parquet

    table = parquet.read_table(folder).select(COLUMNS)
    rows = list(zip(*(table[name].to_pylist() for name in COLUMNS), strict=True))
    return sorted(rows, key=lambda row: (row[3], row[4], row[5]))


@pytest.fixture
def in_microseconds(spark: "SparkSession") -> Iterator[None]:
    """Parquet with times as both sides write them; the session is shared, so it is set back."""
    name = "spark.sql.parquet.outputTimestampType"
    before = spark.conf.get(name)
    spark.conf.set(name, "TIMESTAMP_MICROS")
    yield
    spark.conf.set(name, before)


@pytest.mark.usefixtures("in_microseconds")
@pytest.mark.parametrize("direct", ["auto", "never"])
@pytest.mark.parametrize("name", READS)
def test_rows_are_those_of_sparks_own_connector(
    spark: "SparkSession", compared: Compared, tmp_path: Path, name: str, direct: str
) -> None:
    options = {**options_of(compared.bootstrap, name), "direct": direct}
    ours = spark.read.format("anabranch").options(**options).load()
    ours.write.parquet(str(tmp_path / "ours"))
    expected, found = rows_of(compared.theirs / name), rows_of(tmp_path / "ours")
    assert len(found) == len(expected)
    assert found == expected
    assert bool(found) == (name != "an empty topic")


def test_the_compared_rows_have_everything_that_could_differ(compared: Compared) -> None:
    plain = rows_of(compared.theirs / "all codecs")
    assert len(plain) == ROUNDS * PARTITIONS * len(CONTENTS)
    assert {row[0] for row in plain} == {content[0] for content in CONTENTS}
    assert {row[1] for row in plain} == {content[1] for content in CONTENTS}
    assert {row[7] for row in plain} == {0}
    assert {row[7] for row in rows_of(compared.theirs / "log append time")} == {1}
    thinned = [row[5] for row in rows_of(compared.theirs / "compacted gaps") if row[4] == 0]
    assert len(thinned) < thinned[-1] - thinned[0]
    ranged = rows_of(compared.theirs / "a range of times")
    assert 0 < len(ranged) < len(plain)
