"""All groups and their committed offsets in memory: what the `__consumer_offsets` log says, and no more.

Offsets change only through `apply_offset`, which the coordinator calls once a record is durable and `replay`
calls for every record read back, in the order of the log: both ways lead to the same table.
"""

from collections.abc import Callable, Collection

from anabranch.coordination.groups.classic_group import ClassicGroup
from anabranch.coordination.groups.group_base import CONSUMER_PROTOCOL_TYPE, GroupState
from anabranch.coordination.groups.group_memory import (
    OFFSET_BYTES,
    OFFSETS_OF_GROUP_BYTES,
    GroupMemory,
    OffsetMemory,
)
from anabranch.coordination.groups.messages import LogRecord, Now
from anabranch.coordination.groups.records import (
    CommittedOffset,
    OffsetKey,
    group_record,
    offset_record,
    read_group,
    read_key,
    read_offset,
)
from anabranch.coordination.groups.settings import GroupSettings
from anabranch.values import TopicPartition

Offsets = dict[TopicPartition, CommittedOffset]


class GroupTable:
    def __init__(
        self,
        settings: GroupSettings,
        new_id: Callable[[], str],
        memory: GroupMemory,
        offset_memory: OffsetMemory,
    ) -> None:
        self.groups: dict[str, ClassicGroup] = {}
        self._offsets: dict[str, Offsets] = {}
        self._settings = settings
        self._new_id = new_id
        self._memory = memory
        self._offset_memory = offset_memory

    def find_or_add(self, group_id: str, now: Now) -> ClassicGroup:
        group = self.groups.get(group_id)
        if group is None:
            group = ClassicGroup(group_id, self._settings, self._new_id, now, self._memory)
            self.groups[group_id] = group
        return group

    def offsets_of(self, group_id: str) -> Offsets:
        return self._offsets.get(group_id, {})

    # --- changes ----------------------------------------------------------------------------------------

    def replay(self, key: bytes, value: bytes | None, now: Now) -> None:
        subject = read_key(key)
        if isinstance(subject, OffsetKey):
            committed = None if value is None else read_offset(value)
            topic_partition = TopicPartition(subject.topic, subject.partition)
            self.apply_offset(subject.group_id, topic_partition, committed, now)
        elif subject is not None:
            self._drop(subject.group_id)
            if value is not None:
                self.find_or_add(subject.group_id, now).restore(read_group(value))

    def apply_offset(
        self, group_id: str, topic_partition: TopicPartition, committed: CommittedOffset | None, now: Now
    ) -> None:
        if committed is not None:
            self.find_or_add(group_id, now)  # A simple consumer's commit is all there is of its group.
            self._offset_memory.bytes_taken += self.growth(group_id, topic_partition, committed.metadata)
            self._offsets.setdefault(group_id, {})[topic_partition] = committed
        elif group_id in self._offsets:
            removed = self._offsets[group_id].pop(topic_partition, None)
            if removed is not None:
                self._offset_memory.bytes_taken -= _size_of(removed.metadata)
            if not self._offsets[group_id]:
                del self._offsets[group_id]
                self._offset_memory.bytes_taken -= _size_of_group(group_id)

    def growth(self, group_id: str, topic_partition: TopicPartition, metadata: str) -> int:
        """How many bytes more a commit would take; negative if its metadata are shorter than before."""
        offsets = self._offsets.get(group_id)
        if offsets is None:
            return _size_of_group(group_id) + _size_of(metadata)
        before = offsets.get(topic_partition)
        return _size_of(metadata) - (0 if before is None else _size_of(before.metadata))

    def _drop_offsets(self, group_id: str) -> None:
        offsets = self._offsets.pop(group_id, None)
        if offsets is not None:
            taken = _size_of_group(group_id) + sum(_size_of(each.metadata) for each in offsets.values())
            self._offset_memory.bytes_taken -= taken

    def _drop(self, group_id: str) -> None:
        group = self.groups.pop(group_id, None)
        if group is not None:
            group.roster.forget_all()

    def forget_all(self) -> None:
        """Nothing of this is coordinated here any more."""
        for group in self.groups.values():
            group.roster.forget_all()
        for group_id in list(self._offsets):
            self._drop_offsets(group_id)

    def remove(self, group_id: str) -> None:
        self._drop(group_id)
        self._drop_offsets(group_id)

    def forget_if_unused(self, group_id: str) -> bool:
        """Drop a group that the log does not know: nothing has to be written for it."""
        group = self.groups.get(group_id)
        if group is None or not group.is_forgettable() or group_id in self._offsets:
            return False
        self._drop(group_id)
        return True

    # --- what deletes and expires -----------------------------------------------------------------------

    def deletion_of(self, group_id: str, in_flight: Collection[TopicPartition]) -> list[LogRecord]:
        """The records that delete a group: its offsets, those still on their way to the log, then itself."""
        doomed = sorted({*self.offsets_of(group_id), *in_flight})
        records = [offset_record(group_id, topic, partition, None) for topic, partition in doomed]
        if self.groups[group_id].is_stored:
            records.append(group_record(group_id, None))
        return records

    def expired_offsets(
        self, group_id: str, wall_ms: int, in_flight: Collection[TopicPartition]
    ) -> list[TopicPartition]:
        group = self.groups[group_id]
        if not _lets_offsets_expire(group):
            return []
        return [
            topic_partition
            for topic_partition, committed in self.offsets_of(group_id).items()
            if topic_partition not in in_flight
            and not group.is_subscribed_to(topic_partition.topic)
            and self._is_expired(group, committed, wall_ms)
        ]

    def _is_expired(self, group: ClassicGroup, committed: CommittedOffset, wall_ms: int) -> bool:
        if committed.expire_timestamp_ms is not None:
            return wall_ms >= committed.expire_timestamp_ms
        since_ms = committed.commit_timestamp_ms
        if group.protocol_type and group.is_in(GroupState.EMPTY) and group.state_timestamp_ms != -1:
            since_ms = group.state_timestamp_ms  # However old a commit is, it lives as long as its consumers.
        return wall_ms - since_ms >= self._settings.offsets_retention_ms


def _size_of(metadata: str) -> int:
    return OFFSET_BYTES + len(metadata)


def _size_of_group(group_id: str) -> int:
    return OFFSETS_OF_GROUP_BYTES + len(group_id)


def _lets_offsets_expire(group: ClassicGroup) -> bool:
    if not group.protocol_type or group.is_in(GroupState.EMPTY):
        return not group.is_in(GroupState.DEAD)
    is_consumer = group.protocol_type == CONSUMER_PROTOCOL_TYPE
    return is_consumer and group.is_in(GroupState.STABLE) and group.knows_its_topics
