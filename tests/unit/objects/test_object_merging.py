"""Which rows are merged, and that records, references and garbage add up whatever is done in whatever order."""

from collections import Counter

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from anabranch.cluster.objects.entries import (
    Key,
    Replacement,
    removed_entry,
    replace_entry,
    start_entry,
    tombstone_entry,
)
from anabranch.cluster.objects.upkeep import deletable
from anabranch.objects.layout.compaction_plan import compaction_of
from anabranch.objects.layout.merge import MergedRange, RowBytes, build_object, compacted, map_row, merged
from anabranch.objects.layout.merge_plan import (
    SMALL_ROWS_MAX,
    Merge,
    MergeWatch,
    all_merges,
    packed,
    whole_objects,
)
from anabranch.objects.layout.names import ObjectId, ObjectKind, Row
from anabranch.objects.layout.plans import Keeping
from anabranch.record.compaction.offset_map import OffsetMap
from anabranch.record.compaction.run import CompactionRun
from anabranch.record.records import Record
from anabranch.values import Offset
from support.upkeep_world import BROKER, INCARNATION, ObjectWorld, a_batch

MERGE_BYTES = 1000
COMPACTED = Keeping(is_deleted=True, retention_ms=-1, retention_bytes=-1, is_compacted=True)


class MergingWorld(ObjectWorld):
    """Carries out at once what is decided."""

    def __init__(self, partition_count: int = 1) -> None:
        super().__init__(partition_count)
        self.watch = MergeWatch(self.objects, MERGE_BYTES)
        self._merged = 0

    def add(self, *sizes: tuple[int, int]) -> None:
        """One object with one batch for each (partition, size of its value)."""
        self.write([(self.key(number), a_batch([(b"k", b"v" * size)])) for number, size in sizes])

    def look(self) -> Merge | None:
        for number in range(self.topic.partition_count):
            self.watch.look(self.key(number))
        return self.watch.next_merge()

    def put(self, parts: dict[Key, list[MergedRange]]) -> dict[Key, list[Row]]:
        epoch = self.table.brokers[BROKER].epoch
        object_id = ObjectId(INCARNATION, epoch, self._merged, ObjectKind.MERGED)
        self._merged += 1
        pieces, rows = build_object(parts, object_id)
        if pieces:
            self.stored[object_id.name] = b"".join(pieces)
        return rows

    def merge(self, merge: Merge) -> None:
        made = {key: merged(self.parts(rows)) for key, rows in merge.rows.items()}
        for keys in packed({key: len(ranges[0].data) for key, ranges in made.items()}, MERGE_BYTES):
            rows = self.put({key: made[key] for key in keys})
            self.replace([Replacement(key, merge.rows[key], rows[key]) for key in keys])
        for key in merge.rows:
            self.watch.look_again(key)

    def replace(self, replacements: list[Replacement]) -> None:
        self.apply(replace_entry(BROKER, self.table.brokers[BROKER].epoch, replacements))

    def parts(self, rows: object) -> list[RowBytes]:
        return [RowBytes(row, self.bytes_of(row)) for row in rows]  # type: ignore[attr-defined]


def test_little_is_left_as_it_is() -> None:
    world = MergingWorld()
    for _ in range(3):
        world.add((0, 100))
    assert world.look() is None


def test_what_adds_up_becomes_one_row_of_one_object() -> None:
    world = MergingWorld()
    for _ in range(6):
        world.add((0, 100))
    merge = world.look()
    assert merge is not None
    world.merge(merge)
    (row,) = world.rows(world.key())
    assert row.length >= MERGE_BYTES
    assert row.object_id.kind is ObjectKind.MERGED
    assert world.read(world.key()) == world.written[world.key()]
    assert world.look() is None
    assert len(list(world.objects.unreferenced())) == 6


def test_small_partitions_share_an_object_and_a_large_one_has_its_own() -> None:
    world = MergingWorld(partition_count=3)
    world.add((0, 1200), (1, 10), (2, 10))
    merge = world.look()
    assert merge is not None
    world.merge(merge)
    large, *small = [world.rows(world.key(number)) for number in range(3)]
    assert [len(rows) for rows in (large, *small)] == [1, 1, 1]
    assert small[0][0].object_id == small[1][0].object_id != large[0].object_id


