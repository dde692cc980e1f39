"""Records inside a batch: the careful reader, against every malformed shape."""

import pytest

from anabranch.errors import CorruptDataError, InvalidRecordError
from anabranch.record.batch import HEADER_BYTES
from anabranch.record.builder import BatchBuilder
from anabranch.record.records import Record, records_of
from support.record_bytes import batch_of, framed, varints

PLAIN = b"\0" + varints(0, 0, 1) + b"k" + varints(1) + b"v" + varints(0)


def shortest(delta: int) -> bytes:
    return b"\0" + varints(0, delta, 0, 0, 0)


def test_a_record_is_read_with_everything_in_it() -> None:
    body = b"\0" + varints(5, 0, 1) + b"k" + varints(-1, 2, 1) + b"a" + varints(-1, 0, 2) + b"xy"
    assert list(records_of(batch_of(framed(body), 1))) == [
        Record(0, 5, b"k", None, (("a", None), ("", b"xy")))
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
    payload = b"".join(framed(shortest(delta)) for delta in deltas)
    with pytest.raises(InvalidRecordError, match="Offset delta"):
        list(records_of(batch_of(payload, 2)))


def test_a_thinned_batch_is_read_with_its_gaps() -> None:
    payload = b"".join(framed(shortest(delta)) for delta in (1, 4))
    assert [record.offset for record in records_of(batch_of(payload, 2, last_offset_delta=9))] == [1, 4]


@pytest.mark.parametrize("data", [b"", bytes(60), bytes(61)])
def test_what_is_no_batch_has_no_records(data: bytes) -> None:
    with pytest.raises(CorruptDataError):
        records_of(data)


def numbered_batch(*offsets: int) -> bytearray:
    builder = BatchBuilder(10)
    for offset in offsets:
        builder.add(None, b"%d" % offset, timestamp_ms=0, offset=offset)
    return builder.build()


@pytest.mark.parametrize("first", [None, 0, 10, 12, 14, 15, 99])
def test_who_begins_in_the_middle_of_a_batch_reads_the_rest_of_it(first: int | None) -> None:
    found = list(records_of(numbered_batch(*range(10, 15)), first=first))
    assert [record.offset for record in found] == [each for each in range(10, 15) if each >= (first or 0)]
    assert all(record.value == b"%d" % record.offset for record in found)


def test_who_begins_in_the_middle_of_a_batch_with_gaps_misses_nothing() -> None:
    found = list(records_of(numbered_batch(10, 13, 17), first=13))
    assert [record.offset for record in found if record.offset >= 13] == [13, 17]


def test_records_that_are_passed_over_must_fit_all_the_same() -> None:
    bodies = framed(shortest(0)) + b"\xff\x01" + shortest(1) + framed(shortest(2))
    with pytest.raises(InvalidRecordError):
        list(records_of(batch_of(bodies, 3), first=2))
