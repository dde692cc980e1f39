"""Walks over the batches of a row: how they grow, what they refuse, and the stamping that follows from them."""

import pytest

from anabranch.errors import CorruptDataError
from anabranch.objects.layout.batch_walk import Walk, place_batches, walk_on
from anabranch.objects.layout.names import ObjectId, Row
from anabranch.record.batch import HEADER_BYTES, read_header
from anabranch.record.builder import BatchBuilder
from anabranch.values import Offset


def batch(*values: bytes) -> bytes:
    builder = BatchBuilder()
    for value in values:
        builder.add(None, value, timestamp_ms=5)
    return bytes(builder.build())


BATCHES = [batch(b"a", b"b"), batch(b"c"), batch(b"d" * 50, b"e", b"f")]
DATA = b"".join(BATCHES)
ROW = Row(Offset(10), Offset(16), ObjectId(1, 1, 1), 1000, len(DATA), 5, 3)
ENDS = [1000 + len(b"".join(BATCHES[: number + 1])) for number in range(3)]


def walked(data: bytes = DATA, row: Row = ROW, *, check_crc: bool = True) -> Walk:
    walk = Walk(row)
    walk.grow(walk_on(row, data, row.position, walk.frontier, walk.next_offset, check_crc=check_crc))
    return walk


def test_batches_get_offsets_one_after_the_other() -> None:
    walk = walked()
    assert walk.is_whole
    assert list(walk.positions) == [1000, *ENDS]
    assert list(walk.next_offsets) == [12, 13, 16]
    assert [walk.batch_of(Offset(offset)) for offset in range(10, 17)] == [0, 0, 1, 2, 2, 2, 3]
    assert [walk.base_of(number) for number in range(3)] == [10, 12, 13]


@pytest.mark.parametrize("cut", range(1, len(DATA) + 1, 7))
def test_a_walk_that_stops_for_lack_of_bytes_goes_on_where_it_stopped(cut: int) -> None:
    walk = Walk(ROW)
    found = walk_on(ROW, DATA[:cut], 1000, 1000, Offset(10), check_crc=True)
    walk.grow(found)
    assert walk.frontier <= 1000 + cut
    assert found.wanted_end is None or 1000 + cut < found.wanted_end <= 1000 + len(DATA)
    assert walk.wanted_end == (found.wanted_end or 1000 + len(DATA))
    start = walk.frontier
    walk.grow(walk_on(ROW, DATA[start - 1000 :], start, start, walk.next_offset, check_crc=True))
    assert list(walk.positions) == [1000, *ENDS]
    walk.grow(found)
    assert list(walk.positions) == [1000, *ENDS], "what is known already is not taken twice"


def test_every_flipped_bit_of_a_batch_is_found_unless_it_is_of_no_account() -> None:
    silent = set(range(8)) | set(range(12, 16))  # The base offset and the generation: they are stamped.
    for position in range(len(BATCHES[0])):
        data = bytearray(DATA)
        data[position] ^= 4
        if position in silent:
            assert walked(bytes(data)).is_whole
            continue
        with pytest.raises(CorruptDataError, match=r"segments/0000000000000001-1-1 is damaged"):
            walked(bytes(data))


def test_who_knows_the_bytes_to_be_good_need_not_sum_them_up() -> None:
    data = DATA[:-1] + bytes([DATA[-1] ^ 1])
    assert walked(data, check_crc=False).is_whole
    with pytest.raises(CorruptDataError):
        walked(data)


@pytest.mark.parametrize(
    "row",
    [
        ROW._replace(next_offset=Offset(15)),
        ROW._replace(next_offset=Offset(17)),
        ROW._replace(length=len(DATA) - 1),
        ROW._replace(length=len(DATA) - HEADER_BYTES),
        ROW._replace(length=len(DATA) - len(BATCHES[2])),
    ],
)
def test_a_row_that_its_batches_do_not_fit_is_refused(row: Row) -> None:
    with pytest.raises(CorruptDataError):
        walked(DATA, row)


def test_stamped_batches_keep_their_offsets_and_gaps() -> None:
    data = bytearray(DATA)
    place_batches(data, -1000, walked(), 0, 3)
    row = ROW._replace(base_offset=Offset(3), next_offset=Offset(40), is_stamped=True)
    walk = walked(bytes(data), row)
    assert list(walk.next_offsets) == [12, 13, 16]
    assert walk.batch_of(Offset(3)) == 0
    with pytest.raises(CorruptDataError, match="offset 10 comes after 10"):
        walked(bytes(data), row._replace(base_offset=Offset(11)))
    with pytest.raises(CorruptDataError):
        walked(bytes(data), row._replace(next_offset=Offset(15)))


def test_stamping_changes_offset_and_generation_and_nothing_else() -> None:
    out = bytearray(b"before" + b"".join(BATCHES[1:]) + b"behind")
    walk = walked()
    place_batches(out, 6 - walk.positions[1], walk, 1, 3)
    assert out.startswith(b"before")
    assert out.endswith(b"behind")
    position, bases = 6, []
    for original in BATCHES[1:]:
        header = read_header(out, position)
        bases.append(header.base_offset)
        assert header.generation == 0
        assert out[position + 16 : position + len(original)] == original[16:]
        assert header.size_bytes == len(original)
        position += len(original)
    assert bases == [12, 13]
