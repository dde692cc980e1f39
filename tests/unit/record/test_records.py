"""Records inside a batch: the producers' check and the careful reader, against every malformed shape."""

from collections.abc import Callable
from struct import pack_into

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.errors import AnabranchError, CorruptDataError, InvalidRecordError
from anabranch.record.batch import HEADER_BYTES, seal
from anabranch.record.builder import BatchBuilder
from anabranch.record.records import Record, check_records, records_of
from anabranch.record.varint import append_varint


def varints(*values: int) -> bytes:
    out = bytearray()
    for value in values:
        append_varint(out, value)
    return bytes(out)


def framed(body: bytes) -> bytes:
    return varints(len(body)) + body


def batch_of(payload: bytes, count: int, last_offset_delta: int | None = None) -> bytearray:
    """A batch whose envelope is right around a payload that may not be."""
    builder = BatchBuilder()
    builder.add(None, None, timestamp_ms=0)
    batch = builder.build()[:HEADER_BYTES] + payload
    pack_into(">i", batch, 23, count - 1 if last_offset_delta is None else last_offset_delta)
    pack_into(">i", batch, 57, count)
    seal(batch)
    return batch


PLAIN = b"\0" + varints(0, 0, 1) + b"k" + varints(1) + b"v" + varints(0)
NULL_KEY = b"\0" + varints(0, 0, -1, 1) + b"v" + varints(0)


def sized(length: int, delta: int = 0) -> bytes:
    """A well-formed record body of exactly this many bytes."""
    for value_length in range(length):
        body = b"\0" + varints(0, delta, 0, value_length) + bytes(value_length) + varints(0)
        if len(body) == length:
            return body
    raise AssertionError(length)


@pytest.mark.parametrize("length", [6, 7, 62, 63, 64, 65, 127, 128, 129, 8_190, 8_191, 8_192, 8_193, 20_000])
@pytest.mark.parametrize("keys_required", [False, True])
@pytest.mark.parametrize("kind", [bytes, memoryview])
def test_records_of_every_width_of_length_are_counted(
    length: int, keys_required: bool, kind: Callable[[bytes], bytes]
) -> None:
    payload = framed(sized(length)) * 3
    check_records(kind(payload), 3, keys_required)
    for count in (0, 2, 4):
        with pytest.raises(InvalidRecordError):
            check_records(kind(payload), count, keys_required)


@pytest.mark.parametrize("keys_required", [False, True])
def test_a_section_cut_at_any_byte_is_refused(keys_required: bool) -> None:
    payload = framed(sized(80)) + framed(PLAIN)
    for end in range(len(payload)):
        with pytest.raises(InvalidRecordError):
            check_records(payload[:end], 2, keys_required)


@pytest.mark.parametrize("keys_required", [False, True])
@pytest.mark.parametrize("length", [-1, -64, -65, -100_000, 0, 1, 5])
def test_a_record_shorter_than_a_record_can_be_is_refused(length: int, keys_required: bool) -> None:
    with pytest.raises(InvalidRecordError):
        check_records(varints(length) + bytes(200), 1, keys_required)


def test_a_length_in_more_bytes_than_needed_is_counted_as_java_counts_it() -> None:
    check_records(b"\x8c\x00" + sized(6) + b"\x8c\x80\x00" + sized(6), 2)
    with pytest.raises(InvalidRecordError):
        check_records(b"\x8a\x00" + bytes(5), 1)


def test_a_record_without_a_key_passes_only_where_keys_are_not_required() -> None:
    payload = framed(PLAIN) + framed(NULL_KEY)
    check_records(payload, 2)
    with pytest.raises(InvalidRecordError, match="no key"):
        check_records(payload, 2, keys_required=True)


def test_keys_behind_the_widest_deltas_are_found() -> None:
    body = b"\0" + varints(-(2**63), 2**31 - 1, 200) + bytes(200) + varints(0, 0)
    check_records(framed(body) * 2, 2, keys_required=True)


def test_a_required_key_must_lie_inside_its_record() -> None:
    body = b"\0" + varints(0, 0, 90) + b"k" * 10
    with pytest.raises(InvalidRecordError, match="beyond the record"):
        check_records(framed(body) + bytes(100), 1, keys_required=True)


def test_deltas_without_end_are_refused_where_keys_are_required() -> None:
    with pytest.raises(InvalidRecordError, match="too long"):
        check_records(framed(b"\0" + b"\xff" * 30 + bytes(5)), 1, keys_required=True)
    with pytest.raises(InvalidRecordError, match="ends before"):
        check_records(framed(b"\0" + b"\xff" * 30), 1, keys_required=True)


