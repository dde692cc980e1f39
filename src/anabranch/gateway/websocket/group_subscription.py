"""GroupSubscription: a subscription whose partitions a consumer group shares out, with acknowledgement.

    join > assigned > records from what the group has committed > ... > revoked > join again
    ack > committed, as many at once as have come meanwhile > acked

A member reads on from the group's committed offsets: what was sent to a client and not acknowledged before it went, or
before the group was shared out anew, is delivered again, to whoever has the partition then. A group that has committed
nothing begins where the client says, and commits that at once, so that nothing is skipped if the first client goes
before it has acknowledged anything.
"""

import asyncio
import logging
from typing import TYPE_CHECKING

from anabranch.errors import (
    AnabranchError,
    BrokerRefusedError,
    InvalidRequestError,
    NotOwnerError,
    RequestTimedOutError,
)
from anabranch.gateway.http.errors import error_body
from anabranch.gateway.read.fan_out import Stream, is_passing
from anabranch.gateway.read.starts import start_offsets
from anabranch.gateway.sessions.group_member import AGAIN, ANEW, GroupMember
from anabranch.gateway.websocket.fields import Start
from anabranch.gateway.websocket.outlet import ClientGoneError, Outlet
from anabranch.gateway.websocket.subscription import Subscription

if TYPE_CHECKING:
    from anabranch.gateway.calls import Calls, TopicView

BEAT_SECONDS = 2.0
PAUSE_SECONDS = 1.0

logger = logging.getLogger(__name__)


class GroupSubscription:
    def __init__(
        self,
        calls: "Calls",
        member: GroupMember,
        subscription: Subscription,
        outlet: Outlet,
        topic: "TopicView",
        start: Start,
    ) -> None:
        self._calls = calls
        self._member = member
        self._subscription = subscription
        self._outlet = outlet
        self._topic = topic
        self._start = start
        self._done: dict[int, int] = {}
        self._committed: dict[int, int] = {}
        self._under_way: dict[int, int] = {}
        self._committing: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Until it is cancelled. Raises the AnabranchError that ends the membership."""
        try:
            while True:
                try:
                    await self._take_part()
                except (NotOwnerError, RequestTimedOutError, BrokerRefusedError) as error:
                    if not _may_pass(error):
                        raise
                    await asyncio.sleep(PAUSE_SECONDS)
        finally:
            self._subscription.close()
            await self._leave()

    async def _take_part(self) -> None:
        """One generation of the group."""
        partitions = await self._member.join()
        positions = await self._positions(partitions)
        self._done, self._under_way, self._committed = {}, {}, dict(positions)
        offsets = {str(index): str(offset) for index, offset in positions.items()}
        await self._outlet.say({"type": "assigned", "id": self._subscription.id, "offsets": offsets})
        for index, offset in positions.items():
            stream = Stream(self._topic.name, self._topic.topic_id, index)
            self._subscription.follow(stream, offset)
        error = await self._stay()
        self._subscription.close()
        if self._committing is not None:
            await self._committing  # What was acknowledged counts before the partitions go to others.
        await self._outlet.say({"type": "revoked", "id": self._subscription.id, "partitions": partitions})
        if error is not None:
            raise error

    async def _stay(self) -> AnabranchError | None:
        """Until the group gathers anew, or does not know this member any more: then why."""
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            try:
                if not await self._member.beat():
                    return None
                self._pass_over()
            except AnabranchError as error:
                return error

    async def _positions(self, partitions: list[int]) -> dict[int, int]:
        if not partitions:
            return {}
        committed = await self._member.committed(partitions)
        missing = [index for index in partitions if index not in committed]
        if missing:
            begun = await start_offsets(self._calls, self._topic.name, missing, self._start)
            await self._member.commit(begun)
            committed.update(begun)
        # What retention has taken since the last commit is gone; the group goes on with what is still there.
        first = await start_offsets(self._calls, self._topic.name, partitions, Start("earliest"))
        return {index: max(committed[index], first[index]) for index in partitions}

    # --- acknowledgement ---------------------------------------------------------------------------------------

    def ack(self, partition: int, offset: int) -> None:
        """Everything up to this offset is done with. Raises InvalidRequestError."""
        follow = self._subscription.follows.get(partition)
        if follow is None:
            raise InvalidRequestError(
                f"Partition {partition} is not this client's now: nothing is acknowledged."
            )
        if offset > follow.last_sent:
            raise InvalidRequestError(
                f"Offset {offset} of partition {partition} has not been delivered since it was assigned."
            )
        # Behind the last record sent there may be some that the filter has dropped: they are done with, too.
        done = follow.position if offset == follow.last_sent else offset + 1
        self._finish(partition, done)

    def _pass_over(self) -> None:
        """What the filter has dropped nobody will acknowledge: it is done with once all before it is."""
        for partition, follow in self._subscription.follows.items():
            if follow.last_sent < self._committed[partition]:
                self._finish(partition, follow.position)

    def _finish(self, partition: int, offset: int) -> None:
        known = max(
            self._done.get(partition, 0), self._under_way.get(partition, 0), self._committed[partition]
        )
        if offset > known:
            self._done[partition] = offset
            if self._committing is None:
                self._committing = asyncio.ensure_future(self._commit())

    async def _commit(self) -> None:
        try:
            while self._done:
                self._under_way, self._done = self._done, {}
                await self._commit_once(self._under_way)
                self._under_way = {}
        except ClientGoneError:
            pass  # Whoever ends this subscription commits what is left.
        finally:
            self._committing = None

    async def _commit_once(self, offsets: dict[int, int]) -> None:
        own_id = self._subscription.id
        try:
            await self._member.commit(offsets)
        except AnabranchError as error:
            await self._outlet.say({"type": "error", "id": own_id, **error_body(error)["error"]})
            return
        self._committed.update(offsets)
        said = {str(index): str(offset) for index, offset in offsets.items()}
        await self._outlet.say({"type": "acked", "id": own_id, "committed": said})

    async def _leave(self) -> None:
        """The client may be gone: what it has acknowledged counts all the same."""
        if self._committing is not None:
            self._committing.cancel()
        offsets = {**self._under_way, **self._done}
        try:
            if offsets:
                await self._member.commit(offsets)
            await self._member.leave()
        except AnabranchError as error:
            logger.info("a member of a group could not say goodbye, its session will run out: %s", error)


def _may_pass(error: AnabranchError) -> bool:
    """Whether joining again may help."""
    return not isinstance(error, BrokerRefusedError) or is_passing(error) or error.code in (*AGAIN, *ANEW)
