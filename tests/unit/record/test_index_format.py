"""Index entries are Kafka's bytes."""

from anabranch.record.index_format import OFFSET_ENTRY, OFFSET_ENTRY_BYTES, TIME_ENTRY, TIME_ENTRY_BYTES


def test_an_offset_entry_is_two_big_endian_integers() -> None:
    assert OFFSET_ENTRY.pack(258, 65539).hex() == "0000010200010003"
    assert OFFSET_ENTRY_BYTES == 8


def test_a_time_entry_is_a_time_and_a_relative_offset() -> None:
    assert TIME_ENTRY.pack(1, 2).hex() == "0000000000000001" + "00000002"
    assert TIME_ENTRY_BYTES == 12
