"""Node: one process of anabranch: a broker, its Kafka port, and the HTTP port: the gateway, metrics and health.

    node = Node(NodeSettings.load({...}))
    await node.start()      # the Kafka port answers; raises AnabranchError or OSError with what is wrong
    node.bootstrap          # "127.0.0.1:9092"
    await node.stop()       # answers what it accepted, closes every log

The data folder is locked from start to stop. Slow imports (metrics, HTTP) happen after the Kafka port answers.
"""

import asyncio
import contextlib
import errno
import logging
import os
import resource
from typing import TYPE_CHECKING

from anabranch.broker.broker import Broker
from anabranch.broker.topics.stored_state import StoredState
from anabranch.broker.workers import ThreadWorkers, Workers
from anabranch.clock import Clock, RealClock
from anabranch.config import NodeSettings
from anabranch.errors import AnabranchError, StorageError, StoreUnavailableError
from anabranch.log.disk.files import Files, FolderLock, require_no_strays
from anabranch.log.disk.real_files import RealFiles, boot_id
from anabranch.server.listener import Listener

if TYPE_CHECKING:
    from anabranch.broker.object.objects import Objects
    from anabranch.gateway.http.server import HttpServer
    from anabranch.objects.store import ObjectStore
    from anabranch.server.peers.port import PeerPort

STOP_SECONDS_MAX = 3.0
STORE_SECONDS_MAX = 2.0
"""How long a start waits to hear whether the object store will serve."""
LOCK_FILE = ".lock"

logger = logging.getLogger(__name__)


class CannotListenError(AnabranchError):
    """An address where this node was told to listen cannot be had."""


