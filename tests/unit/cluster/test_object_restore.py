"""Which records get which offsets when a cluster comes back from its bucket: by example, and against a small model of a
cluster that several producers write to through several brokers, and that ends at any moment."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple

from hypothesis import event, given, settings
from hypothesis import strategies as st

from anabranch.cluster.objects.restore import (
    Appended,
    Batch,
    Copied,
    Frontier,
    Listed,
    Placed,
    append_again,
    newer_objects,
    place_copied,
    unknown_objects,
)
from anabranch.errors import AnabranchError
from anabranch.objects.layout.format import Span
from anabranch.objects.layout.names import ObjectId, ObjectKind
from anabranch.record.batch import BatchHeader
from anabranch.record.producer_table import Producer, ProducerTable, WrittenBatch
from anabranch.values import Generation, Offset

LIFE, DAY_MS, NOW_MS = 7, 86_400_000, 1_000_000_000


def header(producer_id: int = -1, sequence: int = -1, count: int = 1, epoch: int = 0) -> BatchHeader:
    producer_epoch = epoch if producer_id >= 0 else -1
    numbers = (0, count - 1, 0, NOW_MS, producer_id, producer_epoch, sequence, count)
    return BatchHeader(Offset(0), 88, Generation(0), 2, 0, *numbers)


def stored(object_id: ObjectId, headers: Sequence[BatchHeader], stored_ms: int = NOW_MS) -> list[Batch]:
    return [Batch(object_id, place * 100, each, stored_ms) for place, each in enumerate(headers)]


def listed(epoch: int, number: int, stored_ms: int = NOW_MS, life: int = LIFE) -> Listed:
    return Listed(ObjectId(life, epoch, number), 1000, stored_ms)


def ids(found: Sequence[Listed]) -> list[tuple[int, int]]:
    return [(each.object_id.epoch, each.object_id.number) for each in found]


FIRST, SECOND = ObjectId(LIFE, 3, 0), ObjectId(LIFE, 3, 1)


def appended(
    batches: Sequence[Batch], end: int = 100, producers: ProducerTable | None = None, **more: Any
) -> Appended:
    table = producers if producers is not None else ProducerTable()
    return append_again(Offset(end), table, batches, silence_ms=DAY_MS, **more)


def known(producer_id: int, last_sequence: int, *, epoch: int = 0, heard_ms: int = NOW_MS) -> ProducerTable:
    table = ProducerTable()
    batch = WrittenBatch(last_sequence, last_sequence, Offset(50))
    table.producers[producer_id] = Producer(epoch, heard_ms, (batch,))
    return table


# --- what carries its own offsets -------------------------------------------------------------------------------------


def span(start: int, end: int) -> Span:
    return Span(Offset(start), Offset(end))


def copied(number: int, where: Span, *offsets: int, stored_ms: int = NOW_MS, count: int = 1) -> Copied:
    """One batch of `count` records at each of these offsets."""
    object_id = ObjectId(LIFE, 3, number, ObjectKind.MERGED)
    headers = [header(count=count)._replace(base_offset=Offset(offset)) for offset in offsets]
    return Copied(object_id, stored_ms, where, stored(object_id, headers, stored_ms))


def places(placed: Placed) -> list[tuple[int, int, int]]:
    return [(row.base_offset, row.next_offset, row.object_id.number) for row in placed.rows]


def test_copied_batches_take_their_own_offsets() -> None:
    placed = place_copied([], [copied(0, span(0, 3), 0, 1, 2), copied(1, span(3, 5), 3, 4)], Offset(0))
    assert places(placed) == [(0, 3, 0), (3, 5, 1)]
    assert all(row.is_stamped for row in placed.rows)
    assert (placed.end, placed.holes) == (5, [])


def test_what_the_snapshot_knows_is_not_placed_again() -> None:
    placed = place_copied([span(0, 2)], [copied(0, span(0, 4), 0, 1, 2, 3)], Offset(2))
    assert places(placed) == [(2, 4, 0)]


def test_the_copy_that_was_stored_last_counts_for_all_of_its_span() -> None:
    older, newer = copied(0, span(0, 4), 0, 1, 2, 3), copied(1, span(0, 3), 0, 2, stored_ms=NOW_MS + 1)
    assert places(place_copied([], [newer, older], Offset(0))) == [(0, 3, 1), (3, 4, 0)]


def test_spans_that_do_not_meet_leave_a_hole() -> None:
    placed = place_copied([span(0, 1)], [copied(0, span(3, 4), 3), copied(1, span(6, 9))], Offset(1))
    assert placed.holes == [span(1, 3), span(4, 6)]
    assert placed.end == 9


def test_the_gap_between_two_lanes_ends_a_row() -> None:
    lane = 2**32
    placed = place_copied([], [copied(0, span(0, lane + 1), 0, lane)], Offset(0))
    assert places(placed) == [(0, 1, 0), (lane, lane + 1, 0)]


def test_objects_with_offsets_of_their_own_that_the_snapshot_does_not_know_are_found() -> None:
    merged = [
        Listed(ObjectId(life, 3, number, ObjectKind.MERGED), 1, 0)
        for life, number in [(LIFE, 0), (LIFE, 1), (8, 2)]
    ]
    frontier = Frontier(LIFE, 10, {})
    found = unknown_objects([*merged, listed(3, 5)], frontier, lambda object_id: object_id.number == 0)
    assert ids(found) == [(3, 1)]


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 8), st.integers(0, 5)), max_size=8),
    st.integers(0, 20),
)
def test_no_offset_is_given_twice_and_none_is_forgotten(pieces: list[tuple[int, int, int]], end: int) -> None:
    """Spans of full copies, in any order and overlapping anyhow."""
    found = [
        copied(number, span(start, start + size), *range(start, start + size), stored_ms=NOW_MS + age)
        for number, (start, size, age) in enumerate(pieces)
    ]
    placed = place_copied([span(0, end)], found, Offset(end))
    given_out = [offset for row in placed.rows for offset in range(row.base_offset, row.next_offset)]
    assert given_out == sorted(set(given_out))
    covered = {offset for start, size, _ in pieces for offset in range(start, start + size)}
    assert set(given_out) == {offset for offset in covered if offset >= end}
    holes = {offset for hole in placed.holes for offset in range(*hole)}
    assert holes == set(range(placed.end)) - covered - set(range(end))


# --- which objects --------------------------------------------------------------------------------------------------


def test_objects_behind_the_last_number_of_an_epoch_are_newer() -> None:
    found = newer_objects([listed(3, number) for number in range(4)], Frontier(LIFE, 10, {3: 1}))
    assert ids(found) == [(3, 2), (3, 3)]


def test_all_objects_of_a_broker_that_registered_later_are_newer() -> None:
    found = newer_objects([listed(9, 0), listed(10, 0), listed(11, 0)], Frontier(LIFE, 10, {}))
    assert ids(found) == [(10, 0), (11, 0)]


def test_another_life_and_merged_objects_are_not_newer() -> None:
    merged = Listed(ObjectId(LIFE, 3, 5, ObjectKind.MERGED), 1, NOW_MS)
    assert newer_objects([listed(3, 5, life=8), merged], Frontier(LIFE, 10, {3: 0})) == []


def test_objects_of_several_brokers_come_by_the_time_when_they_could_be_committed() -> None:
    listing = [listed(3, 0, 50), listed(3, 1, 20), listed(4, 0, 30), listed(4, 1, 60)]
    found = newer_objects(listing, Frontier(LIFE, 2, {}))
    assert ids(found) == [(4, 0), (3, 0), (3, 1), (4, 1)]


# --- which offsets --------------------------------------------------------------------------------------------------


def test_records_begin_as_many_offsets_behind_the_end_as_there_are() -> None:
    result = appended(stored(FIRST, [header(count=3), header(count=2)]))
    assert (result.gap_start, result.start, result.end) == (100, 105, 110)


def test_a_partition_without_newer_records_goes_on_where_it_was() -> None:
    result = appended([])
    assert (result.start, result.end, list(result.rows)) == (100, 100, [])


def test_batches_that_touch_share_a_row() -> None:
    batches = [*stored(FIRST, [header(), header(count=4)]), *stored(SECOND, [header()])]
    rows = appended(batches).rows
    assert [
        (row.base_offset, row.next_offset, row.object_id, row.length, row.batch_count) for row in rows
    ] == [
        (106, 111, FIRST, 200, 2),
        (111, 112, SECOND, 100, 1),
    ]


def test_what_cannot_be_read_still_has_its_offsets() -> None:
    assert appended(stored(FIRST, [header()]), more_offsets=1000).start == 1101


def test_a_repeat_of_what_the_snapshot_has_is_left_out_but_counted() -> None:
    result = appended(stored(FIRST, [header(5, 9), header(5, 10)]), producers=known(5, 9))
    assert (result.start, result.records, result.repeats) == (102, 1, 1)


def test_a_repeat_in_another_object_is_left_out() -> None:
    batches = [*stored(FIRST, [header(5, 0, count=2)]), *stored(SECOND, [header(5, 0, count=2)])]
    result = appended(batches)
    assert (result.records, result.repeats) == (2, 2)


def test_a_producer_s_batches_come_in_its_sequence_whatever_the_store_s_clock_says() -> None:
    batches = [*stored(FIRST, [header(5, 11), header(), header(5, 12)]), *stored(SECOND, [header(5, 10)])]
    result = appended(batches, producers=known(5, 9))
    assert [(row.object_id, row.position) for row in result.rows] == [
        (SECOND, 0),
        (FIRST, 100),
        (FIRST, 0),
        (FIRST, 200),
    ]


def test_sequences_go_on_at_0_after_the_greatest() -> None:
    last = 2**31 - 1
    batches = stored(FIRST, [header(5, 0), header(5, last), header(5, 1)])
    table = known(5, last - 1)
    assert [row.position for row in appended(batches, producers=table).rows] == [100, 0, 200]
    assert table.producers[5].batches[-1].last_sequence == 1


def test_a_batch_behind_a_gap_was_never_acknowledged() -> None:
    result = appended(stored(FIRST, [header(5, 10), header(5, 12)]), producers=known(5, 9))
    assert (result.records, result.refused) == (1, 1)


def test_an_epoch_that_was_over_at_the_snapshot_was_never_acknowledged() -> None:
    result = appended(stored(FIRST, [header(5, 10, epoch=1)]), producers=known(5, 9, epoch=2))
    assert (result.records, result.refused) == (0, 1)


def test_behind_a_gap_of_a_producer_that_may_have_been_forgotten_everything_is_kept() -> None:
    table = known(5, 9, heard_ms=NOW_MS - DAY_MS)
    result = appended(stored(FIRST, [header(5, 12), header(5, 15)]), producers=table)
    assert (result.records, result.refused) == (2, 0)


def test_a_producer_that_nobody_knew_may_begin_anywhere_and_then_goes_on() -> None:
    result = appended(stored(FIRST, [header(6, 1), header(7, 0), header(7, 1), header(7, 5)]))
    assert (result.records, result.refused) == (3, 1)


def test_a_producer_that_was_forgotten_before_the_snapshot_goes_on_anywhere() -> None:
    batches = stored(FIRST, [header(6, 7), header(6, 20), header(9, 1), header(9, 5)])
    result = appended(batches, forgotten_last=6)
    assert (result.records, result.refused) == (3, 1)


def test_a_producer_that_sends_again_is_answered_with_where_its_batch_is_now() -> None:
    table = known(5, 9)
    appended(stored(FIRST, [header(5, 10, count=2)]), producers=table)
    assert table.original_of(header(5, 10, count=2)) == 102


# --- against a model ------------------------------------------------------------------------------------------------

SIMPLE, IDEMPOTENT = 2, 2
IN_FLIGHT_MAX = 3


class Sent(NamedTuple):
    producer: int
    sequence: int
    count: int


@dataclass
class Segment:
    epoch: int
    number: int
    batches: list[Sent]
    stored_ms: int | None = None


@dataclass
class Writer:
    """One producer. A simple one sends the next batch once the last one was acknowledged; the others have several on
    their way and repeat them anywhere."""

    number: int
    is_idempotent: bool
    next_sequence: int = 0
    open: list[Sent] = field(default_factory=list)


@dataclass
class Taken:
    """A snapshot."""

    end: int
    table: ProducerTable
    index: int
    last_numbers: dict[int, int]
    records: list[Sent]


class OldCluster:
    def __init__(self, brokers: int) -> None:
        self.index = 0
        self.now_ms = NOW_MS
        self.table = ProducerTable()
        self.line: list[tuple[int, Sent]] = []
        self.end = 0
        self.acknowledged: dict[Sent, int] = {}
        self.epochs = [-1] * brokers
        self.gathering: list[list[Sent]] = [[] for _ in range(brokers)]
        self.segments: dict[int, list[Segment]] = {}
        self.last: dict[int, int] = {}
        self.writers = [Writer(each, each >= SIMPLE) for each in range(SIMPLE + IDEMPOTENT)]
        for broker in range(brokers):
            self.register(broker)
        self.snapshot: Taken
        self.take_snapshot()

    def register(self, broker: int) -> None:
        """Also after a restart: what it had not stored is lost."""
        self.last.pop(self.epochs[broker], None)
        self.epochs[broker] = self.index
        self.index += 1
        self.gathering[broker] = []
        self.segments[self.epochs[broker]] = []
        self.last[self.epochs[broker]] = -1

    def send(self, broker: int, chance: int) -> None:
        writer = self.writers[chance % len(self.writers)]
        if len(writer.open) < (IN_FLIGHT_MAX if writer.is_idempotent else 1):
            sent = Sent(writer.number, writer.next_sequence, 1 + chance % 3)
            writer.next_sequence += sent.count
            writer.open.append(sent)
            self.gathering[broker].append(sent)

    def repeat(self, broker: int, chance: int) -> None:
        writer = self.writers[SIMPLE + chance % IDEMPOTENT]
        if writer.open:
            self.gathering[broker].append(writer.open[chance % len(writer.open)])

    def seal(self, broker: int, chance: int) -> None:
        if self.gathering[broker]:
            epoch = self.epochs[broker]
            self.segments[epoch].append(Segment(epoch, len(self.segments[epoch]), self.gathering[broker]))
            self.gathering[broker] = []

    def put(self, broker: int, chance: int) -> None:
        waiting = [each for each in self.segments[self.epochs[broker]] if each.stored_ms is None]
        if waiting:
            waiting[chance % len(waiting)].stored_ms = self.now_ms

    def commit(self, broker: int, chance: int) -> None:
        epoch = self.epochs[broker]
        following = self.segments[epoch][self.last[epoch] + 1 :]
        if following and following[0].stored_ms is not None:
            self.index += 1
            self.last[epoch] += 1
            for sent in following[0].batches:
                self._apply(sent)

    def _apply(self, sent: Sent) -> None:
        writer = self.writers[sent.producer]
        batch = header_of(sent)
        if writer.is_idempotent:
            try:
                original = self.table.original_of(batch)
                self.table.check_start(batch)
            except AnabranchError:
                return
            if original is not None:
                return
            self.table.note(batch, Offset(self.end), self.now_ms)
        self.line.append((self.end, sent))
        self.acknowledged[sent] = self.end
        self.end += sent.count
        writer.open.remove(sent)

    def take_snapshot(self) -> None:
        records = [sent for _, sent in self.line]
        self.snapshot = Taken(self.end, copy.deepcopy(self.table), self.index, dict(self.last), records)

    def listing(self) -> list[Listed]:
        return [
            Listed(ObjectId(LIFE, each.epoch, each.number), 1, each.stored_ms)
            for segments in self.segments.values()
            for each in segments
            if each.stored_ms is not None
        ]


def header_of(sent: Sent) -> BatchHeader:
    is_idempotent = sent.producer >= SIMPLE
    return header(sent.producer, sent.sequence, sent.count) if is_idempotent else header(count=sent.count)


KINDS = ["send"] * 8 + ["repeat"] * 2 + ["seal"] * 3 + ["put"] * 4 + ["commit"] * 4 + ["restart", "snapshot"]


def steps_of(seed: int, count: int) -> list[tuple[str, int, int]]:
    chance = Random(seed)
    return [(chance.choice(KINDS), chance.randrange(3), chance.randrange(12)) for _ in range(count)]


def run(steps: Sequence[tuple[str, int, int]]) -> OldCluster:
    cluster = OldCluster(brokers=3)
    for kind, broker, chance in steps:
        cluster.now_ms += 1
        if kind == "restart":
            cluster.register(broker)
        elif kind == "snapshot":
            cluster.take_snapshot()
        else:
            getattr(cluster, kind)(broker, chance)
    return cluster


def restored(cluster: OldCluster) -> tuple[Appended, list[tuple[int, Sent]]]:
    """The partition as it is after the restore, and each batch that was appended again with its offset."""
    snapshot = cluster.snapshot
    batches, contents = [], {}
    for found in newer_objects(cluster.listing(), Frontier(LIFE, snapshot.index, snapshot.last_numbers)):
        segment = cluster.segments[found.object_id.epoch][found.object_id.number]
        for batch, sent in zip(
            stored(found.object_id, [header_of(each) for each in segment.batches], found.stored_ms),
            segment.batches,
            strict=True,
        ):
            batches.append(batch)
            contents[batch.object_id, batch.position] = sent
    result = append_again(Offset(snapshot.end), snapshot.table, batches, silence_ms=DAY_MS)
    again = []
    for row in result.rows:
        offset = row.base_offset
        for position in range(row.position, row.position + row.length, 100):
            sent = contents[row.object_id, position]
            again.append((offset, sent))
            offset = Offset(offset + sent.count)
        assert offset == row.next_offset
    return result, again


@settings(max_examples=600)
@given(st.integers(0, 2**32), st.integers(0, 200))
def test_nothing_acknowledged_is_lost_renamed_or_out_of_order(seed: int, count: int) -> None:
    cluster = run(steps_of(seed, count))
    result, again = restored(cluster)
    before = set(cluster.snapshot.records)
    appended_again = [sent for _, sent in again]
    event(f"appended again: {min(len(again), 5)}, left out: {bool(result.repeats or result.refused)}")

    missing = cluster.acknowledged.keys() - before - set(appended_again)
    assert not missing, "an acknowledged record is gone"
    assert cluster.end <= result.start, "an offset that was given out names another record"
    assert all(offset >= result.start for offset, _ in again)
    _check_order(cluster, appended_again)


def _check_order(cluster: OldCluster, appended_again: list[Sent]) -> None:
    for writer in cluster.writers:
        old = [sent.sequence for sent in cluster.snapshot.records if sent.producer == writer.number]
        new = [sent.sequence for sent in appended_again if sent.producer == writer.number]
        assert new == sorted(set(new)), "a producer's records are out of order, or there twice"
        assert not old or not new or old[-1] < new[0]


def test_where_records_are_lost_a_missing_sequence_is_no_proof() -> None:
    batches = stored(FIRST, [header(7, 5)])
    assert appended(batches, producers=known(7, 3)).refused == 1
    assert appended(batches, producers=known(7, 3), is_whole=False).records == 1


def test_a_producer_goes_on_behind_what_was_copied_though_older_batches_are_appended_later() -> None:
    """It wrote to the store, then to brokers, whose records were copied: these have their places already."""
    producers = known(7, 6)
    batches = [*stored(FIRST, [header(7, 3), header(7, 4)]), *stored(SECOND, [header(7, 4)])]
    result = appended(batches, producers=producers, is_whole=False)
    assert (result.records, result.repeats) == (2, 1)
    producers.original_of(header(7, 7))
    assert producers.original_of(header(7, 6)) == 50, "a repeat is answered with where it is"


def test_an_epoch_that_is_over_does_not_come_back_with_its_batches() -> None:
    producers = known(7, 2, epoch=1)
    assert appended(stored(FIRST, [header(7, 9)]), producers=producers, is_whole=False).records == 1
    assert producers.producers[7].epoch == 1
    producers.original_of(header(7, 3, epoch=1))
