"""Which records get which offsets when a cluster comes back from its bucket alone.

The newest snapshot says where every partition ended when it was taken. What was stored later (`newer_objects`) may have
been committed after it, in an order of which the bucket knows only a part, or not at all. So nothing of it gets the
offset it may have had: of N records that are newer, the last cluster can have given out at most the N offsets behind
the snapshot's end, and they are left empty for good. The same records begin N offsets later, where no offset ever named
another record, in an order that keeps each producer's own:

    objects of one broker by their number, of several by the time at which the store had all that a broker had to
    commit first; the batches of an idempotent producer by their sequence

A batch is left out only where it is certain that its records are there (a repeat), or that it was never acknowledged
(its producer had another epoch, or a sequence was missing that nobody has stored). If records of the partition are
lost, or came from brokers, a missing sequence proves nothing.

What was copied from brokers when a topic changed its mode (`Copied`) carries its own offsets, and gets those very ones
(`place_copied`). So does what was merged, if the snapshot is so old that the originals may have been deleted.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from anabranch.errors import AnabranchError
from anabranch.objects.layout.format import Span
from anabranch.objects.layout.names import ObjectId, ObjectKind, Row
from anabranch.record.batch import BatchHeader
from anabranch.record.producer_table import SEQUENCE_SPACE, ProducerTable
from anabranch.values import Offset, is_lane_gap

COMMIT_MS_MAX = 300_000
"""Between the store's time of an object and its commit, clocks that differ included, never lies more."""


class Listed(NamedTuple):
    """One object in the bucket."""

    object_id: ObjectId
    size: int
    stored_ms: int


class Frontier(NamedTuple):
    """What a snapshot knows of who may have committed something after it."""

    incarnation: int
    end: int
    """Of the metadata log: a broker that registered later has an epoch from here on."""
    last_numbers: Mapping[int, int]
    """The last object committed of each epoch that may commit another; -1: none yet."""


class Batch(NamedTuple):
    """One batch that is newer than the snapshot."""

    object_id: ObjectId
    position: int
    header: BatchHeader
    stored_ms: int

    @property
    def end_position(self) -> int:
        return self.position + self.header.size_bytes

    @property
    def offset_count(self) -> int:
        return self.header.last_offset_delta + 1


class Copied(NamedTuple):
    """What one object has of a partition under offsets of its own: of `span` it has everything."""

    object_id: ObjectId
    stored_ms: int
    span: Span
    batches: Sequence[Batch]


class Placed(NamedTuple):
    """What of it takes which offsets."""

    batches: Sequence[Batch]
    rows: Sequence[Row]
    end: Offset
    holes: Sequence[Span]
    """Of which there is nothing, though offsets behind them were given out."""


class Appended(NamedTuple):
    """What becomes of one partition."""

    gap_start: Offset
    """Where the snapshot ended: from here to `start` no offset names a record any more."""
    start: Offset
    end: Offset
    rows: Sequence[Row]
    repeats: int
    """Records that are there already."""
    refused: int
    """Records that were never acknowledged: their producer sends them again, or was told."""

    @property
    def records(self) -> int:
        return self.end - self.start


# --- which objects --------------------------------------------------------------------------------------------------


def newer_objects(listed: Iterable[Listed], frontier: Frontier) -> list[Listed]:
    """The objects that may have been committed after the snapshot, in the order in which they are appended again."""
    by_epoch: dict[int, list[Listed]] = {}
    for each in listed:
        if _may_be_newer(each.object_id, frontier):
            by_epoch.setdefault(each.object_id.epoch, []).append(each)
    ordered = [(ready_ms, each) for found in by_epoch.values() for ready_ms, each in _by_commit_time(found)]
    ordered.sort(key=lambda pair: (pair[0], pair[1].object_id.epoch, pair[1].object_id.number))
    return [each for _, each in ordered]


def unknown_objects(
    listed: Iterable[Listed], frontier: Frontier, is_known: Callable[[ObjectId], bool]
) -> list[Listed]:
    """The objects with offsets of their own that were stored after the snapshot, whether or not they ever counted."""
    return [
        each
        for each in listed
        if each.object_id.kind is ObjectKind.MERGED
        and each.object_id.incarnation == frontier.incarnation
        and not is_known(each.object_id)
    ]


def _may_be_newer(object_id: ObjectId, frontier: Frontier) -> bool:
    if object_id.kind is not ObjectKind.WRITTEN or object_id.incarnation != frontier.incarnation:
        return False
    if object_id.epoch >= frontier.end:
        return True
    # Of an epoch that has been over since before the snapshot nothing can have been committed after it.
    last = frontier.last_numbers.get(object_id.epoch)
    return last is not None and object_id.number > last


