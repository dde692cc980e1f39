"""Batches as records: as many as are wanted, and none that nobody can show."""

import pytest

from anabranch.gateway.read import reading
from anabranch.gateway.read.reading import (
    AT_ONCE_BYTES_MAX,
    JSON_BYTES_MAX,
    OmittedRecord,
    is_little,
    read_records,
)
from anabranch.gateway.record_json import record_json
from anabranch.record.builder import BatchBuilder
from anabranch.record.compression import Codec

LIMITS = {"records_max": 10, "bytes_max": 10**9, "unpacked_bytes_max": 64 * 2**20}


def batch(*values: bytes, codec: Codec = Codec.ZSTD) -> bytes:
    builder = BatchBuilder(codec=codec)
    for value in values:
        builder.add(None, value, timestamp_ms=1)
    return bytes(builder.build())


@pytest.mark.parametrize(
    ("value", "is_shown"),
    [
        (b"x" * (JSON_BYTES_MAX - 100), True),
        (b"x" * (JSON_BYTES_MAX + 1), False),
        (b"\n" * (JSON_BYTES_MAX // 2 - 100), True),
        (b"\0" * (JSON_BYTES_MAX // 6 - 100), True),
        (b"\0" * (JSON_BYTES_MAX // 6 + 100), False),
    ],
)
def test_record_that_is_too_long_for_json_is_only_told_of(value: bytes, is_shown: bool) -> None:
    data = batch(b"before", value, b"after")
    before, long, after = read_records(data, 0, **LIMITS).records
    assert (before.value, after.value) == (b"before", b"after")
    assert isinstance(long, OmittedRecord) != is_shown
    assert is_shown or record_json(long) == b'{"offset":"1","timestamp":1,"omitted_bytes":%d}' % len(value)
    assert read_records(data, 1, **LIMITS, shortens=False).records[0].value == value


def test_only_what_cannot_unpack_to_much_is_decoded_at_once() -> None:
    assert is_little(batch(b"x", codec=Codec.NONE))
    assert is_little(batch(b"x", codec=Codec.LZ4))
    assert not is_little(batch(b"x", codec=Codec.ZSTD))
    assert not is_little(batch(b"x" * AT_ONCE_BYTES_MAX, codec=Codec.NONE))


def test_batches_that_unpack_to_much_are_read_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that are only told of take no room in the answer, but all the work."""
    monkeypatch.setattr(reading, "JSON_BYTES_MAX", 1000)
    monkeypatch.setattr(reading, "UNPACKED_BYTES_MAX", 5000)
    data = batch(*(b"x" * 2000 for _ in range(9)))
    read = read_records(data, 0, **LIMITS)
    assert (len(read.records), read.next_offset) == (2, 2)
    assert len(read_records(batch(b"x" * 9000, b"y"), 0, **LIMITS).records) == 1
