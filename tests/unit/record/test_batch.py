"""Batches as bytes: headers, checks, stamps and rewrites."""

from struct import pack_into

import pytest

from anabranch.errors import (
    BatchTooLargeError,
    CorruptDataError,
    InvalidRecordError,
    UnsupportedCompressionError,
    UnsupportedRecordFormatError,
)
from anabranch.record.batch import (
    HEADER_BYTES,
    batch_spans,
    check_batch,
    crc_holds,
    payload_of,
    read_header,
    recompressed,
    seal,
    stamp,
    with_log_append_time,
)
from anabranch.record.builder import BatchBuilder, control_batch, emptied_batch
from anabranch.record.compression import Codec
from anabranch.record.records import records_of
from anabranch.values import Generation, Offset


def a_batch(count: int = 3, codec: Codec = Codec.NONE, base_offset: int = 0) -> bytearray:
    builder = BatchBuilder(base_offset, codec, producer_id=7, producer_epoch=1, base_sequence=10)
    for i in range(count):
        builder.add(b"key-%d" % i, b"value" * 20, timestamp_ms=1_000 + i)
    return builder.build()


def resealed(batch: bytearray, position: int, layout: str, value: int) -> bytearray:
    """The batch with one field overwritten and a CRC that holds all the same."""
    pack_into(layout, batch, position, value)
    seal(batch)
    return batch


def test_the_header_tells_what_the_builder_was_told() -> None:
    header = read_header(a_batch(base_offset=100))
    assert (header.base_offset, header.last_offset, header.next_offset) == (100, 102, 103)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 1, 10)
    assert (header.last_sequence, header.record_count, header.magic) == (12, 3, 2)
    assert (header.base_timestamp, header.max_timestamp) == (1_000, 1_002)
    assert header.size_bytes == len(a_batch())


def test_attributes_are_read_bit_by_bit() -> None:
    plain = read_header(a_batch(codec=Codec.ZSTD))
    assert plain.codec == Codec.ZSTD
    assert not (plain.is_control)
    assert not (plain.is_transactional)
    assert not (plain.is_log_append_time)
    assert not (plain.has_delete_horizon)
    marker = read_header(
        control_batch(committed=True, producer_id=1, producer_epoch=0, coordinator_epoch=0, timestamp_ms=0)
    )
    assert marker.is_control
    assert marker.is_transactional


def test_a_sequence_wraps_to_zero_after_the_greatest() -> None:
    builder = BatchBuilder(producer_id=1, producer_epoch=0, base_sequence=2**31 - 2)
    for _ in range(4):
        builder.add(None, None, timestamp_ms=0)
    assert read_header(builder.build()).last_sequence == 1


def test_a_batch_without_a_producer_has_no_last_sequence() -> None:
    builder = BatchBuilder()
    builder.add(None, None, timestamp_ms=0)
    assert read_header(builder.build()).last_sequence == -1


@pytest.mark.parametrize("position", [0, 1, -1])
def test_a_header_needs_61_bytes(position: int) -> None:
    with pytest.raises(CorruptDataError):
        read_header(bytes(HEADER_BYTES - 1), position)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_a_whole_batch_in_the_middle_of_a_buffer_passes(kind: type) -> None:
    batch = a_batch()
    frame = kind(b"before" + batch + b"after")
    assert check_batch(frame, 6, 6 + len(batch)).record_count == 3


@pytest.mark.parametrize("magic", [0, 1])
def test_old_message_formats_are_refused_by_name_however_short(magic: int) -> None:
    message = bytearray(26)
    message[16] = magic
    with pytest.raises(UnsupportedRecordFormatError, match=f"v{magic}"):
        check_batch(message, 0, len(message))


@pytest.mark.parametrize("magic", [3, 127, 255])
def test_an_unknown_magic_is_corrupt(magic: int) -> None:
    batch = a_batch()
    batch[16] = magic
    with pytest.raises(CorruptDataError, match="magic"):
        check_batch(batch, 0, len(batch))


def test_a_batch_cut_at_any_byte_is_corrupt() -> None:
    batch = a_batch(1)
    for end in range(len(batch)):
        with pytest.raises(CorruptDataError):
            check_batch(batch, 0, end)


@pytest.mark.parametrize("change", [-(2**31), -1, 0, 48, 10_000, 2**31 - 1])
def test_a_lying_length_is_corrupt(change: int) -> None:
    batch = a_batch()
    pack_into(">i", batch, 8, change)
    with pytest.raises(CorruptDataError):
        check_batch(batch, 0, len(batch))


@pytest.mark.parametrize(("start", "end"), [(-1, 100), (0, 10_000)])
def test_bounds_outside_the_buffer_are_corrupt(start: int, end: int) -> None:
    with pytest.raises(CorruptDataError):
        check_batch(a_batch(), start, end)


