"""The bytes of an object: what goes in comes out by the footer and the index, and no damage does harm."""

from random import Random
from struct import pack
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.errors import AnabranchError, CorruptDataError
from anabranch.objects.layout.format import (
    FOOTER_BYTES,
    RANGE_BYTES,
    RANGES_MAX,
    Footer,
    ObjectBuilder,
    Range,
    Span,
    check_range,
    index_in,
    items_of,
    read_footer,
    read_index,
    read_spans,
)
from anabranch.objects.layout.merge import build_copied_object, kept_ranges
from anabranch.objects.layout.names import Item, Key, ObjectId, ObjectKind
from anabranch.record.batch import read_header
from anabranch.record.builder import BatchBuilder
from anabranch.record.crc32c import crc32c
from anabranch.values import Offset

A, B, C = (UUID(int=1), 0), (UUID(int=1), 7), (UUID(int=2), 0)
GOLDEN = (
    "00000000000000000000000000000001000000070000000000000000000000000000004d0000000100000000000000020000"
    "0000000000058c10bb1a0000000000000000000000000000000100000000000000000000004d000000000000004500000001"
    "00000000000000010000000000000001e4333a1a41424f420001000000000000000000920000007855aa58c32480b648"
)


def a_batch(value: bytes, count: int = 1, sequence: int = -1, timestamp_ms: int = 1) -> bytearray:
    producer = 9 if sequence >= 0 else -1
    builder = BatchBuilder(producer_id=producer, producer_epoch=producer and 0, base_sequence=sequence)
    for _ in range(count):
        builder.add(None, value, timestamp_ms=timestamp_ms)
    return builder.build()


def built(batches: list[tuple[Key, bytearray]]) -> tuple[bytes, list[Item]]:
    builder = ObjectBuilder()
    for key, batch in batches:
        builder.add(key, batch)
    pieces, items = builder.build()
    return b"".join(pieces), items


def ranges_in(data: bytes) -> list[Range]:
    footer = read_footer(data)
    assert footer.object_size == len(data)
    return read_index(data[footer.index_position : footer.index_position + footer.index_length], footer)


# --- round trips ---------------------------------------------------------------------------------------------------


@given(
    st.lists(
        st.tuples(st.sampled_from((A, B, C)), st.binary(max_size=40), st.integers(1, 5)),
        min_size=1,
        max_size=30,
    )
)
@settings(deadline=None, max_examples=100)
def test_every_partition_gets_its_batches_back_in_the_order_they_came(
    sent: list[tuple[Key, bytes, int]],
) -> None:
    batches = [(key, a_batch(value, count)) for key, value, count in sent]
    data, items = built(batches)
    ranges = ranges_in(data)
    assert [each.key for each in ranges] == list(dict.fromkeys(key for key, _ in batches))
    for each in ranges:
        expected = [batch for key, batch in batches if key == each.key]
        body = data[each.position : each.end]
        check_range(body, each)
        assert body == b"".join(expected)
        assert each.batch_count == len(expected)
        assert each.record_count == sum(count for key, _, count in sent if key == each.key)
        assert list(items_of(body, each)) == [item for item in items if item.key == each.key]
    assert sum(each.length for each in ranges) + len(ranges) * RANGE_BYTES + FOOTER_BYTES == len(data)


def test_an_item_says_what_is_needed_to_give_a_batch_its_offsets() -> None:
    first, second = a_batch(b"x", 3, sequence=4, timestamp_ms=70), a_batch(b"yy", 2)
    _, items = built([(B, second), (A, first), (B, second)])
    header = read_header(first)
    assert [item.key for item in items] == [B, B, A]
    assert items[2] == Item(A, 2 * len(second), len(first), 3, 9, 0, 4, header.attributes, 70, header.crc)


