"""The command line on a node with an object store, and on its folder."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from anabranch.testing import EmbeddedBroker
from support.node_process import NodeProcess
from support.raw_client import RawClient, batch_of

from .test_cli import PROGRAM, RUN_S_MAX, Cli


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    folder = tmp_path_factory.mktemp("cli-objects")
    with NodeProcess(folder, {"object.store": f"file://{folder}/store", "object.gather.ms": "5"}) as running:
        yield running


@pytest.fixture
def cli(node: NodeProcess) -> Cli:
    return Cli(node.bootstrap)


def test_topic_is_made_described_changed_and_deleted(cli: Cli, unique: str) -> None:
    cli("topic", "create", unique, "--mode", "object", "--partitions", 2)
    assert {"topic": unique, "partitions": 2, "mode": "object"} in cli.json("topic", "list")
    assert "Mode: object\n" in cli("topic", "describe", unique)
    cli("topic", "alter", unique, "--partitions", 3, "--config", "retention.ms=1000000")
    described = cli.json("topic", "describe", unique)
    assert described["mode"] == "object"
    assert described["configs"] == {"anabranch.mode": "object", "retention.ms": "1000000"}
    assert [row["partition"] for row in described["partitions"]] == [0, 1, 2]
    for refused in (("--mode", "solo"), ("--delete-config", "anabranch.mode")):
        assert "out of the object store" in cli.run("topic", "alter", unique, *refused).stderr
    cli("topic", "delete", unique, "--yes")
    assert unique not in [row["topic"] for row in cli.json("topic", "list")]


def test_records_go_in_and_come_out(cli: Cli, unique: str) -> None:
    cli("topic", "create", unique, "--mode", "object", "--partitions", 1)
    lines = [{"key": "k", "value": f"v{number}"} for number in range(20)]
    given = "".join(json.dumps(line) + "\n" for line in lines)
    cli("produce", unique, "--format", "ndjson", given=given)
    assert [record["value"] for record in cli.records(unique)] == [line["value"] for line in lines]
    (row,) = cli.json("topic", "describe", unique)["partitions"]
    assert (row["start"], row["end"]) == (0, 20)


def test_cluster_of_one_shows_its_segments_and_keeps_nothing_of_them(cli: Cli, unique: str) -> None:
    cli("topic", "create", unique, "--mode", "object", "--partitions", 1)
    cli("produce", unique, "--format", "ndjson", given='{"value": "x"}\n')
    shown = cli("cluster", "segments")
    assert "FLUSHED" in shown
    assert "written and 0 merged objects" in " ".join(shown.split())
    (facts,) = cli.json("cluster", "segments")["brokers"].values()
    assert facts["objects"]["bytes"] > 0
    (row,) = cli.json("cluster", "ring", "--topic", unique)
    assert (row["leader"], row["replicas"], row["end"]) == (0, [], 1)
    status = cli("cluster", "status")
    assert "Every partition has a leader" in status


def test_node_without_a_store_says_so(bootstrap: str, unique: str) -> None:
    cli = Cli(bootstrap)
    assert "start it with --object-store" in cli.run("topic", "create", unique, "--mode", "object").stderr
    assert "has no object store" in cli.run("cluster", "segments").stderr


def test_folder_of_a_node_with_objects_is_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when the agreed table was written aside, with coordinates in files of their own."""
    monkeypatch.setattr("anabranch.broker.metadata.metadata_log.ENTRIES_PER_SNAPSHOT", 20)
    folder = tmp_path / "data"
    settings = {"object.store": "memory:", "object.gather.ms": 0}
    with EmbeddedBroker(folder, settings=settings) as broker, RawClient(broker.bootstrap) as client:
        client.create_topic("stored", anabranch_mode="object")
        client.create_topic("kept")
        client.produce("kept", 0, batch_of(b"x"))
        for _ in range(40):
            client.produce("stored", 0, batch_of(b"x"))
    assert list((folder / "objects").glob("*.rows"))
    found = _offline("log", "verify", str(folder))
    assert found.returncode == 0, found.stderr
    assert "kept-0" in found.stdout
    assert "stored-0" not in found.stdout
    assert "Nothing is damaged." in _offline("log", "repair", str(folder), "--dry-run").stdout


def _offline(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(PROGRAM), *arguments], capture_output=True, text=True, timeout=RUN_S_MAX)
