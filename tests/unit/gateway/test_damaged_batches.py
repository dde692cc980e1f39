"""Damage is never decoded, and nobody is told to try again."""

import pytest

from anabranch.errors import CorruptDataError
from anabranch.gateway.calls import refusal
from anabranch.gateway.read.chunks import chunks_of
from anabranch.gateway.read.reading import read_records
from anabranch.record.builder import BatchBuilder
from anabranch.wire.error_codes import ErrorCode


def batch(offset: int) -> bytes:
    builder = BatchBuilder(base_offset=offset)
    builder.add(b"key", b"some value", timestamp_ms=1)
    return bytes(builder.build())


DAMAGED = batch(0) + batch(1).replace(b"some", b"sane") + batch(2)


def test_records_of_a_damaged_batch_are_not_read() -> None:
    limits = {"records_max": 9, "bytes_max": 9999, "unpacked_bytes_max": 9999}
    assert len(read_records(batch(0) + batch(1), 0, **limits).records) == 2
    with pytest.raises(CorruptDataError, match="offset 1"):
        read_records(DAMAGED, 0, **limits)


def test_chunks_are_not_made_of_a_damaged_batch() -> None:
    with pytest.raises(CorruptDataError, match="offset 1"):
        chunks_of(DAMAGED, 0, 0, lambda record: b"{}")


def test_damage_is_not_said_to_pass() -> None:
    told = str(refusal(ErrorCode.CORRUPT_MESSAGE, ""))
    assert "try again" not in told
    assert "damaged" in told
    assert "anabranch log verify" in told
