"""What a job may put in the place of rows, as far as it can be told without reading records."""

from anabranch.objects.layout.format import Range
from anabranch.objects.layout.merge import MergedRange, RowBytes, build_object, merged
from anabranch.objects.layout.names import Key, ObjectId, ObjectKind, Row
from anabranch.objects.layout.replacement_check import why_not_replaced
from anabranch.values import Offset
from support.upkeep_world import INCARNATION, ObjectWorld, a_batch

TARGET = ObjectId(INCARNATION, 7, 0, ObjectKind.MERGED)


class Made:
    """Two rows of one partition, and what a job has made of them."""

    def __init__(self) -> None:
        world = ObjectWorld(partition_count=2)
        for value in (b"1", b"2"):
            world.write([(world.key(), a_batch([(b"k", value)], timestamp_ms=3))])
        self.key: Key = world.key()
        self.other: Key = world.key(1)
        self.old = world.rows(self.key)
        made = merged([RowBytes(row, world.bytes_of(row)) for row in self.old])
        _, rows = build_object({self.key: made}, TARGET)
        (self.new,) = rows[self.key]
        self.ranges = {TARGET: [self._range(made[0])]}

    def _range(self, made: MergedRange) -> Range:
        return Range(self.key, 0, len(made.data), made.batch_count, made.record_count, 3, 0)

    def why_not(self, *new: Row, is_compacted: bool = False) -> str | None:
        return why_not_replaced(self.key, self.old, new, self.ranges, is_compacted=is_compacted)


def test_all_batches_in_one_row_are_taken() -> None:
    made = Made()
    assert made.why_not(made.new) is None


def test_merged_rows_that_lack_anything_are_refused() -> None:
    made = Made()
    new = made.new
    for wrong in (
        new._replace(next_offset=Offset(1)),
        new._replace(base_offset=Offset(1)),
        new._replace(length=new.length - 1),
        new._replace(batch_count=1),
        new._replace(max_timestamp=4),
        new._replace(is_stamped=False),
    ):
        assert "all batches" in (made.why_not(wrong) or "")
    assert "all batches" in (made.why_not(new, new) or "")


def test_a_row_for_each_lane_is_taken_and_no_other_number_of_them() -> None:
    made = Made()
    (first, second), new, lane = made.old, made.new, 2**32
    made.old = [first, second._replace(base_offset=Offset(lane), next_offset=Offset(lane + 1))]
    stamped = new._replace(length=first.length, batch_count=1)
    lower = stamped._replace(next_offset=Offset(1))
    upper = stamped._replace(
        base_offset=Offset(lane), next_offset=Offset(lane + 1), position=new.position + first.length
    )
    assert made.why_not(lower, upper) is None
    near = Made()
    halves = (lower, upper._replace(base_offset=Offset(1), next_offset=Offset(2)))
    assert "all batches" in (near.why_not(*halves) or "")


def test_only_a_compacted_topic_may_lose_records() -> None:
    made = Made()
    thinned = made.new._replace(is_compacted=True)
    assert "not compacted" in (made.why_not(thinned) or "")
    assert "not compacted" in (made.why_not() or "")
    assert made.why_not(thinned, is_compacted=True) is None
    assert made.why_not(is_compacted=True) is None


def test_what_is_not_in_the_objects_index_is_refused() -> None:
    made = Made()
    shifted = made.new._replace(position=5)
    assert "does not say" in (made.why_not(shifted) or "")
    elsewhere = made.new._replace(object_id=TARGET._replace(number=1))
    assert "has nothing of this partition" in (made.why_not(elsewhere) or "")
    of_another = why_not_replaced(made.other, made.old, [made.new], made.ranges, is_compacted=False)
    assert "has nothing of this partition" in (of_another or "")


def test_rows_in_two_parts_must_lie_behind_each_other() -> None:
    made = Made()
    half = made.new.length // 2
    first = made.new._replace(next_offset=Offset(1), length=half, batch_count=1, is_compacted=True)
    second = made.new._replace(base_offset=Offset(1), position=half, length=half, batch_count=1)
    assert made.why_not(first, second, is_compacted=True) is None
    apart = second._replace(position=half + 1, length=half - 1)
    assert "does not say" in (made.why_not(first, apart, is_compacted=True) or "")


def test_nothing_can_be_put_in_the_place_of_nothing() -> None:
    made = Made()
    assert why_not_replaced(made.key, [], [made.new], made.ranges, is_compacted=False) is not None
