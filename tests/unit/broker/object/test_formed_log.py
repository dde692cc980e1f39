"""What is known of the past of a partition that came from the object store."""

from types import SimpleNamespace
from typing import Any

import pytest

from anabranch.broker.object import archived_prefix as formed_log
from anabranch.broker.object.archived_prefix import StoredPrefix
from anabranch.objects.layout.names import Row
from anabranch.record.producer_table import Producer, WrittenBatch
from anabranch.values import Offset, TopicPartition
from support.object_cluster import TOPIC, row, written

LANE = 2**32


def no_reads(*_: Any) -> Any:
    raise AssertionError("nothing of it is fetched")


def past(
    floor: int, *rows: tuple[int, int], start: int = 0, producers: dict[int, Producer] | None = None
) -> StoredPrefix:
    """Of one with these rows in the table."""
    found = [row(written(number), first, end) for number, (first, end) in enumerate(rows)]

    def rows_from(key: object, start: int, count_max: int) -> list[Row]:
        return [each for each in found if each.next_offset > start][:count_max]

    def row_before(key: object, end: int) -> Row | None:
        return next((each for each in reversed(found) if each.base_offset < end), None)

    objects = SimpleNamespace(
        row_before=row_before,
        head=lambda key: SimpleNamespace(start=Offset(start)),
        rows=rows_from,
        producers=lambda key: SimpleNamespace(producers=producers or {}),
    )
    table: Any = SimpleNamespace(objects=objects)
    return StoredPrefix(TopicPartition("t", 0), (TOPIC, 0), Offset(floor), table, None, no_reads)


def test_records_are_counted_without_what_lies_between_objects() -> None:
    found = past(LANE + 9, (0, 10), (10, 15), (LANE, LANE + 9))
    assert found.runs(Offset(0)) == [(0, 15), (LANE, LANE + 9)]
    assert found.runs(Offset(12)) == [(12, 15), (LANE, LANE + 9)]
    assert found.runs(Offset(LANE + 9)) == []


def test_neither_what_was_deleted_nor_what_came_back_to_the_store_is_counted() -> None:
    found = past(20, (0, 15), (15, 20), (20, 30), start=5)
    assert found.runs(Offset(0)) == [(5, 20)]


def test_of_very_many_objects_the_rest_is_counted_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formed_log, "ROWS_MAX", 2)
    found = past(50, (0, 10), (10, 20), (20, 30), (40, 50))
    assert found.runs(Offset(0)) == [(0, 50)]
    assert found.runs(Offset(20)) == [(20, 30), (40, 50)]


def test_of_very_many_objects_the_gaps_between_lanes_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formed_log, "ROWS_MAX", 1)
    rows = [(0, 10), (10, 20), (LANE + 5, LANE + 10), (LANE + 12, LANE + 20), (4 * LANE, 4 * LANE + 3)]
    found = past(9 * LANE + 1, *rows)
    assert found.runs(Offset(3)) == [(3, 20), (LANE + 5, LANE + 20), (4 * LANE, 4 * LANE + 3)]
    assert found.runs(Offset(30)) == [(LANE + 5, LANE + 20), (4 * LANE, 4 * LANE + 3)]
    assert past(LANE + 7, *rows).runs(Offset(0)) == [(0, 20), (LANE + 5, LANE + 7)]


def test_it_ends_behind_its_last_record_if_the_lane_changed_then() -> None:
    assert past(LANE + 1, (0, 10)).readable_end == 10
    assert past(LANE + 1, start=10).readable_end == 10, "all of them were deleted"
    assert past(LANE + 1).readable_end == 0, "there never were any"
    assert past(15, (0, 10)).readable_end == 15, "compaction took the rest"
    assert past(LANE + 9, (0, 10), (LANE, LANE + 9)).readable_end == LANE + 9


def test_a_reader_behind_the_last_record_is_done_with_the_past() -> None:
    found = past(LANE, (0, 10), (LANE, LANE + 5))
    assert not found.is_read(Offset(9))
    assert found.is_read(Offset(10)), "up to the floor there is nothing more"
    assert past(10).is_read(Offset(3))


def test_producers_are_known_by_what_they_wrote_below_the_floor() -> None:
    batches = (WrittenBatch(0, 0, Offset(8)), WrittenBatch(1, 1, Offset(12)))
    known = {
        1: Producer(0, 5, batches),
        2: Producer(0, 5, batches[1:]),
        3: Producer(4, 5, ()),
    }
    found = past(10, producers=known).producers_below()
    assert {each: producer.batches for each, producer in found.items()} == {1: batches[:1], 3: ()}
    assert found[3].epoch == 4
