"""Merging the bytes of rows: every record is there with its offset, and nothing that does not hold is copied."""

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.errors import CorruptDataError
from anabranch.objects.layout.format import FOOTER_BYTES, check_range, read_footer, read_index
from anabranch.objects.layout.merge import (
    MergedRange,
    RowBytes,
    build_object,
    compacted,
    kept_ranges,
    map_row,
    merged,
    stamped_batches,
)
from anabranch.objects.layout.names import ObjectId, ObjectKind
from anabranch.record.batch import batch_spans, read_header
from anabranch.record.builder import BatchBuilder, control_batch
from anabranch.record.compaction.offset_map import OffsetMap
from anabranch.record.compaction.run import CompactionRun
from anabranch.record.records import Record, records_of
from anabranch.values import Offset
from support.upkeep_world import INCARNATION, ObjectWorld, Pair, a_batch

TARGET = ObjectId(INCARNATION, 7, 0, ObjectKind.MERGED)
KEY = UUID(int=1), 0
RETENTION_MS = 100
pairs = st.lists(
    st.tuples(st.sampled_from([b"a", b"b", b"c"]), st.one_of(st.none(), st.binary(max_size=3))),
    min_size=1,
    max_size=4,
)


def a_world(*objects: list[list[Pair]]) -> ObjectWorld:
    """Each object has batches of partition 0."""
    world = ObjectWorld()
    for batches in objects:
        world.write([(world.key(), a_batch(each, timestamp_ms=5)) for each in batches])
    return world


def parts_of(world: ObjectWorld) -> list[RowBytes]:
    return [RowBytes(row, world.bytes_of(row)) for row in world.rows(world.key())]


def records_in(ranges: list[MergedRange]) -> list[Record]:
    return [
        record
        for each in ranges
        for start, end in batch_spans(each.data)
        for record in records_of(memoryview(each.data)[start:end])
    ]


@given(st.lists(st.lists(pairs, min_size=1, max_size=3), min_size=1, max_size=4))
def test_a_merged_range_has_every_record_with_its_offset(objects: list[list[list[Pair]]]) -> None:
    world = a_world(*objects)
    (only,) = merged(parts_of(world))
    assert records_in([only]) == world.written[world.key()]
    assert (only.base_offset, only.next_offset) == (0, world.objects.head(world.key()).end)
    assert (only.max_timestamp, only.batch_count) == (5, sum(map(len, objects)))
    assert only.record_count == len(world.written[world.key()])


def test_what_a_log_kept_is_one_range_for_each_lane() -> None:
    bases = [3, 5, 2**32 - 2, 2**32, 5 * 2**32 + 1, 5 * 2**32 + 900]
    batches = []
    for base in bases:
        builder = BatchBuilder(base, generation=2)
        for _ in range(2):
            builder.add(b"k", b"v", timestamp_ms=base)
        batches.append(bytes(builder.build()))
    ranges = kept_ranges(b"".join(batches))
    assert [(each.base_offset, each.next_offset, each.batch_count) for each in ranges] == [
        (3, 2**32 + 2, 4),  # Compaction leaves gaps too; and a lane may go on right behind another.
        (5 * 2**32 + 1, 5 * 2**32 + 902, 2),
    ]
    assert [each.max_timestamp for each in ranges] == [2**32, bases[-1]]
    assert b"".join(each.data for each in ranges) == b"".join(batches)
    _, rows = build_object({KEY: ranges}, TARGET)
    assert [row.position for row in rows[KEY]] == [0, len(ranges[0].data)]
    parts = [RowBytes(row, each.data) for row, each in zip(rows[KEY], ranges, strict=True)]
    assert merged(parts) == ranges


def test_what_was_merged_may_be_merged_again() -> None:
    world = a_world([[(b"a", b"1")]], [[(b"b", b"2"), (b"c", b"3")]])
    (once,) = merged(parts_of(world))
    row = once.row_at(TARGET, 0)
    (twice,) = merged([RowBytes(row, once.data)])
    assert bytes(twice.data) == bytes(once.data)
    assert row.is_stamped
    assert not row.is_compacted


