"""`--object-store` of `up`, `up --workers` and `cluster up`: checked first, given to all, remembered by a cluster."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from anabranch.cli.cluster.up import arguments_of, choose_layout, settings_for_all, with_store
from anabranch.cli.cluster.workers import plan_workers
from anabranch.cli.common import Failure
from anabranch.cli.main import main
from anabranch.cli.node.up import gather_settings
from anabranch.config import read_settings_file
from anabranch.local_cluster.layout import prepare, read_layout
from anabranch.local_cluster.ports import free_block

NOTHING: dict[str, object] = {"sets": ()}


def test_the_option_is_the_setting() -> None:
    settings = gather_settings(None, {**NOTHING, "object_store": "file:///objects"})
    assert settings.object_store == "file:///objects"


@pytest.mark.parametrize("command", [["up"], ["up", "--workers", "2"], ["cluster", "up"]])
def test_a_bad_url_is_refused_before_anything_is_made(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main, [*command, "--object-store", "s3://KEY:hunter2@bucket"])
    assert result.exit_code == 2
    assert "object.credentials.file" in result.stderr
    assert "hunter2" not in result.output
    assert not list(tmp_path.rglob("broker-0"))


@pytest.mark.parametrize(
    "command", [["up", "--peer-listen", "127.0.0.1:0"], ["up", "--workers", "2"], ["cluster", "up"]]
)
def test_brokers_in_several_processes_cannot_share_memory(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main, [*command, "--object-store", "memory:x"])
    assert result.exit_code == 2
    assert "seen by one process only" in result.stderr


def test_every_broker_of_a_local_cluster_gets_it() -> None:
    settings = settings_for_all(None, {**NOTHING, "object_store": "file:///objects"})
    assert "object.store=file:///objects" in arguments_of(settings, None)


def test_a_local_cluster_remembers_its_store(tmp_path: Path) -> None:
    first = with_store(choose_layout(tmp_path, 2, None), {"object.store": "file:///objects"})
    prepare(first)
    known = read_layout(tmp_path)
    assert known is not None
    assert known.object_store == "file:///objects"
    assert read_settings_file(known.config_file)["object.store"] == "file:///objects"
    assert with_store(known, {}) is known
    assert with_store(known, {"object.store": "file:///objects"}) is known


def test_a_cluster_is_not_started_on_another_store(tmp_path: Path) -> None:
    prepare(with_store(choose_layout(tmp_path, 2, None), {"object.store": "file:///objects"}))
    known = read_layout(tmp_path)
    assert known is not None
    with pytest.raises(Failure, match="names another object store"):
        with_store(known, {"object.store": "s3://bucket"})


def test_workers_remember_it_too(tmp_path: Path) -> None:
    options = {
        **NOTHING, "workers": 2, "listen": "127.0.0.1:0", "data_dir": str(tmp_path), "object_store": "file:///objects",
    }  # fmt: skip
    layout, arguments = plan_workers(None, None, options)
    assert "object.store=file:///objects" in arguments
    prepare(layout)
    layout, _ = plan_workers(None, None, {**options, "object_store": None})
    assert layout.object_store == "file:///objects"


def test_ports_of_a_cluster_lie_as_its_help_says(tmp_path: Path) -> None:
    """N for Kafka, one per broker, then N for peers, then N for HTTP."""
    base = free_block("127.0.0.1", 9, 23_000).start
    layout = choose_layout(tmp_path, 3, base)
    ports = [
        [int(str(getattr(place, kind)).rpartition(":")[2]) for place in layout.places]
        for kind in ("kafka", "peer", "http")
    ]
    assert ports == [
        [base, base + 1, base + 2],
        [base + 3, base + 4, base + 5],
        [base + 6, base + 7, base + 8],
    ]
    told = CliRunner().invoke(main, ["cluster", "up", "--help"]).output
    assert "N for Kafka, one per broker, then N for peers, then N for HTTP" in " ".join(told.split())
