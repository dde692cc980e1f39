"""Moves: what a partition's replicas want agreed on when a view ends, or when one has everything on another disk,
brought to the leader of the metadata quorum.

A replica says again and again that its view may end, or that a seal is to be undone, until the table says that another
view has begun: so a question that is lost costs time and nothing else. Of several that meet, the first counts.
"""

import asyncio
import logging
from typing import TYPE_CHECKING

from anabranch.broker.peers.messages import BeginView, DiskNamed, NameDisk, ViewBegun
from anabranch.broker.ring.driver import ring_driver
from anabranch.broker.topics.partition import Partition
from anabranch.cluster.metadata.entries import boundary_entry, disk_entry
from anabranch.cluster.metadata.rows import NO_LANE_START, NO_MOVE, Placement
from anabranch.errors import (
    NotControllerError,
    PeerError,
    QuorumBusyError,
    StorageError,
    UnknownTopicIdError,
)
from anabranch.modes.ring.effects import AskForDisk, EndView, Unseal
from anabranch.values import BrokerId, Offset

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker

ASK_MS_MAX = 2000

Wish = EndView | Unseal | AskForDisk

logger = logging.getLogger(__name__)


class Moves:
    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._tasks: dict[Partition, asyncio.Task[None]] = {}

    # --- a broker that keeps the partition -----------------------------------------------------------------------

    def settle(self, partition: Partition, effect: Wish) -> None:
        if partition in self._tasks:
            return
        question = self._question(partition, effect)
        if question is not None:
            task = asyncio.get_running_loop().create_task(self._ask(question))
            self._tasks[partition] = task
            task.add_done_callback(lambda done: self._ended(partition, done))

    def _question(self, partition: Partition, effect: Wish) -> BeginView | NameDisk | None:
        table = self._broker.metadata.table
        topic = table.topics_by_id.get(partition.topic_id)
        ring = ring_driver(partition)
        if topic is None or ring is None:
            return None
        if isinstance(effect, AskForDisk):
            return self._disk_question(partition)
        placement, view = table.placement(topic, partition.id.partition), ring.mode.view
        if placement.view != view:
            return None  # It has ended.
        start, replicas, move, lane_start = placement.start, placement.replicas, NO_MOVE, NO_LANE_START
        if isinstance(effect, EndView):
            start, replicas, move = effect.end, effect.replicas, effect.move
            if topic.is_branch and placement.leaves_for_branches:
                lane_start = partition.log.start_offset  # What is below, in the object store, stays there.
        return BeginView(
            partition.topic_id,
            partition.id.partition,
            view,
            start,
            effect.generation,
            replicas,
            move,
            lane_start,
        )

    def _disk_question(self, partition: Partition) -> NameDisk | None:
        me = self._broker.metadata.me
        row = self._broker.metadata.table.brokers.get(BrokerId(me.broker_id))
        if row is None or row.directory_id != me.directory_id:
            return None  # It has not registered with this disk yet.
        return NameDisk(partition.topic_id, partition.id.partition, row.broker_id, row.epoch)

    async def _ask(self, question: BeginView | NameDisk) -> None:
        metadata, peers = self._broker.metadata, self._broker.peers
        try:
            leader = metadata.leader_id
            if metadata.is_leader:
                await self.asked(question)
            elif leader is not None and peers is not None:
                await peers.ask(leader, question, ASK_MS_MAX)
        except (PeerError, NotControllerError, QuorumBusyError, StorageError, UnknownTopicIdError) as error:
            logger.info("a change of a partition is not agreed on yet, and is asked for again: %s", error)

    def _ended(self, partition: Partition, task: asyncio.Task[None]) -> None:
        del self._tasks[partition]
        if not task.cancelled() and task.exception() is not None:
            logger.error(
                "a change of a partition could not be asked for: this is a defect", exc_info=task.exception()
            )

    async def stop(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- the leader of the quorum --------------------------------------------------------------------------------

    async def asked(self, question: BeginView | NameDisk) -> ViewBegun | DiskNamed:
        """Raises NotControllerError, QuorumBusyError, StorageError, UnknownTopicIdError."""
        if isinstance(question, NameDisk):
            return await self._name_disk(question)
        return await self._begin_view(question)

    async def _name_disk(self, question: NameDisk) -> DiskNamed:
        metadata = self._broker.metadata
        async with metadata.lock:
            placement, row = self._placement(question), metadata.table.brokers.get(question.broker_id)
            # Asked again while it waited for its turn, it has been done.
            if row is not None and placement.is_strange_to(row.broker_id, row.directory_id):
                await metadata.commit(
                    disk_entry(question.topic_id, question.partition, row.broker_id, question.epoch)
                )
        return DiskNamed()

    async def _begin_view(self, question: BeginView) -> ViewBegun:
        metadata = self._broker.metadata
        async with metadata.lock:
            placement = self._placement(question)
            if placement.view == question.view:
                placement = Placement(
                    tuple(BrokerId(broker) for broker in question.replicas),
                    view=question.view + 1,
                    start=question.start,
                    generation=question.generation,
                    move=question.move,
                    lane_start=Offset(question.lane_start),
                )
                await metadata.commit(boundary_entry(question.topic_id, question.partition, placement))
            return ViewBegun(self._placement(question).view)

    def _placement(self, question: BeginView | NameDisk) -> Placement:
        table = self._broker.metadata.table
        topic = table.topics_by_id.get(question.topic_id)
        if topic is None or question.partition >= topic.partition_count:
            raise UnknownTopicIdError(f"There is no partition {question.partition} of {question.topic_id}.")
        return table.placement(topic, question.partition)
