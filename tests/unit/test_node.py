"""A node that cannot start says why, and one that cannot stop in order still lets go of its folder."""

import errno
import socket
from typing import Any

import pytest

from anabranch.config import NodeSettings
from anabranch.node import CannotListenError, Node
from anabranch.server.listener import Listener
from anabranch.testing.fake_disk import FakeDisk
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
        with pytest.raises(CannotListenError, match=f"{taken} is taken .*--http"):
            await node.start()
    assert disk.exists(f"{node.data_dir}/clean-shutdown")
    disk.lock(f"{node.data_dir}/.lock").release()
