"""The offsets' half of the coordinator: commit, fetch, delete, and forgetting what nobody wants any more.

A commit shows in `fetch` only once the log has it. Deletions also cover commits that are still on their way,
so that none of them comes back to life after a restart.
"""

import asyncio
from collections.abc import Collection, Iterable, Iterator

from anabranch.broker.coordination.groups.coordinator_base import CoordinatorBase
from anabranch.broker.coordination.groups.shard import Shard
from anabranch.config.setting import LONG_MAX
from anabranch.coordination.groups.classic_group import ClassicGroup
from anabranch.coordination.groups.group_base import GroupState
from anabranch.coordination.groups.messages import CommitRequest, Now, PartitionCommit
from anabranch.coordination.groups.records import CommittedOffset, offset_record
from anabranch.errors import (
    AnabranchError,
    GroupIdNotFoundError,
    GroupSubscribedError,
    IllegalGenerationError,
    OffsetMetadataTooLargeError,
    OffsetsFullError,
    detached,
)
from anabranch.values import TopicPartition

_COMMIT_SAYS_NOT_FOUND_FROM = 9


class OffsetCoordinator(CoordinatorBase):
    # --- commit and fetch -------------------------------------------------------------------------------

    async def commit(self, request: CommitRequest) -> list[AnabranchError | None]:
        """One outcome per partition of the request; an error of the whole request is raised."""
        shard = self._ready(request.group_id)
        self._check_commit(shard, request)
        outcomes = self._check_partitions(shard, request)
        accepted = [one for one, error in zip(request.partitions, outcomes, strict=True) if error is None]
        if accepted:
            error = await self._submit_commit(shard, request, accepted)
            if error is not None:
                raise error
        return outcomes

    def fetch(
        self, group_id: str, wanted: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, CommittedOffset]:
        """The committed ones among the wanted, or all; whatever is missing has no offset."""
        offsets = self._ready(group_id).table.offsets_of(group_id)
        if wanted is None:
            return dict(offsets)
        return {one: offsets[one] for one in wanted if one in offsets}

    def committed(self) -> Iterator[tuple[str, TopicPartition, int]]:
        """Every committed offset of every group coordinated here, for the metrics."""
        for shard in self.ready_shards():
            for group_id in shard.table.groups:
                for topic_partition, committed in shard.table.offsets_of(group_id).items():
                    yield group_id, topic_partition, committed.offset

    def _check_commit(self, shard: Shard, request: CommitRequest) -> None:
        group = shard.table.groups.get(request.group_id)
        if group is not None:
            group.check_commit(request.member_id, request.instance_id, request.generation, self._now())
            self._set_deadline(shard, group)
        elif request.generation >= 0:
            if request.version >= _COMMIT_SAYS_NOT_FOUND_FROM:
                raise GroupIdNotFoundError(f"Group {request.group_id} not found.")
            raise IllegalGenerationError(f"There is no group {request.group_id}: join first.")

    def _check_partitions(self, shard: Shard, request: CommitRequest) -> list[AnabranchError | None]:
        outcomes: list[AnabranchError | None] = []
        growth = 0
        for one in request.partitions:
            error = self._check_metadata(one)
            if error is None:
                more = shard.table.growth(request.group_id, one.topic_partition, one.metadata or "")
                error = self._check_room(growth, more)
                growth += more if error is None else 0
            outcomes.append(error)
        return outcomes

    def _check_room(self, growth: int, more: int) -> AnabranchError | None:
        if more > 0:
            try:
                self.offset_memory.check(growth + more)
            except OffsetsFullError as error:
                return detached(error)
        return None

    def _check_metadata(self, one: PartitionCommit) -> AnabranchError | None:
        limit = self._settings.offset_metadata_bytes_max
        if one.metadata is not None and len(one.metadata) > limit:
            return OffsetMetadataTooLargeError(f"The note of a commit may have {limit} characters.")
        return None

    def _submit_commit(
        self, shard: Shard, request: CommitRequest, accepted: list[PartitionCommit]
    ) -> "asyncio.Future[Exception | None]":
        wall_ms = self._clock.wall_ms()
        # The sum of two times that fit into 64 bits need not: such an offset never expires.
        expires_ms = min(wall_ms + request.retention_ms, LONG_MAX) if request.retention_ms >= 0 else None
        committed = {
            one.topic_partition: CommittedOffset(
                one.offset, one.leader_epoch, one.metadata or "", wall_ms, expires_ms
            )
            for one in accepted
        }
        return self._submit_offsets(shard, request.group_id, committed)

    def _submit_offsets(
        self,
        shard: Shard,
        group_id: str,
        changes: "dict[TopicPartition, CommittedOffset] | dict[TopicPartition, None]",
    ) -> "asyncio.Future[Exception | None]":
        records = [offset_record(group_id, *topic_partition, new) for topic_partition, new in changes.items()]

        def apply() -> None:
            for topic_partition, new in changes.items():
                shard.table.apply_offset(group_id, topic_partition, new, self._now())

        return self._submit(shard, group_id, records, changes.keys(), apply)

    # --- deletion ---------------------------------------------------------------------------------------

    async def delete_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition]
    ) -> list[AnabranchError | None]:
        """One outcome per partition; to delete what is not there is no error."""
        shard = self._ready(group_id)
        group = shard.table.groups.get(group_id)
        if group is None:
            raise GroupIdNotFoundError(f"Group {group_id} not found.")
        group.check_offset_deletion()
        asked = list(partitions)
        outcomes = [_check_unsubscribed(group, one) for one in asked]
        present = shard.present_offsets(group_id)
        doomed = {
            one: None for one, error in zip(asked, outcomes, strict=True) if error is None and one in present
        }
        if doomed:
            error = await self._submit_offsets(shard, group_id, doomed)
            if error is not None:
                raise error
        return outcomes

    async def forget_topics(self, topics: Iterable[str]) -> None:
        """These topics are gone, and with them all offsets in them that are kept here."""
        self._check_running()
        gone = set(topics)
        writes = [write for shard in self.ready_shards() for write in self._forget_topics(shard, gone)]
        errors = [error for error in await asyncio.gather(*writes) if error is not None]
        if errors:
            raise errors[0]
        self._check_all_ready()  # What is still being read could not forget.

    def _forget_topics(
        self, shard: Shard, gone: Collection[str]
    ) -> "Iterator[asyncio.Future[Exception | None]]":
        for group_id in list(shard.table.groups):
            doomed = {one: None for one in shard.present_offsets(group_id) if one.topic in gone}
            if doomed:
                yield self._submit_offsets(shard, group_id, doomed)

    def _submit_deletion(self, shard: Shard, group: ClassicGroup) -> "asyncio.Future[Exception | None]":
        """The group is already dead to newcomers; the log decides whether it stays so."""
        group_id = group.group_id
        in_flight = shard.in_flight(group_id)
        records = shard.table.deletion_of(group_id, in_flight)

        def apply() -> None:
            shard.table.remove(group_id)
            self._deadlines.cancel((shard.index, group_id))

        return self._submit(shard, group_id, records, in_flight, apply, group.cancel_deletion)

    # --- expiry -----------------------------------------------------------------------------------------

    def _expire_offsets(self, now: Now) -> None:
        for shard in self.ready_shards():
            for group in list(shard.table.groups.values()):
                self._expire_offsets_of(shard, group, now)

    def _expire_offsets_of(self, shard: Shard, group: ClassicGroup, now: Now) -> None:
        group_id = group.group_id
        expired = shard.table.expired_offsets(group_id, now.wall_ms, shard.in_flight(group_id))
        all_expired = len(expired) == len(shard.table.offsets_of(group_id))
        if all_expired and _is_abandoned(shard, group):
            group.begin_deletion(now)
            self._submit_deletion(shard, group)
        elif expired:
            self._submit_offsets(shard, group_id, dict.fromkeys(expired))


def _is_abandoned(shard: Shard, group: ClassicGroup) -> bool:
    is_empty = group.is_in(GroupState.EMPTY) and not group.roster.pending
    return is_empty and group.group_id not in shard.lanes


def _check_unsubscribed(group: ClassicGroup, one: TopicPartition) -> AnabranchError | None:
    if group.is_subscribed_to(one.topic):
        return GroupSubscribedError(f"Group {group.group_id} is subscribed to {one.topic}.")
    return None
