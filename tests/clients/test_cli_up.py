"""`anabranch up` as a process: what it prints, how it stops, and what it says when it cannot start."""

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.secret_files import write_secret

PROGRAM = Path(sys.executable).with_name("anabranch")
STOP_S_MAX = 5
RUN_S_MAX = 30


@contextmanager
def running(*arguments: object) -> Iterator[subprocess.Popen[str]]:
    command = [str(PROGRAM), "up", "--listen", "127.0.0.1:0", *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as node:
        try:
            yield node
        finally:
            node.kill()


def first_line(node: subprocess.Popen[str]) -> dict:
    assert node.stdout is not None
    return json.loads(node.stdout.readline())


def refused(*arguments: object, exit_code: int = 1) -> str:
    result = subprocess.run(
        [str(PROGRAM), "up", *map(str, arguments)], capture_output=True, text=True, timeout=RUN_S_MAX
    )
    assert (result.returncode, result.stdout) == (exit_code, "")
    assert result.stderr.count("\n") == 1
    return result.stderr


def connect(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=RUN_S_MAX)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_node_says_one_json_line_then_nothing_and_stops_cleanly(tmp_path, number):
    with running("--data-dir", tmp_path / "data", "--format", "json") as node:
        line = first_line(node)
        connect(line["bootstrap"]).close()
        node.send_signal(number)
        rest, errors = node.communicate(timeout=STOP_S_MAX)
    assert (node.returncode, rest, errors) == (0, "", "")
    assert (line["data_dir"], line["flush"], line["persists"]) == (str(tmp_path / "data"), "always", True)
    assert line["pid"] == node.pid


def test_banner_names_the_address_that_answers(tmp_path):
    with running("--data-dir", tmp_path / "data") as node:
        assert node.stdout is not None
        lines = []
        while not lines or not lines[-1].startswith("Stop with"):
            lines.append(node.stdout.readline())
            assert lines[-1], "the banner ended early"
        address = next(line.split()[-1] for line in lines if "Kafka address" in line)
        connect(address).close()


def test_ephemeral_folder_is_gone_after_the_stop():
    with running("--ephemeral", "--format", "json") as node:
        folder = first_line(node)["data_dir"]
        assert os.path.isdir(folder)
        node.terminate()
        assert node.wait(STOP_S_MAX) == 0
    assert not os.path.exists(folder)


def test_metrics_and_health_answer_over_http(tmp_path):
    with running("--data-dir", tmp_path / "data", "--http", "127.0.0.1:0", "--format", "json") as node:
        address = first_line(node)["http"]
        for path in ("/healthz", "/metrics"):
            with urllib.request.urlopen(f"http://{address}{path}", timeout=RUN_S_MAX) as answer:
                assert answer.status == 200
                assert answer.read()


def test_settings_come_from_file_then_sets_then_options(tmp_path):
    file = tmp_path / "node.toml"
    file.write_text('flush = "os"\n"data.dir" = "/nowhere"\n[num]\npartitions = 2\n')
    options = (
        "--config",
        file,
        "--set",
        "flush=interval",
        "--data-dir",
        tmp_path / "data",
        "--format",
        "json",
    )
    with running(*options) as node:
        line = first_line(node)
    assert (line["flush"], line["data_dir"]) == ("interval", str(tmp_path / "data"))


def test_taken_port_is_one_sentence(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        assert f"{address} is taken" in refused("--listen", address, "--data-dir", tmp_path / "data")


def test_data_folder_in_use_is_one_sentence(tmp_path):
    with running("--data-dir", tmp_path, "--format", "json") as node:
        first_line(node)
        assert "is in use" in refused("--listen", "127.0.0.1:0", "--data-dir", tmp_path)


def test_data_folder_that_cannot_be_made_is_one_sentence():
    # Not even root may make a folder there.
    assert "choose another --data-dir" in refused("--listen", "127.0.0.1:0", "--data-dir", "/proc/anabranch")


def test_data_folder_below_a_file_is_one_sentence(tmp_path):
    (tmp_path / "file").touch()
    assert "choose another --data-dir" in refused(
        "--listen", "127.0.0.1:0", "--data-dir", tmp_path / "file" / "data"
    )


def as_broker(tmp_path: Path, *arguments: object) -> list[object]:
    secret = tmp_path / "secret"
    write_secret(secret, "0123456789abcdef0123456789abcdef")
    return ["--cluster-secret-file", secret, "--data-dir", tmp_path / "data", *arguments]


def test_broker_that_waits_for_its_cluster_can_be_stopped(tmp_path):
    nowhere = "127.0.0.1:1"
    options = as_broker(tmp_path, "--peer-listen", "127.0.0.1:0", "--join", nowhere)
    with running(*options) as node:
        assert node.stderr is not None
        said = node.stderr.readline()
        node.send_signal(signal.SIGTERM)
        _, errors = node.communicate(timeout=STOP_S_MAX)
    assert f"no broker of the cluster answers yet, trying on: {nowhere}" in said
    assert (node.returncode, errors) == (0, "")


def test_broker_that_joins_itself_is_told_so(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        own = f"127.0.0.1:{taken.getsockname()[1]}"
    options = as_broker(tmp_path, "--listen", "127.0.0.1:0", "--peer-listen", own, "--join", own)
    assert "--join names nobody but this broker itself" in refused(*options)


def test_one_port_for_clients_and_brokers_is_refused(tmp_path):
    same = "127.0.0.1:19092"
    options = as_broker(tmp_path, "--listen", same, "--peer-listen", same)
    assert f"listen and peer.listen are both {same}" in refused(*options, exit_code=2)
