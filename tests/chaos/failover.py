"""How long a cluster takes to go on without a leader: of a partition, under load, and of the metadata quorum.

Measured from the kill to what a client sees: the first record sent after it that is acknowledged, the first topic that
can be made. The dead broker is started again before the next round.
"""

import time
import uuid

from anabranch.errors import ClusterAnswerError
from anabranch.testing.cluster_processes import ClusterProcesses
from anabranch.wire.error_codes import ErrorCode
from chaos.cluster_load import ClusterLoad, now_ms
from support.clusters import create_topic, wait_for_voters, wait_until_in_sync
from support.waiting import wait_until

GO_ON_S_MAX = 60.0
PAUSE_S = 0.02
TOPIC, PARTITIONS = "failover", 3


class Failover:
    def __init__(self, cluster: ClusterProcesses) -> None:
        self._cluster = cluster
        self.load = ClusterLoad(cluster.bootstrap, TOPIC, PARTITIONS, producers=2, consumers=1)

    def start(self) -> None:
        assert create_topic(self._cluster, TOPIC, PARTITIONS, copies=3) == ErrorCode.NONE
        wait_for_voters(self._cluster)
        self.load.start()
        wait_until(lambda: self.load.acknowledged_count > 100, "the load to begin", GO_ON_S_MAX)

    def lose_leader(self, partition: int) -> int:
        """ms without writes to that partition after the kill -9 of whoever leads it."""
        leader = self._cluster.leader_of(TOPIC, partition)
        killed_ms = now_ms()
        self._cluster.kill(leader)
        wait_until(
            lambda: self.load.silence_ms(partition, killed_ms) is not None, "writes to go on", GO_ON_S_MAX
        )
        silence_ms = self.load.silence_ms(partition, killed_ms)
        assert silence_ms is not None
        self._bring_back(leader)
        return silence_ms

    def lose_quorum_leader(self) -> int:
        """ms without new topics after the kill -9 of whoever leads the metadata quorum."""
        leader = self._cluster.controller()
        others = [broker for broker in self._cluster.ids if broker != leader]
        killed_ms = now_ms()
        self._cluster.kill(leader)
        wait_until(lambda: any(map(self._can_make_a_topic, others)), "a topic to be made", GO_ON_S_MAX)
        silence_ms = now_ms() - killed_ms
        self._bring_back(leader)
        return silence_ms

    def _can_make_a_topic(self, broker: int) -> bool:
        time.sleep(PAUSE_S)
        try:
            code = create_topic(self._cluster, f"new-{uuid.uuid4().hex[:8]}", copies=2, broker=broker)
        except ClusterAnswerError:
            return False
        return code == ErrorCode.NONE

    def _bring_back(self, broker: int) -> None:
        self._cluster.restart(broker)
        wait_until_in_sync(self._cluster, [TOPIC])
