"""Where the fan-out gets its chunks: fetched from whoever leads the partition, decoded and written as JSON.

Whoever waits at the end of a partition takes no memory, however many they are. Those behind it are read for a few at a
time: where it ends is known from the last fetch.
"""

import asyncio
from collections import OrderedDict
from functools import partial
from typing import TYPE_CHECKING

from anabranch.gateway.calls import refusal
from anabranch.gateway.read.chunks import Chunk, Encode, chunks_of
from anabranch.gateway.read.fan_out import Stream
from anabranch.wire.error_codes import ErrorCode

if TYPE_CHECKING:
    from anabranch.gateway.calls import Calls

FETCH_BYTES_MAX = 256 * 1024
BEHIND_AT_ONCE_MAX = 16
"""How many of those who are behind are read for at a time: each of them takes some megabytes for a moment."""
ENDS_MAX = 10_000


class RecordSource:
    def __init__(self, calls: "Calls", encode: Encode) -> None:
        self._calls = calls
        self._encode = encode
        self._turns = asyncio.Semaphore(BEHIND_AT_ONCE_MAX)
        self._ends: OrderedDict[Stream, int] = OrderedDict()

    async def load(self, stream: Stream, offset: int, wait_ms: int) -> list[Chunk]:
        """Raises AnabranchError; a topic that was deleted is gone, though there be another of its name."""
        if offset < self._ends.get(stream, -1):
            async with self._turns:
                chunks = await self._load(stream, offset, 0)
            if chunks:
                return chunks
            # There is nothing, though there are records behind it: a position that no branch of the topic knows.
        return await self._load(stream, offset, wait_ms)

    async def _load(self, stream: Stream, offset: int, wait_ms: int) -> list[Chunk]:
        self._check_topic(stream)
        fetched = await self._calls.fetch(
            stream.topic, stream.partition, offset, bytes_max=FETCH_BYTES_MAX, wait_ms=wait_ms
        )
        self._check_topic(stream)
        self._note_end(stream, fetched.high_watermark)
        if not fetched.batches:
            return []
        decode = partial(chunks_of, fetched.batches, stream.partition, offset, self._encode)
        return await self._calls.decoded(fetched.batches, decode)

    def _note_end(self, stream: Stream, end: int) -> None:
        self._ends[stream] = end
        self._ends.move_to_end(stream)
        if len(self._ends) > ENDS_MAX:
            self._ends.popitem(last=False)

    def _check_topic(self, stream: Stream) -> None:
        view = self._calls.known_topic(stream.topic)
        if view is None or view.topic_id != stream.topic_id:
            raise refusal(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"Topic {stream.topic} has been deleted: subscribe anew.",
            )
