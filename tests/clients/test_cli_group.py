"""`consume --group` as a process that follows: what it commits while it runs and however it ends."""

import os
import pty
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import confluent_kafka
import pytest

from support.waiting import wait_until

from .test_cli import PROGRAM, Cli, cli, ten

__all__ = ["cli", "ten"]
"""Fixtures."""

END_S_MAX = 30


@contextmanager
def follower(cli: Cli, topic: str, group: str, *more: str) -> Iterator[subprocess.Popen[str]]:
    """A member of the group that has printed the ten records and goes on."""
    command = [str(PROGRAM), "consume", topic, "--group", group, "--follow", *more]
    with subprocess.Popen(
        [*command, "--bootstrap", cli.bootstrap], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert [process.stdout.readline() for _ in range(10)] == [f"{number}\n" for number in range(10)]
            yield process
        finally:
            process.kill()


def committed(cli: Cli, group: str) -> int | None:
    rows = cli.json("group", "describe", group)["partitions"]
    return rows[0]["committed"] if rows else None


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_stopped_follower_has_committed_and_left(
    cli: Cli, ten: str, unique: str, number: signal.Signals
) -> None:
    with follower(cli, ten, unique) as process:
        process.send_signal(number)
        assert process.wait(END_S_MAX) == 0, process.communicate()[1]
    described = cli.json("group", "describe", unique)
    assert (described["state"], described["members"], described["lag"]) == ("empty", [], 0)
    assert cli("consume", ten, "--group", unique) == "", (
        "the next one begins behind what was printed, at once"
    )


def test_follower_commits_while_it_runs(cli: Cli, ten: str, unique: str) -> None:
    with follower(cli, ten, unique) as process:
        wait_until(lambda: committed(cli, unique) == 10, "the commit")
        assert process.poll() is None
        process.kill()
    assert committed(cli, unique) == 10


def test_follower_whose_reader_has_gone_leaves_the_group(cli: Cli, ten: str, unique: str) -> None:
    with follower(cli, ten, unique) as process:
        wait_until(lambda: committed(cli, unique) == 10, "the commit")
        assert process.stdout is not None
        process.stdout.close()
        cli("produce", ten, given="nobody reads this\n")
        process.wait(END_S_MAX)
        assert process.stderr is not None
        assert process.stderr.read() == ""
    described = cli.json("group", "describe", unique)
    assert (described["state"], described["lag"]) == ("empty", 1)
    assert cli("consume", ten, "--group", unique) == "nobody reads this\n"


@pytest.mark.parametrize("format", ["text", "json"])
def test_full_disk_is_told_in_a_sentence_and_costs_no_record(
    cli: Cli, ten: str, unique: str, format: str
) -> None:
    command = [str(PROGRAM), "consume", ten, "--group", unique, "--format", format]
    with open("/dev/full", "w") as full:
        ended = subprocess.run(
            [*command, "--bootstrap", cli.bootstrap], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert ended.returncode == 1
    assert "cannot be written (No space left on device)" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert "Exception" not in ended.stderr
    assert cli("consume", ten, "--group", unique).splitlines() == [str(number) for number in range(10)]


def test_group_that_committed_nothing_has_no_lag(cli: Cli, ten: str, unique: str) -> None:
    """A member of another make, which commits nothing."""
    member = confluent_kafka.Consumer(
        {"bootstrap.servers": cli.bootstrap, "group.id": unique, "enable.auto.commit": False}
    )
    member.subscribe([ten])
    wait_until(lambda: member.poll(0.1) is None and member.assignment(), "the assignment")
    described = cli.json("group", "describe", unique)
    text = cli("group", "describe", unique)
    member.close()
    assert (described["lag"], described["uncommitted_partitions"]) == (None, 1)
    (row,) = described["partitions"]
    assert (row["committed"], row["end"], row["lag"]) == (None, 10, None)
    assert f"Group {unique} is stable, has 1 member and has nothing committed." in text


def test_lag_counts_what_is_committed_and_names_the_rest(cli: Cli, unique: str) -> None:
    cli("topic", "create", unique, "--partitions", 3)
    cli("produce", unique, "--partition", 1, given="a\nb\nc\n")
    member = confluent_kafka.Consumer({"bootstrap.servers": cli.bootstrap, "group.id": unique})
    member.subscribe([unique])
    wait_until(lambda: member.poll(0.1) is None and len(member.assignment()) == 3, "the assignment")
    member.commit(offsets=[confluent_kafka.TopicPartition(unique, 1, 1)], asynchronous=False)
    text = cli("group", "describe", unique)
    described = cli.json("group", "describe", unique)
    member.close()
    assert "is 2 records behind, with nothing committed in 2 of 3 partitions." in text
    assert (described["lag"], described["uncommitted_partitions"]) == (2, 2)


def test_group_id_cannot_drive_the_terminal(cli: Cli, ten: str, unique: str) -> None:
    """In the words of whoever looks at the groups, on a terminal."""
    evil = f"{unique}\x1b]0;owned\x07\x1b[31m"
    member = confluent_kafka.Consumer(
        {"bootstrap.servers": cli.bootstrap, "group.id": evil, "client.id": "c\x1b[2J"}
    )
    member.subscribe([ten])
    wait_until(lambda: member.poll(0.1) is None and member.assignment(), "the assignment")
    member.commit(offsets=[confluent_kafka.TopicPartition(ten, 0, 3)], asynchronous=False)
    shown = [_on_terminal(cli, "group", *words) for words in (["list"], ["describe", evil])]
    member.close()
    shown.append(_on_terminal(cli, "group", "describe", f"{evil}-unknown"))
    for text in shown:
        assert "\\u001b]0;owned\\u0007\\u001b[31m" in text.replace("\r\n", "").replace(" ", "")
        assert "\x1b]0" not in text
        assert "\x07" not in text
        assert "\x1b[31m" not in text


def _on_terminal(cli: Cli, *words: str) -> str:
    ours, theirs = pty.openpty()
    command = [str(PROGRAM), *words, "--bootstrap", cli.bootstrap]
    with subprocess.Popen(
        command, stdout=theirs, stderr=theirs, env={**os.environ, "COLUMNS": "400"}
    ) as process:
        os.close(theirs)
        said = b""
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:  # The last one on the other side has gone.
                break
            if not part:
                break
            said += part
        process.wait(END_S_MAX)
    os.close(ours)
    return said.decode()


def test_group_of_a_topic_that_is_gone_has_no_lag(cli: Cli, ten: str, unique: str) -> None:
    cli("consume", ten, "--group", unique)
    before = cli.json("group", "describe", unique)
    assert (before["lag"], before["uncommitted_partitions"]) == (0, 0)
    cli("topic", "delete", ten, "--yes")
    described = cli.json("group", "describe", unique)
    assert (described["lag"], described["partitions"]) == (None, []), "its offsets have gone with it"
    assert "has nothing committed." in cli("group", "describe", unique)
