"""LaneProducers: the table of producers of a partition in mode branch, where each reign writes a lane of its own.

A producer may come from another branch, where it has gone on meanwhile, and come back while the lane is still the same.
So its numbers may skip here, or go back: what is between was written elsewhere, and is joined later. A batch is taken
for a repeat only if one with the same numbers, and in older lanes the same checksum, is remembered; otherwise it is
new.

When a reign begins, a producer may have a batch under way that was refused a moment before, and the next one behind it
that would now be taken: it would overtake. So at first nothing may be skipped (`takes_gaps`), and whoever skips is told
to come again. A node alone has the usual rules: nobody can have gone on elsewhere.
"""

from typing import cast

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
)
from anabranch.values import Offset


class LaneProducers(ProducerTable):
    __slots__ = ("lane_start", "takes_gaps")

    def __init__(self, lane_start: Offset) -> None:
        """What was written from `lane_start` on is of the present reign. 0: this node is alone."""
        super().__init__()
        self.lane_start = lane_start
        self.takes_gaps = False

    def original_of(self, header: Sequenced) -> Offset | None:
        if not self.lane_start:
            return super().original_of(header)
        check_numbers(header)
        producer = self.producers.get(header.producer_id)
        expected: int | None = 0
        if producer is not None and header.producer_epoch < producer.epoch:
            check_epoch(header, producer)
        if producer is not None and header.producer_epoch == producer.epoch:
            for batch in producer.batches:
                if self._is_same(batch, header):
                    return batch.base_offset
            expected = _expected(producer)
        if not self.takes_gaps and expected not in (None, header.base_sequence):
            raise NotOwnerError(
                f"Producer {header.producer_id} skips from {expected} to {header.base_sequence} in a branch that has "
                "just begun: what is between may come first."
            )
        return None

    def check_start(self, header: Sequenced) -> None:
        """What comes before it may be in another branch."""
        if not self.lane_start:
            super().check_start(header)

    def _is_same(self, batch: WrittenBatch, header: Sequenced) -> bool:
        if (batch.base_sequence, batch.last_sequence) != (header.base_sequence, header.last_sequence):
            return False
        return batch.base_offset >= self.lane_start or batch.crc == _crc(header)

    def note(self, header: Sequenced, base_offset: Offset, now_ms: int) -> tuple[int, Producer | None]:
        producer_id, epoch = header.producer_id, header.producer_epoch
        before = self.producers.get(producer_id)
        if before is None or before.epoch < epoch:
            return super().note(header, base_offset, now_ms)
        if before.epoch == epoch:
            # Of what is not in the order of its numbers the greatest are those that may be sent again.
            known = _in_order((*before.batches, self._written(header, base_offset)))
            newest_ms = max(before.timestamp_ms_last, now_ms)
            self.producers[producer_id] = Producer(epoch, newest_ms, known[-BATCHES_REMEMBERED:])
        return producer_id, before

    def _written(self, header: Sequenced, base_offset: Offset) -> WrittenBatch:
        return WrittenBatch(header.base_sequence, header.last_sequence, base_offset, _crc(header))


def _crc(header: Sequenced) -> int:
    return cast(BatchHeader, header).crc


def _expected(producer: Producer) -> int | None:
    """None: any number will do."""
    if producer.batches:
        return (producer.batches[-1].last_sequence + 1) % SEQUENCE_SPACE
    return producer.sequence_first


def _in_order(batches: tuple[WrittenBatch, ...]) -> tuple[WrittenBatch, ...]:
    """By their numbers, which begin anew at 0 some day."""
    middle = (batches[0].base_sequence + SEQUENCE_SPACE // 2) % SEQUENCE_SPACE
    return tuple(sorted(batches, key=lambda batch: (batch.base_sequence - middle) % SEQUENCE_SPACE))
