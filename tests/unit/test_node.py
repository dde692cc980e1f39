"""A node that cannot stop in order still lets go of its folder."""

from typing import Any

import pytest

from anabranch.config import NodeSettings
from anabranch.node import Node
from anabranch.testing.fake_disk import FakeDisk
from support.broker_bench import in_loop
from support.workers import InlineWorkers


class Failing:
    """A broker whose end goes wrong."""

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
