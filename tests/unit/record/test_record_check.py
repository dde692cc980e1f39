"""The check of a producer's records: it takes exactly what the careful reader takes, and refuses the rest."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.errors import AnabranchError, InvalidRecordError
from anabranch.record.batch import payload_of
from anabranch.record.builder import BatchBuilder
from anabranch.record.record_check import check_records
from anabranch.record.records import records_of
from support.record_bytes import batch_of, framed, varints


def body(
    delta: int, *, key: bytes | None = b"k", value_bytes: int = 1, timestamp: int = 0, headers: bytes = b"\0"
) -> bytes:
    key_field = varints(-1) if key is None else varints(len(key)) + key
    return b"\0" + varints(timestamp, delta) + key_field + varints(value_bytes) + bytes(value_bytes) + headers


def section(count: int, value_bytes: int = 1) -> bytes:
    return b"".join(framed(body(number, value_bytes=value_bytes)) for number in range(count))


def takes(payload: bytes, count: int, *, keys_required: bool = False) -> bool:
    try:
        check_records(payload, count, keys_required)
    except InvalidRecordError:
        return False
    return True


def reads(payload: bytes, count: int) -> bool:
    try:
        list(records_of(batch_of(payload, count)))
    except AnabranchError:
        return False
    return True


@pytest.mark.parametrize(
    "value_bytes", [0, 1, 55, 56, 57, 58, 63, 64, 65, 127, 128, 8_180, 8_190, 8_192, 20_000]
)
@pytest.mark.parametrize("keys_required", [False, True])
@pytest.mark.parametrize("kind", [bytes, memoryview])
def test_records_of_every_width_of_length_are_counted(
    value_bytes: int, keys_required: bool, kind: Callable[[bytes], bytes]
) -> None:
    payload = section(3, value_bytes)
    check_records(kind(payload), 3, keys_required)
    for count in (0, 2, 4):
        with pytest.raises(InvalidRecordError):
            check_records(kind(payload), count, keys_required)


@pytest.mark.parametrize("count", [1, 63, 64, 65, 8_191, 8_192, 8_193])
def test_numbers_of_every_width_are_followed(count: int) -> None:
    check_records(section(count), count)
    with pytest.raises(InvalidRecordError):
        check_records(section(count - 1) + framed(body(count)), count)


@pytest.mark.parametrize("keys_required", [False, True])
def test_a_section_cut_at_any_byte_is_refused(keys_required: bool) -> None:
    payload = framed(body(0, value_bytes=80)) + framed(body(1))
    for end in range(len(payload)):
        assert not takes(payload[:end], 2, keys_required=keys_required)


@pytest.mark.parametrize("length", [-1, -64, -65, -100_000, 0, 1, 5])
def test_a_record_shorter_than_a_record_can_be_is_refused(length: int) -> None:
    assert not takes(varints(length) + bytes(200), 1)


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(body(1), id="its number is another's"),
        pytest.param(body(-1), id="its number is negative"),
        pytest.param(b"\0" + varints(0, 0, 90) + b"k" * 10, id="its key reaches beyond it"),
        pytest.param(b"\0" + varints(0, 0, -2, 0, 0), id="its key is shorter than nothing"),
        pytest.param(b"\0" + varints(0, 0, 0, -2, 0), id="its value is shorter than nothing"),
        pytest.param(b"\0" + varints(0, 0, 0, 70, 0), id="its value reaches beyond it"),
        pytest.param(body(0) + b"!", id="a byte belongs to none of its fields"),
        pytest.param(body(0, headers=varints(1)), id="its header is missing"),
        pytest.param(body(0, headers=varints(-1)), id="it has fewer headers than none"),
        pytest.param(body(0, headers=varints(1, -1, 0)), id="its header has no key"),
        pytest.param(body(0, headers=varints(1) + b"\x81\0" + varints(0)), id="nor has this one, at length"),
        pytest.param(body(0, headers=varints(1, 0, -2)), id="its header's value is shorter than nothing"),
        pytest.param(b"\0" + b"\xff" * 11 + b"\0" + varints(0, 0, 0, 0), id="its timestamp does not end"),
    ],
)
def test_a_malformed_record_is_refused(wrong: bytes) -> None:
    assert not takes(framed(wrong), 1)
    assert not takes(framed(wrong) + bytes(100), 1)


@pytest.mark.parametrize(
    "right",
    [
        pytest.param(body(0, key=None), id="no key"),
        pytest.param(body(0, key=b"k" * 300), id="a long key"),
        pytest.param(b"\0" + varints(0, 0, 0, -1, 0), id="no value"),
        pytest.param(body(0, timestamp=-(2**63)), id="the earliest time"),
        pytest.param(body(0, timestamp=2**63 - 1), id="the latest time"),
        pytest.param(body(0, headers=varints(2, 1) + b"a" + varints(-1, 0, 1) + b"b"), id="headers"),
        pytest.param(
            body(0, headers=varints(1, 200) + bytes(200) + varints(0)), id="a header with a long key"
        ),
    ],
)
def test_a_record_is_taken_with(right: bytes) -> None:
    check_records(framed(right), 1)
    assert reads(framed(right), 1)


def test_a_length_in_more_bytes_than_needed_is_counted_as_java_counts_it() -> None:
    six = b"\0" + varints(0, 0, 0, 0, 0)
    check_records(b"\x8c\x00" + six, 1)
    check_records(b"\x8c\x80\x00" + six, 1)


def test_a_record_without_a_key_passes_only_where_keys_are_not_required() -> None:
    payload = framed(body(0)) + framed(body(1, key=None))
    check_records(payload, 2)
    with pytest.raises(InvalidRecordError, match="no key"):
        check_records(payload, 2, keys_required=True)


def test_a_null_in_more_bytes_than_needed_is_still_a_null() -> None:
    keyless = framed(b"\0" + varints(0, 0) + b"\x81\0" + varints(0, 0))
    check_records(keyless, 1)
    with pytest.raises(InvalidRecordError, match="no key"):
        check_records(keyless, 1, keys_required=True)


@given(st.binary(max_size=200), st.integers(0, 20))
def test_noise_is_taken_exactly_if_the_careful_reader_takes_it(noise: bytes, count: int) -> None:
    assert takes(noise, count) == reads(noise, count)


MAYBE_BYTES = st.none() | st.binary(max_size=200)


@given(
    st.lists(st.tuples(MAYBE_BYTES, MAYBE_BYTES), min_size=1, max_size=80),
    st.integers(0, 2**30),
    st.integers(1, 255),
)
def test_one_changed_byte_is_judged_as_the_careful_reader_judges_it(
    pairs: list[tuple[bytes | None, bytes | None]], place: int, change: int
) -> None:
    builder = BatchBuilder()
    for number, (key, value) in enumerate(pairs):
        builder.add(key, value, (("h", b"1"),) if number % 3 == 0 else (), timestamp_ms=number * 1000)
    payload = bytearray(payload_of(builder.build(), 2**20))
    assert takes(bytes(payload), len(pairs))
    payload[place % len(payload)] ^= change
    assert takes(bytes(payload), len(pairs)) == reads(bytes(payload), len(pairs))


@given(st.lists(st.integers(-(2**40), 2**40) | st.integers(-200, 200), min_size=1, max_size=5))
def test_the_newest_time_is_found_whatever_the_order(times: list[int]) -> None:
    payload = b"".join(framed(body(number, timestamp=time)) for number, time in enumerate(times))
    assert check_records(payload, len(times)) == max(times)