class Node:
    def __init__(
        self, settings: NodeSettings, *, clock: Clock | None = None, files: Files | None = None
    ) -> None:
        self.settings = settings
        self.clock: Clock = clock if clock is not None else RealClock()
        # The data folder itself may be a link; nothing in it is one.
        self.data_dir = os.path.realpath(settings.data_dir) if files is None else settings.data_dir
        self._open_files_limit = raise_open_files_limit()
        self.files: Files = (
            files if files is not None else RealFiles(settings.open_files_budget(self._open_files_limit))
        )
        self._lock: FolderLock | None = None
        self._workers: Workers | None = None
        self._http: HttpServer | None = None
        self._peer_port: PeerPort | None = None
        self._store: ObjectStore | None = None

    async def start(self) -> None:
        """Open the data folder and the port."""
        try:
            self._open_folder()
            await self._open_port()
        except BaseException:
            await self._let_go()
            raise

    def _open_folder(self) -> None:
        try:
            self.files.make_folder(self.data_dir)
            self._lock = self.files.lock(f"{self.data_dir}/{LOCK_FILE}")
            require_no_strays(self.files, self.data_dir)
        except OSError as error:
            raise StorageError(
                f"The data folder {self.data_dir} cannot be used: {_reason(error, self.data_dir)}."
            ) from error

    async def _open_port(self) -> None:
        await self._make_broker()
        connections_max = self.settings.connections_limit(self._open_files_limit)
        per_host_max = self.settings.connections_per_ip_limit(connections_max)
        self.listener = Listener(self.broker, self.clock, connections_max, per_host_max)
        # Bound before recovery, so that a taken port costs nothing; nobody is answered before it is done.
        self._bound = self._bind()
        if self._peer_port is None:
            self._listen()
        await self._open_broker()
        if self.broker.objects is not None:
            await self._check_store(self.broker.objects)
        await self._serve()

    async def _open_broker(self) -> None:
        try:
            self.broker.bound = self._bound
            self.broker.open()
            if self._peer_port is not None:
                await self._meet_peers(self._peer_port)
        except (
            asyncio.CancelledError
        ):  # Nobody was served; but what others have sent is there, and should stay.
            await self.stop()
            raise
        except BaseException:
            self.listener.stop_accepting()
            raise

    async def _serve(self) -> None:
        if self._peer_port is not None:
            await self._listen_at_last()
        self.listener.start()
        if self._peer_port is None:
            self.broker.start()
        if self.settings.http:
            try:
                await self._open_http(self.settings.http)
            except BaseException:
                await (
                    self.stop()
                )  # Clients may have been served already: the next start should find all in order.
                raise

    async def _make_broker(self) -> None:
        threads = self.settings.worker_threads
        self._workers = ThreadWorkers(
            asyncio.get_running_loop(), sync_threads=threads, heavy_threads=max(2, threads // 2)
        )
        if self.settings.object_store is not None:
            await self._open_store(self.settings.object_store, self._workers)
        if self.settings.peer_listen is not None:
            await self._open_peer_port(self.settings.peer_listen)
        self.broker = Broker(
            self.settings,
            self.clock,
            self.files,
            self._workers,
            self.data_dir,
            boot_id(),
            self._peer_port.links if self._peer_port is not None else None,
            self._store,
        )

    async def _open_store(self, url: str, workers: Workers) -> None:
        """One that refuses us is said now; one that is away, or slow to answer, only keeps its own topics waiting."""
        from anabranch.objects.stores import check_store, open_store

        settings = self.settings
        self._store = open_store(
            url,
            files=self.files,
            workers=workers,
            clock=self.clock,
            credentials_file=settings.object_credentials_file,
            timeout_ms=settings.object_timeout_ms,
        )
        try:
            async with asyncio.timeout(STORE_SECONDS_MAX):
                await check_store(self._store)
        except TimeoutError:
            logger.warning("the object store %s does not answer yet", self._store.url)

    async def _check_store(self, objects: "Objects") -> None:
        """What was agreed on is known here by now: a wrong store is said before anybody writes to it."""
        try:
            async with asyncio.timeout(STORE_SECONDS_MAX):
                await objects.check_store()
        except (TimeoutError, StoreUnavailableError) as error:
            logger.warning(
                "whether %s is the store of this cluster is not known: %s", objects.store.url, error
            )
        except BaseException:
            await self.stop()  # The next start should find all in order.
            raise

    async def _open_peer_port(self, address: str) -> None:
        from anabranch.server.peers.port import PeerPort

        port = PeerPort(self.settings, self.clock)
        try:
            await port.open(StoredState(self.files, self.data_dir, boot_id()))
        except OSError as error:
            raise _cannot_listen(address, "--peer-listen", error) from error
        self._peer_port = port

    async def _meet_peers(self, port: "PeerPort") -> None:
        """Clients are served once this broker knows what the cluster has agreed on."""
        broker = self.broker
        assert broker.peering is not None
        broker.peers_bound = port.bound
        broker.start()
        port.start(broker.peering)
        try:
            await broker.peering.join()
        except asyncio.CancelledError:
            await broker.drain()
            await port.close()
            await broker.close()  # The next start should find all in order.
            raise

    def _bind(self) -> tuple[str, int]:
        try:
            return self.listener.open(self.settings.listen)
        except OSError as error:
            raise _cannot_listen(self.settings.listen, "--listen", error) from error

    def _listen(self) -> None:
        """Clients of a node alone wait for it. Those of a cluster are refused by a broker that cannot serve them yet,
        which may take long, and so go to another one at once."""
        try:
            self.listener.listen()
        except OSError as error:
            self.listener.stop_accepting()
            raise _cannot_listen(self.settings.listen, "--listen", error) from error

    async def _listen_at_last(self) -> None:
        try:
            self._listen()
        except CannotListenError:
            await self.stop()  # Others count on this broker already.
            raise

    async def _open_http(self, address: str) -> None:
        from anabranch.gateway.http.server import HttpServer

        self._http = HttpServer(self.broker, self.listener)
        try:
            await self._http.open(address)
        except OSError as error:
            raise _cannot_listen(address, "--http", error) from error

    @property
    def bootstrap(self) -> str:
        host, port = self._bound
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    @property
    def http_address(self) -> str | None:
        return self._http.address if self._http is not None else None

    async def stop(self) -> None:
        """Accept nothing more, answer what was accepted, close the logs, let go of the folder."""
        try:
            if self.broker.objects is not None:
                await self.broker.objects.leave()
            if self.broker.peering is not None:
                await self.broker.peering.leave()
            self.listener.stop_accepting()
            if self._http is not None:
                await self._http.close()
            await self.broker.drain()
            if self._peer_port is not None:
                await self._peer_port.close()
            await self.listener.close(STOP_SECONDS_MAX)
            await self.broker.close()
        finally:
            await self._let_go()

    async def _let_go(self) -> None:
        if self._store is not None:
            store, self._store = self._store, None
            await store.close()
        if self._workers is not None:
            self._workers.close()
            self._workers = None
        if self._lock is not None:
            self._lock.release()
            self._lock = None


def _cannot_listen(address: str, option: str, error: OSError) -> CannotListenError:
    match error.errno:
        case errno.EADDRINUSE:
            # A broker of `cluster up` has its addresses from cluster.toml: that command has no --http.
            setting = option.removeprefix("--").replace("-", ".")
            why = (
                f"is taken by another process: stop it, or choose another port with {option} or, in a settings file "
                f"such as cluster.toml, with {setting}."
            )
        case errno.EADDRNOTAVAIL:
            why = f"is not an address of this machine: check {option}."
        case errno.EACCES | errno.EPERM:
            why = f"may not be bound by this user: choose a port above 1023 with {option}."
        case _:
            why = f"cannot be bound ({error.strerror or error}): check {option}."
    return CannotListenError(f"{address} {why}")


def raise_open_files_limit() -> int:
    """Take all the descriptors the system allows; how many that is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    return soft if soft != resource.RLIM_INFINITY else 1_048_576


def _reason(error: OSError, folder: str) -> str:
    """Why the system refused, with the name of what it refused if that is not the folder itself."""
    reason = error.strerror or str(error)
    return reason if error.filename in (None, folder) else f"{error.filename}: {reason}"
