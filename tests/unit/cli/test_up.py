"""`anabranch up` before the port answers: settings, refusals, the banner."""

import errno
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from anabranch.cli.main import main
from anabranch.cli.node.banner import banner, command_to_type, facts
from anabranch.cli.node.up import explain_os_error, gather_settings
from anabranch.config import NodeSettings

NODE = SimpleNamespace(bootstrap="127.0.0.1:9092", http_address=None, data_dir="/data")


def up(*arguments):
    return CliRunner().invoke(main, ["up", *map(str, arguments)])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--set", "num.partition=4"), "did you mean num.partitions?"),
        (("--set", "num.partitions=0"), "from 1 to 10000"),
        (("--listen", "9092"), "is not HOST:PORT"),
        (("--listen", "0.0.0.0:0"), "--allow-unauthenticated"),
        (("--http", "0.0.0.0:0"), "--allow-unauthenticated"),
        (("--config", "/no/such/file.toml"), "cannot be read"),
    ],
)
def test_setting_that_cannot_be_is_one_sentence(arguments, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = up(*arguments)
    assert result.exit_code == 2
    assert said in result.stderr
    assert result.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir()), "nothing is made before the settings are known to be good"


@pytest.mark.parametrize(
    "arguments",
    [("--set", "x"), ("--ephemeral", "--data-dir", "x"), ("--flush", "never"), ("--log-level", "loud")],
)
def test_wrong_option_is_a_usage_error(arguments, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert up(*arguments).exit_code == 2


def test_data_folder_that_is_a_file_is_refused(tmp_path):
    path = tmp_path / "file"
    path.touch()
    result = up("--data-dir", path, "--format", "json")
    assert result.exit_code == 1
    assert "choose another --data-dir" in json.loads(result.stderr)["error"]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (PermissionError(errno.EACCES, "no", "/data/x"), "/data/x cannot be used"),
        (OSError(errno.ENOSPC, "full", "/data/x"), "is full"),
        (OSError("odd"), "The system refused (odd)"),
    ],
)
def test_what_the_system_refuses_becomes_a_sentence(error, said):
    assert said in explain_os_error(error, NodeSettings.load())


def test_banner_says_where_how_safe_and_what_next():
    text = banner(NODE, NodeSettings.load(), ephemeral=False)
    for said in (
        "127.0.0.1:9092",
        "/data (kept",
        "acks=all is answered after the sync",
        "off (only this machine",
    ):
        assert said in text
    assert "anabranch produce demo\n" in text


def test_banner_of_an_ephemeral_node_on_another_port_says_so():
    node = SimpleNamespace(bootstrap="127.0.0.1:5", http_address="127.0.0.1:6", data_dir="/data")
    text = banner(node, NodeSettings.load({"flush": "interval"}), ephemeral=True)
    for said in (
        "removed when the node stops",
        "may lose the last 1000 ms",
        "http://127.0.0.1:6 (records, WebSocket, /metrics)",
    ):
        assert said in text
    assert "anabranch consume demo --bootstrap 127.0.0.1:5" in text


def test_banner_warns_when_anyone_may_connect():
    open_to_all = NodeSettings.load({"listen": "0.0.0.0:9092", "allow.unauthenticated": "true"})
    assert "anyone who reaches this address" in banner(NODE, open_to_all, ephemeral=False)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"http": "8080"}, "off (only this machine can connect)"),
        ({"http": "0.0.0.0:8080", "allow.unauthenticated": "true"}, "anyone who reaches the HTTP address"),
        ({"http": "[::]:8080", "gateway.token.file": "token"}, "by HTTP whoever has the token"),
    ],
)
def test_banner_says_who_may_connect_by_http(more: dict[str, str], said: str) -> None:
    text = banner(NODE, NodeSettings.load(more), ephemeral=False)
    assert said in text


def test_facts_are_json_with_the_bootstrap_address():
    line = json.loads(json.dumps(facts(NODE, NodeSettings.load(), ephemeral=True)))
    assert (line["bootstrap"], line["persists"], line["flush"]) == ("127.0.0.1:9092", False, "always")


def test_banner_names_a_command_that_can_be_typed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / ".venv" / "bin" / "python"
    monkeypatch.setattr("sys.executable", str(program))
    monkeypatch.setenv("PATH", "")
    monkeypatch.chdir(tmp_path)
    assert command_to_type() == ".venv/bin/anabranch"
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert command_to_type() == str(program.with_name("anabranch"))


@pytest.mark.parametrize(
    "arguments",
    [("--join", "127.0.0.1:1"), ("--cluster-secret-file", "/secret"), ("--set", "peer.advertise=h:1")],
)
def test_what_a_cluster_needs_is_refused_without_an_address_for_peers(arguments, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = up(*arguments)
    assert result.exit_code == 2
    assert "add --peer-listen" in result.stderr


def test_options_of_a_cluster_are_settings():
    options = {
        "sets": (),
        "broker_id": "2",
        "peer_listen": "127.0.0.1:1",
        "joins": ("127.0.0.1:2", "127.0.0.1:3"),
        "cluster_secret_file": "/secret",
        "rack": "a",
    }
    settings = gather_settings(None, options)
    assert (settings.broker_id, settings.peer_listen, settings.broker_rack) == (2, "127.0.0.1:1", "a")
    assert settings.peer_join == ("127.0.0.1:2", "127.0.0.1:3")
    assert settings.cluster_secret_file == "/secret"


def test_banner_of_a_broker_in_a_cluster_says_its_id_and_addresses():
    node = SimpleNamespace(**vars(NODE), broker=SimpleNamespace(cluster_id="abc"))
    given = {
        "broker.id": 2,
        "peer.listen": "0.0.0.0:7",
        "peer.advertise": "10.0.0.1:7",
        "broker.rack": "left",
        "cluster.secret.file": "secret",
    }
    settings = NodeSettings.load({**given, "cluster.secret.file": "/secret"})
    text = banner(node, settings, ephemeral=False)
    assert "2 of cluster abc in rack left" in text
    assert "peer address     10.0.0.1:7" in text
    line = facts(node, settings, ephemeral=False)
    assert (line["broker_id"], line["peer"], line["cluster_id"]) == (2, "10.0.0.1:7", "abc")
    assert "cluster_id" not in facts(NODE, NodeSettings.load(), ephemeral=False)


def test_banner_says_the_peer_port_that_the_system_chose():
    broker = SimpleNamespace(cluster_id="abc", peers_bound=("127.0.0.1", 4711))
    node = SimpleNamespace(**vars(NODE), broker=broker)
    settings = NodeSettings.load({"peer.listen": "127.0.0.1:0", "cluster.secret.file": "/secret"})
    assert "peer address     127.0.0.1:4711" in banner(node, settings, ephemeral=False)
    assert facts(node, settings, ephemeral=False)["peer"] == "127.0.0.1:4711"