def test_partitions_that_keep_their_records_for_different_times_share_no_object() -> None:
    a, b, c, d = (ObjectWorld(partition_count=4).key(number) for number in range(4))
    sizes = {a: 10, b: 20, c: 30, d: 2000}
    kinds = {a: "a day", b: "for ever", c: "a day", d: "a day"}
    assert packed(sizes, MERGE_BYTES, kinds) == [[d], [a, c], [b]]
    assert packed(sizes, MERGE_BYTES) == [[d], [a, b, c]]


def test_small_rows_that_were_merged_are_merged_again_once_they_add_up() -> None:
    world = MergingWorld(partition_count=4)
    for _ in range(40):
        world.add(*[(number, 50) for number in range(4)])
        while (merge := world.look()) is not None:
            world.merge(merge)
    for number in range(4):
        rows = world.rows(world.key(number))
        assert max(row.length for row in rows) >= MERGE_BYTES
        assert len(rows) < 15
        assert world.read(world.key(number)) == world.written[world.key(number)]


def test_too_many_small_rows_are_merged_however_small() -> None:
    world = MergingWorld(partition_count=2)
    world.watch = MergeWatch(world.objects, 10**9)
    for _ in range(SMALL_ROWS_MAX):
        world.add((0, 1))
    world.add((1, 1))
    assert world.look() is None
    world.add((0, 1))
    merge = world.look()
    assert merge is not None
    assert {key[1]: len(rows) for key, rows in merge.rows.items()} == {0: SMALL_ROWS_MAX + 1, 1: 1}


def test_a_partition_that_is_damaged_is_left_alone() -> None:
    world = MergingWorld(partition_count=2)
    world.add((0, 2000), (1, 2000))
    world.look()
    merge = world.watch.next_merge(frozenset({world.key(0)}))
    assert merge is not None
    assert list(merge.rows) == [world.key(1)]


@pytest.mark.parametrize("is_dropped", [False, True])
def test_what_others_have_merged_or_dropped_meanwhile_is_not_counted(is_dropped: bool) -> None:
    world = MergingWorld()
    for _ in range(5):
        world.add((0, 100))
    assert world.look() is None
    if is_dropped:
        world.apply(start_entry({world.key(): Offset(4)}))
    else:
        old = world.rows(world.key())[:4]
        rows = world.put({world.key(): merged(world.parts(old))})
        world.replace([Replacement(world.key(), old, rows[world.key()])])
    world.add((0, 100))
    assert world.look() is None


def test_whole_objects_are_used_up_before_others_are_begun() -> None:
    first, second, third = (ObjectId(1, 1, number) for number in range(3))
    a, b = ObjectWorld(partition_count=2).key(0), ObjectWorld(partition_count=2).key(1)

    def row(object_id: ObjectId, offset: int) -> Row:
        return Row(Offset(offset), Offset(offset + 1), object_id, 0, 100, 0, 1)

    rows = {a: [row(first, 0), row(third, 1)], b: [row(first, 0), row(second, 1), row(third, 2)]}
    assert whole_objects(rows, 150) == {a: rows[a][:1], b: rows[b][:1]}
    assert whole_objects(rows, 10**6) == rows


# --- any order of anything ----------------------------------------------------------------------------------------

steps = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.lists(st.tuples(st.integers(0, 2), st.integers(0, 400)), min_size=1)),
        st.tuples(st.just("merge"), st.booleans()),
        st.tuples(st.just("start"), st.tuples(st.integers(0, 2), st.integers(0, 30))),
        st.tuples(st.just("compact"), st.tuples(st.integers(0, 2), st.integers(1, 6))),
        st.tuples(st.just("collect"), st.none()),
    ),
    max_size=30,
)


def _compact(world: MergingWorld, key: Key, keys_max: int) -> None:
    found = compaction_of(world.objects, key, COMPACTED, now_ms=0)
    if found is None:
        return
    latest, upto = OffsetMap(keys_max), Offset(0)
    for part in world.parts([row for row in found.rows if row.next_offset > found.first_dirty]):
        upto = map_row(part, latest, found.first_dirty)
        if upto < part.row.next_offset:
            break
    rows = [row for row in found.rows if row.base_offset < upto]
    ranges = compacted(world.parts(rows), CompactionRun(latest, upto, {}, 0, 1000))
    made = world.put({key: ranges})
    world.replace([Replacement(key, rows, made[key])])
    below = [record for record in world.read(key) if record.offset < upto]
    assert max(Counter(record.key for record in below).values(), default=1) == 1


