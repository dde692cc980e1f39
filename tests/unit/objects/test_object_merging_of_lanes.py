"""Rows are not merged across a gap between lanes, which would hide it from whoever counts records."""

from uuid import UUID

from anabranch.objects.layout.merge_plan import MergeWatch, all_merges
from anabranch.objects.layout.names import Key, ObjectId, ObjectKind, Row
from anabranch.values import Offset

KEY: Key = (UUID(int=1), 0)
LANE = 2**32
MERGE_BYTES = 1000


class Table:
    """Rows of one partition, each of so many bytes."""

    def __init__(self) -> None:
        self.all: list[Row] = []
        self.size_bytes = 0

    def add(self, base: int, count: int, size: int, kind: ObjectKind = ObjectKind.MERGED) -> None:
        object_id = ObjectId(1, 1, len(self.all), kind)
        row = Row(Offset(base), Offset(base + count), object_id, 0, size, 5, 1, kind is ObjectKind.MERGED)
        self.all.append(row)

    @property
    def start(self) -> Offset:
        return self.all[0].base_offset

    @property
    def end(self) -> Offset:
        return self.all[-1].next_offset

    def head(self, key: Key) -> "Table":
        return self

    def rows(self, key: Key, start: Offset, count_max: int) -> list[Row]:
        return [row for row in self.all if row.next_offset > start][:count_max]

    def next_merge(self) -> list[Row] | None:
        watch = MergeWatch(self, MERGE_BYTES)
        watch.look(KEY)
        found = watch.next_merge()
        return None if found is None else list(found.rows[KEY])


def test_small_rows_of_two_lanes_are_left_as_they_are() -> None:
    table = Table()
    table.add(0, 5, 400)
    table.add(LANE, 5, 400)
    table.add(3 * LANE, 5, 400)
    assert table.next_merge() is None, "it would make the same rows again, for ever"
    assert all_merges({KEY: table.all}, MERGE_BYTES) == []


def test_those_of_one_lane_are_merged_with_each_other() -> None:
    table = Table()
    table.add(0, 5, 400)
    for number in range(3):
        table.add(LANE + 5 * number, 5, 400)
    assert table.next_merge() == table.all[1:]
    (merge,) = all_merges({KEY: table.all}, MERGE_BYTES)
    assert list(merge.rows[KEY]) == table.all[1:]


def test_what_was_gathered_before_and_behind_a_gap_is_merged_once() -> None:
    table = Table()
    table.add(0, 5, 600, ObjectKind.WRITTEN)
    table.add(LANE, 5, 600, ObjectKind.WRITTEN)
    assert table.next_merge() == table.all
