"""kcat: what people type at a shell, from Debian's own package (an older librdkafka)."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from support.waiting import wait_until

from .registries import or_skip, program
from .samples import CODECS

pytestmark = pytest.mark.interop

RUN_S_MAX = 20.0
Kcat = Callable[..., str]


@pytest.fixture(scope="session")
def kcat_path() -> str:
    return or_skip(lambda: program("kcat", "kcat"))


@pytest.fixture
def kcat(kcat_path: str, bootstrap: str) -> Kcat:
    """Runs kcat to its end and returns what it printed."""

    def run(*arguments: str, stdin: str = "") -> str:
        command = [kcat_path, "-b", bootstrap, *arguments]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=RUN_S_MAX)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.fixture
def topic(kcat_path: str, bootstrap: str, unique: str) -> str:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(unique, 4, 1)])[unique].result(RUN_S_MAX)
    return unique


def _records(output: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.splitlines()]


@pytest.mark.parametrize("codec", CODECS)
def test_records_come_back_byte_for_byte(kcat: Kcat, topic: str, codec: str) -> None:
    lines = [f"key-{number}:{'välue ' * number}" for number in range(50)]
    kcat(
        "-P",
        "-t",
        topic,
        "-p",
        "1",
        "-z",
        codec,
        "-K:",
        "-H",
        "trace=ä1",
        "-H",
        "empty=",
        stdin="\n".join(lines),
    )
    records = _records(kcat("-C", "-t", topic, "-p", "1", "-e", "-q", "-J"))
    assert [f"{record['key']}:{record['payload']}" for record in records] == lines
    assert [record["offset"] for record in records] == list(range(50))
    assert {tuple(record["headers"]) for record in records} == {("trace", "ä1", "empty", "")}


def test_empty_keys_and_values_are_null_when_asked_for(kcat: Kcat, topic: str) -> None:
    kcat("-P", "-t", topic, "-p", "0", "-Z", "-K:", stdin=":no key\ntombstone:\n")
    records = _records(kcat("-C", "-t", topic, "-p", "0", "-e", "-q", "-J"))
    assert [(record["key"], record["payload"]) for record in records] == [
        (None, "no key"),
        ("tombstone", None),
    ]


def test_reads_from_an_offset_and_the_last_ones(kcat: Kcat, topic: str) -> None:
    kcat("-P", "-t", topic, "-p", "0", stdin="\n".join("abcdef"))
    assert kcat("-C", "-t", topic, "-p", "0", "-o", "4", "-e", "-q") == "e\nf\n"
    assert kcat("-C", "-t", topic, "-p", "0", "-o", "-1", "-e", "-q") == "f\n"
    assert kcat("-C", "-t", topic, "-p", "0", "-o", "beginning", "-c", "2", "-q") == "a\nb\n"


def test_finds_offsets_by_time(kcat: Kcat, topic: str) -> None:
    kcat("-P", "-t", topic, "-p", "0", stdin="a\nb")
    timestamp_ms = _records(kcat("-C", "-t", topic, "-p", "0", "-e", "-q", "-J"))[0]["ts"]
    assert "offset 0" in kcat("-Q", "-t", f"{topic}:0:{timestamp_ms}")
    assert "offset 2" in kcat("-Q", "-t", f"{topic}:0:-1")


def test_lists_the_topic_with_its_partitions(kcat: Kcat, topic: str) -> None:
    metadata = json.loads(kcat("-L", "-J", "-t", topic))
    (described,) = metadata["topics"]
    assert described["topic"] == topic
    assert sorted(partition["partition"] for partition in described["partitions"]) == [0, 1, 2, 3]
    assert metadata["brokers"]


def _group_reader(kcat_path: str, bootstrap: str, topic: str, output: Path) -> subprocess.Popen[bytes]:
    settings = ["-X", "auto.offset.reset=earliest", "-X", "heartbeat.interval.ms=200"]
    command = [kcat_path, "-b", bootstrap, "-G", topic, *settings, "-u", "-f", "%p %s\n", topic]
    with output.open("wb") as out, output.with_suffix(".log").open("wb") as log:
        return subprocess.Popen(command, stdout=out, stderr=log)


def test_group_of_two_shares_the_topic_and_the_next_one_resumes(
    kcat: Kcat, kcat_path: str, bootstrap: str, topic: str, tmp_path: Path
) -> None:
    outputs = [tmp_path / "first", tmp_path / "second"]
    readers = [_group_reader(kcat_path, bootstrap, topic, output) for output in outputs]

    def share(output: Path) -> str:
        """The last assignment that kcat reported, such as 'topic [0], topic [1]'."""
        reports = [line for line in output.with_suffix(".log").read_text().splitlines() if "assigned" in line]
        return reports[-1].rpartition("assigned:")[2] if reports else ""

    try:
        wait_until(lambda: [share(output).count("[") for output in outputs] == [2, 2], "two shares of two")
        for partition in range(4):
            kcat("-P", "-t", topic, "-p", str(partition), stdin=f"value {partition}")
        wanted = {f"{partition} value {partition}" for partition in range(4)}
        wait_until(
            lambda: {line for output in outputs for line in output.read_text().splitlines()} == wanted,
            "all records at the two readers",
        )
        assert all(len(output.read_text().splitlines()) == 2 for output in outputs)
    finally:
        for reader in readers:
            reader.terminate()
            reader.wait(RUN_S_MAX)
    kcat("-P", "-t", topic, "-p", "3", stdin="later")
    settings = ["-X", "auto.offset.reset=earliest"]
    assert kcat("-G", topic, *settings, "-c", "1", "-f", "%p %s\n", topic) == "3 later\n"
