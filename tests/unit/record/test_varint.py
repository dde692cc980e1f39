"""Variable-length integers: round trips, known bytes, and every way to be too long or too short."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.errors import InvalidRecordError
from anabranch.record.varint import append_varint, read_varint, read_varlong, wrapped_int64


@given(st.integers(-(2**31), 2**31 - 1), st.binary(max_size=3))
def test_a_varint_comes_back_with_the_position_after_it(value: int, before: bytes) -> None:
    out = bytearray(before)
    append_varint(out, value)
    assert read_varint(out + b"\xff", len(before)) == (value, len(out))


@given(st.integers(-(2**63), 2**63 - 1))
def test_a_varlong_comes_back(value: int) -> None:
    out = bytearray()
    append_varint(out, value)
    assert len(out) <= 10
    assert read_varlong(memoryview(out), 0) == (value, len(out))


@pytest.mark.parametrize(
    ("value", "encoded"),
    [(0, "00"), (-1, "01"), (1, "02"), (63, "7e"), (-64, "7f"), (64, "8001"), (300, "d804")],
)
def test_small_numbers_have_the_bytes_that_kafka_gives_them(value: int, encoded: str) -> None:
    out = bytearray()
    append_varint(out, value)
    assert out.hex() == encoded


def test_an_encoding_longer_than_needed_is_read_as_java_reads_it() -> None:
    assert read_varint(b"\x82\x80\x00", 0) == (1, 3)


@pytest.mark.parametrize("encoded", [b"", b"\x80", b"\xff\xff\xff"])
def test_an_integer_cut_short_is_refused(encoded: bytes) -> None:
    with pytest.raises(InvalidRecordError, match="past the end"):
        read_varint(encoded, 0)


@pytest.mark.parametrize("encoded", [b"\xff" * 5 + b"\x01", b"\xff\xff\xff\xff\x10"])
def test_a_varint_beyond_32_bits_is_refused(encoded: bytes) -> None:
    with pytest.raises(InvalidRecordError, match="32 bits"):
        read_varint(encoded, 0)


@pytest.mark.parametrize("encoded", [b"\xff" * 10 + b"\x01", b"\xff" * 9 + b"\x02"])
def test_a_varlong_beyond_64_bits_is_refused(encoded: bytes) -> None:
    with pytest.raises(InvalidRecordError, match="64 bits"):
        read_varlong(encoded, 0)


@pytest.mark.parametrize(
    ("value", "wrapped"), [(5, 5), (-5, -5), (2**63, -(2**63)), (-(2**63) - 1, 2**63 - 1)]
)
def test_a_sum_beyond_64_bits_comes_in_again_at_the_other_end(value: int, wrapped: int) -> None:
    assert wrapped_int64(value) == wrapped
