"""A range of one partition by the Kafka protocol, as chunks of whole batches.

The next request is on its way while a chunk is being used. A broker that goes away is waited for and asked again from
the last offset that arrived, so that nothing comes twice. Records that are gone are the loss policy's business: a topic
that was deleted or made again, offsets that retention took, a log that ends before the range does.
"""

import time
from collections.abc import Iterator
from contextlib import suppress
from uuid import UUID

from anabranch.errors import CorruptDataError, TryAgainError, UnknownTopicOrPartitionError
from anabranch.pipeline.client.client import EARLIEST, LATEST, READ_COMMITTED, Client, check
from anabranch.pipeline.client.connection import Connection
from anabranch.pipeline.source.chunks import CHUNK_BYTES, Chunk, survey
from anabranch.pipeline.source.loss import LossPolicy
from anabranch.values import TopicPartition
from anabranch.wire.api_keys import ApiKey
from anabranch.wire.codec import Body
from anabranch.wire.error_codes import ErrorCode

WAIT_MS_MAX = 500
SILENCE_SECONDS_MAX = 10.0
"""How long a partition may have nothing to say about offsets it once had."""


class PartitionFetch:
    """One partition's records in [start, end). Needs the client for itself until it is done."""

    def __init__(
        self, client: Client, place: TopicPartition, topic_id: UUID, start: int, end: int, loss: LossPolicy
    ) -> None:
        self._client = client
        self._place = place
        self._topic_id = topic_id
        self._position, self._end = start, end
        self._loss = loss
        self._pending: Connection | None = None
        """Where an answer is on its way."""
        self._silent_since: float | None = None

    def chunks(self) -> Iterator[Chunk]:
        while self._position < self._end:
            try:
                row = self._client.patiently(self._row)
            except UnknownTopicOrPartitionError:
                self._loss.report(
                    f"{self._place} was deleted, or made again, before offset {self._position} was read"
                )
                return
            if row["error_code"] == ErrorCode.OFFSET_OUT_OF_RANGE:
                self._move_into_range()
                continue
            chunk = self._chunk(row)
            if chunk is None:
                self._note_silence(row["high_watermark"])
                continue
            self._silent_since = None
            if self._position < self._end:
                with suppress(TryAgainError):  # The next turn finds out, and has the patience.
                    self._ask()
            yield chunk

    # --- asking ---------------------------------------------------------------------------------------------------

    def _row(self) -> Body:
        """The partition's row of the next answer."""
        if self._pending is None:
            self._ask()
        link, self._pending = self._pending, None
        assert link is not None
        answer = link.receive()
        check(answer["error_code"], str(self._place))
        row: Body = answer["responses"][0]["partitions"][0]
        if row["error_code"] != ErrorCode.OFFSET_OUT_OF_RANGE:
            check(row["error_code"], str(self._place))
        return row

    def _ask(self) -> None:
        partition = {
            "partition": self._place.partition,
            "fetch_offset": self._position,
            "partition_max_bytes": CHUNK_BYTES,
        }
        body = {
            "max_wait_ms": WAIT_MS_MAX,
            "min_bytes": 1,
            "max_bytes": CHUNK_BYTES,
            "isolation_level": READ_COMMITTED,
            "topics": [{"topic_id": self._topic_id, "partitions": [partition]}],
        }
        link = self._client.leader(self._place)
        link.send(ApiKey.FETCH, body)
        self._pending = link

    # --- answers --------------------------------------------------------------------------------------------------

    def _chunk(self, row: Body) -> Chunk | None:
        """What arrived, and we move behind it; None if nothing did."""
        data = row["records"]
        if not data:
            return None
        found = survey(data)
        if not found.whole_bytes:
            raise CorruptDataError(
                f"{self._place} answers offset {self._position} with {len(data)} bytes of no batch."
            )
        aborted = [(each["producer_id"], each["first_offset"]) for each in row["aborted_transactions"] or ()]
        start, self._position = self._position, max(found.next_offset, self._position)
        return Chunk(data[: found.whole_bytes], start, self._end, aborted)

    def _move_into_range(self) -> None:
        first = self._client.offsets_at({self._place: EARLIEST})[self._place]
        end = self._client.offsets_at({self._place: LATEST})[self._place]
        if self._position < first:
            self._loss.report(
                f"{self._place} begins at offset {first} by now, and {self._position} was to be read"
            )
            self._position = first
        elif self._position > end:
            self._give_up(
                f"{self._place} ends at offset {end}, and {self._position} was to be read: it was cut back"
            )

    def _note_silence(self, high_watermark: int) -> None:
        now = time.monotonic()
        if self._silent_since is None:
            self._silent_since = now
        if now - self._silent_since > SILENCE_SECONDS_MAX:
            self._give_up(
                f"{self._place} has nothing from offset {self._position} on, its high watermark is {high_watermark}, "
                f"and {self._end} was to be reached"
            )

    def _give_up(self, what: str) -> None:
        self._loss.report(what)
        self._position = self._end
