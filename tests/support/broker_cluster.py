"""Several whole brokers in one thread, over a net that can be cut: without ports and threads, by virtual time."""

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

from anabranch.broker.broker import Broker
from anabranch.config import NodeSettings
from anabranch.objects.store import ObjectStore
from anabranch.testing.fakes.clock import FakeClock
from anabranch.testing.fakes.disk import FakeDisk
from anabranch.testing.fakes.loop import SimWorkers, VirtualLoop
from anabranch.testing.fakes.net import FakeNet
from anabranch.testing.in_process_client import Body, InProcessClient
from anabranch.values import BrokerId
from anabranch.wire.api_keys import ApiKey

DATA = "data"


class Life:
    """One life of one broker."""

    def __init__(
        self, cluster: "BrokerCluster", broker_id: int, disk: FakeDisk, settings: dict[str, str]
    ) -> None:
        self.disk = disk
        self.is_over = False
        me = BrokerId(broker_id)
        host, port = cluster.net.address(me)
        everything = {
            "broker.id": str(broker_id),
            "listen": f"127.0.0.1:{9000 + broker_id}",
            "peer.listen": f"{host}:{port}",
            "cluster.secret.file": "unread: these links are in one process",
            "data.dir": DATA,
            "offsets.topic.num.partitions": "2",
            **settings,
        }
        workers = SimWorkers(cluster.loop, cluster.rng)
        self.peers = cluster.net.peers(me)
        self.broker = Broker(
            NodeSettings.load(everything),
            cluster.clock,
            disk,
            workers,
            DATA,
            "boot",
            self.peers,
            cluster.store,
        )
        self.broker.open()
        assert self.broker.peering is not None
        self.peers.start(self.broker.peering)
        self.broker.start()
        self.client = InProcessClient(self.broker, is_cut=lambda: self.is_over)

    async def end(self) -> None:
        """Nothing that this life still does reaches anybody."""
        self.is_over = True
        self.broker.metadata.leave()
        if self.broker.objects is not None:
            self.broker.objects.writing.kill()
        assert self.broker.peering is not None
        await self.broker.peering.stop()
        await self.broker.orchestrator.stop()
        await self.broker.housekeeping.stop()


class BrokerCluster:
    """`start(1)` founds the cluster; the others join it. Everything is by seed and by virtual time."""

    def __init__(self, seed: int = 1, **settings: str) -> None:
        self.rng = Random(seed)
        self.clock = FakeClock()
        self.loop = VirtualLoop(self.clock, lambda: False)
        self.failures: list[dict[str, Any]] = []
        self.loop.set_exception_handler(lambda _, context: self.failures.append(context))
        self.net = FakeNet(self.loop, self.clock, self.rng)
        self.lives: dict[int, Life] = {}
        self._dead: list[Life] = []
        """Whose tasks wait for ever: they are kept from being collected, which asyncio would call a failure."""
        self.store: ObjectStore | None = None
        """All brokers that are started have this one."""
        self._settings = {name.replace("_", "."): value for name, value in settings.items()}
        self._disks: dict[int, FakeDisk] = {}
        _OPEN.append(self)

    def start(self, *broker_ids: int, **settings: str) -> None:
        for broker_id in broker_ids:
            wanted = {**self._settings, **{name.replace("_", "."): value for name, value in settings.items()}}
            if broker_id != 1:
                host, port = self.net.address(BrokerId(1))
                wanted["peer.join"] = f"{host}:{port}"
            disk = self._disks.setdefault(broker_id, FakeDisk())
            self.do(self._start(broker_id, disk, wanted))

    async def _start(self, broker_id: int, disk: FakeDisk, settings: dict[str, str]) -> None:
        self.lives[broker_id] = Life(self, broker_id, disk, settings)

    def kill(self, broker_id: int, *, lose_disk: bool = False) -> None:
        """The process dies, as by kill -9; `start` brings it back."""
        life = self.lives.pop(broker_id)
        self._dead.append(life)
        self.net.crash(BrokerId(broker_id))
        self.do(life.end())
        self.do(life.broker.topics.stop())
        life.disk.kill()
        if lose_disk:
            del self._disks[broker_id]

    # --- time

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run until this is done."""
        result = self.loop.run_until_complete(work)
        assert not self.failures, self.failures
        return result

    def run(self, milliseconds: int) -> None:
        self.do(asyncio.sleep(milliseconds / 1000))

    def until(self, is_so: Callable[[], bool], within_ms: int = 20_000) -> None:
        end_ms = self.clock.monotonic_ms() + within_ms
        while not is_so():
            assert self.clock.monotonic_ms() < end_ms, "it did not come about"
            self.run(20)

    # --- looking

    def broker(self, broker_id: int) -> Broker:
        return self.lives[broker_id].broker

    @property
    def leader_id(self) -> int | None:
        return next((each for each, life in self.lives.items() if life.broker.metadata.is_leader), None)

    @property
    def leader(self) -> Broker:
        found = self.leader_id
        assert found is not None
        return self.broker(found)

    @property
    def follower_id(self) -> int:
        return next(each for each in sorted(self.lives) if each != self.leader_id)

    def ask(self, broker_id: int, api: ApiKey, version: int, body: Body) -> Body:
        answer: Body = self.do(self.lives[broker_id].client.ask(api, version, body))
        return answer

    def voters(self) -> set[int]:
        return {member.broker_id for member in self.leader.metadata.members.voters}

    def settle(self) -> None:
        """All that live are registered, unfenced, and as many vote as should."""
        wanted = {1: 1, 2: 1}.get(len(self.lives), 3 if len(self.lives) < 7 else 5)

        def is_settled() -> bool:
            if self.leader_id is None:
                return False
            rows = self.leader.metadata.table.brokers
            alive = {each for each, row in rows.items() if not row.is_fenced}
            return set(self.lives) <= alive and len(self.voters()) == wanted

        self.until(is_settled)
        self.run(500)  # The others learn of it.

    def close(self) -> None:
        for life in self.lives.values():
            life.is_over = True
        while tasks := asyncio.all_tasks(self.loop):
            for task in tasks:
                task.cancel()
            self.loop.run_for(0)
        self.loop.close()


_OPEN: list[BrokerCluster] = []


def close_all() -> None:
    """For the end of a test."""
    while _OPEN:
        _OPEN.pop().close()


def cluster_of(count: int, seed: int = 1, **settings: str) -> BrokerCluster:
    cluster = BrokerCluster(seed, **settings)
    cluster.start(*range(1, count + 1))
    cluster.settle()
    return cluster
