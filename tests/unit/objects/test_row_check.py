"""What is left of an object that was cut anywhere, or has a changed byte anywhere: nothing that is kept has another
offset than it had, and only what was damaged is lost."""

import uuid
from collections.abc import Sequence

import pytest

from anabranch.objects.layout.format import ObjectBuilder
from anabranch.objects.layout.merge import build_object, kept_ranges, stamped_batches
from anabranch.objects.layout.names import ObjectId, ObjectKind, Row
from anabranch.objects.layout.row_check import NamedRow, check_object, lost_parts
from anabranch.record.batch import stamp
from anabranch.record.records import records_of
from anabranch.values import Generation, Offset
from support.broker_bench import batch_of

FIRST, SECOND = (uuid.UUID(int=1), 0), (uuid.UUID(int=2), 3)
VALUES = {
    FIRST: [[b"a"], [b"b", b"c"], [b"d"], [b"e", b"f", b"g"]],
    SECOND: [[b"k"], [b"l", b"m"]],
}
STARTS = {FIRST: 100, SECOND: 7}
UNCOVERED_BYTES = 16
"""Of a batch: offset, length and generation are not in its checksum."""


def written() -> tuple[bytes, list[NamedRow]]:
    builder = ObjectBuilder()
    object_id = ObjectId(1, 2, 3)
    for key, batches in VALUES.items():
        for values in batches:
            builder.add(key, batch_of(*values))
    pieces, items = builder.build()
    named = []
    for key, batches in VALUES.items():
        mine = [item for item in items if item.key == key]
        count = sum(map(len, batches))
        length = mine[-1].position + mine[-1].length - mine[0].position
        base = Offset(STARTS[key])
        row = Row(base, Offset(base + count), object_id, mine[0].position, length, 0, len(mine))
        named.append(NamedRow(key, row))
    return b"".join(pieces), named


def merged() -> tuple[bytes, list[NamedRow]]:
    parts = {}
    for key, batches in VALUES.items():
        data, offset = bytearray(), STARTS[key]
        for values in batches:
            batch = batch_of(*values)
            stamp(batch, 0, Offset(offset), Generation(0))
            data += batch
            offset += len(values)
        parts[key] = kept_ranges(data)
    pieces, rows = build_object(parts, ObjectId(1, 2, 3, ObjectKind.MERGED))
    return b"".join(pieces), [NamedRow(key, row) for key in VALUES for row in rows[key]]


OBJECTS = {"written": written(), "merged": merged()}


def expected(named: NamedRow) -> dict[int, bytes]:
    values = [value for batch in VALUES[named.key] for value in batch]
    return dict(enumerate(values, STARTS[named.key]))


def values_in(data: bytes, row: Row) -> dict[int, bytes]:
    part = data[row.position : row.position + row.length]
    records = [record for batch in stamped_batches(row, part) for record in records_of(batch)]
    return {record.offset: bytes(record.value or b"") for record in records}


def left(data: bytes, named: Sequence[NamedRow]) -> tuple[int, str | None]:
    """How many records are, once it is sure that they are what they were, and that the others are named."""
    check = check_object(data, named)
    count = 0
    for each in named:
        kept = check.kept.get(each, (each.row,))
        found: dict[int, bytes] = {}
        for row in kept:
            found.update(values_in(data, row))
        for row in lost_parts(each.row, kept):
            assert not found.keys() & set(range(row.base_offset, row.next_offset))
            found.update(dict.fromkeys(range(row.base_offset, row.next_offset), b"lost"))
        assert found.keys() == expected(each).keys(), "some are neither there nor named"
        there = {offset: value for offset, value in found.items() if value != b"lost"}
        assert there.items() <= expected(each).items(), "a record has another offset"
        count += len(there)
    return count, check.damage


TOTAL = sum(len(values) for batches in VALUES.values() for values in batches)


@pytest.mark.parametrize("kind", OBJECTS)
def test_whole_object_has_no_damage(kind: str) -> None:
    assert left(*OBJECTS[kind]) == (TOTAL, None)


@pytest.mark.parametrize("kind", OBJECTS)
def test_object_that_was_cut_anywhere_keeps_the_batches_before_the_cut(kind: str) -> None:
    data, named = OBJECTS[kind]
    counts = []
    for size in range(len(data)):
        count, damage = left(data[:size], named)
        assert damage is not None
        counts.append(count)
    assert counts == sorted(counts)
    assert (counts[0], counts[-1]) == (0, TOTAL)


@pytest.mark.parametrize("kind", OBJECTS)
@pytest.mark.parametrize("bit", [0, 7])
def test_changed_bit_anywhere_costs_its_batch_at_most(kind: str, bit: int) -> None:
    data, named = OBJECTS[kind]
    starts = batch_starts(data, named)
    for position in range(len(data)):
        changed = bytearray(data)
        changed[position] ^= 1 << bit
        count, damage = left(bytes(changed), named)
        assert damage is not None, f"byte {position} counts for nothing"
        place = next(((start, end, size) for start, end, size in starts if start <= position < end), None)
        if place is None:
            assert count == TOTAL, "the index holds no record"
        elif position - place[0] >= UNCOVERED_BYTES:
            assert count == TOTAL - place[2]


def batch_starts(data: bytes, named: Sequence[NamedRow]) -> list[tuple[int, int, int]]:
    """Where each batch begins and ends, and how many records it has."""
    found = []
    for key, row in named:
        position = row.position
        for values in VALUES[key]:
            end = position + len(batch_of(*values))
            found.append((position, end, len(values)))
            position = end
    assert position <= len(data)
    return found


def test_changed_offset_in_a_merged_object_is_not_believed() -> None:
    data, named = OBJECTS["merged"]
    changed = bytearray(data)
    changed[named[1].row.position + 7] ^= 1  # 7 becomes 6, or another that would fit behind a gap.
    count, damage = left(bytes(changed), named)
    assert damage is not None
    assert count < TOTAL


def test_two_changed_bits_lose_what_lies_between_where_offsets_are_counted() -> None:
    data, named = OBJECTS["written"]
    starts = batch_starts(data, named)
    changed = bytearray(data)
    for start, _, _ in (starts[0], starts[2]):
        changed[start + 65] ^= 1
    assert left(bytes(changed), named)[0] == TOTAL - 4
    data, named = OBJECTS["merged"]
    changed = bytearray(data)
    for start, _, _ in (starts[0], starts[2]):
        changed[start + 65] ^= 1
    assert left(bytes(changed), named)[0] == TOTAL - 2


def test_object_with_the_bytes_of_another_keeps_nothing() -> None:
    data, named = OBJECTS["written"]
    lengths = [each.row._replace(next_offset=Offset(each.row.next_offset + 1)) for each in named]
    wrong = [NamedRow(each.key, row) for each, row in zip(named, lengths, strict=True)]
    check = check_object(data, wrong)
    assert check.kept == {each: [] for each in wrong}
