"""`anabranch cluster up` and `anabranch up --workers` as processes: one line, all answer, all end together."""

import json
import os
import random
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from anabranch.local_cluster.ports import random_block
from support.waiting import wait_until

RUN_S_MAX = 60


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "anabranch", *map(str, arguments)]


def ports(count: int) -> int:
    return random_block("127.0.0.1", count, random.Random()).start


@contextmanager
def running(*arguments: object) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """The command and the line it said."""
    with subprocess.Popen(
        command(*arguments, "--format", "json"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, process.communicate()[1]
            yield process, json.loads(line)
        finally:
            process.kill()


def stopped(process: subprocess.Popen[str], number: int = signal.SIGTERM) -> tuple[int, str, str]:
    process.send_signal(number)
    out, err = process.communicate(timeout=RUN_S_MAX)
    return process.returncode, out, err


def refused(*arguments: object, exit_code: int = 1) -> str:
    result = subprocess.run(command(*arguments), capture_output=True, text=True, timeout=RUN_S_MAX)
    assert (result.returncode, result.stdout) == (exit_code, ""), result
    assert result.stderr.count("\n") == 1, result.stderr
    return result.stderr


def answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except ConnectionRefusedError:
        return False
    return True


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_cluster_says_one_line_answers_everywhere_and_stops_in_order(tmp_path: Path, number: int) -> None:
    base = ports(9)
    with running("cluster", "up", "--data-dir", tmp_path / "c", "--listen-base", base) as (process, line):
        assert [broker["id"] for broker in line["brokers"]] == [0, 1, 2]
        assert line["bootstrap"] == ",".join(broker["kafka"] for broker in line["brokers"])
        assert line["brokers"][2]["kafka"] == f"127.0.0.1:{base + 2}"
        for broker in line["brokers"]:
            assert answers(broker["kafka"])
            assert answers(broker["http"])
            assert Path(broker["data_dir"]).is_dir()
        assert stopped(process, number) == (0, "", "")
    assert not any(is_alive(broker["pid"]) for broker in line["brokers"])
    assert stat.S_IMODE((tmp_path / "c" / "secret").stat().st_mode) == 0o600


def test_second_start_is_the_same_cluster_on_the_same_ports(tmp_path: Path) -> None:
    lines = []
    first = ("--brokers", 2, "--listen-base", ports(6))
    for arguments in (first, ()):
        with running("cluster", "up", "--data-dir", tmp_path / "c", *arguments) as (process, line):
            lines.append([{**broker, "pid": None} for broker in line["brokers"]])
            assert stopped(process)[0] == 0
    assert lines[0] == lines[1]


def test_broker_that_dies_is_said_aloud_and_the_others_go_on(tmp_path: Path) -> None:
    arguments = ("--brokers", 2, "--listen-base", ports(6))
    with running("cluster", "up", "--data-dir", tmp_path / "c", *arguments) as (process, line):
        os.kill(line["brokers"][1]["pid"], signal.SIGKILL)
        assert process.stderr is not None
        said = json.loads(process.stderr.readline())
        assert (said["ended"], said["exit_code"]) == (1, -signal.SIGKILL)
        assert answers(line["brokers"][0]["kafka"])
        code, _, err = stopped(process)
    assert code == 1
    assert "Broker 1 exited before" in json.loads(err)["error"]


def test_command_ends_when_no_broker_is_left(tmp_path: Path) -> None:
    arguments = ("--brokers", 1, "--listen-base", ports(3))
    with running("cluster", "up", "--data-dir", tmp_path / "c", *arguments) as (process, line):
        os.kill(line["brokers"][0]["pid"], signal.SIGKILL)
        assert process.wait(RUN_S_MAX) == 1


def test_brokers_end_with_the_command_even_if_it_is_killed(tmp_path: Path) -> None:
    arguments = ("--brokers", 2, "--listen-base", ports(6))
    with running("cluster", "up", "--data-dir", tmp_path / "c", *arguments) as (process, line):
        process.kill()
        pids = [broker["pid"] for broker in line["brokers"]]
        wait_until(lambda: not any(is_alive(pid) for pid in pids), "the brokers have ended too")


def test_settings_reach_every_broker(tmp_path: Path) -> None:
    arguments = ("--brokers", 1, "--listen-base", ports(3), "--flush", "os", "--set", "num.partitions=7")
    with running("cluster", "up", "--data-dir", tmp_path / "c", *arguments) as (process, line):
        given = Path(f"/proc/{line['brokers'][0]['pid']}/cmdline").read_bytes().split(b"\0")
        assert {b"flush=os", b"num.partitions=7"} <= set(given)
        assert stopped(process)[0] == 0


def test_cluster_that_runs_is_not_started_twice(tmp_path: Path) -> None:
    arguments = ("--brokers", 1, "--listen-base", ports(3))
    with running("cluster", "up", "--data-dir", tmp_path / "c", *arguments) as (process, _):
        assert "runs already" in refused("cluster", "up", "--data-dir", tmp_path / "c")
        assert stopped(process)[0] == 0


def test_remembered_port_that_is_taken_is_named_with_the_file(tmp_path: Path) -> None:
    base = ports(3)
    with running("cluster", "up", "--data-dir", tmp_path, "--brokers", 1, "--listen-base", base) as (
        process,
        _,
    ):
        assert stopped(process)[0] == 0
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", base))
        other.listen()
        said = refused("cluster", "up", "--data-dir", tmp_path)
    assert f"127.0.0.1:{base} is taken by another process" in said
    assert "cluster.toml" in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--brokers", 17), "1 to 16"),
        (("--brokers", 0), "1 to 16"),
        (("--set", "num.partition=3"), "did you mean num.partitions?"),
        (("--set", "listen=127.0.0.1:1"), "listen differs between brokers"),
        (("--set", "broker.rack=a"), "broker.rack differs between brokers"),
        (("--listen-base", 65530), "65535 is the last"),
    ],
)
def test_what_cannot_be_is_one_sentence_before_anything_starts(
    tmp_path: Path, arguments: tuple[object, ...], said: str
) -> None:
    assert said in refused("cluster", "up", "--data-dir", tmp_path / "c", *arguments, exit_code=2)
    assert not (tmp_path / "c" / "cluster.toml").exists()


