"""Produce, versions 3 to 13 (0 to 2 are advertised, as Kafka does, and refused).

acks=0 is never answered (an error closes the connection), acks=1 is answered when written, acks=all when the
topic's mode calls the records safe. Idempotent producers are served; transactional ones are refused. Left out:
the leader hints of KIP-951, which one node has no use for.
"""

from typing import TYPE_CHECKING
from uuid import UUID

from anabranch.broker.append_queue import AppendJob, Batch
from anabranch.broker.call import Call
from anabranch.broker.error_table import code_of
from anabranch.broker.handlers.answers import message_of
from anabranch.broker.intake import UNPACKED_BYTES_AT_ONCE_MAX, check_contents, check_envelope
from anabranch.broker.partition import Partition
from anabranch.broker.topics import OFFSETS_TOPIC
from anabranch.errors import (
    AnabranchError,
    BatchTooLargeError,
    InvalidAcksError,
    InvalidRequestError,
    InvalidTopicError,
    NotEnoughCopiesError,
    TransactionsUnsupportedError,
    UnsupportedCompressionError,
)
from anabranch.record.batch import BatchHeader
from anabranch.record.compression import Codec
from anabranch.wire.produce_fast import encode_produce_response, parse_produce_request

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker

TopicKey = str | UUID
ACKS_NONE, ACKS_ALL = 0, -1
ZSTD_SINCE = 7
COPIES = 1
"""What one node keeps of a partition."""


class Row:
    """The outcome for one partition of the request."""

    __slots__ = ("append_time_ms", "base_offset", "code", "index", "message", "start_offset")

    def __init__(self, index: int) -> None:
        self.index = index
        self.code = 0
        self.base_offset = -1
        self.append_time_ms = -1
        self.start_offset = -1
        self.message: str | None = None

    def fail(self, error: AnabranchError) -> None:
        self.code = code_of(error)
        self.message = message_of(error)


class Produce:
    """One produce request: counts its open partitions and answers when none is left."""

    __slots__ = ("_acks", "_broker", "_call", "_deadline_ms", "_failed", "_now_ms", "_open", "_topics")

    def __init__(self, broker: "Broker", call: Call, acks: int, timeout_ms: int) -> None:
        self._broker = broker
        self._call = call
        self._acks = acks
        self._deadline_ms = broker.clock.monotonic_ms() + max(0, timeout_ms)
        self._now_ms = broker.clock.wall_ms()
        self._open = 1  # Held by `run` itself, so that early answers do not settle the request.
        self._failed: AnabranchError | None = None
        self._topics: list[tuple[TopicKey, list[Row]]] = []

    def run(
        self, topics: list[tuple[TopicKey, list[tuple[int, int, int]]]], refusal: AnabranchError | None
    ) -> None:
        seen: set[Partition] = set()
        for key, partitions in topics:
            rows: list[Row] = []
            self._topics.append((key, rows))
            for index, start, end in partitions:
                row = Row(index)
                rows.append(row)
                try:
                    if refusal is not None:
                        raise refusal
                    partition = self._broker.topics.partition(key, index)
                    if partition in seen:
                        raise InvalidRequestError(f"Partition {partition.id} appears twice in one request.")
                    seen.add(partition)
                    if partition.id.topic == OFFSETS_TOPIC:
                        raise InvalidTopicError(f"{OFFSETS_TOPIC} is written by the broker alone.")
                    self._take(partition, row, start, end)
                except AnabranchError as error:
                    self._fail(row, error)
        self._settle_one()

    def _take(self, partition: Partition, row: Row, start: int, end: int) -> None:
        settings = partition.settings
        if self._acks == ACKS_ALL and settings.min_insync_replicas > COPIES:
            raise NotEnoughCopiesError(
                f"min.insync.replicas of {partition.id.topic} is {settings.min_insync_replicas}, and one node "
                "keeps one copy: lower it, or produce with acks=1."
            )
        header = check_envelope(self._call.view, start, end, settings, self._now_ms)
        if header.codec == Codec.ZSTD and self._call.header.api_version < ZSTD_SINCE:
            # Who speaks so old a version may have readers to whom zstd means nothing.
            raise UnsupportedCompressionError(f"zstd may be produced since version {ZSTD_SINCE}.")
        self._broker.check_writable(partition)
        batch = self._call.view[start:end]
        self._open += 1
        try:
            kept, header = check_contents(batch, header, settings, self._now_ms, UNPACKED_BYTES_AT_ONCE_MAX)
        except BatchTooLargeError:
            self._take_in_worker(partition, row, bytearray(batch), header)
        except AnabranchError:
            self._open -= 1
            raise
        else:
            self._submit(partition, row, kept, header)

    def _take_in_worker(self, partition: Partition, row: Row, batch: bytearray, header: BatchHeader) -> None:
        settings, unpacked_max = partition.settings, self._broker.settings.batch_decompressed_bytes_max

        def task() -> tuple[Batch, BatchHeader]:
            return check_contents(batch, header, settings, self._now_ms, unpacked_max)

        def done(result: tuple[Batch, BatchHeader] | None, error: BaseException | None) -> None:
            if result is not None:
                self._submit(partition, row, *result)
            elif isinstance(error, AnabranchError):
                self._fail(row, error)
                self._settle_one()
            elif error is not None:
                self._call.close("a batch could not be checked")
                raise error

        self._call.holds = True  # What this producer sends next must not overtake this batch.
        self._broker.workers.heavy(task, done)

    def _submit(self, partition: Partition, row: Row, batch: Batch, header: BatchHeader) -> None:
        def finished(job: AppendJob) -> None:
            if job.error is not None:
                self._fail(row, job.error)
            else:
                row.base_offset = job.base_offset
                row.start_offset = partition.log.start_offset
                if header.is_log_append_time:
                    row.append_time_ms = header.max_timestamp
            self._settle_one()

        self._broker.core.submit(
            AppendJob(
                partition,
                batch,
                header,
                finished,
                wait_safe=self._acks == ACKS_ALL,
                deadline_ms=self._deadline_ms,
            )
        )

    def _fail(self, row: Row, error: AnabranchError) -> None:
        row.fail(error)
        self._failed = error

    def _settle_one(self) -> None:
        self._open -= 1
        if self._open:
            return
        call = self._call
        if self._acks == ACKS_NONE:
            if self._failed is not None:
                call.close(f"produce with acks=0 failed: {self._failed}")
            else:
                call.answer(None)
            return
        rows = [
            (
                key,
                [
                    (row.index, row.code, row.base_offset, row.append_time_ms, row.start_offset, row.message)
                    for row in rows
                ],
            )
            for key, rows in self._topics
        ]
        call.answer([encode_produce_response(call.header.api_version, call.header.correlation_id, rows)])


def handle(broker: "Broker", call: Call) -> None:
    transactional_id, acks, timeout_ms, topics = parse_produce_request(
        call.view, call.body, call.end, call.header.api_version
    )
    refusal: AnabranchError | None = None
    if acks not in (-1, 0, 1):
        refusal = InvalidAcksError(f"acks={acks} is not 0, 1 or all (-1).")
    elif transactional_id is not None:
        refusal = TransactionsUnsupportedError(
            "This version has no transactions: produce without a transactional id."
        )
    Produce(broker, call, acks, timeout_ms).run(topics, refusal)
