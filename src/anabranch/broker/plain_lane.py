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
from anabranch.record._fast import PlainProduce, read_plain_produce
from anabranch.wire.produce_fast import TOPIC_IDS_SINCE, PartitionAnswer, encode_produce_response

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker

TopicKey = str | UUID
KEYS_REMEMBERED_MAX = 10_000


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
        self._broker_id = broker.id
        self._clock = broker.clock
        self._core = broker.core
        self._topics = broker.topics
        self._frame_bytes_max = broker.settings.socket_request_max_bytes
        self._keys: dict[bytes, TopicKey] = {}

    def take(
        self, client: Client, view: memoryview, start: int, end: int, calls: deque[Call], calls_max: int
    ) -> int:
        """Queues the plain requests in `view[start:end]`, and enters them into `calls`, until there is something
        else or enough; answers where that is."""
        now_ms = self._clock.wall_ms()
        core = self._core
        while len(calls) < calls_max and not core.queue.is_full:
            produce = read_plain_produce(PlainJob, view, start, end)
            if produce is None or not self._may_take(produce, now_ms):
                break
            start = produce.frame_end
            produce.client = client
            calls.append(cast(Call, produce))
            core.submit(cast(AppendJob, produce))
            if start == end:
                break
        return start

    def _may_take(self, produce: PlainJob, now_ms: int) -> bool:
        """Whether the partition is here and takes the batch as it is, as `handlers.produce` would find."""
        key = self._keys.get(produce.topic) or self._key(produce)
        partition = self._topics.find_partition(key, produce.index)
        if partition is None:
            return False
        settings = partition.settings
        if (
            not settings.keeps_plain_batches
            or produce.size > settings.max_message_bytes
            or produce.size > self._frame_bytes_max
            or produce.max_timestamp - now_ms > settings.message_timestamp_after_max_ms
            or partition.mode.writer() != self._broker_id
            or partition.log.fenced
        ):
            return False
        if produce.wait_safe:
            if settings.min_insync_replicas > 1:
                return False
            produce.deadline_ms = self._clock.monotonic_ms() + max(0, produce.timeout_ms)
        produce.partition = partition
        return True

    def _key(self, produce: PlainProduce) -> TopicKey:
        """Making an id of 16 bytes, or a name of ASCII, costs more than to remember it."""
        if len(self._keys) >= KEYS_REMEMBERED_MAX:
            self._keys.clear()
        key = self._keys[produce.topic] = _topic_key(produce)
        return key
