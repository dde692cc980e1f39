"""LaneProducers: the table of producers of a partition in mode branch, where each reign writes a lane of its own.

A producer that comes from another branch has gone on there, or has not, and may come back while the lane is still the
same: its numbers may skip here, or go back. What is between was written elsewhere, and is joined later. A batch is
taken for a repeat only if one with the same numbers is remembered, and of an older lane the same checksum; otherwise it
is new. Of what was written before there were branches no checksum is known, so only the last few of it count.

A request to a primary that can no longer be reached is sent again when its time is up: until then its producer may have
written any number of batches to the next primary, and to the one after it. So of each of the last lanes as many batches
are remembered as a producer can have under way to one broker.

One that skips numbers may also be the second of several that its producer has sent, of which the first came a moment
too early, before this reign: then that one is sent again. So whoever skips is told to come again for a moment, and then
has to begin with the least number it came with. A node alone has the usual rules: nobody can have gone on elsewhere.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

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
from anabranch.values import LANE_BITS, Offset

SKIP_MS = 500
SKIPPING_MAX = 1000
LANES_REMEMBERED = 8


class Skipping(NamedTuple):
    """A producer that was told to come again."""

    since_ms: int
    epoch: int
    least: int


class Found:
    """What was found of one producer: its last batches in each lane, by number."""

    __slots__ = ("epoch", "lanes", "timestamp_ms_last")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.timestamp_ms_last = 0
        self.lanes: dict[tuple[int, int], list[BatchHeader]] = {}


def _no_time_passes() -> int:
    return 0


class LaneProducers(ProducerTable):
    __slots__ = ("_is_alone", "_now_ms", "_seams", "_skipping", "lane_start")

    def __init__(
        self,
        lane_start: Offset,
        now_ms: Callable[[], int] = _no_time_passes,
        *,
        seams: Sequence[Offset] = (),
        is_alone: bool = False,
    ) -> None:
        """What was written from `lane_start` on is of the present reign. `seams`, in order: where within lanes begins
        what was first written to another lane, and where it ends. `is_alone`: there are no other brokers."""
        super().__init__()
        self.lane_start = lane_start
        self._seams = seams
        self._is_alone = is_alone
        self._now_ms = now_ms
        self._skipping: dict[int, Skipping] = {}

    def original_of(self, header: Sequenced) -> Offset | None:
        check_numbers(header)
        producer = self.producers.get(header.producer_id)
        is_epoch_known = producer is not None and header.producer_epoch == producer.epoch
        if producer is not None and is_epoch_known:
            for batch in producer.batches:
                if batch.base_sequence == header.base_sequence and self._is_same(batch, header):
                    return batch.base_offset
        if self._is_alone:
            self._check_alone(header, producer)
            return None
        if producer is not None and header.producer_epoch < producer.epoch:
            check_epoch(header, producer)
        expected = _expected(producer) if producer is not None and is_epoch_known else 0
        if expected is not None and header.base_sequence != expected:
            self._check_skip(header)
        return None

    def _check_alone(self, header: Sequenced, producer: Producer | None) -> None:
        if producer is None:
            return
        if header.producer_epoch != producer.epoch:
            check_epoch(header, producer)
        else:
            check_sequence(header, producer)

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
        producer_id, epoch = header.producer_id, header.producer_epoch
        before = self.producers.get(producer_id)
        written = _written(header, base_offset)
        if base_offset < self.lane_start:
            self._add_earlier(producer_id, epoch, now_ms, (written,))
            return producer_id, before
        known = before.batches if before is not None and before.epoch == epoch else ()
        earlier, last = known[: 1 - BATCHES_REMEMBERED], known[1 - BATCHES_REMEMBERED :]
        if earlier and (earlier[-1].base_offset >= self.lane_start or earlier[-1].crc is None):
            known = (*(each for each in earlier[:-1] if each.crc is not None), *last)
        self.producers.pop(producer_id, None)  # Those that wrote last stand last.
        self.producers[producer_id] = Producer(epoch, now_ms, (*known, written))
        return producer_id, before

    def replay_all(self, headers: Iterable[BatchHeader], now_ms: int | None = None) -> None:
        """Enter many that were written before this reign. Most follow their producer's last one: of each lane no more
        are kept on the way than will be remembered. With `now_ms`, none of them has been silent before."""
        found: dict[int, Found] = {}
        for header in headers:
            producer_id = header.producer_id
            if producer_id < 0 or header.is_control:
                continue
            some = found.get(producer_id)
            if some is None or some.epoch < header.producer_epoch:
                some = found[producer_id] = Found(header.producer_epoch)
            elif some.epoch > header.producer_epoch:
                continue
            some.timestamp_ms_last = header.max_timestamp
            lane = self._first_lane(header.base_offset)
            last = some.lanes.get(lane)
            if last is None:
                some.lanes[lane] = [header]
                continue
            is_behind = (header.base_sequence - last[-1].base_sequence) % SEQUENCE_SPACE < SEQUENCE_SPACE // 2
            last.append(header)
            if not is_behind:
                last.sort(key=partial(_place, header.base_sequence))
            if len(last) > BATCHES_REMEMBERED:
                del last[0]
        for producer_id, some in found.items():
            written = [_written(each, each.base_offset) for last in some.lanes.values() for each in last]
            self._add_earlier(producer_id, some.epoch, some.timestamp_ms_last, written, now_ms)

    def _add_earlier(
        self,
        producer_id: int,
        epoch: int,
        timestamp_ms: int,
        written: Sequence[WrittenBatch],
        heard_ms: int | None = None,
    ) -> None:
        before = self.producers.get(producer_id)
        if before is not None and before.epoch > epoch:
            return
        known = before.batches if before is not None and before.epoch == epoch else ()
        remembered = self._remembered((*known, *written))
        self.producers[producer_id] = Producer(epoch, timestamp_ms, remembered, heard_ms)

    def restore(self, snapshot: Mapping[str, Any], now_ms: int | None = None) -> None:
        for producer_id, epoch, timestamp_ms_last, rows in snapshot["producers"]:
            remembered = self._remembered([WrittenBatch(*row) for row in rows])
            self.producers[producer_id] = Producer(epoch, timestamp_ms_last, remembered, now_ms)

    def _remembered(self, batches: Sequence[WrittenBatch]) -> tuple[WrittenBatch, ...]:
        """Of earlier batches those with the last numbers of each of the last lanes, by number."""
        if not batches:
            return ()
        counts: Counter[tuple[int, int]] = Counter()
        last_first = []
        by_number = sorted(batches, key=partial(_place, batches[-1].base_sequence), reverse=True)
        for place, batch in enumerate(by_number):
            if batch.crc is None and place >= BATCHES_REMEMBERED:
                continue
            lane = self._first_lane(batch.base_offset)
            counts[lane] += 1
            if counts[lane] <= BATCHES_REMEMBERED:
                last_first.append((lane, batch))
        lanes = sorted(counts)[-LANES_REMEMBERED:]
        return tuple(batch for lane, batch in reversed(last_first) if lane >= lanes[0])

    def _first_lane(self, offset: Offset) -> tuple[int, int]:
        """Tells the lanes apart that batches were first written to, as far as that is known."""
        return offset >> LANE_BITS, bisect_right(self._seams, offset)

    def _is_same(self, batch: WrittenBatch, header: Sequenced) -> bool:
        """Of a batch with the same first number."""
        if batch.last_sequence != header.last_sequence:
            return False
        # Without one it was written before there were branches: the numbers alone say it.
        return batch.base_offset >= self.lane_start or batch.crc is None or batch.crc == _crc(header)


def _place(middle: int, batch: WrittenBatch | BatchHeader) -> tuple[int, Offset]:
    """For sorting by number. Numbers begin anew with 0: what lies within half of them behind `middle` comes after."""
    return (batch.base_sequence - middle + SEQUENCE_SPACE // 2) % SEQUENCE_SPACE, batch.base_offset


def _written(header: Sequenced, base_offset: Offset) -> WrittenBatch:
    return WrittenBatch(header.base_sequence, header.last_sequence, base_offset, _crc(header))


def _crc(header: Sequenced) -> int:
    return cast(BatchHeader, header).crc


def _expected(producer: Producer) -> int | None:
    """None: any number will do."""
    if producer.batches:
        return (producer.batches[-1].last_sequence + 1) % SEQUENCE_SPACE
    return producer.sequence_first
