"""RefusedBatches: batches of idempotent producers refused for the moment, and what those behind them are told.

A producer has several batches under way. When the first of them is refused with an error that its client retries after
(too few copies, a leader that is not ready, a full disk), the cause may be gone by the time the next one arrives. Kafka
answers that one with OUT_OF_ORDER_SEQUENCE_NUMBER. librdkafka then bumps its epoch for all partitions it writes to, and
sends again under the new epoch whatever it has no answer for: a record that was written but not acknowledged is in the
log twice, and no broker can tell. So a batch behind a refused one is refused in the same way, until the refused one has
been written. An unknown producer may begin with any sequence, but not with one behind a batch that was refused.
"""

from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple

from anabranch.broker.error_table import code_of
from anabranch.errors import AnabranchError, EarlierBatchRefusedError, OutOfOrderSequenceError
from anabranch.record.producer_table import BATCHES_REMEMBERED, next_sequence
from anabranch.wire.error_codes import ErrorCode

if TYPE_CHECKING:
    from anabranch.broker.partition import Partition
    from anabranch.record.producer_table import Sequenced

PRODUCERS_MAX = 10_000
RETRIED = frozenset(
    {
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
    }
)
"""Clients send the same batch again after these."""

Key = tuple[object, int, int]


class Refused(NamedTuple):
    epoch: int
    base_sequence: int
    time_ms: int


class RefusedBatches:
    def __init__(self, retried_ms: int) -> None:
        self._retried_ms = retried_ms
        """No client repeats a batch after more than this."""
        self._refused: OrderedDict[Key, list[Refused]] = OrderedDict()
        """The first few of each producer and partition, in the order of their sequences; producers in the order in
        which they were refused last."""

    def __len__(self) -> int:
        return len(self._refused)

    def told(
        self, partition: "Partition", header: "Sequenced", error: AnabranchError, now_ms: int
    ) -> AnabranchError:
        """What the producer of a batch that failed with `error` is to be told; a refusal that it will retry after is
        remembered."""
        if header.producer_id < 0:
            return error
        if isinstance(error, OutOfOrderSequenceError):
            if not self._explain_gap(partition, header, now_ms):
                return error
            error = _earlier(header)
        if code_of(error) in RETRIED:
            self._note(partition, header, now_ms)
        return error

    def check_start(self, partition: "Partition", header: "Sequenced", now_ms: int) -> None:
        """Raise EarlierBatchRefusedError if a producer that the partition does not know would begin behind a batch that
        was refused."""
        if self._is_behind(partition, header, now_ms):
            raise _earlier(header)

    def _is_behind(self, partition: "Partition", header: "Sequenced", now_ms: int) -> bool:
        return any(
            each.base_sequence < header.base_sequence for each in self._live(partition, header, now_ms)
        )

    def _explain_gap(self, partition: "Partition", header: "Sequenced", now_ms: int) -> bool:
        """Whether the batch that the log waits for is one that was refused."""
        producer = partition.producers.producers.get(header.producer_id)
        if producer is None:
            return self._is_behind(partition, header, now_ms)
        expected = next_sequence(producer) if producer.epoch == header.producer_epoch else 0
        return any(each.base_sequence == expected for each in self._live(partition, header, now_ms))

    def _live(self, partition: "Partition", header: "Sequenced", now_ms: int) -> list[Refused]:
        """Refused batches of this producer and epoch that its client may still repeat."""
        return [
            each
            for each in self._refused.get(_key(partition, header), ())
            if each.epoch == header.producer_epoch and now_ms - each.time_ms <= self._retried_ms
        ]

    def _note(self, partition: "Partition", header: "Sequenced", now_ms: int) -> None:
        producer = partition.producers.producers.get(header.producer_id)
        written = next_sequence(producer) if producer is not None else None
        kept = [
            each
            for each in self._live(partition, header, now_ms)
            if each.base_sequence != header.base_sequence
            and (written is None or each.base_sequence >= written)
        ]
        kept.append(Refused(header.producer_epoch, header.base_sequence, now_ms))
        key = _key(partition, header)
        self._refused[key] = sorted(kept)[:BATCHES_REMEMBERED]
        self._refused.move_to_end(key)
        self._drop_old(now_ms)

    def _drop_old(self, now_ms: int) -> None:
        while self._refused:
            key, oldest = next(iter(self._refused.items()))
            is_old = all(now_ms - each.time_ms > self._retried_ms for each in oldest)
            if not is_old and len(self._refused) <= PRODUCERS_MAX:
                return
            del self._refused[key]


def _earlier(header: "Sequenced") -> EarlierBatchRefusedError:
    return EarlierBatchRefusedError(
        f"An earlier batch of producer {header.producer_id} was refused a moment ago: send that one first."
    )


def _key(partition: "Partition", header: "Sequenced") -> Key:
    return partition.topic_id, partition.id.partition, header.producer_id
