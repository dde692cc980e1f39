"""The checksum against the value every implementation of CRC-32C is tested with."""

import pytest

from anabranch.record.crc32c import crc32c


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_the_check_value_of_the_standard_holds_for_every_buffer(kind: type) -> None:
    assert crc32c(kind(b"123456789")) == 0xE3069283


def test_a_slice_of_a_view_is_summed_in_place() -> None:
    assert crc32c(memoryview(bytearray(b"xx123456789yy"))[2:-2]) == 0xE3069283


def test_nothing_sums_to_zero() -> None:
    assert crc32c(b"") == 0