def _collect(world: MergingWorld, now_ms: int) -> None:
    world.apply(tombstone_entry(list(world.objects.unreferenced()), now_ms))
    gone = deletable(world.objects.tombstones, now_ms)
    for object_id in gone:
        world.stored.pop(object_id.name, None)
    world.apply(removed_entry(gone))


def _latest(records: list[Record]) -> dict[bytes | None, Record]:
    return {record.key: record for record in records}


@settings(max_examples=60, deadline=None)
@given(steps)
@example(
    [
        ("write", [(0, 0), (0, 0), (0, 0), (0, 86), (0, 94), (0, 400)]),
        ("write", [(0, 0)] * 10 + [(0, 170)]),
        ("merge", False),
        ("compact", (0, 4)),
        ("write", [(0, 0)]),
        ("merge", False),
    ]
)
def test_records_references_and_garbage_add_up_after_any_history(history: list[tuple[str, object]]) -> None:
    world = MergingWorld(partition_count=3)
    is_thinned = set()
    for step, (name, what) in enumerate(history):
        match name, what:
            case "write", list():
                world.write(
                    [
                        (world.key(number), a_batch([(b"%d" % (size % 5), b"v" * size)]))
                        for number, size in what
                    ]
                )
            case "merge", is_overtaken:
                if (merge := world.look()) is not None:
                    if is_overtaken:  # Retention comes between: what was decided counts no more.
                        key, rows = next(iter(merge.rows.items()))
                        world.apply(start_entry({key: rows[0].next_offset}))
                    world.merge(merge)
            case "start", (int(number), int(offset)):
                world.apply(start_entry({world.key(number): Offset(offset)}))
            case "compact", (int(number), int(keys_max)):
                is_thinned.add(world.key(number))
                _compact(world, world.key(number), keys_max)
            case "collect", _:
                _collect(world, step)
        for key in (world.key(number) for number in range(3)):
            _check_records(world, key, key in is_thinned)
        _check_references(world)


def _check_records(world: MergingWorld, key: Key, is_thinned: bool) -> None:
    read, expected = world.read(key), world.expected(key)
    if is_thinned:
        assert _latest(read) == _latest(expected)
        assert [record for record in expected if record in read] == read
    else:
        assert read == expected
    assert world.objects.head(key).size_bytes == sum(row.length for row in world.rows(key))


def _check_references(world: MergingWorld) -> None:
    named = Counter(row.object_id for number in range(3) for row in world.rows(world.key(number)))
    assert all(world.objects.references(object_id) == count for object_id, count in named.items())
    assert all(object_id.name in world.stored for object_id in named)
    known = {*named, *world.objects.unreferenced(), *world.objects.tombstones}
    orphans = set(world.stored) - {object_id.name for object_id in known}
    assert all(name.startswith("merged/") for name in orphans), "only a merge that came too late leaves one"


# --- everything at once, for a job ----------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 900)), min_size=1, max_size=4), max_size=12)
)
def test_a_jobs_merges_take_every_small_row_once_and_keep_every_record(
    objects: list[list[tuple[int, int]]],
) -> None:
    world = MergingWorld(partition_count=3)
    for sizes in objects:
        world.add(*sizes)
    for _ in range(2):  # The second time what was merged is merged again, where that is worth it.
        rows = {world.key(number): world.rows(world.key(number)) for number in range(3)}
        merges = all_merges(rows, MERGE_BYTES)
        taken = [row for merge in merges for each in merge.rows.values() for row in each]
        assert len(taken) == len(set(taken))
        gathered = {row for each in rows.values() for row in each if not row.is_stamped}
        assert gathered <= set(taken)
        for merge in merges:
            world.merge(merge)
        for number in range(3):
            assert world.read(world.key(number)) == world.expected(world.key(number))
    assert all(row.is_stamped for number in range(3) for row in world.rows(world.key(number)))


def test_small_merged_rows_are_merged_again_by_a_job_only_if_that_makes_a_large_one() -> None:
    world = MergingWorld()
    for _ in range(2):
        world.add((0, 300))
        (merge,) = all_merges({world.key(): world.rows(world.key())}, MERGE_BYTES)
        world.merge(merge)
    assert all_merges({world.key(): world.rows(world.key())}, MERGE_BYTES) == []
    world.add((0, 300))
    (merge,) = all_merges({world.key(): world.rows(world.key())}, MERGE_BYTES)
    world.merge(merge)
    (again,) = all_merges({world.key(): world.rows(world.key())}, MERGE_BYTES)
    assert len(again.rows[world.key()]) == 3
    world.merge(again)
    assert len(world.rows(world.key())) == 1
