"""Index entries: Kafka's bytes, there and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.record.index_format import (
    OFFSET_ENTRY_BYTES,
    TIME_ENTRY_BYTES,
    pack_offset_entry,
    pack_time_entry,
    unpack_offset_entry,
    unpack_time_entry,
)

int31 = st.integers(0, 2**31 - 1)


def test_an_offset_entry_is_two_big_endian_integers() -> None:
    assert pack_offset_entry(258, 65539).hex() == "0000010200010003"


def test_a_time_entry_is_a_time_and_a_relative_offset() -> None:
    assert pack_time_entry(1, 2).hex() == "0000000000000001" + "00000002"


@given(st.lists(st.tuples(int31, int31), min_size=1))
def test_offset_entries_come_back_by_their_slot(entries: list[tuple[int, int]]) -> None:
    packed = b"".join(pack_offset_entry(*entry) for entry in entries)
    assert len(packed) == OFFSET_ENTRY_BYTES * len(entries)
    assert [unpack_offset_entry(packed, slot) for slot in range(len(entries))] == entries


@given(st.lists(st.tuples(st.integers(-1, 2**63 - 1), int31), min_size=1))
def test_time_entries_come_back_by_their_slot(entries: list[tuple[int, int]]) -> None:
    packed = memoryview(b"".join(pack_time_entry(*entry) for entry in entries))
    assert len(packed) == TIME_ENTRY_BYTES * len(entries)
    assert [unpack_time_entry(packed, slot) for slot in range(len(entries))] == entries


@pytest.mark.parametrize(("relative_offset", "position"), [(-1, 0), (2**31, 0), (0, -1), (0, 2**31)])
def test_an_entry_that_does_not_fit_is_our_own_mistake(relative_offset: int, position: int) -> None:
    with pytest.raises(AssertionError):
        pack_offset_entry(relative_offset, position)


def test_a_time_entry_refuses_an_offset_beyond_the_segment() -> None:
    with pytest.raises(AssertionError):
        pack_time_entry(0, 2**31)
