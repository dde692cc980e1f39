"""The command line against a running broker, each command as a process, the way a user runs it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(sys.executable).with_name("anabranch")
RUN_S_MAX = 60

AWKWARD = [
    {"key": None, "value": "plain"},
    {"key": "", "value": ""},
    {"key": {"base64": "/w=="}, "value": None},
    {"key": "k", "value": 'é\u0000\n"\\'},
    {
        "key": "k",
        "value": {"base64": "gIGC"},
        "headers": [["h", None], ["h", ""], ["bin", {"base64": "/w=="}]],
    },
]


class Cli:
    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    def __call__(self, *arguments: object, given: str = "", exit_code: int = 0) -> str:
        result = self.run(*arguments, given=given)
        assert result.returncode == exit_code, result.stderr
        return result.stdout

    def run(self, *arguments: object, given: str = "") -> subprocess.CompletedProcess[str]:
        command = [str(PROGRAM), *map(str, arguments), "--bootstrap", self.bootstrap]
        return subprocess.run(command, input=given, capture_output=True, text=True, timeout=RUN_S_MAX)

    def json(self, *arguments: object, given: str = ""):
        return json.loads(self(*arguments, "--format", "json", given=given))

    def records(self, topic: str, *arguments: object) -> list[dict]:
        lines = self("consume", topic, "--format", "ndjson", *arguments).splitlines()
        return sorted(map(json.loads, lines), key=lambda record: (record["partition"], record["offset"]))


@pytest.fixture
def cli(bootstrap: str) -> Cli:
    return Cli(bootstrap)


@pytest.fixture
def topic(cli: Cli, unique: str) -> str:
    cli("topic", "create", unique, "--partitions", 2)
    return unique


def test_topic_lives_from_create_to_delete(cli, unique):
    assert cli.json("topic", "create", unique, "--partitions", 2, "--config", "retention.ms=60000")["created"]
    assert {"topic": unique, "partitions": 2, "mode": "solo"} in cli.json("topic", "list")
    assert cli.json("topic", "describe", unique)["configs"] == {"retention.ms": "60000"}
    cli(
        "topic",
        "alter",
        unique,
        "--partitions",
        3,
        "--config",
        "segment.bytes=1048576",
        "--delete-config",
        "retention.ms",
    )
    described = cli.json("topic", "describe", unique)
    assert described["configs"] == {"segment.bytes": "1048576"}
    assert [row["partition"] for row in described["partitions"]] == [0, 1, 2]
    cli("topic", "delete", unique, "--yes")
    assert unique not in [row["topic"] for row in cli.json("topic", "list")]


def test_mode_of_a_topic_is_chosen_and_shown(cli, unique):
    cli("topic", "create", unique, "--mode", "solo", "--replicas", 1)
    assert "Mode: solo\n" in cli("topic", "describe", unique)
    described = cli.json("topic", "describe", unique)
    assert (described["mode"], described["configs"]) == ("solo", {"anabranch.mode": "solo"})
    cli("topic", "alter", unique, "--delete-config", "anabranch.mode")
    described = cli.json("topic", "describe", unique)
    assert (described["mode"], described["configs"]) == ("solo", {})
    assert "this node is alone" in cli.run("topic", "alter", unique, "--mode", "ring").stderr
    cli("topic", "create", f"{unique}-b", "--mode", "branch")
    assert "Mode: branch\n" in cli("topic", "describe", f"{unique}-b")
    assert "out of mode branch" in cli.run("topic", "alter", f"{unique}-b", "--mode", "solo").stderr
    clash = cli.run("topic", "create", unique, "--mode", "solo", "--config", "anabranch.mode=ring")
    assert "say different things" in clash.stderr


def test_topic_that_is_there_is_an_error_unless_that_is_fine(cli, topic):
    assert "There is a topic" in cli.run("topic", "create", topic).stderr
    assert cli.json("topic", "create", topic, "--if-not-exists") == {"topic": topic, "created": False}


@pytest.mark.parametrize("config", ["no.such.config=1", "retention.ms=soon"])
def test_config_that_cannot_be_is_refused_by_name(cli, unique, config):
    result = cli.run("topic", "create", unique, "--config", config)
    assert result.returncode == 1
    assert config.partition("=")[0] in result.stderr


@pytest.mark.parametrize("command", [("consume",), ("topic", "describe"), ("topic", "delete", "--yes")])
def test_unknown_topic_is_one_sentence_and_is_not_created(cli, unique, command):
    result = cli.run(*command, unique)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith(f"Error: There is no topic called {unique}: `anabranch topic list`")
    assert unique not in [row["topic"] for row in cli.json("topic", "list")]


def test_lines_become_records_and_come_back_as_lines(cli, unique):
    cli("topic", "create", unique, "--partitions", 1)
    cli("produce", unique, given="one\n\nthree\n")
    assert cli("consume", unique) == "one\n\nthree\n"


def test_key_is_split_off_at_the_separator(cli, topic):
    assert cli.json("produce", topic, "--key-separator", ":", given="k:v:w\n") == {
        "topic": topic,
        "produced": 1,
        "failed": 0,
    }
    assert cli("consume", topic) == "k\tv:w\n"


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_ndjson_of_one_topic_into_another_is_a_round_trip(cli, topic, unique, codec):
    lines = [
        json.dumps({**record, "partition": number % 2, "timestamp": 1_700_000_000_000 + number})
        for number, record in enumerate(AWKWARD)
    ]
    cli("produce", topic, "--format", "ndjson", "--codec", codec, given="\n".join(lines) + "\n")
    copy = f"{topic[:60]}-copy-{unique[-8:]}"
    cli("topic", "create", copy, "--partitions", 2)
    cli("produce", copy, "--format", "ndjson", given=cli("consume", topic, "--format", "ndjson"))
    first, second = cli.records(topic), cli.records(copy)
    assert len(first) == len(AWKWARD)
    assert [{**record, "topic": ""} for record in first] == [{**record, "topic": ""} for record in second]
    by_number = sorted(first, key=lambda record: record["timestamp"])
    assert [(record["key"], record["value"]) for record in by_number] == [
        (record["key"], record["value"]) for record in AWKWARD
    ]
    assert by_number[-1]["headers"] == AWKWARD[-1]["headers"]


def test_bad_line_is_named_and_what_came_before_it_is_delivered(cli, unique):
    cli("topic", "create", unique, "--partitions", 1)
    result = cli.run("produce", unique, "--format", "ndjson", given='{"value": "good"}\nbad\n')
    assert result.returncode == 1
    assert "<stdin>:2 is not JSON" in json.loads(result.stderr)["error"]
    assert cli("consume", unique) == "good\n"


def test_files_are_sent_in_order(cli, unique, tmp_path):
    cli("topic", "create", unique, "--partitions", 1)
    for name in ("a", "b"):
        (tmp_path / name).write_text(f"{name}1\n{name}2")
    cli("produce", unique, tmp_path / "a", tmp_path / "b")
    assert cli("consume", unique) == "a1\na2\nb1\nb2\n"


@pytest.fixture
def ten(cli: Cli, unique: str) -> str:
    """A topic of one partition with the records 0 to 9, a second apart from 1,700,000,000 s on."""
    cli("topic", "create", unique, "--partitions", 1)
    lines = [
        json.dumps({"value": str(number), "timestamp": 1_700_000_000_000 + number * 1000})
        for number in range(10)
    ]
    cli("produce", unique, "--format", "ndjson", given="\n".join(lines))
    return unique


@pytest.mark.parametrize(
    ("start", "wanted"),
    [
        ("beginning", range(10)),
        ("end", range(0)),
        ("7", range(7, 10)),
        ("99", range(0)),
        ("-3", range(7, 10)),
        ("@1700000004500", range(5, 10)),
        ("2023-11-14T22:13:28Z", range(8, 10)),
        ("1h", range(0)),
    ],
)
def test_consume_begins_where_it_is_told(cli, ten, start, wanted):
    assert [int(line) for line in cli("consume", ten, "--from", start).splitlines()] == list(wanted)


def test_consume_stops_after_so_many(cli, ten):
    assert cli("consume", ten, "--max", 2, "--format", "raw") == "0\n1\n"


def test_consume_writes_a_json_array(cli, ten):
    assert [record["value"] for record in cli.json("consume", ten, "--from", "-2")] == ["8", "9"]


def test_consume_follows_what_is_produced_later(cli, ten, bootstrap):
    command = [
        str(PROGRAM),
        "consume",
        ten,
        "--from",
        "end",
        "--follow",
        "--max",
        "2",
        "--bootstrap",
        bootstrap,
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as follower:
        # Whether it listens yet cannot be seen from outside, so records are sent until it has its two.
        for _ in range(RUN_S_MAX):
            cli("produce", ten, given="later\n")
            if follower.poll() is not None:
                break
        assert follower.wait(RUN_S_MAX) == 0
        assert follower.stdout is not None
        assert follower.stdout.read() == "later\nlater\n"


def test_partition_that_is_not_there_is_refused(cli, topic):
    assert f"{topic} has no partition 7: it has 0 to 1." in cli.run("consume", topic, "--partition", 7).stderr


def test_group_goes_on_where_it_stopped_and_its_lag_is_shown(cli, ten, unique):
    assert cli("consume", ten, "--group", unique, "--max", 4) == "0\n1\n2\n3\n"
    described = cli.json("group", "describe", unique)
    assert (described["state"], described["lag"], described["members"]) == ("empty", 6, [])
    assert cli("consume", ten, "--group", unique).split() == ["4", "5", "6", "7", "8", "9"]
    assert {"group": unique, "state": "empty"} in cli.json("group", "list")


def test_reset_shows_what_would_change_and_then_changes_it(cli, ten, unique):
    cli("consume", ten, "--group", unique)
    move = {"topic": ten, "partition": 0, "before": 10, "after": 3}
    assert cli.json("group", "reset", unique, "--to", 3, "--dry-run")["moves"] == [move]
    assert cli.json("group", "describe", unique)["lag"] == 0
    assert cli.json("group", "reset", unique, "--to", 3, "--yes")["moves"] == [move]
    assert cli.json("group", "describe", unique)["lag"] == 7


def test_group_is_deleted_with_its_offsets(cli, ten, unique):
    cli("consume", ten, "--group", unique)
    cli("group", "delete", unique, "--yes")
    assert f"There is no group called {unique}" in cli.run("group", "delete", unique, "--yes").stderr


def test_group_with_members_is_not_reset(cli, ten, unique, bootstrap):
    command = [str(PROGRAM), "consume", ten, "--group", unique, "--follow", "--bootstrap", bootstrap]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as member:
        assert member.stdout is not None
        assert member.stdout.readline() == "0\n"
        result = cli.run("group", "reset", unique, "--topic", ten, "--to", "earliest", "--yes")
        member.terminate()
    assert result.returncode == 1
    assert "stop its consumers first" in result.stderr