def _by_commit_time(found: list[Listed]) -> Iterable[tuple[int, Listed]]:
    """A broker commits its objects in order: none before everything with a lower number is stored."""
    ready_ms = 0
    for each in sorted(found, key=lambda each: each.object_id.number):
        ready_ms = max(ready_ms, each.stored_ms)
        yield ready_ms, each


# --- what carries its own offsets -----------------------------------------------------------------------------------


class _Covered:
    """Offsets that are accounted for, as spans in order that do not touch."""

    def __init__(self, spans: Iterable[Span]) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        for span in spans:
            self.add(span)

    def add(self, span: Span) -> None:
        start, end = span
        if start >= end:
            return
        first = bisect_right(self._starts, start)
        if first and self._ends[first - 1] >= start:
            first -= 1
        last = bisect_right(self._starts, end)
        if last > first:
            start = Offset(min(start, self._starts[first]))
            end = Offset(max(end, self._ends[last - 1]))
        self._starts[first:last], self._ends[first:last] = [start], [end]

    def __contains__(self, offset: int) -> bool:
        place = bisect_right(self._starts, offset)
        return bool(place) and offset < self._ends[place - 1]

    def holes(self, upto: Offset) -> Iterator[Span]:
        ends = [0, *self._ends]
        for end, start in zip(ends, [*self._starts, upto], strict=True):
            if end < min(start, upto):
                yield Span(Offset(end), Offset(min(start, upto)))


def place_copied(taken: Sequence[Span], found: Sequence[Copied], end: Offset) -> Placed:
    """Give what carries its own offsets those that nothing has `taken`; the partition ended at `end` so far.

    Where several objects have the same offsets, the one that was stored last counts for all of its span: a leader that
    began anew may have kept fewer records than the one before it, and what is gone must not come back beside the rest.
    """
    covered = _Covered(taken)
    chosen: list[Batch] = []
    newest_first = sorted(found, key=lambda each: (each.stored_ms, each.object_id), reverse=True)
    for each in newest_first:
        chosen += (batch for batch in each.batches if batch.header.base_offset not in covered)
        covered.add(each.span)
    chosen.sort(key=lambda batch: batch.header.base_offset)
    end = max(chain((end,), (each.span.end for each in found)))
    return Placed(chosen, _stamped_rows(chosen), end, list(covered.holes(end)))


def _stamped_rows(batches: Iterable[Batch]) -> list[Row]:
    rows: list[Row] = []
    for batch in batches:
        header, last = batch.header, rows[-1] if rows else None
        if (
            last is not None
            and last.object_id == batch.object_id
            and last.position + last.length == batch.position
            and last.next_offset <= header.base_offset
            and not is_lane_gap(last.next_offset, header.base_offset)
        ):
            rows[-1] = last._replace(
                next_offset=header.next_offset,
                length=batch.end_position - last.position,
                max_timestamp=max(last.max_timestamp, header.max_timestamp),
                batch_count=last.batch_count + 1,
            )
        elif last is None or last.next_offset <= header.base_offset:
            base, size, time = header.base_offset, header.size_bytes, header.max_timestamp
            rows.append(
                Row(base, header.next_offset, batch.object_id, batch.position, size, time, 1, is_stamped=True)
            )
    return rows


# --- which offsets --------------------------------------------------------------------------------------------------


def append_again(
    end: Offset,
    producers: ProducerTable,
    batches: Sequence[Batch],
    *,
    silence_ms: int,
    forgotten_last: int = -1,
    more_offsets: int = 0,
    is_whole: bool = True,
) -> Appended:
    """Give one partition's newer batches, which come in the order of their objects, their new offsets.

    `end` and `producers` are the snapshot's; `producers` goes on with what is appended. `silence_ms`: producers that
    were silent for so long may have been forgotten; `forgotten_last`: up to this id, before the snapshot already.
    `more_offsets`: what may have been given out for records that cannot be read any more. `is_whole`: all that was ever
    acknowledged is in `batches` or known to `producers`, so that what does not follow its producer's last was not.
    """
    count = sum(batch.offset_count for batch in batches) + more_offsets
    start = next_offset = Offset(end + count)
    sieve = _Sieve(producers, silence_ms, forgotten_last, is_whole=is_whole)
    rows: list[Row] = []
    for batch in _in_sequence(batches, producers):
        if not sieve.keeps(batch):
            continue
        if batch.header.producer_id >= 0 and (is_whole or not _is_behind(batch.header, producers)):
            producers.note(batch.header, next_offset, batch.stored_ms)
        _add_row(rows, batch, next_offset)
        next_offset = Offset(next_offset + batch.offset_count)
    return Appended(end, start, next_offset, rows, sieve.repeats, sieve.refused)