def test_a_range_knows_its_newest_time_and_all_its_records() -> None:
    data, _ = built([(A, a_batch(b"1", 2, timestamp_ms=9)), (A, a_batch(b"2", 3, timestamp_ms=5))])
    (found,) = ranges_in(data)
    assert (found.max_timestamp, found.record_count, found.batch_count) == (9, 5, 2)


def test_one_huge_batch_makes_an_object() -> None:
    batch = a_batch(bytes(9_000_000))
    data, items = built([(A, batch)])
    (found,) = ranges_in(data)
    assert (found.length, len(items)) == (len(batch), 1)


def test_the_bytes_of_a_batch_are_copied_when_it_is_added() -> None:
    batch = a_batch(b"before")
    builder = ObjectBuilder()
    builder.add(A, memoryview(batch), read_header(batch))
    expected, batch[:] = bytes(batch), bytes(len(batch))
    pieces, _ = builder.build()
    assert bytes(pieces[0]) == expected


def test_a_tail_holds_the_index_or_is_too_short_for_it() -> None:
    data, _ = built([(A, a_batch(b"1")), (B, a_batch(b"2"))])
    footer = read_footer(data)
    needed = footer.index_length + FOOTER_BYTES
    index = index_in(data[-needed:], footer)
    assert index is not None
    assert read_index(index, footer) == ranges_in(data)
    assert index_in(data[1 - needed :], footer) is None


def test_the_bytes_of_an_object_are_what_they_have_always_been() -> None:
    """Objects outlive programs: whoever changes this needs a new version."""
    data, _ = built([(B, a_batch(b"b", 2, sequence=7, timestamp_ms=5)), (A, a_batch(b"a"))])
    assert data[: -2 * RANGE_BYTES - FOOTER_BYTES] == a_batch(b"b", 2, sequence=7, timestamp_ms=5) + a_batch(
        b"a"
    )
    assert data[-2 * RANGE_BYTES - FOOTER_BYTES :].hex() == GOLDEN


# --- damage --------------------------------------------------------------------------------------------------------


def sealed_footer(position: int, length: int, crc: int, version: int = 1, magic: bytes = b"ABOB") -> bytes:
    footer = pack(">4sHHQII", magic, version, 0, position, length, crc)
    return footer + pack(">I", crc32c(footer))


@pytest.mark.parametrize(
    ("tail", "reason"),
    [
        (b"", "too few"),
        (bytes(FOOTER_BYTES - 1), "too few"),
        (bytes(FOOTER_BYTES), "not ours, or not whole"),
        (sealed_footer(0, 0, 0, magic=b"ABSL"), "not ours, or not whole"),
        (sealed_footer(0, 0, 0, version=2), "format version 2"),
        (sealed_footer(0, RANGE_BYTES - 1, 0), "which none can have"),
        (sealed_footer(0, (RANGES_MAX + 1) * RANGE_BYTES, 0), "which none can have"),
        (sealed_footer(0, 0, 0)[:-1] + b"x", "checksum of an object's footer"),
    ],
)
def test_a_footer_that_does_not_hold_says_why(tail: bytes, reason: str) -> None:
    with pytest.raises(CorruptDataError, match=reason):
        read_footer(tail)


@pytest.mark.parametrize("cut", [1, FOOTER_BYTES, 200])
def test_an_object_that_was_cut_is_not_taken_for_one(cut: int) -> None:
    data, _ = built([(A, a_batch(bytes(500))), (B, a_batch(bytes(500)))])
    with pytest.raises(CorruptDataError):
        read_footer(data[:-cut])


