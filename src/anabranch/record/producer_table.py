"""ProducerTable: what each idempotent producer last wrote to one partition, to refuse gaps and spot repeats.

Rules are Kafka's. The last five batches of a producer are remembered: a repeat of one of them is answered with
its first offsets and not written again. Otherwise a batch must continue the sequence; a higher epoch starts at
sequence 0; a lower one is fenced. A producer that is not known may start anywhere (its state may have expired).

The table is rebuilt after a crash from the last snapshot plus the batch headers behind it, so it needs no disk of its
own. Only the writer changes it. How many it may hold is decided by the broker (`broker/write/producer_limits.py`).
"""

from collections.abc import Mapping
from itertools import islice
from typing import Any, NamedTuple, Protocol

from anabranch.errors import InvalidRecordError, OutOfOrderSequenceError, ProducerFencedError
from anabranch.record.batch import BatchHeader
from anabranch.values import Offset

BATCHES_REMEMBERED = 5
SEQUENCE_SPACE = 1 << 31


class Sequenced(Protocol):
    """What a batch says of its producer: its header does, or a line about a batch that lies elsewhere."""

    @property
    def producer_id(self) -> int: ...

    @property
    def producer_epoch(self) -> int: ...

    @property
    def base_sequence(self) -> int: ...

    @property
    def last_sequence(self) -> int: ...


class WrittenBatch(NamedTuple):
    base_sequence: int
    last_sequence: int
    base_offset: Offset
    crc: int | None = None
    """Its checksum, where that matters (`lane_producers.py`)."""

    @property
    def last_offset(self) -> int:
        return self.base_offset + (self.last_sequence - self.base_sequence) % SEQUENCE_SPACE


class Producer:
    """One producer id: its epoch and its newest batches, oldest first.

    `sequence_first` is set while its very first batch was refused by the disk and nothing else is known of it.
    `timestamp_ms_last` is what snapshots keep; of a batch that was read back it is the client's time. How long a
    producer has been silent is told by `heard_ms`: when this broker wrote, received or read back its last batch.
    """

    __slots__ = ("batches", "epoch", "heard_ms", "sequence_first", "timestamp_ms_last")

    def __init__(
        self,
        epoch: int,
        timestamp_ms_last: int,
        batches: tuple[WrittenBatch, ...] = (),
        heard_ms: int | None = None,
    ) -> None:
        self.epoch = epoch
        self.timestamp_ms_last = timestamp_ms_last
        self.heard_ms = timestamp_ms_last if heard_ms is None else heard_ms
        self.sequence_first: int | None = None
        self.batches = batches


