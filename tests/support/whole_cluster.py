"""Several whole brokers in one thread with everything they do in a cluster: quorum, orchestrator, rings and groups."""

from anabranch.broker.broker import Broker
from anabranch.config import NodeSettings
from anabranch.testing.fakes.disk import FakeDisk
from anabranch.testing.fakes.loop import SimWorkers
from anabranch.testing.in_process_client import InProcessClient
from anabranch.values import BrokerId
from support.broker_cluster import DATA, BrokerCluster, Life


class WholeLife(Life):
    """One life of one broker. It ends as by kill -9: cut off first, so that nothing it ends with is heard."""

    def __init__(
        self, cluster: "WholeCluster", broker_id: int, disk: FakeDisk, settings: dict[str, str]
    ) -> None:
        self._loop = cluster.loop
        self.disk = disk
        self.is_over = False
        me = BrokerId(broker_id)
        host, port = cluster.net.address(me)
        everything = {
            "broker.id": str(broker_id),
            "listen": f"127.0.0.1:{9000 + broker_id}",
            "peer.listen": f"{host}:{port}",
            "cluster.secret.file": "secret",
            "data.dir": DATA,
            "offsets.topic.num.partitions": "3",
            **settings,
        }
        workers = SimWorkers(cluster.loop, cluster.rng)
        self.peers = cluster.net.peers(me)
        self.broker = Broker(
            NodeSettings.load(everything), cluster.clock, disk, workers, DATA, "boot", self.peers
        )
        self.broker.open()
        self.broker.start()
        assert self.broker.peering is not None
        self.peers.start(self.broker.peering)
        self.client = InProcessClient(self.broker, is_cut=lambda: self.is_over)


class WholeCluster(BrokerCluster):
    async def _start(self, broker_id: int, disk: FakeDisk, settings: dict[str, str]) -> None:
        self.lives[broker_id] = WholeLife(self, broker_id, disk, settings)

    def kill(self, broker_id: int, *, lose_disk: bool = False) -> None:
        life = self.lives.pop(broker_id)
        self._dead.append(life)
        self.net.crash(BrokerId(broker_id))
        life.is_over = True
        self.do(life.broker.drain())
        life.broker.metadata.leave()
        life.disk.kill()
        if lose_disk:
            del self._disks[broker_id]

    def close(self) -> None:
        for life in self.lives.values():
            life.is_over = True
            self.loop.run_until_complete(life.broker.drain())
        self.lives = {}
        super().close()


def whole_cluster_of(count: int, seed: int = 1, **settings: str) -> WholeCluster:
    cluster = WholeCluster(seed, **settings)
    cluster.start(*range(1, count + 1))
    cluster.settle()
    return cluster
