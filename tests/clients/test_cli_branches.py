"""`anabranch branch`, and what other commands and clients make of a topic in mode branch, on a node that was restarted
twice: three branches in a row, one of which ended with kill -9."""

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import confluent_kafka
import pytest

from support.node_process import NodeProcess

RUN_S_MAX = 60
TOPIC = "orders"
SECOND, THIRD = 1024 << 32, 2048 << 32


class Cli:
    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    def run(self, *arguments: object, given: str = "") -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "anabranch", *map(str, arguments), "--bootstrap", self.bootstrap]
        return subprocess.run(command, input=given, capture_output=True, text=True, timeout=RUN_S_MAX)

    def __call__(self, *arguments: object, given: str = "") -> str:
        result = self.run(*arguments, given=given)
        assert result.returncode == 0, result.stderr
        return result.stdout

    def json(self, *arguments: object) -> Any:
        return json.loads(self(*arguments, "--format", "json"))


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cli]:
    with NodeProcess(tmp_path_factory.mktemp("branches")) as node:
        cli = Cli(node.bootstrap)
        cli("topic", "create", TOPIC, "--mode", "branch", "--partitions", 2)
        cli("produce", TOPIC, "--partition", 0, given="a1\na2\na3\n")
        node.stop()
        node.start()
        cli("produce", TOPIC, "--partition", 0, given="b1\nb2\n")
        node.kill()
        node.start()
        cli("produce", TOPIC, "--partition", 0, given="c1\n")
        yield cli


def test_a_tree_is_drawn_with_the_newest_branch_first(cli: Cli) -> None:
    rows = cli("branch", "show", f"{TOPIC}-0").splitlines()
    assert (
        rows[0] == f"{TOPIC}-0: one line of 6 records; broker 0 writes branch 2048 up to offset {THIRD + 1}"
    )
    assert [row.split()[:2] for row in rows[1:]] == [["*", "2048"], ["*", "1024"], ["*", "0"]]
    assert [" written " in row for row in rows[1:]] == [True, False, False]
    assert rows[2].endswith(f"ended    2 records  {SECOND} to {SECOND + 2}")
    assert "  sealed   3 records  0 to 3" in rows[3]


def test_json_has_offsets_as_text(cli: Cli) -> None:
    (shown,) = cli.json("branch", "show", f"{TOPIC}-0")
    assert [row["branch"] for row in shown["branches"]] == [2048, 1024, 0]
    assert shown["branches"][1]["end"] == str(SECOND + 2)
    assert shown["sides"][0]["line"][0] == {"branch": 0, "start": "0", "end": "3"}
    listed = cli.json("branch", "list")["branches"]
    assert [(row["partition"], row["branch"], row["records"]) for row in listed] == [
        (0, 2048, 6),
        (1, 2048, 0),
    ]


def test_a_branch_is_read_like_a_topic_and_by_any_client(cli: Cli) -> None:
    assert cli("consume", f"{TOPIC}@1024", "--partition", 0).split() == ["a1", "a2", "a3", "b1", "b2"]
    assert cli("consume", f"{TOPIC}@0").split() == ["a1", "a2", "a3"]
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": cli.bootstrap, "group.id": "view", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([f"{TOPIC}@1024"])
    messages = consumer.consume(5, timeout=30)
    assert [message.value() for message in messages] == [b"a1", b"a2", b"a3", b"b1", b"b2"]
    consumer.commit(asynchronous=False)
    consumer.close()
    assert cli.json("group", "describe", "view")["lag"] == 0


def test_kcat_reads_a_branch_and_stops_at_its_end(cli: Cli) -> None:
    command = ["kcat", "-q", "-b", cli.bootstrap, "-C", "-t", f"{TOPIC}@0", "-o", "beginning", "-e"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=RUN_S_MAX)
    assert (result.returncode, result.stdout.split()) == (0, ["a1", "a2", "a3"])


def test_branches_are_compared_by_their_records(cli: Cli) -> None:
    text = cli("branch", "diff", f"{TOPIC}-0", 0, 1024)
    assert (
        text
        == f"{TOPIC}-0: 0 only in {TOPIC}@0, 2 only in {TOPIC}@1024\n+ {SECOND}\tb1\n+ {SECOND + 1}\tb2\n"
    )
    (one, other) = cli.json("branch", "diff", TOPIC, 0, "--limit", 1)
    assert one["only"] == {f"{TOPIC}@0": 0, TOPIC: 3}
    assert [(each["offset"], each["value"]) for each in one["records"]] == [(str(SECOND), "b1")]
    assert other["only"] == {f"{TOPIC}@0": 0, TOPIC: 0}
    assert "has no branch 7: `anabranch branch show" in cli.run("branch", "diff", TOPIC, 7).stderr


def test_counts_pass_over_the_gaps_between_branches(cli: Cli) -> None:
    described = cli.json("topic", "describe", TOPIC)
    assert [row["records_max"] for row in described["partitions"]] == [6, 0]
    assert described["partitions"][0]["branches"] == [0, 1024, 2048]
    assert cli("consume", TOPIC, "--from", "-4").split() == ["a3", "b1", "b2", "c1"]
    cli("consume", TOPIC, "--group", "slow", "--max", 2)
    assert cli.json("group", "describe", "slow")["lag"] == 4
    cli("group", "reset", "slow", "--to", "-2", "--yes")
    assert cli.json("group", "describe", "slow")["lag"] == 2
    assert cli("consume", TOPIC, "--group", "slow").split() == ["b2", "c1"]


def test_nothing_is_written_to_a_branch_and_none_is_made(cli: Cli) -> None:
    for command in (
        ("produce", f"{TOPIC}@0"),
        ("topic", "delete", f"{TOPIC}@0", "--yes"),
        ("topic", "alter", f"{TOPIC}@0", "--config", "retention.ms=1"),
    ):
        assert "only for reading: name orders" in cli.run(*command, given="x\n").stderr, command
    assert "'@' stands before a branch" in cli.run("topic", "create", "new@1").stderr
    assert "no branch orders@77" in cli.run("consume", f"{TOPIC}@77").stderr
    assert "not in mode branch" in cli.run("branch", "list", "__consumer_offsets").stderr
    producer = confluent_kafka.Producer({"bootstrap.servers": cli.bootstrap})
    refused: list[confluent_kafka.KafkaError] = []
    producer.produce(f"{TOPIC}@0", b"x", on_delivery=lambda error, _: refused.append(error))
    producer.flush(20)
    assert [error.code() for error in refused] == [confluent_kafka.KafkaError.TOPIC_EXCEPTION]


def test_what_groups_read_of_branches_is_forgotten_with_the_topic(cli: Cli) -> None:
    cli("topic", "create", "gone", "--mode", "branch", "--partitions", 1)
    cli("produce", "gone", given="x\n")
    assert cli("consume", "gone@0", "--group", "reader").split() == ["x"]
    assert [row["topic"] for row in cli.json("group", "describe", "reader")["partitions"]] == ["gone@0"]
    cli("topic", "delete", "gone", "--yes")
    result = cli.run("group", "describe", "reader", "--format", "json")
    assert result.returncode == 1 or json.loads(result.stdout)["partitions"] == []
