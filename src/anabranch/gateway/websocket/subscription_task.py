"""Running: a subscription from the moment it was asked for: it begins, says where, and runs until it is ended."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from anabranch.errors import AnabranchError, InvalidRequestError
from anabranch.gateway.calls import TopicView, refusal
from anabranch.gateway.read.fan_out import Stream
from anabranch.gateway.read.starts import start_offsets
from anabranch.gateway.sessions.group_member import GroupMember
from anabranch.gateway.websocket.fields import PARTITIONS_MAX, Start
from anabranch.gateway.websocket.group_subscription import GroupSubscription
from anabranch.gateway.websocket.messages import Subscribe
from anabranch.gateway.websocket.outlet import Outlet
from anabranch.gateway.websocket.subscription import Subscription
from anabranch.gateway.websocket.subscription_memory import size_of
from anabranch.wire.error_codes import ErrorCode

if TYPE_CHECKING:
    from anabranch.gateway.websocket.sockets import Sockets

logger = logging.getLogger(__name__)


class Running:
    def __init__(self, sockets: "Sockets", outlet: Outlet, asked: Subscribe, host: str) -> None:
        self.id = asked.id
        self._calls = sockets.calls
        self._outlet = outlet
        self._asked = asked
        self._host = host
        self._subscription = Subscription(asked.id, sockets.fan_out, outlet, asked.filter, asked.credit)
        self._group: GroupSubscription | None = None
        self._topic: TopicView | None = None
        self._growing = False
        self._is_cancelled = False
        self.size_bytes = size_of(self.partition_count, asked.filter)
        """What it counts for."""
        self._task: asyncio.Task[None] | None = None

    @property
    def partition_count(self) -> int:
        """How many it follows, or will."""
        if self._asked.partitions is not None:
            return len(self._asked.partitions)
        topic = self._calls.known_topic(self._asked.topic)
        return topic.partition_count if topic is not None else 1

    # --- what the client says ----------------------------------------------------------------------------------

    def grant(self, records: int) -> None:
        self._subscription.grant(records)

    def ack(self, partition: int, offset: int) -> None:
        if self._group is None:
            raise InvalidRequestError("Only a subscription of a group takes acknowledgements.")
        self._group.ack(partition, offset)

    def fail(self, error: AnabranchError) -> None:
        """`run` raises it."""
        self._subscription.fail(error)

    def cancel(self) -> None:
        """`run` returns, once what has to be settled is."""
        self._is_cancelled = True
        if self._task is not None:
            self._task.cancel()

    # --- its life ----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until it is cancelled. Raises the AnabranchError that ends it."""
        if self._is_cancelled:
            return
        self._task = task = asyncio.current_task()
        assert task is not None
        try:
            await self._run()
        except asyncio.CancelledError:
            if not self._is_cancelled:
                raise  # The whole session ends.
            task.uncancel()
        finally:
            self._subscription.close()
            self._task = None

    async def _run(self) -> None:
        topic = await self._calls.topic(self._asked.topic)
        self._check(topic)
        if self._asked.group is not None:
            await self._run_group(topic, self._asked.group)
            return
        partitions = self._asked.partitions or range(topic.partition_count)
        await self._follow(topic, partitions, self._asked.start)
        self._topic = topic
        await self._subscription.run()

    def _check(self, topic: TopicView) -> None:
        for index in self._asked.partitions or ():
            if index >= topic.partition_count:
                raise refusal(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    f"Topic {topic.name} has no partition {index}: it has {topic.partition_count}, numbered from 0.",
                )
        if self._asked.partitions is None and topic.partition_count > PARTITIONS_MAX:
            raise InvalidRequestError(
                f"Topic {topic.name} has {topic.partition_count} partitions, more than one subscription follows: "
                f"choose at most {PARTITIONS_MAX} with partitions."
            )

    async def _run_group(self, topic: TopicView, group_id: str) -> None:
        member = GroupMember(self._calls, group_id, topic.name, self._host)
        self._group = GroupSubscription(
            self._calls, member, self._subscription, self._outlet, topic, self._asked.start
        )
        await self._outlet.say({"type": "subscribed", "id": self.id, "topic": topic.name, "group": group_id})
        await _both(self._group.run(), self._subscription.run())

    async def _follow(self, topic: TopicView, partitions: "range | tuple[int, ...]", start: Start) -> None:
        offsets = await start_offsets(self._calls, topic.name, partitions, start)
        said = {str(index): str(offset) for index, offset in offsets.items()}
        await self._outlet.say({"type": "subscribed", "id": self.id, "topic": topic.name, "offsets": said})
        for index, offset in offsets.items():
            self._subscription.follow(Stream(topic.name, topic.topic_id, index), offset)

    # --- a topic that grows ------------------------------------------------------------------------------------

    def has_new_partitions(self) -> bool:
        """Of a subscription to the whole topic."""
        if self._topic is None or self._asked.partitions is not None or self._growing:
            return False
        now = self._calls.known_topic(self._topic.name)
        return (
            now is not None
            and now.topic_id == self._topic.topic_id
            and self._topic.partition_count < now.partition_count <= PARTITIONS_MAX
        )

    @property
    def grown_size_bytes(self) -> int:
        """What it would count for with the partitions that were added."""
        return size_of(self.partition_count, self._asked.filter)

    async def follow_new_partitions(self) -> None:
        """From their beginning: whoever follows a topic misses none of it."""
        assert self._topic is not None
        self._growing = True
        try:
            now = await self._calls.topic(self._topic.name)
            added = range(self._topic.partition_count, now.partition_count)
            await self._follow(now, added, Start("earliest"))
            self._topic = now
        except AnabranchError as error:
            logger.info("new partitions of %s are not followed yet: %s", self._topic.name, error)
        finally:
            self._growing = False


async def _both(one: Coroutine[Any, Any, None], other: Coroutine[Any, Any, None]) -> None:
    """Side by side, until one of them fails: neither goes on without the other."""
    tasks = [asyncio.ensure_future(one), asyncio.ensure_future(other)]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
    for error in ended:
        if isinstance(error, Exception):
            raise error
