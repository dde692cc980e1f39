"""A node that cannot start says why, and one that cannot stop in order still lets go of its folder."""

import errno
import socket
from pathlib import Path
from typing import Any

import pytest

from anabranch.config import NodeSettings
from anabranch.errors import StorageError
from anabranch.node import CannotListenError, Node
from anabranch.server.listener import Listener
from anabranch.testing.fakes.disk import FakeDisk
from support.broker_bench import in_loop
from support.workers import InlineWorkers


class Failing:
    """A broker whose end goes wrong."""

    objects = None
    peering = None

    async def drain(self) -> None:
        raise ZeroDivisionError

    def stop_accepting(self) -> None:
        pass


@in_loop
async def test_folder_is_free_again_after_a_stop_that_failed() -> None:
    disk = FakeDisk()
    node = Node(NodeSettings.load(), files=disk)
    node._open_folder()
    node._workers = InlineWorkers()
    failing: Any = Failing()
    node.broker = node.listener = failing
    with pytest.raises(ZeroDivisionError):
        await node.stop()
    disk.lock(f"{node.data_dir}/.lock").release()
    assert node._workers is None


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(errno.EADDRINUSE, "in use"), "taken by another process"),
        (OSError(errno.EADDRNOTAVAIL, "not there"), "not an address of this machine"),
        (PermissionError(errno.EACCES, "no"), "a port above 1023"),
        (OSError("odd"), r"cannot be bound \(odd\)"),
    ],
)
def test_address_that_cannot_be_had_is_a_sentence_and_leaves_the_folder_free(
    error: OSError, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(listener: Listener, address: str) -> None:
        raise error

    @in_loop
    async def body() -> None:
        disk = FakeDisk()
        node = Node(NodeSettings.load(), files=disk)
        with pytest.raises(CannotListenError, match=f"127.0.0.1:9092 .*{said}.*--listen"):
            await node.start()
        disk.lock(f"{node.data_dir}/.lock").release()

    monkeypatch.setattr(Listener, "open", refuse)
    body()


@in_loop
async def test_node_whose_http_address_cannot_be_had_stops_cleanly() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = f"127.0.0.1:{other.getsockname()[1]}"
        disk = FakeDisk()
        node = Node(NodeSettings.load({"listen": "127.0.0.1:0", "http": taken}), files=disk)
        with pytest.raises(
            CannotListenError, match=f"{taken} is taken .*--http or, .*cluster.toml, with http"
        ):
            await node.start()
    assert disk.exists(f"{node.data_dir}/clean-shutdown")
    disk.lock(f"{node.data_dir}/.lock").release()


@pytest.mark.parametrize("name", [".lock", "t-0", "t-0.deleted", "metadata-snapshot", "t-1/quarantine"])
def test_a_data_folder_with_a_link_in_it_keeps_the_node_from_starting(tmp_path: Path, name: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_bytes(b"precious")
    link = tmp_path / "data" / name
    link.parent.mkdir(parents=True)
    link.symlink_to(outside)

    @in_loop
    async def body() -> None:
        node = Node(NodeSettings.load({"data.dir": str(tmp_path / "data"), "listen": "127.0.0.1:0"}))
        with pytest.raises(StorageError, match=f"{link} is a symbolic link.*rm "):
            await node.start()

    body()
    assert (outside / "precious").read_bytes() == b"precious"


def test_the_data_folder_itself_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "data").symlink_to(tmp_path / "disk")

    @in_loop
    async def body() -> None:
        for _ in range(2):
            node = Node(NodeSettings.load({"data.dir": str(tmp_path / "data"), "listen": "127.0.0.1:0"}))
            await node.start()
            await node.stop()

    body()
    assert (tmp_path / "disk" / "node").exists()
    assert (tmp_path / "data").is_symlink()
