"""A broker that believes it is one of several, and partitions whose leadership and safety a test decides."""

import uuid
from typing import Any

from anabranch.broker.coordination.groups.coordinator import GroupCoordinator
from anabranch.broker.coordination.offsets_topic import OffsetsTopic
from anabranch.broker.topics.driver import SoloDriver
from anabranch.broker.topics.partition import Partition
from anabranch.coordination.groups.settings import GroupSettings
from anabranch.errors import AnabranchError, NotOwnerError
from anabranch.modes.mode import Effect, Event, Publish
from anabranch.values import BrokerId, Generation, Offset
from support.broker_bench import Bench


class SteeredMode:
    """Nothing is safe before the test says so; who may write is what the test says."""

    def __init__(self, writer: BrokerId | None, safe: Offset) -> None:
        self.leader = writer
        self._safe = safe

    def step(self, event: Event, now_ms: int) -> list[Effect]:
        return []

    def writer(self) -> BrokerId | None:
        return self.leader

    def reader(self, start: Offset) -> BrokerId:
        return BrokerId(0)

    def safe_offset(self) -> Offset:
        return self._safe

    def describe(self) -> dict[str, object]:
        return {"mode": "steered"}


class SteeredDriver(SoloDriver):
    """Of a partition that another broker may have taken over."""

    def __init__(self, partition: Partition, mode: SteeredMode, me: BrokerId) -> None:
        super().__init__(partition)
        self._mode = mode
        self._me = me

    def refusal(self) -> AnabranchError | None:
        return None if self._mode.leader == self._me else NotOwnerError("Another broker leads it.")


class ClusterBench(Bench):
    """One broker of a cluster, with the offsets topic made if `partitions` says so."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        broker = self.broker
        broker.is_alone = False
        broker.offsets_topic = OffsetsTopic(self.core, self.topics, is_alone=False)
        broker.groups = GroupCoordinator(
            broker.offsets_topic.append,
            self.clock,
            GroupSettings(),
            lambda: str(uuid.uuid4()),
            broker.offsets_topic.shard_of,
        )
        broker.offsets_topic.attach(broker.groups)
        self.offsets_topic, self.groups = broker.offsets_topic, broker.groups

    async def offsets_partition(self, index: int = 0) -> Partition:
        await self.offsets_topic.made()
        return self.topics.partition("__consumer_offsets", index)

    def steer(self, partition: Partition) -> SteeredMode:
        """From now on records of this partition are safe when `publish` says so."""
        mode = SteeredMode(BrokerId(self.broker.id), partition.high_watermark)
        partition.mode = mode
        partition.driver = SteeredDriver(partition, mode, BrokerId(self.broker.id))
        return mode

    def publish(self, partition: Partition) -> None:
        partition.carry_out([Publish(partition.log.end_offset)])

    def lead(self, partition: Partition, generation: int = 1) -> None:
        self.offsets_topic.on_leadership(partition, True, Generation(generation))

    def lose(self, partition: Partition, generation: int = 2) -> None:
        self.offsets_topic.on_leadership(partition, False, Generation(generation))
