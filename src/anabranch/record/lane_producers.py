"""LaneProducers: the table of producers of a partition in mode branch, where each reign writes a lane of its own.

Within a lane the rules are the usual ones. But a producer that comes from the other side of a split has gone on there,
or has not: its first batch in a lane may skip numbers or repeat them. It is taken for a repeat of an older one only if
it has the same numbers and the same checksum; otherwise it is new.
"""

from typing import cast

from anabranch.record.batch import BatchHeader
from anabranch.record.producer_table import (
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
            check_sequence(header, producer)
        return None

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
