"""NodeThread: one life of a node in a background thread with its own event loop.

`start` returns when the Kafka port answers. A life ends by `stop`, as on SIGTERM, or by `kill`, which leaves the
data folder the way a killed process does: nothing more is written, and no mark of a clean shutdown. (One step is
kinder than a real kill: a sync that is under way in a worker is waited for.)
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from anabranch.broker.handlers import dispatch
from anabranch.config import NodeSettings
from anabranch.log.disk.files import Files
from anabranch.node import Node
from anabranch.testing.in_process_client import Dispatch, InProcessClient

Result = TypeVar("Result")


class AbandonedNode(Node):
    """A node that can also be left lying."""

    async def abandon(self) -> None:
        """End without closing a log: what a killed process leaves."""
        self.listener.stop_accepting()
        for connection in list(self.listener.connections):
            connection.close("the node was killed")
        if self._http is not None:
            await self._http.close()
        await self.listener.close(0)
        if self.broker.objects is not None:
            self.broker.objects.writing.kill()
        await self.broker.drain()
        for partition in self.broker.partitions():
            partition.log.close(clean=False)
        await self._let_go()


class NodeThread:
    def __init__(self, settings: NodeSettings, files: Files, on_request: Dispatch = dispatch) -> None:
        self._settings = settings
        self._files = files
        self._on_request = on_request
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="anabranch-node", daemon=True)
        self.node: AbandonedNode | None = None

    def start(self) -> None:
        """Raises what `Node.start` raises, and then nothing is left behind."""
        self._thread.start()
        try:
            self.run(self._start())
        except BaseException:
            self._end()
            raise

    async def _start(self) -> None:
        node = AbandonedNode(self._settings, files=self._files)
        await node.start()
        if self._on_request is not dispatch:
            node.listener.serve_through(self._on_request)
        self.client = InProcessClient(node.broker)
        self.node = node

    def run(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine in the node's loop and wait for its result."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def call(self, function: Callable[[], Result]) -> Result:
        """The same for a plain function, such as one that looks at the broker's state."""

        async def called() -> Result:
            return function()

        return self.run(called())

    def stop(self) -> None:
        assert self.node is not None
        try:
            self.run(self.node.stop())
        finally:
            self._end()

    def kill(self) -> None:
        assert self.node is not None
        try:
            self.run(self.node.abandon())
        finally:
            self._end()

    def _end(self) -> None:
        self.node = None
        self.run(_cancel_the_rest())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _cancel_the_rest() -> None:
    """Requests that a dead node will not answer."""
    rest = asyncio.all_tasks() - {asyncio.current_task()}
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)
