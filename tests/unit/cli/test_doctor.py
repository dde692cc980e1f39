"""Doctor: each check says ok, warn or fail, and what to do next."""

import fcntl
import http.server
import json
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from anabranch.cli.doctor import disk as doctor_disk
from anabranch.cli.doctor import doctor
from anabranch.cli.doctor import network as doctor_network
from anabranch.cli.main import main
from anabranch.errors import StorageError
from anabranch.testing import EmbeddedBroker


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return str(tmp_path / "data")


@pytest.fixture
def http_address() -> Iterator[str]:
    with http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture
def free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(settings={"http": "127.0.0.1:0"}) as broker:
        yield broker


def ask(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["doctor", *arguments])


def verdicts(result: Result) -> dict[str, str]:
    return {finding["check"]: finding["verdict"] for finding in json.loads(result.stdout)}


# --- the folder ---------------------------------------------------------------------------------------------------


def test_folder_that_is_not_there_yet_is_fine(folder: str) -> None:
    assert doctor_disk.data_folder(folder).verdict == "ok"
    assert not os.path.exists(folder)


@pytest.mark.parametrize("below", ["", "/deeper", "/deeper/still"])
def test_file_in_the_place_of_the_folder_fails(folder: str, below: str) -> None:
    Path(folder).touch()
    finding = doctor_disk.data_folder(folder + below)
    assert (finding.verdict, finding.detail) == ("fail", f"{folder} is a file")


def test_link_to_nothing_fails(folder: str) -> None:
    os.symlink("/nowhere/at/all", folder)
    assert doctor_disk.data_folder(f"{folder}/data").verdict == "fail"


@pytest.mark.parametrize("impossible", ["/proc/data", "/proc/1/data/deeper", "/sys/data"])
def test_folder_that_nobody_can_make_fails(impossible: str) -> None:
    """Whoever asks: root may write there by the modes alone."""
    finding = doctor_disk.data_folder(impossible)
    assert finding.verdict == "fail"
    assert "cannot be made" in finding.detail


def test_folder_of_a_running_node_is_recognised(folder: str) -> None:
    os.mkdir(folder)
    with open(os.path.join(folder, ".lock"), "w") as lock:
        assert "is free" in doctor_disk.data_folder(folder).detail
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "in use" in doctor_disk.data_folder(folder).detail


def test_folder_of_a_node_that_has_stopped_is_free(folder: str) -> None:
    with EmbeddedBroker(data_dir=folder):
        pass
    finding = doctor_disk.data_folder(folder)
    assert (finding.verdict, finding.detail) == ("ok", f"{folder} is free")


def test_folder_whose_identity_is_damaged_fails(folder: str) -> None:
    with EmbeddedBroker(data_dir=folder):
        pass
    Path(folder, "node").write_bytes(b"rubbish")
    finding = doctor_disk.data_folder(folder)
    assert finding.verdict == "fail"
    assert "node cannot be used" in finding.detail


@pytest.mark.parametrize("name", ["link", ".lock", "orders-0/link"])
def test_folder_that_a_node_would_refuse_for_a_link_fails(folder: str, name: str) -> None:
    link = os.path.join(folder, name)
    os.makedirs(os.path.dirname(link))
    os.symlink("/tmp", link)
    finding = doctor_disk.data_folder(folder)
    assert finding.verdict == "fail"
    assert f"{link} is a symbolic link" in finding.detail
    with pytest.raises(StorageError, match=f"{link} is a symbolic link"), EmbeddedBroker(data_dir=folder):
        pass


def test_root_of_a_new_volume_is_free(folder: str) -> None:
    os.makedirs(os.path.join(folder, "lost+found"))
    finding = doctor_disk.data_folder(folder)
    assert (finding.verdict, finding.detail) == ("ok", f"{folder} is free")


@pytest.mark.parametrize(("name", "verdict"), [("meta.properties", "fail"), ("holiday.jpg", "warn")])
def test_folder_of_somebody_else_is_recognised(folder: str, name: str, verdict: str) -> None:
    os.mkdir(folder)
    Path(folder, name).touch()
    assert doctor_disk.data_folder(folder).verdict == verdict


def test_folder_of_another_user_is_a_warning(folder: str) -> None:
    assert doctor_disk.owner(folder, 1) is None, "it is not there"
    os.mkdir(folder)
    assert doctor_disk.owner(folder, os.stat(folder).st_uid) is None
    finding = doctor_disk.owner(folder, os.stat(folder).st_uid + 1)
    assert finding is not None
    assert finding.verdict == "warn"


@pytest.mark.parametrize(("free_bytes", "verdict"), [(2**20, "fail"), (2**30, "warn"), (2**40, "ok")])
def test_little_disk_space_is_said(folder: str, free_bytes: int, verdict: str) -> None:
    assert doctor_disk.disk_space(folder, lambda _: free_bytes).verdict == verdict


@pytest.mark.parametrize(("step_seconds", "verdict"), [(0.001, "ok"), (0.1, "warn")])
def test_syncs_are_measured_and_leave_nothing(tmp_path: Path, step_seconds: float, verdict: str) -> None:
    times = iter(number * step_seconds for number in range(1000))
    finding = doctor_disk.sync_latency(str(tmp_path), lambda: next(times))
    assert finding.verdict == verdict
    assert f"{step_seconds * 1000:.2f} ms" in finding.detail
    assert os.listdir(tmp_path) == []


