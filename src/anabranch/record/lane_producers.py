"""LaneProducers: the table of producers of a partition in mode branch, where each reign writes a lane of its own.

A producer that comes from the other side of a split has gone on there, or has not: its first batch in a lane may skip
numbers or repeat them. It is taken for a repeat of an older one only if it has the same numbers and the same checksum;
otherwise it is new. Later ones may still skip, for it may go to the other side and come back; all else is as usual.

One that skips numbers may also be the second of several that its producer has sent, of which the first came a moment
too early, before this reign: then that one is sent again. So whoever skips is told to come again for a moment, and then
has to begin with the least number it came with.
"""

from collections.abc import Callable
from typing import NamedTuple, cast

from anabranch.errors import NotOwnerError
from anabranch.record.batch import BatchHeader
from anabranch.record.producer_table import (
    BATCHES_REMEMBERED,
    SEQUENCE_SPACE,
    Producer,
    ProducerTable,
    Sequenced,
    WrittenBatch,
    check_epoch,
    check_numbers,
    check_sequence,
)
from anabranch.values import Offset

SKIP_MS = 500
SKIPPING_MAX = 1000


class Skipping(NamedTuple):
    """A producer that was told to come again."""

    since_ms: int
    epoch: int
    least: int


def _no_time_passes() -> int:
    return 0


class LaneProducers(ProducerTable):
    __slots__ = ("_now_ms", "_skipping", "lane_start")

    def __init__(self, lane_start: Offset, now_ms: Callable[[], int] = _no_time_passes) -> None:
        """What was written from `lane_start` on is of the present reign. 0: nobody can have gone on elsewhere, and the
        usual rules hold across lanes too."""
        super().__init__()
        self.lane_start = lane_start
        self._now_ms = now_ms
        self._skipping: dict[int, Skipping] = {}

    def original_of(self, header: Sequenced) -> Offset | None:
        check_numbers(header)
        producer = self.producers.get(header.producer_id)
        if producer is None:
            return None
        is_at_home = self._has_written_here(producer)
        if header.producer_epoch != producer.epoch:
            if is_at_home or header.producer_epoch < producer.epoch:
                check_epoch(header, producer)
            return None
        for batch in producer.batches:
            if self._is_same(batch, header):
                return batch.base_offset
        self._check_number(header, producer, is_at_home)
        return None

    def _check_number(self, header: Sequenced, producer: Producer, is_at_home: bool) -> None:
        if self.lane_start == 0 or not producer.batches:
            check_sequence(header, producer)
            return
        expected = (producer.batches[-1].last_sequence + 1) % SEQUENCE_SPACE
        if is_at_home and (header.base_sequence - expected) % SEQUENCE_SPACE > SEQUENCE_SPACE // 2:
            check_sequence(header, producer)  # It goes back to what this lane had before.
        if header.base_sequence != expected:
            self._check_skip(header)

    def _check_skip(self, header: Sequenced) -> None:
        """Raises NotOwnerError, which lets the producer send everything again, in order."""
        producer_id, now_ms, number = header.producer_id, self._now_ms(), header.base_sequence
        known = self._skipping.get(producer_id)
        has_waited = known is not None and now_ms - known.since_ms >= SKIP_MS
        if known is None or known.epoch != header.producer_epoch or (has_waited and number > known.least):
            known, has_waited = Skipping(now_ms, header.producer_epoch, number), False
        if not has_waited or number < known.least:
            if producer_id not in self._skipping and len(self._skipping) >= SKIPPING_MAX:
                del self._skipping[next(iter(self._skipping))]
            self._skipping[producer_id] = known._replace(least=min(known.least, number))
            raise NotOwnerError(
                f"Producer {producer_id} goes on with {number}, which does not follow what is known here: send again "
                "what comes before, or this if there is none."
            )
        del self._skipping[producer_id]

    def note(self, header: Sequenced, base_offset: Offset, now_ms: int) -> tuple[int, Producer | None]:
        """What was written before this reign may be in any order: of that the last numbers are remembered."""
        if base_offset >= self.lane_start:
            return super().note(header, base_offset, now_ms)
        before = self.producers.get(header.producer_id)
        if before is not None and before.epoch > header.producer_epoch:
            return header.producer_id, before
        known = before.batches if before is not None and before.epoch == header.producer_epoch else ()
        batches = sorted((*known, self._written(header, base_offset)))[-BATCHES_REMEMBERED:]
        self.producers[header.producer_id] = Producer(header.producer_epoch, now_ms, tuple(batches))
        return header.producer_id, before

    def _has_written_here(self, producer: Producer) -> bool:
        if not producer.batches:
            return True
        return producer.batches[-1].base_offset >= self.lane_start

    def _is_same(self, batch: WrittenBatch, header: Sequenced) -> bool:
        if (batch.base_sequence, batch.last_sequence) != (header.base_sequence, header.last_sequence):
            return False
        return batch.base_offset >= self.lane_start or batch.crc == _crc(header)

    def _written(self, header: Sequenced, base_offset: Offset) -> WrittenBatch:
        return WrittenBatch(header.base_sequence, header.last_sequence, base_offset, _crc(header))


def _crc(header: Sequenced) -> int:
    return cast(BatchHeader, header).crc
