"""Whether a compaction is due, and what it reads."""

from anabranch.cluster.objects.entries import Replacement, replace_entry
from anabranch.objects.layout.compaction_plan import Compaction, compaction_of, grouped_rows, most_urgent
from anabranch.objects.layout.names import ObjectId, ObjectKind, Row
from anabranch.objects.layout.plans import ROWS_PER_REPLACEMENT, Keeping
from anabranch.values import Offset
from support.upkeep_world import BROKER, INCARNATION, ObjectWorld, a_batch

FOR_EVER = Keeping(is_deleted=True, retention_ms=-1, retention_bytes=-1, is_compacted=False)
COMPACTED = Keeping(is_deleted=False, retention_ms=-1, retention_bytes=-1, is_compacted=True)


def a_world(*timestamps_ms: int) -> ObjectWorld:
    """One object with one record for each time."""
    world = ObjectWorld()
    for timestamp_ms in timestamps_ms:
        world.write([(world.key(), a_batch([(b"k", b"v")], timestamp_ms))])
    return world


def row_bytes(world: ObjectWorld) -> int:
    return world.rows(world.key())[0].length


def compact_rows(world: ObjectWorld, count: int) -> None:
    """Say of the first rows that they are compacted."""
    old = world.rows(world.key())[:count]
    target = ObjectId(INCARNATION, world.table.brokers[BROKER].epoch, 0, ObjectKind.MERGED)
    new = [row._replace(object_id=target, is_stamped=True, is_compacted=True) for row in old]
    world.apply(replace_entry(BROKER, target.epoch, [Replacement(world.key(), old, new)]))
    assert world.rows(world.key())[:count] == new


def test_what_was_compacted_is_clean_and_the_ratio_decides() -> None:
    world = a_world(1, 2, 3, 4)
    size = row_bytes(world)
    compact_rows(world, 3)
    found = compaction_of(world.objects, world.key(), COMPACTED, now_ms=0)
    assert found is not None
    assert (found.first_dirty, found.clean_bytes, found.dirty_bytes) == (3, 3 * size, size)
    assert not found.is_due
    assert found._replace(keeping=COMPACTED._replace(dirty_ratio_min=0.25)).is_due


def test_nothing_is_due_without_dirty_rows_or_without_compaction() -> None:
    world = a_world(1)
    assert compaction_of(world.objects, world.key(), FOR_EVER, now_ms=0) is None
    compact_rows(world, 1)
    assert compaction_of(world.objects, world.key(), COMPACTED, now_ms=0) is None


def test_young_rows_and_all_behind_them_are_left_alone() -> None:
    world = a_world(1, 50, 2)
    keeping = COMPACTED._replace(compaction_lag_ms_min=60)
    found = compaction_of(world.objects, world.key(), keeping, now_ms=100)
    assert found is not None
    assert [row.base_offset for row in found.rows] == [0]


def test_what_waits_for_too_long_is_due_whatever_the_ratio() -> None:
    world = a_world(1, 2, 3, 100)
    compact_rows(world, 3)
    keeping = COMPACTED._replace(compaction_lag_ms_max=50)
    early, late = (compaction_of(world.objects, world.key(), keeping, now_ms) for now_ms in (150, 151))
    assert early is not None
    assert late is not None
    assert (early.is_due, late.is_due) == (False, True)


def a_compaction(partition: int, dirty: int, clean: int = 0, overdue: bool = False) -> Compaction:
    key = ObjectWorld().topic.topic_id, partition
    return Compaction(key, [], Offset(0), clean, dirty, overdue, COMPACTED)


def test_small_compactions_are_done_together_and_a_large_one_alone() -> None:
    small = [a_compaction(number, dirty=40) for number in range(3)]
    large = a_compaction(9, dirty=101)
    assert most_urgent([*small, large._replace(clean_bytes=20)], 100) == small[:2]
    assert most_urgent([large._replace(is_overdue=True), *small], 100) == [large._replace(is_overdue=True)]
    assert most_urgent([a_compaction(1, dirty=1, clean=99)], 100) == []


def test_groups_are_bounded_by_bytes_and_by_rows() -> None:
    row = Row(Offset(0), Offset(1), ObjectId(1, 1, 1), 0, 40, 0, 1)
    assert [len(group) for group in grouped_rows([row] * 5, 100)] == [2, 2, 1]
    assert [len(group) for group in grouped_rows([row._replace(length=200)] * 2, 100)] == [1, 1]
    many = grouped_rows([row._replace(length=0)] * (ROWS_PER_REPLACEMENT + 1), 100)
    assert [len(group) for group in many] == [ROWS_PER_REPLACEMENT, 1]