class ProducerTable:
    """Producers of one partition by id, in the order in which they wrote last."""

    __slots__ = ("producers",)

    def __init__(self) -> None:
        self.producers: dict[int, Producer] = {}

    def original_of(self, header: Sequenced) -> Offset | None:
        """The base offset of the batch this one repeats; None: it is new. Raises if it may not be written."""
        check_numbers(header)
        producer = self.producers.get(header.producer_id)
        if producer is None:
            return None
        if header.producer_epoch != producer.epoch:
            check_epoch(header, producer)
            return None
        for batch in producer.batches:
            if batch.base_sequence == header.base_sequence and batch.last_sequence == header.last_sequence:
                return batch.base_offset
        check_sequence(header, producer)
        return None

    def check_start(self, header: Sequenced) -> None:
        """For a batch that another broker hands over: one before it may have failed on that way, so a producer that is
        not known has to begin with its first."""
        if header.producer_id >= 0 and header.base_sequence > 0 and header.producer_id not in self.producers:
            raise OutOfOrderSequenceError(
                f"Producer {header.producer_id} is not known here, and begins at {header.base_sequence}: send what "
                "comes before first."
            )

    def note(self, header: Sequenced, base_offset: Offset, now_ms: int) -> tuple[int, Producer | None]:
        """Enter a written batch; the answer, handed to `undo`, takes it back."""
        producer_id, epoch = header.producer_id, header.producer_epoch
        before = self.producers.get(producer_id)
        written = WrittenBatch(header.base_sequence, header.last_sequence, base_offset)
        if before is not None and before.epoch == epoch:
            batches = (*before.batches[1 - BATCHES_REMEMBERED :], written)
        else:
            batches = (written,)
        self.producers.pop(producer_id, None)  # Those that wrote last stand last.
        self.producers[producer_id] = Producer(epoch, now_ms, batches)
        return producer_id, before

    def go_on(
        self, producer_id: int, epoch: int, base_sequence: int, count: int, base_offset: Offset, now_ms: int
    ) -> bool:
        """Enter a batch if it plainly follows its producer's last one, as nearly all do; else change nothing: what it
        is has to be looked into."""
        producer = self.producers.get(producer_id)
        if producer is None or producer.epoch != epoch or not producer.batches:
            return False
        if base_sequence != (producer.batches[-1].last_sequence + 1) % SEQUENCE_SPACE:
            return False
        written = WrittenBatch(base_sequence, (base_sequence + count - 1) % SEQUENCE_SPACE, base_offset)
        batches = (*producer.batches[1 - BATCHES_REMEMBERED :], written)
        self.producers[producer_id] = Producer(epoch, now_ms, batches)
        return True

    def undo(self, noted: tuple[int, Producer | None]) -> None:
        producer_id, before = noted
        if before is None:
            # Were it forgotten, the batch behind this one would be taken for its start, and this one, sent again,
            # would be refused for ever.
            failed = self.producers[producer_id]
            before = Producer(failed.epoch, failed.timestamp_ms_last)
            before.sequence_first = failed.batches[-1].base_sequence
        self.producers[producer_id] = before

    def replay(self, header: BatchHeader, now_ms: int) -> None:
        """Enter a batch read back from the log, or received from its leader."""
        if header.producer_id >= 0 and not header.is_control:
            self.note(header, Offset(header.base_offset), header.max_timestamp)
            self.producers[header.producer_id].heard_ms = now_ms

    def cut(self, end: Offset) -> bool:
        """Forget the batches that a log has lost which was cut back to `end`. No producer has more under way than is
        remembered of it, so what an earlier batch was need not be looked up: one of which nothing is left may go on
        anywhere. Says whether there was one."""
        known = len(self.producers)
        for producer_id, producer in list(self.producers.items()):
            if producer.batches and producer.batches[-1].last_offset >= end:
                left = tuple(batch for batch in producer.batches if batch.last_offset < end)
                if left:
                    self.producers[producer_id] = Producer(
                        producer.epoch, producer.timestamp_ms_last, left, producer.heard_ms
                    )
                else:
                    del self.producers[producer_id]
        return len(self.producers) < known

    def expire(self, before_ms: int) -> int:
        """Forget producers silent since `before_ms`; says how many."""
        gone = [key for key, producer in self.producers.items() if producer.heard_ms < before_ms]
        for key in gone:
            del self.producers[key]
        return len(gone)

    def forget_idle(self, before_ms: int, count_max: int) -> int:
        """Forget those that wrote longest ago, if that was before `before_ms`; says how many."""
        oldest = list(islice(self.producers.items(), count_max))
        gone = [key for key, producer in oldest if producer.heard_ms < before_ms]
        for key in gone:
            del self.producers[key]
        return len(gone)

    def shorten(self, count_max: int) -> int:
        """Keep only those that wrote last; says how many went."""
        gone = list(islice(self.producers, max(0, len(self.producers) - count_max)))
        for key in gone:
            del self.producers[key]
        return len(gone)

    def last_offsets(self) -> dict[int, int]:
        """The last offset of each producer: the cleaner keeps the batch that ends there, if only its header."""
        return {
            producer_id: producer.batches[-1].last_offset
            for producer_id, producer in self.producers.items()
            if producer.batches
        }

    @property
    def end_offset(self) -> Offset:
        """What follows the newest batch of any producer; 0 if there is none."""
        return Offset(max(self.last_offsets().values(), default=-1) + 1)

    def snapshot(self, end: Offset) -> list[list[Any]]:
        """What was written below `end`; the batches from there on, read back, complete it."""
        rows = []
        for producer_id, producer in self.producers.items():
            batches = [_dumped(batch) for batch in producer.batches if batch.last_offset < end]
            if batches or not producer.batches:
                rows.append([producer_id, producer.epoch, producer.timestamp_ms_last, batches])
        return rows

    def restore(self, snapshot: Mapping[str, Any], now_ms: int | None = None) -> None:
        """With `now_ms`, none of them has been silent before: clients may still repeat what they sent before a
        restart."""
        for producer_id, epoch, timestamp_ms_last, batches in snapshot["producers"]:
            remembered = tuple(WrittenBatch(*batch) for batch in batches[-BATCHES_REMEMBERED:])
            self.producers[producer_id] = Producer(epoch, timestamp_ms_last, remembered, now_ms)


def _dumped(batch: WrittenBatch) -> list[int]:
    return [number for number in batch if number is not None]


def check_numbers(header: Sequenced) -> None:
    if header.base_sequence < 0 or header.producer_epoch < 0:
        raise InvalidRecordError("A batch with a producer id needs an epoch and a sequence of 0 or more.")


def check_epoch(header: Sequenced, producer: Producer) -> None:
    if header.producer_epoch < producer.epoch:
        raise ProducerFencedError(
            f"Producer {header.producer_id} wrote with epoch {header.producer_epoch}, "
            f"but epoch {producer.epoch} has taken over."
        )
    if header.base_sequence != 0:
        raise OutOfOrderSequenceError(
            f"Producer {header.producer_id} began epoch {header.producer_epoch} "
            f"at sequence {header.base_sequence} instead of 0."
        )


def next_sequence(producer: Producer) -> int | None:
    """What its next batch has to begin with; None: anything."""
    if producer.batches:
        return (producer.batches[-1].last_sequence + 1) % SEQUENCE_SPACE
    return producer.sequence_first


def check_sequence(header: Sequenced, producer: Producer) -> None:
    expected = next_sequence(producer)
    if expected is not None and header.base_sequence != expected:
        raise OutOfOrderSequenceError(
            f"Producer {header.producer_id} sent sequence {header.base_sequence} where {expected} was expected."
        )
