"""RefusedBatches: batches of idempotent producers refused for the moment, and what those behind them are told.

A producer has several batches under way. When the first of them is refused with an error that its client retries after
(too few copies, a leader that is not ready, a full disk), the cause may be gone by the time the next one arrives. Kafka
answers that one with OUT_OF_ORDER_SEQUENCE_NUMBER. librdkafka then bumps its epoch for all partitions it writes to, and
sends again under the new epoch whatever it has no answer for: a record that was written but not acknowledged is in the
log twice, and no broker can tell. So a batch behind a refused one gets a retriable error too, until the refused one has
been written. A client that gives up a batch without a new epoch gets it for as long as a client may repeat a batch.

An unknown producer may begin with any sequence, but not behind a batch that it was refused here as an unknown one. Only
a refusal that leaves it no other broker to write to counts for that.

Not covered: a batch that is lost between the broker that forwards it and the leader.
"""

from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple

from anabranch.broker.requests.error_table import code_of
from anabranch.errors import AnabranchError, EarlierBatchRefusedError, OutOfOrderSequenceError
from anabranch.record.producer_table import BATCHES_REMEMBERED, SEQUENCE_SPACE, next_sequence
from anabranch.wire.error_codes import ErrorCode

if TYPE_CHECKING:
    from anabranch.broker.topics.partition import Partition
    from anabranch.record.producer_table import Sequenced

NOTED_MAX = 10_000
"""Producers, counted once for each partition."""
RETRIED = frozenset(
    {
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
    }
)
"""Clients send the same batch again after these. They do so after CORRUPT_MESSAGE too, but whose batch that was nobody
knows."""

Key = tuple[object, int, int]


class Refused(NamedTuple):
    base_sequence: int
    epoch: int
    time_ms: int
    is_start: bool
    """Whether an unknown producer must not begin behind it."""


class RefusedBatches:
    def __init__(self, retried_ms: int) -> None:
        self._retried_ms = retried_ms
        """No client repeats a batch after more than this."""
        self._refused: OrderedDict[Key, list[Refused]] = OrderedDict()
        """The first few of each producer and partition; those that were refused last stand last."""

    def __len__(self) -> int:
        return len(self._refused)

    def told(
        self, partition: "Partition", header: "Sequenced", error: AnabranchError, now_ms: int
    ) -> AnabranchError:
        """What to tell the producer of a batch that failed with `error`; a refusal that it will retry after is
        remembered."""
        if header.producer_id < 0 or header.producer_epoch < 0 or header.base_sequence < 0:
            return error
        if isinstance(error, OutOfOrderSequenceError):
            if not self._explain_gap(partition, header, now_ms):
                return error
            error = _earlier(header)
        code = code_of(error)
        if code in RETRIED:
            is_known = header.producer_id in partition.producers.producers
            self._note(partition, header, now_ms, not is_known and code != ErrorCode.NOT_LEADER_OR_FOLLOWER)
        else:
            self._keep(
                partition,
                header,
                [each for each in self._noted(partition, header) if not _is_of(each, header)],
            )
        return error

    def check_start(self, partition: "Partition", header: "Sequenced", now_ms: int) -> None:
        """Raise EarlierBatchRefusedError if a producer that the partition does not know would begin behind a batch that
        was refused."""
        if not self._refused:
            return
        if self._is_behind(partition, header, now_ms):
            raise _earlier(header)
        noted = self._noted(partition, header)
        if noted:
            self._keep(
                partition, header, [each for each in noted if not (each.is_start and _is_of(each, header))]
            )

    def _is_behind(self, partition: "Partition", header: "Sequenced", now_ms: int) -> bool:
        return any(
            each.is_start
            and 0 < (header.base_sequence - each.base_sequence) % SEQUENCE_SPACE < SEQUENCE_SPACE // 2
            for each in self._live(partition, header, now_ms)
        )

    def _explain_gap(self, partition: "Partition", header: "Sequenced", now_ms: int) -> bool:
        """Whether the batch that the log waits for is one that was refused."""
        producer = partition.producers.producers.get(header.producer_id)
        if producer is None:
            return self._is_behind(partition, header, now_ms)
        expected = next_sequence(producer) if producer.epoch == header.producer_epoch else 0
        return any(each.base_sequence == expected for each in self._live(partition, header, now_ms))

    def _noted(self, partition: "Partition", header: "Sequenced") -> list[Refused]:
        return self._refused.get(_key(partition, header), [])

    def _live(self, partition: "Partition", header: "Sequenced", now_ms: int) -> list[Refused]:
        """Refused batches of this producer and epoch that its client may still repeat."""
        return [
            each
            for each in self._noted(partition, header)
            if each.epoch == header.producer_epoch and 0 <= now_ms - each.time_ms <= self._retried_ms
        ]

    def _note(self, partition: "Partition", header: "Sequenced", now_ms: int, is_start: bool) -> None:
        if any(each.epoch > header.producer_epoch for each in self._noted(partition, header)):
            return
        producer = partition.producers.producers.get(header.producer_id)
        is_same_epoch = producer is not None and producer.epoch == header.producer_epoch
        written = next_sequence(producer) if producer is not None and is_same_epoch else None
        kept = [
            each
            for each in self._live(partition, header, now_ms)
            if not _is_of(each, header) and (written is None or each.base_sequence >= written)
        ]
        kept.append(Refused(header.base_sequence, header.producer_epoch, now_ms, is_start))
        self._keep(partition, header, sorted(kept)[:BATCHES_REMEMBERED])
        self._refused.move_to_end(_key(partition, header))
        while len(self._refused) > NOTED_MAX:
            self._refused.popitem(last=False)

    def _keep(self, partition: "Partition", header: "Sequenced", noted: list[Refused]) -> None:
        if noted:
            self._refused[_key(partition, header)] = noted
        else:
            self._refused.pop(_key(partition, header), None)

    def drop_old(self, now_ms: int) -> None:
        """Forget those that no client repeats any more."""
        old = [
            key
            for key, noted in self._refused.items()
            if not any(0 <= now_ms - each.time_ms <= self._retried_ms for each in noted)
        ]
        for key in old:
            del self._refused[key]


def _is_of(refused: Refused, header: "Sequenced") -> bool:
    return (refused.epoch, refused.base_sequence) == (header.producer_epoch, header.base_sequence)


def _earlier(header: "Sequenced") -> EarlierBatchRefusedError:
    return EarlierBatchRefusedError(
        f"An earlier batch of producer {header.producer_id} was refused: send that one first."
    )


def _key(partition: "Partition", header: "Sequenced") -> Key:
    return partition.topic_id, partition.id.partition, header.producer_id