def test_any_flipped_bit_of_footer_or_index_is_noticed() -> None:
    data, _ = built([(A, a_batch(b"1")), (B, a_batch(b"2"))])
    start = read_footer(data).index_position
    for place in range(start * 8, len(data) * 8):
        spoiled = bytearray(data)
        spoiled[place // 8] ^= 1 << place % 8
        with pytest.raises(CorruptDataError):
            ranges_in(bytes(spoiled))


def test_any_flipped_bit_of_a_range_is_noticed() -> None:
    data, _ = built([(A, a_batch(b"1"))])
    (found,) = ranges_in(data)
    for place in range(found.length * 8):
        spoiled = bytearray(data[: found.length])
        spoiled[place // 8] ^= 1 << place % 8
        with pytest.raises(CorruptDataError):
            check_range(spoiled, found)


@given(st.binary(max_size=3 * FOOTER_BYTES))
def test_no_bytes_whatever_pass_for_a_footer(tail: bytes) -> None:
    with pytest.raises(CorruptDataError):
        read_footer(tail)


def impossible(ranges: list[Range], position: int) -> None:
    index = b"".join(pack(">16sIQQIQqI", each.key[0].bytes, each.key[1], *each[1:]) for each in ranges)
    footer = Footer(position, len(index), crc32c(index))
    with pytest.raises(CorruptDataError):
        read_index(index, footer)


def test_an_index_whose_sums_hold_but_whose_ranges_cannot_be_is_refused() -> None:
    good = Range(A, 0, 100, 1, 1, 0, 0)
    impossible([good], 101)
    impossible([good], 99)
    impossible([], 1)
    impossible([good._replace(position=1)], 101)
    impossible([good, good], 100)
    impossible([good._replace(batch_count=2)], 100)
    impossible([good._replace(batch_count=0)], 100)
    impossible([good._replace(length=0)], 0)


def test_random_damage_of_batches_is_an_error_of_ours_and_no_other() -> None:
    rng = Random(7)
    data, _ = built([(A, a_batch(b"abc", 3)), (A, a_batch(b"d"))])
    (found,) = ranges_in(data)
    for _ in range(500):
        spoiled = bytearray(data[: found.length])
        for _ in range(rng.randint(1, 6)):
            spoiled[rng.randrange(len(spoiled))] = rng.randrange(256)
        if spoiled[17:] != data[17 : found.length]:
            try:
                items = list(items_of(spoiled, found))
            except AnabranchError:
                continue
            # Only what no checksum of a batch covers has changed: its base offset and generation.
            assert [item.crc for item in items] == [
                item.crc for item in items_of(data[: found.length], found)
            ]


# --- copied objects ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("values", [[], [b"x"], [b"x", b"y"]])
def test_a_copied_object_says_which_offsets_it_stands_for(values: list[bytes]) -> None:
    data = b"".join(a_batch(value) for value in values)
    span = Span(Offset(0), Offset(9))
    made = kept_ranges(data) if data else []
    pieces, rows = build_copied_object(A, made, span, ObjectId(1, 2, 3, ObjectKind.MERGED))
    content = b"".join(pieces)
    footer = read_footer(content)
    index = content[footer.index_position : footer.index_position + footer.index_length]
    (found,) = read_index(index, footer)
    assert footer.is_copied
    assert read_spans(index, footer) == [span]
    assert (found.key, found.length, found.batch_count) == (A, len(data), len(values))
    assert sum(row.length for row in rows) == len(data)
    check_range(content[: found.end], found)


def test_no_damage_to_a_copied_object_goes_unnoticed() -> None:
    pieces, _ = build_copied_object(
        A, kept_ranges(a_batch(b"x")), Span(Offset(0), Offset(1)), ObjectId(1, 2, 3)
    )
    whole = b"".join(pieces)
    for position in range(len(whole)):
        content = bytearray(whole)
        content[position] ^= 0xFF
        with pytest.raises(CorruptDataError):
            _check(content)


def _check(content: bytearray) -> None:
    footer = read_footer(content)
    index = content[footer.index_position : footer.index_position + footer.index_length]
    (found,) = read_index(index, footer)
    check_range(content[: found.end], found)


def test_what_was_gathered_or_merged_has_no_spans() -> None:
    content, _ = built([(A, a_batch(b"x"))])
    footer = read_footer(content)
    assert not footer.is_copied
    assert read_spans(content[footer.index_position : -FOOTER_BYTES], footer) == []