def test_folder_of_a_single_node_is_refused(tmp_path: Path) -> None:
    (tmp_path / "node").touch()
    for arguments in (("cluster", "up"), ("up", "--workers", 2)):
        assert "data folder of a single node" in refused(*arguments, "--data-dir", tmp_path)


def test_another_number_of_brokers_than_the_folder_has_is_refused(tmp_path: Path) -> None:
    base = ports(3)
    with running("cluster", "up", "--data-dir", tmp_path, "--brokers", 1, "--listen-base", base) as (
        process,
        _,
    ):
        assert stopped(process)[0] == 0
    assert "a cluster of 1 brokers, not 2" in refused("cluster", "up", "--data-dir", tmp_path, "--brokers", 2)
    assert f"begin at {base}" in refused("cluster", "up", "--data-dir", tmp_path, "--listen-base", base + 1)
    assert "use --workers 1" in refused("up", "--workers", 2, "--data-dir", tmp_path)


def test_workers_listen_on_consecutive_ports(tmp_path: Path) -> None:
    base = ports(2)
    arguments = ("--listen", f"127.0.0.1:{base}", "--data-dir", tmp_path / "w", "--flush", "os")
    with running("up", "--workers", 2, *arguments) as (process, line):
        assert line["bootstrap"] == f"127.0.0.1:{base},127.0.0.1:{base + 1}"
        assert all(answers(address) for address in line["bootstrap"].split(","))
        assert stopped(process) == (0, "", "")


def test_workers_in_a_temporary_folder_leave_nothing() -> None:
    with running("up", "--workers", 2, "--listen", f"127.0.0.1:{ports(2)}", "--ephemeral") as (process, line):
        folder = Path(line["brokers"][0]["data_dir"])
        assert folder.is_dir()
        assert stopped(process)[0] == 0
    assert not folder.parent.exists()


@pytest.mark.parametrize(
    "option", [("--join", "h:1"), ("--broker-id", 3), ("--peer-listen", "h:1"), ("--rack", "a")]
)
def test_workers_refuse_what_is_for_one_broker(option: tuple[object, ...]) -> None:
    result = subprocess.run(
        command("up", "--workers", 2, *option), capture_output=True, text=True, timeout=RUN_S_MAX
    )
    assert result.returncode == 2
    assert f"{option[0]} is for one broker" in result.stderr
