"""A run of compaction: which keys it knows, which batches it leaves alone, which segments become one."""

from typing import NamedTuple

from anabranch.record.batch import read_header
from anabranch.record.builder import BatchBuilder, control_batch
from anabranch.record.compaction.offset_map import OffsetMap
from anabranch.record.compaction.run import CompactionRun, grouped, map_latest
from anabranch.record.index_format import RELATIVE_OFFSET_MAX
from anabranch.record.records import records_of
from anabranch.values import Offset


class Span(NamedTuple):
    base_offset: Offset
    published_offset: Offset
    published_bytes: int


def span(base: int, end: int, size: int) -> Span:
    return Span(Offset(base), Offset(end), size)


def a_batch(base: int, *keys: bytes | None, **fields: int | bool) -> bytes:
    builder = BatchBuilder(base, **fields)
    for key in keys:
        builder.add(key, b"v", timestamp_ms=7)
    return bytes(builder.build())


def mapped(
    batches: list[bytes], first_dirty: int = 0, end: int = 100, keys_max: int = 50
) -> tuple[OffsetMap, int]:
    latest = OffsetMap(keys_max)
    return latest, map_latest(batches, latest, Offset(first_dirty), Offset(end))


def run_over(batches: list[bytes], last_offsets: dict[int, int] | None = None) -> CompactionRun:
    latest, upto = mapped(batches)
    return CompactionRun(latest, Offset(upto), last_offsets or {}, 0, 1000)


def test_neighbours_are_grouped_as_long_as_they_fit_in_one_segment() -> None:
    spans = [span(0, 5, 40), span(5, 9, 40), span(9, 12, 40), span(12, 13, 200), span(13, 14, 10)]
    assert grouped(spans, 100) == [spans[:2], spans[2:3], spans[3:4], spans[4:]]
    assert grouped([], 100) == []


def test_a_group_never_spans_more_offsets_than_an_index_can_name() -> None:
    spans = [span(0, 5, 1), span(5, RELATIVE_OFFSET_MAX + 1, 1)]
    assert grouped(spans, 100) == [spans[:1], spans[1:]]


def test_the_map_knows_the_latest_offset_of_each_key_in_the_dirty_part() -> None:
    batches = [a_batch(0, b"old", b"k"), a_batch(2, b"a", None, b"b"), a_batch(5, b"a")]
    latest, upto = mapped(batches, first_dirty=2)
    assert upto == 100
    assert [latest.get(key) for key in (b"old", b"a", b"b")] == [None, 5, 4]


def test_a_full_map_stops_before_the_batch_it_has_no_room_for() -> None:
    batches = [a_batch(0, b"a", b"b"), a_batch(2, b"c", b"d")]
    latest, upto = mapped(batches, keys_max=3)
    assert (upto, len(latest)) == (2, 2)


def test_the_first_batch_is_mapped_even_if_it_is_larger_than_the_map() -> None:
    latest, upto = mapped([a_batch(0, b"a", b"b", b"c"), a_batch(3, b"d")], keys_max=1)
    assert (upto, len(latest)) == (3, 3)


def test_keys_from_the_end_on_are_not_looked_at() -> None:
    latest, upto = mapped([a_batch(0, b"a"), a_batch(1, b"b")], end=1)
    assert (upto, latest.get(b"b")) == (1, None)


def test_transactional_and_control_batches_replace_nothing_and_stay_as_they_are() -> None:
    plain = a_batch(0, b"a")
    open_one = a_batch(1, b"a", producer_id=3, producer_epoch=0, base_sequence=0, transactional=True)
    marker = bytes(
        control_batch(
            committed=True,
            producer_id=3,
            producer_epoch=0,
            coordinator_epoch=0,
            timestamp_ms=0,
            base_offset=2,
        )
    )
    run = run_over([plain, open_one, marker])
    assert [run.stays(batch) for batch in (plain, open_one, marker)] == [plain, open_one, marker]


def test_older_records_of_a_key_go_and_what_the_map_did_not_reach_stays() -> None:
    batches = [a_batch(0, b"a", b"b"), a_batch(2, b"a")]
    run = run_over(batches)
    first = run.stays(batches[0])
    assert first is not None
    assert [record.key for record in records_of(first)] == [b"b"]
    beyond = a_batch(100, b"a")
    assert run.stays(beyond) is beyond


def test_the_last_batch_of_a_producer_stays_without_its_records() -> None:
    batches = [a_batch(0, b"a", producer_id=5, producer_epoch=0, base_sequence=0), a_batch(1, b"a")]
    stays = run_over(batches, {5: 0}).stays(batches[0])
    assert stays is not None
    assert read_header(stays).record_count == 0
    assert run_over(batches).stays(batches[0]) is None
