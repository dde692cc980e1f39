"""LaneProducers: the table of producers of a partition in mode branch, where each reign writes a lane of its own.

Within a lane the rules are the usual ones. But a producer that comes from the other side of a split has gone on there,
or has not: its first batch in a lane may skip numbers or repeat them. It is taken for a repeat of an older one only if
it has the same numbers and the same checksum; otherwise it is new. Numbers that it wrote elsewhere are skipped in a
lane, too.

What comes from older lanes, or was written again at the beginning of this one, need not be in the order of its numbers:
of that the greatest are remembered, because those are the ones that a producer may send again.
"""

from typing import cast

from anabranch.errors import OutOfOrderSequenceError
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


class LaneProducers(ProducerTable):
    __slots__ = ("lane_start",)

    def __init__(self, lane_start: Offset) -> None:
        """What was written from `lane_start` on is of the present reign. 0: nobody can have gone on elsewhere, and the
        usual rules hold across lanes too."""
        super().__init__()
        self.lane_start = lane_start

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
        if is_at_home:
            self._check_follows(header, producer)
        return None

    def _has_written_here(self, producer: Producer) -> bool:
        if not producer.batches:
            return True
        return self._is_of_reign(producer.batches[-1].base_offset)

    def _is_of_reign(self, offset: Offset) -> bool:
        return offset >= self.lane_start

    def _is_same(self, batch: WrittenBatch, header: Sequenced) -> bool:
        if (batch.base_sequence, batch.last_sequence) != (header.base_sequence, header.last_sequence):
            return False
        return self._is_of_reign(batch.base_offset) or batch.crc == _crc(header)

    def _check_follows(self, header: Sequenced, producer: Producer) -> None:
        """Behind its last batch here, or behind those after it that are in older lanes."""
        if not producer.batches:
            check_sequence(header, producer)
            return
        written = {batch.base_sequence: batch for batch in producer.batches}
        expected = _following(producer.batches[-1])
        for _ in range(BATCHES_REMEMBERED):
            if header.base_sequence == expected:
                return
            if expected not in written:
                break
            expected = _following(written[expected])
        raise OutOfOrderSequenceError(
            f"Producer {header.producer_id} sent sequence {header.base_sequence} where {expected} was expected."
        )

    def note(self, header: Sequenced, base_offset: Offset, now_ms: int) -> tuple[int, Producer | None]:
        if self._is_of_reign(base_offset):
            return super().note(header, base_offset, now_ms)
        producer_id, epoch = header.producer_id, header.producer_epoch
        before = self.producers.get(producer_id)
        if before is None or before.epoch < epoch:
            return super().note(header, base_offset, now_ms)
        if before.epoch == epoch:
            known = _in_order((*before.batches, self._written(header, base_offset)))
            newest_ms = max(before.timestamp_ms_last, now_ms)
            self.producers[producer_id] = Producer(epoch, newest_ms, known[-BATCHES_REMEMBERED:])
        return producer_id, before

    def _written(self, header: Sequenced, base_offset: Offset) -> WrittenBatch:
        return WrittenBatch(header.base_sequence, header.last_sequence, base_offset, _crc(header))


def _crc(header: Sequenced) -> int:
    return cast(BatchHeader, header).crc


def _following(batch: WrittenBatch) -> int:
    return (batch.last_sequence + 1) % SEQUENCE_SPACE


def _in_order(batches: tuple[WrittenBatch, ...]) -> tuple[WrittenBatch, ...]:
    """By their numbers, which begin anew at 0 some day."""
    middle = (batches[0].base_sequence + SEQUENCE_SPACE // 2) % SEQUENCE_SPACE
    return tuple(sorted(batches, key=lambda batch: (batch.base_sequence - middle) % SEQUENCE_SPACE))
