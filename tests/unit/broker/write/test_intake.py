"""What a batch must fulfil, and what the topic makes of it."""

import struct
from typing import Any

import pytest

from anabranch.broker.write.intake import check_contents, check_envelope
from anabranch.config import NodeSettings, TopicSettings
from anabranch.errors import (
    AnabranchError,
    BatchTooLargeError,
    CorruptDataError,
    InvalidRecordError,
    InvalidTimestampError,
    TransactionsUnsupportedError,
    UnsupportedCompressionError,
    UnsupportedRecordFormatError,
)
from anabranch.record.batch import BatchHeader, check_batch, read_header, seal
from anabranch.record.builder import BatchBuilder
from anabranch.record.compression import Codec
from anabranch.record.records import records_of

NOW_MS = 1_700_000_000_000


def settings(**overrides: str) -> TopicSettings:
    return TopicSettings.from_overrides(
        NodeSettings.load(), {name.replace("_", "."): value for name, value in overrides.items()}
    )


def batch_of(
    *values: bytes, key: bytes | None = b"k", timestamp_ms: int = NOW_MS, **fields: Any
) -> bytearray:
    builder = BatchBuilder(**fields)
    for value in values or (b"v",):
        builder.add(key, value, timestamp_ms=timestamp_ms)
    return builder.build()


def envelope(batch: bytes | bytearray, topic: TopicSettings | None = None) -> BatchHeader:
    return check_envelope(memoryview(bytearray(b"##" + batch)), 2, len(batch) + 2, topic or settings())


def contents(batch: bytearray, topic: TopicSettings, bytes_max: int = 2**20) -> tuple[Any, BatchHeader]:
    return check_contents(batch, read_header(batch), topic, NOW_MS + 5, bytes_max)


def changed(batch: bytearray, position: int, data: bytes, *, resealed: bool = True) -> bytearray:
    batch = bytearray(batch)
    batch[position : position + len(data)] = data
    if resealed:
        seal(batch)
    return batch


def attributes(batch: bytearray, bits: int) -> bytearray:
    return changed(batch, 21, struct.pack(">h", bits))


def test_good_batch_gives_its_header() -> None:
    assert envelope(batch_of(b"a", b"b")).record_count == 2


@pytest.mark.parametrize(
    ("batch", "error"),
    [
        (changed(batch_of(), 16, b"\x01", resealed=False), UnsupportedRecordFormatError),
        (changed(batch_of(), 16, b"\x03", resealed=False), CorruptDataError),
        (changed(batch_of(), 65, b"\xff", resealed=False), CorruptDataError),
        (changed(batch_of(), 17, b"\0\0\0\0", resealed=False), CorruptDataError),
        (batch_of()[:-1], CorruptDataError),
        (batch_of()[:30], CorruptDataError),
        (batch_of() + batch_of(), InvalidRecordError),
        (changed(batch_of(), 8, struct.pack(">i", 5), resealed=False), CorruptDataError),
        (changed(batch_of(), 8, struct.pack(">i", -1), resealed=False), CorruptDataError),
        (changed(batch_of(), 57, struct.pack(">i", 2)), InvalidRecordError),
        (changed(batch_of(), 57, struct.pack(">i", 0)), InvalidRecordError),
        (changed(batch_of(), 57, struct.pack(">i", -1)), InvalidRecordError),
        (changed(batch_of(), 23, struct.pack(">i", 7)), InvalidRecordError),
        (attributes(batch_of(), 5), UnsupportedCompressionError),
        (attributes(batch_of(), 7), UnsupportedCompressionError),
        (attributes(batch_of(), 1 << 4), TransactionsUnsupportedError),
        (attributes(batch_of(), 1 << 5), InvalidRecordError),
        (attributes(batch_of(), 1 << 6), InvalidRecordError),
        (attributes(batch_of(), 1 << 3), InvalidTimestampError),
    ],
)
def test_batch_is_refused(batch: bytearray, error: type[AnabranchError]) -> None:
    with pytest.raises(error):
        envelope(batch)


@pytest.mark.parametrize(("start", "end"), [(-1, -1), (5, 5)])
def test_partition_without_a_batch_is_refused(start: int, end: int) -> None:
    with pytest.raises(InvalidRecordError, match="empty"):
        check_envelope(memoryview(bytes(10)), start, end, settings())


def test_batch_may_be_as_large_as_the_topic_says_and_no_larger() -> None:
    batch = batch_of(b"x" * 100)
    envelope(batch, settings(max_message_bytes=str(len(batch))))
    with pytest.raises(BatchTooLargeError, match=r"max\.message\.bytes"):
        envelope(batch, settings(max_message_bytes=str(len(batch) - 1)))


@pytest.mark.parametrize(
    ("ahead_ms", "refused"), [(1000, False), (1001, True), (-1000, False), (-1001, True)]
)
def test_times_have_bounds(ahead_ms: int, refused: bool) -> None:
    topic = settings(message_timestamp_after_max_ms="1000", message_timestamp_before_max_ms="1000")
    batch = batch_of(timestamp_ms=NOW_MS + ahead_ms)
    if refused:
        with pytest.raises(InvalidTimestampError):
            check_contents(batch, envelope(batch, topic), topic, NOW_MS, 2**20)
    else:
        check_contents(batch, envelope(batch, topic), topic, NOW_MS, 2**20)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_the_oldest_record_counts_wherever_it_stands(codec: Codec) -> None:
    topic = settings(message_timestamp_before_max_ms="1000")
    builder = BatchBuilder(codec=codec)
    for timestamp_ms in (NOW_MS, NOW_MS - 2000, -1):
        builder.add(b"k", b"v", timestamp_ms=timestamp_ms)
    with pytest.raises(InvalidTimestampError, match="2005 ms behind"):
        contents(builder.build(), topic)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
