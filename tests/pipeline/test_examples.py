"""The examples, run as their README says, on some of the flights that `make run` loads."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from confluent_kafka import Consumer
from examples.demo.source_files import read_source
from examples.demo.topics import Loader, Topic, topics_of

from anabranch.pipeline.spark.java import find_java
from support.node_process import NodeProcess

EXAMPLES = Path(__file__).parents[2] / "examples"
BIN = Path(sys.executable).parent
SECONDS_MAX = 600
FEW, MORE = 20_000, 30_000


@pytest.fixture(scope="module")
def flights() -> Topic:
    return topics_of(read_source())[0]


@pytest.fixture
def flights_node(tmp_path: Path, flights: Topic) -> Iterator[NodeProcess]:
    """A node of its own: the examples name their topics themselves."""
    with NodeProcess(tmp_path) as node:
        load(node, flights, FEW)
        yield node


def load(node: NodeProcess, flights: Topic, rows: int) -> None:
    assert flights.times is not None
    few = flights._replace(table=flights.table.slice(0, rows), times=flights.times.slice(0, rows))
    Loader(node.bootstrap).load(few, lambda _: None)


def run(command: list[str], folder: Path) -> str:
    java = str(find_java().home)
    environment = {
        **os.environ,
        "PYSPARK_PYTHON": sys.executable,
        "JAVA_HOME": java,
        "SPARK_CONF_DIR": "conf",
    }
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=SECONDS_MAX, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_declarative_pipeline_goes_on_where_it_stopped(
    flights_node: NodeProcess, flights: Topic, tmp_path: Path
) -> None:
    folder = declarative_copy(tmp_path, flights_node)
    command = [str(BIN / "spark-pipelines"), "run"]
    run(command, folder)
    assert_tables_hold(tmp_path / "lake" / "tables", flights.table.slice(0, FEW))
    load(flights_node, flights, MORE)
    run(command, folder)
    assert_tables_hold(tmp_path / "lake" / "tables", flights.table.slice(0, MORE))


def declarative_copy(place: Path, node: NodeProcess) -> Path:
    """The example with another broker and another place for what it keeps."""
    folder = place / "declarative"
    shutil.copytree(EXAMPLES / "declarative", folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("spark-pipeline.yml", "conf/spark-defaults.conf"):
        text = (folder / name).read_text().replace("/tmp/anabranch-flights", str(place / "lake"))
        (folder / name).write_text(text.replace("127.0.0.1:9092", node.bootstrap))
    return folder


def assert_tables_hold(folder: Path, expected: pa.Table) -> None:
    table = parquet(folder / "flights")
    assert table.num_rows == expected.num_rows
    assert table.group_by(["partition", "offset"]).aggregate([]).num_rows == expected.num_rows
    assert pc.sum(table["dep_delay"]) == pc.sum(expected["dep_delay"]).cast(pa.int64())
    carriers = parquet(folder / "delays_by_carrier")
    assert delays(carriers, "delay_sum") == delays(
        expected.group_by("carrier").aggregate([("dep_delay", "sum")]), "dep_delay_sum"
    )


def parquet(folder: Path) -> pa.Table:
    import pyarrow.parquet as pq

    return pa.concat_tables(pq.read_table(file) for file in sorted(folder.glob("*.parquet")))


def delays(table: pa.Table, column: str) -> dict[str, int]:
    return dict(zip(table["carrier"].to_pylist(), table[column].to_pylist(), strict=True))


def test_hourly_delays_follow_the_flights(flights_node: NodeProcess, flights: Topic, tmp_path: Path) -> None:
    command = [
        sys.executable, str(EXAMPLES / "hourly_delays.py"), "--once",
        "--bootstrap", flights_node.bootstrap, "--state", str(tmp_path / "state"),
    ]  # fmt: skip
    assert run(command, tmp_path).startswith(f"{FEW} flights read")
    assert_hours_hold(flights_node, flights.table.slice(0, FEW))
    load(flights_node, flights, MORE)
    assert run(command, tmp_path).startswith(f"{MORE - FEW} flights read")
    assert_hours_hold(flights_node, flights.table.slice(0, MORE))


def assert_hours_hold(node: NodeProcess, expected: pa.Table) -> None:
    hours = expected.group_by(["origin", "time_hour"]).aggregate(
        [([], "count_all"), ("dep_delay", "count"), ("dep_delay", "sum")]
    )
    assert last_by_key(node, "hourly_delays") == {
        f"{row['origin']} {row['time_hour']}": (
            row["count_all"],
            row["dep_delay_count"],
            row["dep_delay_sum"],
        )
        for row in hours.to_pylist()
    }


def last_by_key(node: NodeProcess, topic: str) -> dict[str, tuple[int, int, int | None]]:
    found: dict[str, tuple[int, int, int | None]] = {}
    for key, value in records(node, topic):
        found[key] = (value["flights"], value["departed"], value.get("delay_sum"))
    return found


def records(node: NodeProcess, topic: str) -> Iterator[tuple[str, dict[str, Any]]]:
    from confluent_kafka import OFFSET_BEGINNING, KafkaError, TopicPartition

    consumer = Consumer(
        {"bootstrap.servers": node.bootstrap, "group.id": "test", "enable.partition.eof": True}
    )
    partitions = consumer.list_topics(topic, timeout=10).topics[topic].partitions
    consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in partitions])
    ended = 0
    while ended < len(partitions):
        message = consumer.poll(10)
        assert message is not None, "the node is silent"
        if message.error() is None:
            yield message.key().decode(), json.loads(message.value())
        else:
            assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
            ended += 1
    consumer.close()
