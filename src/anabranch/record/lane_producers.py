"""LaneProducers: the table of producers of a partition in mode branch, where each reign writes a lane of its own.

A producer that comes from another branch has gone on there, or has not, and may come back while the lane is still the
same: its numbers may skip here, or go back. What is between was written elsewhere, and is joined later. A batch is
taken for a repeat only if one with the same numbers is remembered, and of an older lane the same checksum; otherwise it
is new.

One that skips numbers may also be the second of several that its producer has sent, of which the first came a moment
too early, before this reign: then that one is sent again. So whoever skips is told to come again for a moment, and then
has to begin with the least number it came with. A node alone has the usual rules: nobody can have gone on elsewhere.
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
    __slots__ = ("_is_alone", "_now_ms", "_skipping", "lane_start")

    def __init__(
        self, lane_start: Offset, now_ms: Callable[[], int] = _no_time_passes, *, is_alone: bool = False
    ) -> None:
        """What was written from `lane_start` on is of the present reign. `is_alone`: there are no other brokers."""
        super().__init__()
        self.lane_start = lane_start
        self._is_alone = is_alone
        self._now_ms = now_ms
        self._skipping: dict[int, Skipping] = {}

    def original_of(self, header: Sequenced) -> Offset | None:
        if self._is_alone:
            return super().original_of(header)
        check_numbers(header)
        producer = self.producers.get(header.producer_id)
        if producer is not None and header.producer_epoch < producer.epoch:
            check_epoch(header, producer)
        expected: int | None = 0
        if producer is not None and header.producer_epoch == producer.epoch:
            for batch in producer.batches:
                if self._is_same(batch, header):
                    return batch.base_offset
            expected = _expected(producer)
        if expected is not None and header.base_sequence != expected:
            self._check_skip(header)
        return None

    def check_start(self, header: Sequenced) -> None:
        """What comes before it may be in another branch."""
        if self._is_alone:
            super().check_start(header)

    def _check_skip(self, header: Sequenced) -> None:
        """Raises NotOwnerError, which lets the producer send everything again, in order."""
        producer_id, now_ms, number = header.producer_id, self._now_ms(), header.base_sequence
        known = self._skipping.get(producer_id)
        has_waited = known is not None and now_ms - known.since_ms >= SKIP_MS
        if known is None or known.epoch != header.producer_epoch or (has_waited and number > known.least):
            known, has_waited = Skipping(now_ms, header.producer_epoch, number), False
        if not has_waited:
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
        middle = header.base_sequence

        def place(batch: WrittenBatch) -> tuple[int, Offset]:
            """Numbers begin anew with 0: what lies within half of them behind this one comes after it."""
            return (batch.base_sequence - middle + SEQUENCE_SPACE // 2) % SEQUENCE_SPACE, batch.base_offset

        written = self._written(header, base_offset)
        batches = sorted((*known, written), key=place)[-BATCHES_REMEMBERED:]
        self.producers[header.producer_id] = Producer(header.producer_epoch, now_ms, tuple(batches))
        return header.producer_id, before

    def _is_same(self, batch: WrittenBatch, header: Sequenced) -> bool:
        if (batch.base_sequence, batch.last_sequence) != (header.base_sequence, header.last_sequence):
            return False
        # Without one it was written before there were branches, when the numbers alone said it.
        return batch.base_offset >= self.lane_start or batch.crc is None or batch.crc == _crc(header)

    def _written(self, header: Sequenced, base_offset: Offset) -> WrittenBatch:
        return WrittenBatch(header.base_sequence, header.last_sequence, base_offset, _crc(header))


def _crc(header: Sequenced) -> int:
    return cast(BatchHeader, header).crc


def _expected(producer: Producer) -> int | None:
    """None: any number will do."""
    if producer.batches:
        return (producer.batches[-1].last_sequence + 1) % SEQUENCE_SPACE
    return producer.sequence_first