@given(st.binary(max_size=200), st.integers(-1, 20), st.booleans())
def test_noise_is_refused_or_passes_but_never_surprises(
    noise: bytes, count: int, keys_required: bool
) -> None:
    outcomes = set()
    for payload in (noise, memoryview(noise)):
        try:
            check_records(payload, count, keys_required)
            outcomes.add("passed")
        except InvalidRecordError:
            outcomes.add("refused")
    assert len(outcomes) == 1
    try:
        list(records_of(batch_of(noise, count)))
    except AnabranchError:
        return
    # Whatever the careful reader takes, the quick one takes too.
    check_records(noise, count)


def test_a_record_is_read_with_everything_in_it() -> None:
    body = b"\0" + varints(5, 0, 1) + b"k" + varints(-1, 2, 1) + b"a" + varints(-1, 0, 2) + b"xy"
    assert list(records_of(batch_of(framed(body), 1))) == [
        Record(0, 5, b"k", None, (("a", None), ("", b"xy")))  # type: ignore[arg-type]
    ]


def test_a_header_key_that_is_not_utf8_keeps_its_bytes() -> None:
    body = b"\0" + varints(0, 0, -1, -1, 1, 2) + b"\xff\xfe" + varints(-1)
    (record,) = records_of(batch_of(framed(body), 1))
    builder = BatchBuilder()
    builder.add(record.key, record.value, record.headers, timestamp_ms=0)
    assert builder.build()[HEADER_BYTES:] == framed(body)


MALFORMED = {
    "key longer than its record": b"\0" + varints(0, 0, 50) + b"kkk",
    "key length below -1": b"\0" + varints(0, 0, -2, -1, 0),
    "value longer than its record": b"\0" + varints(0, 0, -1, 9) + b"v" + varints(0),
    "value length below -1": b"\0" + varints(0, 0, -1, -7, 0),
    "more headers than bytes": b"\0" + varints(0, 0, -1, -1, 2**31 - 1),
    "a negative number of headers": b"\0" + varints(0, 0, -1, -1, -1),
    "a header without a key": b"\0" + varints(0, 0, -1, -1, 1, -1, -1),
    "a header value beyond the record": b"\0" + varints(0, 0, -1, -1, 1, 0, 5),
    "bytes behind the headers": b"\0" + varints(0, 0, -1, -1, 0) + b"..",
    "no header count": b"\0" + varints(0, 0, 0, 1) + b"v",
    "a timestamp delta without end": b"\0" + b"\xff" * 12,
    "an offset delta without end": b"\0\0" + b"\xff" * 12,
    "a negative offset delta": b"\0" + varints(0, -1, -1, -1, 0),
    "an offset delta beyond the last": b"\0" + varints(0, 1, -1, -1, 0),
}


@pytest.mark.parametrize("body", MALFORMED.values(), ids=MALFORMED.keys())
def test_a_malformed_record_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRecordError):
        list(records_of(batch_of(framed(body), 1)))


def test_a_length_beyond_the_section_is_refused() -> None:
    with pytest.raises(InvalidRecordError, match="announces"):
        list(records_of(batch_of(varints(1_000) + PLAIN, 1)))


def test_bytes_behind_the_last_record_are_refused() -> None:
    with pytest.raises(InvalidRecordError, match="follow the last"):
        list(records_of(batch_of(framed(PLAIN) + b"more", 1)))


def test_fewer_records_than_counted_are_refused() -> None:
    with pytest.raises(InvalidRecordError):
        list(records_of(batch_of(framed(PLAIN), 2)))


def test_a_negative_count_is_refused_at_once() -> None:
    with pytest.raises(InvalidRecordError, match="-1 records"):
        records_of(batch_of(b"", -1))


@pytest.mark.parametrize("deltas", [(0, 0), (1, 0), (0, 2)])
def test_offsets_must_grow_within_the_batch(deltas: tuple[int, int]) -> None:
    payload = b"".join(framed(sized(6, delta)) for delta in deltas)
    with pytest.raises(InvalidRecordError, match="Offset delta"):
        list(records_of(batch_of(payload, 2)))


def test_a_thinned_batch_is_read_with_its_gaps() -> None:
    payload = b"".join(framed(sized(6, delta)) for delta in (1, 4))
    assert [record.offset for record in records_of(batch_of(payload, 2, last_offset_delta=9))] == [1, 4]


@pytest.mark.parametrize("data", [b"", bytes(60), bytes(61)])
def test_what_is_no_batch_has_no_records(data: bytes) -> None:
    with pytest.raises(CorruptDataError):
        records_of(data)
