"""The plain lane: the shortest way for the commonest produce request, one uncompressed batch for one partition.

The compiled module reads and checks such a frame in one go; what is left is to find the partition and queue the
batch. Whatever is not plain (several partitions, compression, a topic that rewrites what it keeps, anything wrong at
all) is not taken, and goes the general way through `handlers.produce`, which decides and explains. So the lane has
no refusals of its own, and without the compiled module nobody misses it.
"""

from collections import deque
from typing import TYPE_CHECKING, cast
from uuid import UUID

from anabranch.broker.append_queue import AppendJob
from anabranch.broker.call import Call, Client
from anabranch.broker.error_table import code_of
from anabranch.broker.handlers.answers import message_of
from anabranch.record._fast import PlainProduce, take_plain
from anabranch.wire.produce_fast import TOPIC_IDS_SINCE, PartitionAnswer, encode_produce_response

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker

TopicKey = str | UUID


class PlainJob(PlainProduce):
    """Call and append job in one, with all that is expected of either: see `Call` and `AppendJob`."""

    __slots__ = ()

    @property
    def header(self) -> "PlainJob":
        return self

    def finished(self, job: AppendJob) -> None:
        if self.error is None:
            frame = self.answer(self.partition.log.start_offset)
        else:
            row: PartitionAnswer = (self.index, code_of(self.error), -1, -1, -1, message_of(self.error))
            topics = [(_topic_key(self), [row])]
            frame = encode_produce_response(self.api_version, self.correlation_id, topics)
        self.is_settled = True
        self.pieces = (frame,)
        self.client.settled()


def _topic_key(produce: PlainProduce) -> TopicKey:
    if produce.api_version >= TOPIC_IDS_SINCE:
        return UUID(bytes=produce.topic)
    return produce.topic.decode("ascii")


class PlainLane:
    def __init__(self, broker: "Broker") -> None:
        self._clock = broker.clock
        self._core = broker.core
        self._named, self._numbered = broker.topics.named, broker.topics.numbered

    def take(
        self, client: Client, view: memoryview, start: int, end: int, calls: deque[Call], calls_max: int
    ) -> int:
        """Queues the plain requests in `view[start:end]`, and enters them into `calls`, until there is something
        else or enough; answers where that is."""
        core = self._core
        if core.queue.is_full:
            return start
        now_ms, count_max = self._clock.wall_ms(), calls_max - len(calls)
        jobs = take_plain(PlainJob, client, view, start, end, count_max, self._named, self._numbered, now_ms)
        for job in jobs:
            if job.wait_safe:
                job.deadline_ms = self._clock.monotonic_ms() + max(0, job.timeout_ms)
            calls.append(cast(Call, job))
            core.submit(cast(AppendJob, job))
            start = job.frame_end
        return start