@pytest.mark.parametrize("compression_type", ["producer", "zstd"])
@pytest.mark.parametrize("claimed_ms", [NOW_MS + 900, 0, -1])
def test_a_header_that_does_not_know_its_newest_record_is_put_right(
    codec: Codec, compression_type: str, claimed_ms: int
) -> None:
    builder = BatchBuilder(codec=codec)
    for timestamp_ms in (NOW_MS - 700, NOW_MS - 100, NOW_MS - 800):
        builder.add(b"k", b"v", timestamp_ms=timestamp_ms)
    right = builder.build()
    kept, header = contents(
        changed(right, 35, claimed_ms.to_bytes(8, "big", signed=True)),
        settings(compression_type=compression_type),
    )
    assert header.max_timestamp == NOW_MS - 100
    assert check_batch(kept, 0, len(kept)) == header
    assert list(records_of(kept)) == list(records_of(right))


def test_a_record_may_not_be_ahead_behind_a_header_that_hides_it() -> None:
    batch = changed(batch_of(timestamp_ms=NOW_MS + 10**8), 35, NOW_MS.to_bytes(8, "big"))
    envelope(batch)
    with pytest.raises(InvalidTimestampError, match="ahead"):
        contents(batch, settings())


def test_records_without_a_time_are_not_too_old() -> None:
    contents(batch_of(timestamp_ms=-1), settings(message_timestamp_before_max_ms="1000"))


@pytest.mark.parametrize("base_offset", [7, -1])
def test_a_producer_cannot_choose_offsets(base_offset: int) -> None:
    with pytest.raises(InvalidRecordError, match="counts from 0"):
        envelope(changed(batch_of(), 0, base_offset.to_bytes(8, "big", signed=True)))


def test_times_do_not_matter_where_the_broker_sets_them() -> None:
    topic = settings(message_timestamp_after_max_ms="1000", message_timestamp_type="LogAppendTime")
    envelope(batch_of(timestamp_ms=NOW_MS + 10**9), topic)


def test_batch_that_fits_is_kept_as_it_is() -> None:
    batch = batch_of(b"a", b"b", codec=Codec.GZIP)
    kept, header = contents(batch, settings())
    assert kept is batch
    assert header == read_header(batch)


@pytest.mark.parametrize("name", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("codec", list(Codec))
def test_batch_is_kept_in_the_topics_codec(name: str, codec: Codec) -> None:
    batch = batch_of(b"a" * 50, b"b" * 50, codec=codec)
    kept, header = contents(batch, settings(compression_type=name))
    expected = Codec.NONE if name == "uncompressed" else Codec[name.upper()]
    assert header.codec == expected
    assert header == check_batch(kept, 0, len(kept))
    assert [record.value for record in records_of(kept)] == [b"a" * 50, b"b" * 50]
    assert (kept is batch) == (codec == expected)


@pytest.mark.parametrize("name", ["producer", "zstd"])
def test_log_append_time_is_stamped(name: str) -> None:
    topic = settings(message_timestamp_type="LogAppendTime", compression_type=name)
    kept, header = contents(batch_of(b"a", timestamp_ms=5), topic)
    assert (header.is_log_append_time, header.max_timestamp) == (True, NOW_MS + 5)
    assert [record.timestamp for record in records_of(kept)] == [NOW_MS + 5]
    check_batch(kept, 0, len(kept))


def test_compacted_topic_needs_keys() -> None:
    batch = batch_of(key=None)
    contents(batch, settings())
    with pytest.raises(InvalidRecordError):
        contents(batch, settings(cleanup_policy="compact"))


def test_what_unpacks_to_more_than_allowed_is_refused() -> None:
    batch = batch_of(bytes(100_000), codec=Codec.GZIP)
    contents(batch, settings(), 200_000)
    with pytest.raises(BatchTooLargeError):
        contents(batch, settings(), 50_000)


def test_batch_that_recompression_makes_too_large_is_refused() -> None:
    batch = batch_of(bytes(100_000), codec=Codec.GZIP)
    with pytest.raises(BatchTooLargeError, match=r"max\.message\.bytes"):
        contents(batch, settings(compression_type="uncompressed", max_message_bytes="50000"))


def test_large_uncompressed_batch_is_not_compressed_where_little_is_allowed() -> None:
    batch = batch_of(bytes(100_000))
    contents(batch, settings(), 1000)
    with pytest.raises(BatchTooLargeError):
        contents(batch, settings(compression_type="gzip"), 1000)


def test_records_that_do_not_fit_their_count_are_refused() -> None:
    batch = changed(batch_of(b"a", b"b"), 57, struct.pack(">i", 3))
    batch = changed(batch, 23, struct.pack(">i", 2))
    with pytest.raises(InvalidRecordError):
        contents(batch, settings())
