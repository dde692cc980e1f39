"""The plain lane: the shortest way for the commonest produce request, batches that are kept as they came.

The compiled module reads and checks such a frame in one go; what is left is to queue its batches. Whatever is not
plain (a topic that rewrites what it keeps, a large compressed batch, anything wrong at all) is not taken, and goes the
general way through `handlers.produce`, which decides and explains. So the lane has no refusals of its own, and without
the compiled module nobody misses it.
"""

from collections import deque
from typing import TYPE_CHECKING, cast
from uuid import UUID

from anabranch.broker.handlers.answers import message_of
from anabranch.broker.requests.call import Call, Client
from anabranch.broker.requests.error_table import code_of
from anabranch.broker.write.append_queue import AppendJob
from anabranch.broker.write.intake import UNPACKED_BYTES_AT_ONCE_MAX
from anabranch.errors import AnabranchError
from anabranch.record._fast import PlainProduce, take_plain
from anabranch.record.compression import decompress
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

    @property
    def crc(self) -> int:
        """The checksum of the batch, until that is written."""
        assert self.batch is not None
        return int.from_bytes(self.batch[17:21], "big")

    def finished(self, job: AppendJob) -> None:
        """The long way of `finish_plain`: one at a time, and not always well."""
        lead = self.lead or self
        if self.error is not None:
            lead.has_failed = True
        if self.settle(self.partition.log.start_offset):
            lead.client.settled()

    def explained(self) -> bytes:
        """The answer of a request of which some has failed."""
        topics: list[tuple[TopicKey, list[PartitionAnswer]]] = []
        for part in self.parts or (self,):
            if part.row_count:
                topics.append((_topic_key(part.topic, self.api_version), []))
            topics[-1][1].append(_row(part))
        return encode_produce_response(self.api_version, self.correlation_id, topics)


def _row(part: PlainProduce) -> PartitionAnswer:
    if part.error is not None:
        return part.index, code_of(part.error), -1, -1, -1, message_of(part.error)
    return part.index, 0, part.base_offset, -1, part.partition.log.start_offset, None


def _topic_key(topic: bytes, api_version: int) -> TopicKey:
    return UUID(bytes=topic) if api_version >= TOPIC_IDS_SINCE else topic.decode("ascii")


def _unpacked(codec: int, records: memoryview, bytes_left: int) -> bytes | None:
    """Compressed records, if they are what they should be and not too many to be unpacked here."""
    try:
        return decompress(codec, records, min(bytes_left, UNPACKED_BYTES_AT_ONCE_MAX), fresh=True)
    except AnabranchError:
        return None  # The general way meets the same, and says what it is.


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
        clock = self._clock
        leads = take_plain(
            PlainJob,
            client,
            view,
            start,
            end,
            calls_max - len(calls),
            self._named,
            self._numbered,
            _unpacked,
            clock.wall_ms(),
            clock.monotonic_ms(),
        )
        for lead in leads:
            calls.append(cast(Call, lead))
            if lead.parts is None:
                core.submit(cast(AppendJob, lead))
            else:
                for part in lead.parts:
                    core.submit(cast(AppendJob, part))
            start = lead.frame_end
        return start
