"""The pipeline on two executors, each a process of its own: nothing it needs may live in one process only.

Run by the real command, since a test process has one Spark session and that is embedded. Spark's event log says who
took part.
"""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from confluent_kafka import Producer

from support.node_process import NodeProcess
from support.quick_java import FLAGS

RECORDS = 20_000
SECONDS_MAX = 600
MASTER = "local-cluster[2,1,1024]"


@pytest.fixture
def topic(node: NodeProcess, unique: str) -> str:
    producer = Producer({"bootstrap.servers": node.bootstrap, "enable.idempotence": True})
    for number in range(RECORDS):
        row = {"number": number, "name": f"n{number % 100}"}
        producer.produce(unique, json.dumps(row), str(number), partition=number % 4)
        producer.poll(0)
    assert producer.flush(30) == 0
    return unique


@pytest.fixture
def run(node: NodeProcess, topic: str, tmp_path: Path) -> dict[str, object]:
    (tmp_path / "events").mkdir()
    command = [
        str(Path(sys.executable).with_name("anabranch")), "pipeline", "run", "--once", "--format", "json",
        "--bootstrap", node.bootstrap, "--topic", topic, "--to", "iceberg",
        "--warehouse", str(tmp_path / "warehouse"), "--table", "lake.numbers",
        "--checkpoint", str(tmp_path / "checkpoint"), "--master", MASTER,
        "--conf", "spark.eventLog.enabled=true", "--conf", f"spark.eventLog.dir={tmp_path / 'events'}",
        # Else the first to come could take all the work before the second is there.
        "--conf", "spark.scheduler.minRegisteredResourcesRatio=1.0",
        "--conf", "spark.scheduler.maxRegisteredResourcesWaitingTime=120s",
        "--conf", "spark.eventLog.rolling.enabled=false", "--conf", "spark.eventLog.compress=false",
        "--conf", f"spark.executor.extraJavaOptions={FLAGS}",
    ]  # fmt: skip
    environment = {**os.environ, "SPARK_HOME": str(spark_home(tmp_path)), "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=SECONDS_MAX, check=False
    )
    assert done.returncode == 0, done.stderr
    counts: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return counts


def test_two_executors_fill_one_table(run: dict[str, object], tmp_path: Path) -> None:
    assert (run["read"], run["written"], run["dlq"]) == (RECORDS, RECORDS, 0)
    assert numbers_in_table(tmp_path / "warehouse") == Counter(range(RECORDS))
    assert tasks_by_executor(tmp_path / "events").keys() == {"0", "1"}


def spark_home(folder: Path) -> Path:
    """Spark's own folder by way of links, since its workers keep the executors' logs in it."""
    import pyspark

    home = folder / "spark"
    home.mkdir()
    for name in ("bin", "jars", "python"):
        (home / name).symlink_to(Path(pyspark.__file__).parent / name)
    return home


def numbers_in_table(warehouse: Path) -> Counter[int]:
    from pyiceberg.catalog import load_catalog

    catalog = load_catalog("anabranch", type="sql", uri=f"sqlite:///{warehouse}/catalog.db")
    table = catalog.load_table("lake.numbers").scan(selected_fields=("number",)).to_arrow()
    return Counter(table["number"].to_pylist())


def tasks_by_executor(events: Path) -> Counter[str]:
    lines = [json.loads(line) for file in events.iterdir() for line in file.read_text().splitlines()]
    return Counter(
        line["Task Info"]["Executor ID"] for line in lines if line["Event"] == "SparkListenerTaskEnd"
    )