def test_any_flipped_bit_that_the_checksum_covers_is_found() -> None:
    batch = a_batch(1)
    for position in range(17, len(batch)):
        batch[position] ^= 4
        with pytest.raises(CorruptDataError, match="checksum"):
            check_batch(batch, 0, len(batch))
        assert not crc_holds(batch, 0, len(batch))
        batch[position] ^= 4
    assert crc_holds(batch, 0, len(batch))


def test_a_checksum_does_not_hold_where_no_header_fits() -> None:
    assert not crc_holds(bytes(60), 0, 60)


@pytest.mark.parametrize("count", [-1, 0, 2, 4])
def test_a_fresh_batch_must_count_its_records_right(count: int) -> None:
    batch = resealed(a_batch(3), 57, ">i", count)
    with pytest.raises(InvalidRecordError):
        check_batch(batch, 0, len(batch))


@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_a_thinned_batch_may_have_fewer_records_than_offsets(count: int) -> None:
    batch = resealed(a_batch(3), 57, ">i", count)
    assert check_batch(batch, 0, len(batch), fresh=False).record_count == count


@pytest.mark.parametrize("count", [-1, 4])
def test_a_thinned_batch_has_no_more_records_than_offsets(count: int) -> None:
    batch = resealed(a_batch(3), 57, ">i", count)
    with pytest.raises(InvalidRecordError):
        check_batch(batch, 0, len(batch), fresh=False)


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_a_codec_nobody_defined_is_refused(codec: int) -> None:
    batch = resealed(a_batch(), 21, ">h", codec)
    with pytest.raises(UnsupportedCompressionError):
        check_batch(batch, 0, len(batch))


def test_a_stamp_changes_offset_and_generation_and_nothing_the_checksum_covers() -> None:
    batch = a_batch()
    frame = memoryview(bytearray(b"xx") + batch)
    stamp(frame, 2, Offset(2**40), Generation(9))
    header = check_batch(frame, 2, len(frame))
    assert (header.base_offset, header.generation) == (2**40, 9)
    assert frame[2 + 16 :] == batch[16:]


def test_log_append_time_is_the_time_of_every_record() -> None:
    batch = with_log_append_time(a_batch(codec=Codec.LZ4), 99_000)
    header = check_batch(batch, 0, len(batch))
    assert header.is_log_append_time
    assert [record.timestamp for record in records_of(batch)] == [99_000] * 3


@pytest.mark.parametrize("old", list(Codec))
@pytest.mark.parametrize("new", list(Codec))
def test_records_survive_a_change_of_codec(old: Codec, new: Codec) -> None:
    batch = a_batch(codec=old)
    changed = recompressed(batch, new, None, 10_000)
    assert check_batch(changed, 0, len(changed)).codec == new
    assert list(records_of(changed)) == list(records_of(batch))
    assert bytes(payload_of(changed, 10_000)) == bytes(payload_of(batch, 10_000))


def test_a_change_of_codec_unpacks_no_more_than_allowed() -> None:
    with pytest.raises(BatchTooLargeError):
        recompressed(a_batch(codec=Codec.GZIP), Codec.ZSTD, None, 10)


def test_spans_are_the_batches_one_after_the_other() -> None:
    first, second = a_batch(1), a_batch(2)
    assert list(batch_spans(first + second)) == [
        (0, len(first)),
        (len(first), len(first) + len(second)),
    ]
    assert list(batch_spans(b"..." + first + b"...", 3, 3 + len(first))) == [(3, 3 + len(first))]
    assert list(batch_spans(b"")) == []


@pytest.mark.parametrize("length", [-(2**31), -13, -1, 0, 48, 500, 2**31 - 1])
def test_a_lying_length_ends_the_spans_with_an_error(length: int) -> None:
    bad = a_batch()
    pack_into(">i", bad, 8, length)
    spans = batch_spans(a_batch(1) + bad)
    assert next(spans) == (0, len(a_batch(1)))
    with pytest.raises(CorruptDataError):
        next(spans)


def test_a_few_bytes_behind_the_last_batch_are_an_error() -> None:
    spans = batch_spans(a_batch() + b"0123456789")
    next(spans)
    with pytest.raises(CorruptDataError, match="10 bytes"):
        next(spans)


def test_an_old_message_among_the_spans_is_refused_by_name() -> None:
    message = bytearray(26)
    pack_into(">i", message, 8, 14)
    with pytest.raises(UnsupportedRecordFormatError):
        next(batch_spans(message))


def test_the_payload_of_less_than_a_whole_batch_is_corrupt() -> None:
    with pytest.raises(CorruptDataError):
        payload_of(a_batch()[:-1], 1_000)


def test_the_payload_of_an_emptied_batch_is_empty_whatever_its_codec_bits() -> None:
    batch = resealed(emptied_batch(read_header(a_batch())), 21, ">h", Codec.GZIP)
    assert bytes(payload_of(batch, 100)) == b""
    assert list(records_of(batch)) == []
