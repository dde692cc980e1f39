"""GroupSnapshots: writes the offsets that groups have committed to the object store, one object for each partition of
`__consumer_offsets` that is led here and has grown since the last time."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from anabranch.broker.coordination.groups.coordinator_base import THE_ONLY_SHARD
from anabranch.broker.coordination.groups.shard import Shard
from anabranch.broker.coordination.offsets_topic import index_of
from anabranch.broker.topics.topics import OFFSETS_TOPIC, TopicState
from anabranch.broker.workers import in_heavy_worker
from anabranch.coordination.groups.stored_offsets import stored_groups
from anabranch.objects.layout.snapshots import (
    GroupsId,
    groups_id_of,
    groups_prefix,
    groups_value,
    pack_snapshot,
)
from anabranch.objects.store import ObjectStore
from anabranch.values import Generation, Offset

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker

KEPT = 3


class Mark(NamedTuple):
    """How far a partition's groups are known: who led it, and where its log ended."""

    generation: Generation
    end: Offset


class GroupSnapshots:
    def __init__(self, broker: "Broker", store: ObjectStore) -> None:
        self._broker = broker
        self._store = store
        self._stored: dict[int, Mark] = {}

    async def take(self, incarnation: int) -> None:
        """Raises StoreError."""
        changed = list(self._changed())
        if not changed:
            return
        there = await self._listed(incarnation)
        for partition, mark, value in changed:
            kept = there.get(partition, [])
            number = kept[-1].number + 1 if kept else 0
            await self._put(GroupsId(incarnation, partition, number), value)
            self._stored[partition] = mark
            await self._store.delete([each.name for each in kept[: 1 - KEPT]])

    async def _put(self, groups_id: GroupsId, value: dict[str, Any]) -> None:
        data = await in_heavy_worker(self._broker.workers, lambda: pack_snapshot(value))
        await self._store.put(groups_id.name, [data])

    async def _listed(self, incarnation: int) -> dict[int, list[GroupsId]]:
        """By partition, the oldest first."""
        found: dict[int, list[GroupsId]] = {}
        async for page in self._store.list(groups_prefix(incarnation)):
            for each in page:
                groups_id = groups_id_of(each.name)
                if groups_id is not None:
                    found.setdefault(groups_id.partition, []).append(groups_id)
        for ids in found.values():
            ids.sort()
        return found

    def _changed(self) -> Iterator[tuple[int, Mark, dict[str, Any]]]:
        state = self._broker.topics.find(OFFSETS_TOPIC)
        if state is None:
            return
        for partition, shard in self._led(state):
            log = state.partitions[partition]
            if log is None:
                continue
            mark = Mark(log.generation, log.log.end_offset)
            if mark.end > 0 and mark != self._stored.get(partition):
                yield partition, mark, self._value(state, partition, shard, mark)

    def _led(self, state: TopicState) -> Iterator[tuple[int, Shard]]:
        for shard in self._broker.groups.ready_shards():
            if shard.index == THE_ONLY_SHARD and self._broker.is_alone:
                yield from ((partition, shard) for partition in range(state.topic.partition_count))
            elif shard.index < len(state.partitions):
                yield shard.index, shard

    def _value(self, state: TopicState, partition: int, shard: Shard, mark: Mark) -> dict[str, Any]:
        mine = [group_id for group_id in shard.table.groups if index_of(group_id, state) == partition]
        return groups_value(
            stored_groups(shard.table, mine).json(),
            time_ms=self._broker.clock.wall_ms(),
            partition_count=state.topic.partition_count,
            generation=mark.generation,
            end=mark.end,
        )
