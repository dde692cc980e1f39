"""`anabranch cluster restore` on a bucket that is a folder."""

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from anabranch.cli.main import main
from support.old_cluster import LIFE, OldCluster


@pytest.fixture
def bucket(tmp_path: Path) -> Path:
    """Of a cluster with two records in its snapshot and one behind it."""
    old = OldCluster()
    key = old.topic("orders"), 0
    old.topic("payments", 2, None)
    old.write(0, key, b"a", b"b")
    old.snapshot()
    old.write(1, key, b"c")
    folder = tmp_path / "bucket"
    for name in old.store.names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(old.store.content(name))
    return folder


def run(bucket: Path, *arguments: object) -> Result:
    command = ["cluster", "restore", "--object-store", f"file://{bucket}", *map(str, arguments)]
    return CliRunner().invoke(main, command)


def test_it_says_what_came_back_and_how_to_start_it(bucket: Path, tmp_path: Path) -> None:
    result = run(bucket, "--data-dir", tmp_path / "new", "--broker-id", 3)
    assert result.exit_code == 0, result.output
    assert "Topic orders: 1 records newer than the snapshot are appended again" in result.output
    assert "partition 0: offsets 3 to 3; 2 to 2 stay empty." in result.output
    assert "Topic payments is empty" in result.output
    assert "No committed offsets" in result.output
    assert (
        f"anabranch up --data-dir {tmp_path / 'new'} --object-store file://{bucket} --broker-id 3"
        in result.output
    )
    assert (tmp_path / "new" / "node").exists()
    assert not (tmp_path / "new.restoring").exists()


def test_json_says_the_same(bucket: Path, tmp_path: Path) -> None:
    result = run(bucket, "--data-dir", tmp_path / "new", "--format", "json")
    facts = json.loads(result.stdout)
    assert facts["is_done"]
    assert facts["records_appended"] == 1
    assert facts["incarnation"] == f"{LIFE:016x}"
    assert facts["emptied"] == ["payments"]


def test_a_dry_run_needs_no_folder_and_changes_nothing(bucket: Path) -> None:
    before = sorted(bucket.rglob("*"))
    result = run(bucket, "--dry-run")
    assert result.exit_code == 0, result.output
    assert "Nothing was written" in result.output
    assert sorted(bucket.rglob("*")) == before


def test_without_a_folder_it_asks_for_one(bucket: Path) -> None:
    result = run(bucket)
    assert result.exit_code == 2
    assert "--data-dir" in result.output


def test_a_folder_in_use_is_refused(bucket: Path, tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "node").write_text("somebody's")
    result = run(bucket, "--data-dir", tmp_path / "new", "--format", "json")
    assert result.exit_code == 1
    assert "is not empty" in json.loads(result.stderr)["error"]


@pytest.mark.parametrize("text", ["12", "g" * 16])
def test_what_is_no_incarnation_is_refused(bucket: Path, text: str) -> None:
    result = run(bucket, "--dry-run", "--incarnation", text)
    assert result.exit_code == 2
    assert "16 hexadecimal digits" in result.output


def test_a_bucket_without_a_cluster_is_refused(tmp_path: Path) -> None:
    result = run(tmp_path / "nothing", "--dry-run")
    assert result.exit_code == 1
    assert "holds no snapshot" in result.output


@pytest.mark.parametrize("is_link", [False, True])
def test_an_object_that_is_none_ends_it_at_once(bucket: Path, is_link: bool) -> None:
    path = next((bucket / "segments").iterdir())
    path.rename(bucket / "moved")
    path.symlink_to("../moved") if is_link else os.mkfifo(path)
    result = run(bucket, "--dry-run")
    assert result.exit_code == 1
    assert "Retrying" not in result.output
    assert path.name in result.output


@pytest.mark.parametrize("options", [(), ("--verify",)])
def test_an_object_that_was_emptied_is_named(bucket: Path, tmp_path: Path, options: tuple[str, ...]) -> None:
    path = max((bucket / "segments").iterdir(), key=lambda path: path.stat().st_size)
    path.write_bytes(b"")
    result = run(bucket, "--data-dir", tmp_path / "new", *options)
    assert result.exit_code == 1
    assert f"segments/{path.name}" in result.output
    result = run(bucket, "--data-dir", tmp_path / "new", "--accept-loss", *options)
    assert result.exit_code == 0, result.output
    assert (
        f"LOST: 2 records of orders-0 (offsets 0 to 1): their objects are damaged, the first is segments/{path.name}"
        in result.output
    )


@pytest.mark.parametrize("format", ["text", "json"])
def test_a_dry_run_ends_as_the_restore_would(bucket: Path, format: str) -> None:
    max((bucket / "segments").iterdir(), key=lambda path: path.stat().st_size).write_bytes(b"")
    refused = run(bucket, "--dry-run", "--format", format)
    assert refused.exit_code == 1
    assert "2 records of orders-0" in refused.output
    assert run(bucket, "--dry-run", "--format", format, "--accept-loss").exit_code == 0


def test_it_says_what_was_verified(bucket: Path) -> None:
    result = run(bucket, "--dry-run", "--verify")
    assert "Verified: 1 objects that the snapshot names" in result.output
