"""The builder: what goes in comes out of the reader, byte for byte and offset for offset."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.errors import InvalidRecordError
from anabranch.record.batch import HEADER_BYTES, check_batch, read_header
from anabranch.record.builder import BatchBuilder, build_batch, control_batch, emptied_batch
from anabranch.record.compression import Codec
from anabranch.record.control import EndMarker, marker_key, read_marker
from anabranch.record.records import Record, records_of
from anabranch.values import Offset

blobs = st.none() | st.binary(max_size=200)
int64 = st.integers(-(2**63), 2**63 - 1)
headers = st.lists(st.tuples(st.text(max_size=10), blobs), max_size=3).map(tuple)


@st.composite
def record_lists(draw: st.DrawFn) -> list[Record]:
    offset = draw(st.integers(0, 2**40))
    records = []
    for _ in range(draw(st.integers(1, 8))):
        records.append(Record(Offset(offset), draw(int64), draw(blobs), draw(blobs), draw(headers)))
        offset += draw(st.integers(1, 1_000))
    return records


@pytest.mark.parametrize("codec", list(Codec))
@given(records=record_lists())
def test_records_come_back_as_they_were(codec: Codec, records: list[Record]) -> None:
    batch = build_batch(records, codec=codec)
    header = check_batch(batch, 0, len(batch), fresh=False)
    assert list(records_of(batch)) == records
    assert (header.base_offset, header.last_offset) == (records[0].offset, records[-1].offset)
    assert header.codec == codec


def one_record(**fields: object) -> BatchBuilder:
    builder = BatchBuilder(**fields)
    builder.add(b"k", b"v", timestamp_ms=50)
    return builder


def test_offsets_follow_one_another_unless_told() -> None:
    builder = BatchBuilder(100)
    for offset in (None, 105, None):
        builder.add(None, b"", timestamp_ms=0, offset=offset)
    assert builder.record_count == 3
    assert [record.offset for record in records_of(builder.build())] == [100, 105, 106]


@pytest.mark.parametrize("offset", [99, 100, 100 + 2**31])
def test_an_offset_that_does_not_grow_or_fit_is_refused(offset: int) -> None:
    builder = one_record(base_offset=100)
    with pytest.raises(InvalidRecordError):
        builder.add(None, None, timestamp_ms=0, offset=offset)


@pytest.mark.parametrize("timestamp_ms", [2**63, -(2**63) - 1])
def test_a_time_beyond_64_bits_is_refused(timestamp_ms: int) -> None:
    with pytest.raises(InvalidRecordError):
        BatchBuilder().add(None, None, timestamp_ms=timestamp_ms)


def test_a_batch_may_cover_offsets_beyond_its_last_record() -> None:
    batch = one_record(base_offset=10).build(last_offset_delta=5)
    assert check_batch(batch, 0, len(batch), fresh=False).last_offset == 15
    assert len(list(records_of(batch))) == 1


@pytest.mark.parametrize("last_offset_delta", [-1, 2**31])
def test_a_batch_cannot_end_before_its_last_record_or_beyond_32_bits(last_offset_delta: int) -> None:
    with pytest.raises(InvalidRecordError):
        one_record().build(last_offset_delta)


def test_a_batch_needs_a_record() -> None:
    with pytest.raises(InvalidRecordError):
        BatchBuilder().build()
    with pytest.raises(InvalidRecordError):
        build_batch([])


def test_the_size_is_that_of_the_uncompressed_batch() -> None:
    assert BatchBuilder().size_bytes == HEADER_BYTES
    builder = one_record()
    assert builder.size_bytes == len(builder.build())


def test_building_twice_gives_the_same_bytes() -> None:
    builder = one_record(codec=Codec.GZIP)
    assert builder.build() == builder.build()


def test_every_field_of_the_header_is_kept() -> None:
    header = read_header(
        one_record(
            producer_id=1,
            producer_epoch=2,
            base_sequence=3,
            generation=4,
            transactional=True,
            log_append_time=True,
        ).build()
    )
    assert (header.producer_id, header.producer_epoch, header.base_sequence, header.generation) == (
        1,
        2,
        3,
        4,
    )
    assert header.is_transactional
    assert header.is_log_append_time
    assert not header.is_control


def test_the_greatest_time_is_that_of_any_record() -> None:
    builder = BatchBuilder()
    for timestamp_ms in (5, 9, 7):
        builder.add(None, None, timestamp_ms=timestamp_ms)
    header = read_header(builder.build())
    assert (header.base_timestamp, header.max_timestamp) == (5, 9)


def test_a_delete_horizon_takes_the_place_of_the_base_time_and_keeps_every_record_its_own() -> None:
    batch = one_record(delete_horizon_ms=9_999).build()
    header = read_header(batch)
    assert header.has_delete_horizon
    assert header.base_timestamp == 9_999
    assert [record.timestamp for record in records_of(batch)] == [50]


def test_an_emptied_batch_keeps_offsets_and_sequence() -> None:
    before = read_header(
        one_record(
            base_offset=7,
            producer_id=1,
            producer_epoch=2,
            base_sequence=3,
            codec=Codec.LZ4,
            delete_horizon_ms=1,
        ).build(4)
    )
    batch = emptied_batch(before)
    after = check_batch(batch, 0, len(batch), fresh=False)
    assert len(batch) == HEADER_BYTES
    assert (after.base_offset, after.last_offset, after.last_sequence) == (7, 11, before.last_sequence)
    assert (after.record_count, after.codec, after.has_delete_horizon) == (0, Codec.NONE, False)
    assert (after.base_timestamp, after.max_timestamp) == (-1, before.max_timestamp)
    assert list(records_of(batch)) == []


@pytest.mark.parametrize("committed", [True, False])
def test_a_control_batch_tells_how_a_transaction_ended(committed: bool) -> None:
    batch = control_batch(
        committed=committed,
        producer_id=5,
        producer_epoch=6,
        coordinator_epoch=7,
        timestamp_ms=8,
        base_offset=9,
    )
    header = check_batch(batch, 0, len(batch))
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (5, 6, -1)
    (record,) = records_of(batch)
    assert record.key == b"\0\0\0" + bytes([committed])
    assert record.value == b"\0\0\0\0\0\x07"
    assert read_marker(record) == EndMarker(committed, 7)


def control_record(key: bytes | None, value: bytes | None) -> Record:
    return Record(Offset(0), 0, key, value, ())


def test_a_control_record_of_another_type_is_not_a_marker() -> None:
    assert read_marker(control_record(b"\0\0\0\x02", None)) is None


@pytest.mark.parametrize(
    ("key", "value"),
    [(None, b""), (b"\0\0\0", b""), (marker_key(True), None), (marker_key(False), b"\0\0\0\0\0")],
)
def test_a_marker_cut_short_is_refused(key: bytes | None, value: bytes | None) -> None:
    with pytest.raises(InvalidRecordError):
        read_marker(control_record(key, value))
