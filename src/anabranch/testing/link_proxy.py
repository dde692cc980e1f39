"""LinkProxies: cuts the links between broker processes, for tests that run real ones.

    with LinkProxies() as proxies:
        address = proxies.front(1)              # give broker 1 this as peer.advertise, and others as peer.join
        proxies.behind(1, "127.0.0.1:9192")     # its peer.listen, once that is known
        proxies.cut(1, 2, one_way=True)         # what 1 sends does not reach 2
        proxies.heal()

Every broker has a proxy in front of its peer port. Who dials is read from the handshake, in which the dialler says so
last, so each pair can be treated by itself; the brokers need no hook. A cut is what it is on a network: nothing is
refused, bytes stop coming. What was under way arrives after `heal`; connections of a pair that stays cut for longer
than a system waits for an acknowledgement are broken. Only for links without TLS, whose frames cannot be read.
"""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self

from anabranch.config import host_and_port
from anabranch.server.peers.handshake import HELLO_BYTES_MAX, HandshakeError, next_frame, read_identity
from anabranch.server.peers.sockets import DEAD_AFTER_MS
from anabranch.values import BrokerId

CHUNK_BYTES = 256 * 1024
CALL_SECONDS_MAX = 10

Pair = tuple[BrokerId, BrokerId]


class LinkProxies:
    def __init__(self, host: str = "127.0.0.1") -> None:
        self._host = host
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="link-proxies", daemon=True)
        self._servers: dict[BrokerId, asyncio.Server] = {}
        self._targets: dict[BrokerId, str] = {}
        self._cuts: dict[Pair, asyncio.TimerHandle] = {}
        """With when the connections of the pair break."""
        self._delays_ms: dict[Pair, int] = {}
        self._changed = asyncio.Event()
        self._writers: dict[asyncio.StreamWriter, Pair] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(CALL_SECONDS_MAX)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # --- for tests ---------------------------------------------------------------------------------------------

    def front(self, broker: BrokerId) -> str:
        """The address at which others reach this broker through its proxy."""

        async def open_server() -> str:
            if broker not in self._servers:
                self._servers[broker] = await asyncio.start_server(
                    lambda reader, writer: self._serve(broker, reader, writer), self._host, 0
                )
            port: int = self._servers[broker].sockets[0].getsockname()[1]
            return f"{self._host}:{port}"

        return asyncio.run_coroutine_threadsafe(open_server(), self._loop).result(CALL_SECONDS_MAX)

    def behind(self, broker: BrokerId, peer_address: str) -> None:
        """Where that broker really listens; it may change with a restart."""
        host_and_port(peer_address)
        self._do(lambda: self._targets.__setitem__(broker, peer_address))

    def cut(self, one: BrokerId, other: BrokerId, *, one_way: bool = False) -> None:
        """Nothing that `one` sends reaches `other`, nor back unless `one_way`."""
        self._do(lambda: self._cut([(one, other)] if one_way else [(one, other), (other, one)]))

    def isolate(self, broker: BrokerId) -> None:
        others = [other for other in self._servers if other != broker]
        self._do(lambda: self._cut([pair for other in others for pair in ((broker, other), (other, broker))]))

    def heal(self, one: BrokerId | None = None, other: BrokerId | None = None) -> None:
        """Two brokers, one and all others, or everything."""
        some = {broker for broker in (one, other) if broker is not None}
        self._do(lambda: self._heal(some))

    def delay(self, one: BrokerId, other: BrokerId, milliseconds: int) -> None:
        """What `one` sends reaches `other` so much later."""
        self._do(lambda: self._delays_ms.__setitem__((one, other), milliseconds))

    # --- in the thread of the loop -----------------------------------------------------------------------------

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def _do(self, action: Callable[[], None]) -> None:
        async def run() -> None:
            action()

        asyncio.run_coroutine_threadsafe(run(), self._loop).result(CALL_SECONDS_MAX)

    def _cut(self, pairs: list[Pair]) -> None:
        for pair in pairs:
            if pair not in self._cuts:
                self._cuts[pair] = self._loop.call_later(DEAD_AFTER_MS / 1000, self._break, pair)

    def _break(self, pair: Pair) -> None:
        for writer, (sender, receiver) in list(self._writers.items()):
            if {sender, receiver} == set(pair):
                writer.transport.abort()

    def _heal(self, some: set[BrokerId]) -> None:
        for pair in [pair for pair in self._cuts if some <= set(pair)]:
            self._cuts.pop(pair).cancel()
        self._changed.set()
        self._changed = asyncio.Event()

    async def _close(self) -> None:
        for timer in self._cuts.values():
            timer.cancel()
        for server in self._servers.values():
            server.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)  # Aborted transports close their sockets in the loop's next turn.

    # --- connections -------------------------------------------------------------------------------------------

    async def _serve(self, to: BrokerId, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            with suppress(OSError, HandshakeError, asyncio.IncompleteReadError):
                await self._join_ends(to, reader, writer)
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _join_ends(
        self, to: BrokerId, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        far_reader, far_writer = await asyncio.open_connection(*host_and_port(self._targets[to]))
        try:
            for source, sink in (
                (reader, far_writer),
                (far_reader, writer),
            ) * 2:  # Two hellos and two proofs.
                sink.write(await _read_frame(source))
            identity = await _read_frame(reader)
            found = next_frame(identity)
            assert found is not None
            dialler = read_identity(found[0].body).broker_id
            await self._until_open((dialler, to))
            self._writers |= {writer: (to, dialler), far_writer: (dialler, to)}
            far_writer.write(identity)
            await self._pump_both((reader, far_writer), (far_reader, writer))
        finally:
            for end in (writer, far_writer):
                end.transport.abort()
                self._writers.pop(end, None)

    async def _pump_both(self, *ways: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> None:
        """Until either way ends."""
        pumps = [asyncio.ensure_future(self._pump(reader, writer)) for reader, writer in ways]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        pair = self._writers[writer]
        while True:
            await self._until_open(pair)
            chunk = await reader.read(CHUNK_BYTES)
            if delay_ms := self._delays_ms.get(pair):
                await asyncio.sleep(delay_ms / 1000)
            await self._until_open(pair)
            if not chunk:
                return
            writer.write(chunk)
            await writer.drain()

    async def _until_open(self, pair: Pair) -> None:
        while pair in self._cuts:
            await self._changed.wait()


async def _read_frame(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readexactly(4)
    length = int.from_bytes(head, "big")
    if not 1 <= length <= HELLO_BYTES_MAX:
        raise asyncio.IncompleteReadError(head, None)  # No broker: it is hung up on.
    return head + await reader.readexactly(length)