def test_an_object_of_merged_ranges_has_an_index_that_fits_its_bytes() -> None:
    world = ObjectWorld(partition_count=2)
    world.write([(world.key(1), a_batch([(b"a", b"1")])), (world.key(0), a_batch([(b"b", b"2")]))])
    world.write([(world.key(0), a_batch([(b"c", b"3")]))])
    parts = {
        world.key(number): merged(
            [RowBytes(row, world.bytes_of(row)) for row in world.rows(world.key(number))]
        )
        for number in (0, 1)
    }
    pieces, rows = build_object(parts, TARGET)
    data = b"".join(pieces)
    footer = read_footer(data)
    index = data[footer.index_position : len(data) - FOOTER_BYTES]
    for found in read_index(index, footer):
        (row,) = rows[found.key]
        assert (row.position, row.length) == (found.position, found.length)
        check_range(data[row.position : row.position + row.length], found)
        batches = list(stamped_batches(row, data[row.position : row.position + row.length]))
        assert [record for batch in batches for record in records_of(batch)] == world.written[found.key]


@pytest.mark.parametrize("position", [30, 70, -1])
def test_a_flipped_bit_is_never_copied(position: int) -> None:
    world = a_world([[(b"a", b"1" * 40)]])
    (part,) = parts_of(world)
    data = bytearray(part.data)
    data[position] ^= 1
    with pytest.raises(CorruptDataError):
        merged([RowBytes(part.row, data)])


def test_bytes_that_are_not_what_the_row_says_are_refused() -> None:
    world = a_world([[(b"a", b"1")], [(b"b", b"2")]])
    (part,) = parts_of(world)
    with pytest.raises(CorruptDataError, match="has 1 batches"):
        merged([RowBytes(part.row._replace(length=part.row.length // 2), part.data[: part.row.length // 2])])
    with pytest.raises(CorruptDataError, match="where its row says"):
        merged([RowBytes(part.row, part.data[:-1])])
    with pytest.raises(CorruptDataError, match="up to offset 2"):
        merged([RowBytes(part.row._replace(next_offset=Offset(3)), part.data)])


# --- compaction ---------------------------------------------------------------------------------------------------


def a_run(parts: list[RowBytes], keys_max: int = 100, now_ms: int = 0) -> CompactionRun:
    latest, upto = OffsetMap(keys_max), Offset(0)
    for part in parts:
        upto = map_row(part, latest, Offset(0))
        if upto < part.row.next_offset:
            break
    return CompactionRun(latest, upto, {}, now_ms, RETENTION_MS)


@given(st.lists(st.lists(pairs, min_size=1, max_size=3), min_size=1, max_size=4), st.integers(1, 12))
def test_the_latest_record_of_every_key_stays_as_far_as_the_map_reaches(
    objects: list[list[list[Pair]]], keys_max: int
) -> None:
    world = a_world(*objects)
    parts = parts_of(world)
    run = a_run(parts, keys_max)
    ranges = compacted(parts, run)
    written = world.written[world.key()]
    latest = {record.key: record.offset for record in written if record.offset < run.upto}
    stays = [each for each in written if each.offset >= run.upto or latest[each.key] == each.offset]
    assert [record.offset for record in records_in(ranges)] == [record.offset for record in stays]
    for each in ranges:
        assert each.is_compacted == (each.base_offset < run.upto)
        assert each.next_offset <= run.upto or not each.is_compacted


def test_a_tombstone_goes_at_its_time_and_then_nothing_is_left() -> None:
    world = a_world([[(b"a", b"1"), (b"a", None)]])
    parts = parts_of(world)
    (first,) = compacted(parts, a_run(parts, now_ms=1000))
    assert [record.value for record in records_in([first])] == [None]
    again = [RowBytes(first.row_at(TARGET, 0), first.data)]
    (early,) = compacted(again, a_run(again, now_ms=1000 + RETENTION_MS - 1))
    assert bytes(early.data) == bytes(first.data)
    assert compacted(again, a_run(again, now_ms=1000 + RETENTION_MS)) == []


def test_control_batches_stay() -> None:
    world = a_world([[(b"a", b"1")], [(b"a", b"2")]])
    marker = bytes(
        control_batch(committed=True, producer_id=9, producer_epoch=0, coordinator_epoch=0, timestamp_ms=5)
    )
    world.write([(world.key(), marker)])
    parts = parts_of(world)
    (only,) = compacted(parts, a_run(parts))
    headers = [read_header(only.data, start) for start, _ in batch_spans(only.data)]
    assert [(header.base_offset, header.is_control) for header in headers] == [(1, False), (2, True)]