# --- the network --------------------------------------------------------------------------------------------------


def test_broker_that_speaks_kafka_is_ok(broker: EmbeddedBroker) -> None:
    assert doctor_network.broker(broker.bootstrap, is_named=True).verdict == "ok"
    assert doctor_network.broker(f"127.0.0.1:1,{broker.bootstrap}", is_named=True).verdict == "ok"


def test_http_port_is_named_as_such(broker: EmbeddedBroker, http_address: str) -> None:
    for address in (broker.http_address, http_address):
        finding = doctor_network.broker(address, is_named=True)
        assert (finding.verdict, finding.detail) == ("fail", f"{address} is an HTTP port, not Kafka's")


def test_port_that_says_nothing_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_network, "ANSWER_SECONDS_MAX", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        finding = doctor_network.broker(address, is_named=False)
    assert (finding.verdict, finding.detail) == (
        "fail",
        f"{address} accepts connections and does not speak Kafka",
    )


def test_silence_is_a_warning_unless_a_broker_was_named(free_address: str) -> None:
    assert doctor_network.broker(free_address, is_named=False).verdict == "warn"
    assert doctor_network.broker(free_address, is_named=True).verdict == "fail"


def test_ports_are_tried(broker: EmbeddedBroker, http_address: str, free_address: str) -> None:
    assert doctor_network.listener("--listen", free_address).verdict == "ok"
    assert "taken by a broker" in doctor_network.listener("--listen", broker.bootstrap).detail
    taken = doctor_network.listener("--http", http_address)
    assert (taken.verdict, taken.next_step) == ("fail", "stop it, or choose another --http")
    assert "something that speaks HTTP" in taken.detail
    assert doctor_network.listener("--listen", "203.0.113.7:9092").verdict == "fail", "not an address of ours"
    assert doctor_network.listener("--listen", "no-such-host.invalid:9092").verdict == "fail"


# --- the machine --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("hard", "verdict"), [(4096, "warn"), (20_000, "ok"), (-1, "ok")])
def test_low_limit_of_open_files_is_a_warning(hard: int, verdict: str) -> None:
    assert doctor.open_files(1024, hard).verdict == verdict


def test_old_python_fails() -> None:
    assert doctor.python_version((3, 10)).verdict == "fail"


def test_missing_library_fails() -> None:
    assert doctor.library_version("no-such-library-of-ours").verdict == "fail"


def test_missing_extra_is_fine_and_says_how_to_get_it() -> None:
    finding = doctor.extra("spark", "no-such-library-of-ours", "tables")
    assert (finding.verdict, finding.next_step) == ("ok", "pip install 'anabranch[spark]'")


def test_form_of_the_hot_loops_is_said() -> None:
    found = [doctor.hot_loops(*given) for given in ((True, False), (False, True), (False, False))]
    assert [finding.verdict for finding in found] == ["ok", "warn", "warn"]


def test_java_that_is_missing_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    from anabranch.errors import JavaMissingError
    from anabranch.pipeline.spark import java

    def none_there() -> None:
        raise JavaMissingError("Spark needs Java 17 or later.")

    monkeypatch.setattr(java, "find_java", none_there)
    assert doctor.java().verdict == "warn"


def test_clock_of_another_decade_fails() -> None:
    assert doctor.clock(0).verdict == "fail"


# --- the command --------------------------------------------------------------------------------------------------


def test_exit_code_is_zero_where_nothing_is_broken(folder: str, broker: EmbeddedBroker) -> None:
    result = ask(
        "--data-dir",
        folder,
        "--bootstrap",
        broker.bootstrap,
        "--listen",
        broker.bootstrap,
        "--format",
        "json",
    )
    assert result.exit_code == 0, result.output
    assert {
        "data folder",
        "disk space",
        "sync",
        "port --listen",
        "broker",
        "hot loops",
        "extra spark",
    } <= set(verdicts(result))


@pytest.mark.parametrize("broken", ["folder", "broker", "listen", "http"])
def test_exit_code_is_one_when_something_is_broken(
    folder: str, broker: EmbeddedBroker, http_address: str, broken: str
) -> None:
    arguments = {"--data-dir": folder, "--bootstrap": broker.bootstrap, "--listen": broker.bootstrap}
    arguments |= {
        "folder": {"--data-dir": "/proc/data"},
        "broker": {"--bootstrap": http_address},
        "listen": {"--listen": http_address},
        "http": {"--http": http_address.removeprefix("127.0.0.1")},
    }[broken]
    result = ask(*(word for pair in arguments.items() for word in pair), "--format", "json")
    assert result.exit_code == 1, result.output
    assert list(verdicts(result).values()).count("fail") == 1


@pytest.mark.parametrize("option", ["--bootstrap", "--listen", "--http", "--peer-listen"])
def test_address_that_is_none_is_a_wrong_command_line(folder: str, option: str) -> None:
    assert ask("--data-dir", folder, option, "nonsense:x").exit_code == 2


def test_text_names_every_check_with_its_next_step(folder: str, free_address: str) -> None:
    result = ask("--data-dir", folder, "--bootstrap", free_address, "--listen", free_address)
    assert result.exit_code == 1
    assert f"nothing answers at {free_address}: start a node with `anabranch up`" in result.output