def _in_sequence(batches: Sequence[Batch], producers: ProducerTable) -> list[Batch]:
    """The same batches; those of one idempotent producer, in the places that they have, by epoch and sequence."""
    places: dict[int, list[int]] = {}
    for place, batch in enumerate(batches):
        if batch.header.producer_id >= 0:
            places.setdefault(batch.header.producer_id, []).append(place)
    ordered = list(batches)
    for producer_id, of_one in places.items():
        firsts = _first_sequences(producer_id, [batches[place].header for place in of_one], producers)
        by_sequence = sorted(
            (batches[place] for place in of_one), key=lambda each: _rank(each.header, firsts)
        )
        for place, batch in zip(of_one, by_sequence, strict=True):
            ordered[place] = batch
    return ordered


def _first_sequences(
    producer_id: int, headers: Sequence[BatchHeader], producers: ProducerTable
) -> Mapping[int, int]:
    """For each epoch the sequence around which the others lie: they begin again at 0 after 2^31-1."""
    firsts: dict[int, int] = {}
    known = producers.producers.get(producer_id)
    if known is not None and known.batches:
        firsts[known.epoch] = known.batches[-1].last_sequence
    for header in headers:
        firsts.setdefault(header.producer_epoch, header.base_sequence)
    return firsts


def _rank(header: BatchHeader, firsts: Mapping[int, int]) -> tuple[int, int]:
    half = SEQUENCE_SPACE // 2
    distance = (header.base_sequence - firsts[header.producer_epoch] + half) % SEQUENCE_SPACE - half
    return header.producer_epoch, distance


def _is_behind(header: BatchHeader, producers: ProducerTable) -> bool:
    """Whether its producer has written later ones, which were copied: it goes on behind those."""
    known = producers.producers.get(header.producer_id)
    if known is None or not known.batches:
        return False
    last = known.batches[-1].last_sequence
    return _rank(header, {header.producer_epoch: last}) <= (known.epoch, 0)


class _Sieve:
    """Leaves out what need not be appended, and counts it. It goes by a table that grows with what it lets through."""

    def __init__(
        self, producers: ProducerTable, silence_ms: int, forgotten_last: int, *, is_whole: bool
    ) -> None:
        self._producers = producers
        self._is_whole = is_whole
        self._heard_ms = {
            producer_id: producer.timestamp_ms_last for producer_id, producer in producers.producers.items()
        }
        self._silence_ms = silence_ms
        self._forgotten_last = forgotten_last
        self._kept_last: dict[int, tuple[int, int, int]] = {}
        """Of each producer the last batch that was let through."""
        self.repeats = 0
        self.refused = 0

    def keeps(self, batch: Batch) -> bool:
        header = batch.header
        if header.producer_id < 0:
            return True
        if self._is_repeat(header):
            self.repeats += batch.offset_count
            return False
        if self._is_whole and not self._may_be_forgotten(batch) and not self._continues(header):
            self.refused += batch.offset_count
            return False
        self._kept_last[header.producer_id] = _sequences(header)
        return True

    def _is_repeat(self, header: BatchHeader) -> bool:
        """One that was appended here stands right before it: batches come in the order of their sequences."""
        if self._kept_last.get(header.producer_id) == _sequences(header):
            return True
        producer = self._producers.producers.get(header.producer_id)
        return (
            producer is not None
            and producer.epoch == header.producer_epoch
            and any(
                (each.base_sequence, each.last_sequence) == (header.base_sequence, header.last_sequence)
                for each in producer.batches
            )
        )

    def _may_be_forgotten(self, batch: Batch) -> bool:
        """Whoever applied its commit may have known nothing of this producer, whether or not the snapshot does."""
        heard_ms = self._heard_ms.get(batch.header.producer_id)
        if heard_ms is None:
            # Some may have been forgotten since, with a topic that was deleted: a first batch is always believed.
            is_first = batch.header.producer_id not in self._producers.producers
            return is_first or batch.header.producer_id <= self._forgotten_last
        return batch.stored_ms + COMMIT_MS_MAX >= heard_ms + self._silence_ms

    def _continues(self, header: BatchHeader) -> bool:
        try:
            self._producers.original_of(header)
            self._producers.check_start(header)
        except AnabranchError:
            return False
        return True


def _sequences(header: BatchHeader) -> tuple[int, int, int]:
    return header.producer_epoch, header.base_sequence, header.last_sequence


def _add_row(rows: list[Row], batch: Batch, base_offset: Offset) -> None:
    """Batches whose bytes touch share a row."""
    next_offset = Offset(base_offset + batch.offset_count)
    last = rows[-1] if rows else None
    if (
        last is not None
        and last.object_id == batch.object_id
        and last.position + last.length == batch.position
    ):
        rows[-1] = last._replace(
            next_offset=next_offset,
            length=batch.end_position - last.position,
            max_timestamp=max(last.max_timestamp, batch.header.max_timestamp),
            batch_count=last.batch_count + 1,
        )
        return
    size = batch.header.size_bytes
    time = batch.header.max_timestamp
    rows.append(Row(base_offset, next_offset, batch.object_id, batch.position, size, time, 1))
