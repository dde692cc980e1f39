"""Moves: what a partition's replicas want agreed on when a view ends, brought to the leader of the metadata quorum.

A replica says again and again that its view may end, or that a seal is to be undone, until the table says that another
view has begun: so a question that is lost costs time and nothing else. Of several that meet, the first counts.
"""

import asyncio
import logging
from typing import TYPE_CHECKING

from anabranch.broker.partition import Partition
from anabranch.broker.peer_messages import BeginView, ViewBegun
from anabranch.cluster.metadata import NO_MOVE, Placement, boundary_entry
from anabranch.errors import (
    NotControllerError,
    PeerError,
    QuorumBusyError,
    StorageError,
    UnknownTopicIdError,
)
from anabranch.replication.ring_effects import EndView, Unseal
from anabranch.values import BrokerId

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker

ASK_MS_MAX = 2000

logger = logging.getLogger(__name__)


class Moves:
    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._tasks: dict[Partition, asyncio.Task[None]] = {}

    # --- a broker that keeps the partition -----------------------------------------------------------------------

    def settle(self, partition: Partition, effect: EndView | Unseal) -> None:
        if partition in self._tasks:
            return
        question = self._question(partition, effect)
        if question is not None:
            task = asyncio.get_running_loop().create_task(self._ask(question))
            self._tasks[partition] = task
            task.add_done_callback(lambda done: self._ended(partition, done))

    def _question(self, partition: Partition, effect: EndView | Unseal) -> BeginView | None:
        table = self._broker.metadata.table
        topic = table.topics_by_id.get(partition.topic_id)
        if topic is None or partition.ring is None:
            return None
        placement, view = table.placement(topic, partition.id.partition), partition.ring.mode.view
        if placement.view != view:
            return None  # It has ended.
        start, replicas, move = placement.start, placement.replicas, NO_MOVE
        if isinstance(effect, EndView):
            start, replicas, move = effect.end, effect.replicas, effect.move
        return BeginView(
            partition.topic_id, partition.id.partition, view, start, effect.generation, replicas, move
        )

    async def _ask(self, question: BeginView) -> None:
        metadata, peers = self._broker.metadata, self._broker.peers
        try:
            leader = metadata.leader_id
            if metadata.is_leader:
                await self.asked(question)
            elif leader is not None and peers is not None:
                await peers.ask(leader, question, ASK_MS_MAX)
        except (PeerError, NotControllerError, QuorumBusyError, StorageError, UnknownTopicIdError) as error:
            logger.info("a view does not end yet, and is asked for again: %s", error)

    def _ended(self, partition: Partition, task: asyncio.Task[None]) -> None:
        del self._tasks[partition]
        if not task.cancelled() and task.exception() is not None:
            logger.error("a view could not end: this is a defect", exc_info=task.exception())

    async def stop(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- the leader of the quorum --------------------------------------------------------------------------------

    async def asked(self, question: BeginView) -> ViewBegun:
        """Raises NotControllerError, QuorumBusyError, StorageError, UnknownTopicIdError."""
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
                )
                await metadata.commit(boundary_entry(question.topic_id, question.partition, placement))
            return ViewBegun(self._placement(question).view)

    def _placement(self, question: BeginView) -> Placement:
        table = self._broker.metadata.table
        topic = table.topics_by_id.get(question.topic_id)
        if topic is None or question.partition >= topic.partition_count:
            raise UnknownTopicIdError(f"There is no partition {question.partition} of {question.topic_id}.")
        return table.placement(topic, question.partition)
