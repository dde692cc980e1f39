"""Doctor: each check says ok, warn or fail, and what to do next."""

import fcntl
import json
import os
import socket

import pytest
from click.testing import CliRunner

from anabranch.cli import doctor
from anabranch.cli.main import main


@pytest.fixture
def folder(tmp_path):
    return str(tmp_path / "data")


def test_folder_that_is_not_there_yet_is_fine(folder):
    assert doctor.data_folder(folder).verdict == "ok"
    assert not os.path.exists(folder)


def test_file_in_the_place_of_the_folder_fails(folder):
    with open(folder, "w"):
        pass
    finding = doctor.data_folder(folder)
    assert (finding.verdict, finding.next_step) == ("fail", "choose another --data-dir")


def test_folder_of_a_running_node_is_recognised(folder):
    os.mkdir(folder)
    with open(os.path.join(folder, ".lock"), "w") as lock:
        assert "is free" in doctor.data_folder(folder).detail
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "in use" in doctor.data_folder(folder).detail


@pytest.mark.parametrize(("hard", "verdict"), [(4096, "warn"), (20_000, "ok"), (-1, "ok")])
def test_low_limit_of_open_files_is_a_warning(hard, verdict):
    assert doctor.open_files(1024, hard).verdict == verdict


@pytest.mark.parametrize(("free_bytes", "verdict"), [(2**20, "warn"), (2**40, "ok")])
def test_little_disk_space_is_a_warning(folder, free_bytes, verdict):
    assert doctor.disk_space(folder, lambda _: free_bytes).verdict == verdict


def test_old_python_fails():
    assert doctor.python_version((3, 10)).verdict == "fail"


def test_missing_library_fails():
    assert doctor.library_version("no-such-library-of-ours").verdict == "fail"


def test_clock_of_another_decade_fails():
    assert doctor.clock(0).verdict == "fail"


def test_port_that_answers_is_ok_and_a_silent_one_a_warning():
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        assert doctor.port(address).verdict == "ok"
    assert doctor.port(address).verdict == "warn"


def test_exit_code_is_one_when_something_fails(folder):
    with open(folder, "w"):
        pass
    arguments = ["doctor", "--data-dir", folder, "--bootstrap", "127.0.0.1:1", "--format", "json"]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 1
    verdicts = {finding["check"]: finding["verdict"] for finding in json.loads(result.output)}
    assert verdicts["data folder"] == "fail"
    assert verdicts["broker"] == "warn"


def test_text_names_every_check_with_its_next_step(folder):
    result = CliRunner().invoke(main, ["doctor", "--data-dir", folder, "--bootstrap", "127.0.0.1:1"])
    assert result.exit_code == 0
    assert "nothing answers at 127.0.0.1:1: start a node with `anabranch up`" in result.output
