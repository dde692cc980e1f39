"""Intake: what a producer's batch must fulfil before it may enter a log, and what the topic makes of it.

In two steps. `check_envelope` looks at the header and the checksum, which is cheap. `check_contents` counts the
records, unpacking them if need be (never beyond a bound), and rewrites the batch if the topic wants another
codec or its own time. The caller first allows little to be unpacked; what needs more goes to a worker thread, so
that nobody else waits for it.
"""

from anabranch.broker.append_queue import Batch
from anabranch.config import TopicSettings
from anabranch.config.setting import LONG_MAX
from anabranch.errors import (
    BatchTooLargeError,
    CorruptDataError,
    InvalidRecordError,
    InvalidTimestampError,
    TransactionsUnsupportedError,
)
from anabranch.record.batch import (
    CODEC_MASK,
    HEADER_BYTES,
    BatchHeader,
    check_batch,
    payload_of,
    read_header,
    recompressed,
    with_log_append_time,
    with_max_timestamp,
)
from anabranch.record.compression import Codec
from anabranch.record.record_check import check_records
from anabranch.record.records import records_of
from anabranch.record.varint import wrapped_int64

NO_TIMESTAMP = -1
UNPACKED_BYTES_AT_ONCE_MAX = 2**20
"""What is unpacked on the loop's thread; more goes to a worker."""

_CODEC_OF_NAME = {
    "uncompressed": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}


def check_envelope(
    view: memoryview, start: int, end: int, settings: TopicSettings, now_ms: int
) -> BatchHeader:
    """The header of the one batch in [start, end), if the batch is intact and the topic may take it."""
    if start < 0 or start == end:
        raise InvalidRecordError(
            "A produce request must carry one record batch per partition; this one is empty."
        )
    if end - start > settings.max_message_bytes:
        raise BatchTooLargeError(
            f"The batch has {end - start} bytes; the topic's max.message.bytes is {settings.max_message_bytes}."
        )
    _check_single(view, start, end)
    header = check_batch(view, start, end)
    if header.base_offset != 0:
        raise InvalidRecordError(
            f"A producer counts from 0, not from {header.base_offset}: offsets are ours."
        )
    if header.attributes & ~CODEC_MASK:
        _check_attributes(header, settings)
    if not settings.is_log_append_time:
        _check_newest(header.max_timestamp, settings, now_ms)
    return header


def _check_attributes(header: BatchHeader, settings: TopicSettings) -> None:
    if header.is_control:
        raise InvalidRecordError("Control batches are written by brokers only.")
    if header.has_delete_horizon:
        raise InvalidRecordError("A delete horizon is set by the broker's cleaner only.")
    if header.is_transactional:
        raise TransactionsUnsupportedError(
            "This version has no transactions: produce without a transactional id."
        )
    if header.is_log_append_time and not settings.is_log_append_time:
        raise InvalidTimestampError("Only a broker may say that records have their log append time.")


def _check_single(view: memoryview, start: int, end: int) -> None:
    """Kafka's rule since produce v3: exactly one batch. A shorter first batch means that another follows."""
    if end - start >= HEADER_BYTES and view[start + 16] == 2:
        size = int.from_bytes(view[start + 8 : start + 12], "big", signed=True) + 12
        if size != end - start:
            if HEADER_BYTES <= size < end - start:
                raise InvalidRecordError(
                    "A produce request must carry exactly one record batch per partition."
                )
            raise CorruptDataError(f"The batch says it has {size} bytes; {end - start} were sent.")


def _check_newest(newest_ms: int, settings: TopicSettings, now_ms: int) -> None:
    if newest_ms - now_ms > settings.message_timestamp_after_max_ms:
        raise InvalidTimestampError(
            f"A record's time is {newest_ms - now_ms} ms ahead of the broker's clock; "
            f"message.timestamp.after.max.ms allows {settings.message_timestamp_after_max_ms}."
        )


def _check_oldest(batch: Batch, settings: TopicSettings, now_ms: int, unpacked_bytes_max: int) -> None:
    """Only the records themselves know the oldest of them: a header has the first time and the newest."""
    times = (record.timestamp for record in records_of(batch, unpacked_bytes_max))
    oldest = min((time for time in times if time != NO_TIMESTAMP), default=now_ms)
    if oldest < now_ms - settings.message_timestamp_before_max_ms:
        raise InvalidTimestampError(
            f"A record's time is {now_ms - oldest} ms behind the broker's clock; "
            f"message.timestamp.before.max.ms allows {settings.message_timestamp_before_max_ms}."
        )


def check_contents(
    batch: Batch, header: BatchHeader, settings: TopicSettings, now_ms: int, unpacked_bytes_max: int
) -> tuple[Batch, BatchHeader]:
    """The batch as the topic keeps it. `BatchTooLargeError`: it unpacks to more than was allowed."""
    is_our_time = settings.is_log_append_time
    payload = payload_of(batch, unpacked_bytes_max, header)
    delta = check_records(payload, header.record_count, settings.is_compacted)
    newest_ms = wrapped_int64(header.base_timestamp + delta)
    if not is_our_time:
        _check_newest(newest_ms, settings, now_ms)
        if settings.message_timestamp_before_max_ms < LONG_MAX:
            _check_oldest(batch, settings, now_ms, unpacked_bytes_max)
    codec = _CODEC_OF_NAME.get(settings.compression_type, header.codec)
    changed: bytes | None = None
    if codec != header.codec:
        if len(payload) > unpacked_bytes_max:
            raise BatchTooLargeError(f"{len(payload)} bytes of records are too many to recompress here.")
        changed = recompressed(batch, codec, _level(settings, codec), unpacked_bytes_max)
        if len(changed) > settings.max_message_bytes:
            raise BatchTooLargeError(
                f"Recompressed, the batch has {len(changed)} bytes; the topic's max.message.bytes is "
                f"{settings.max_message_bytes}."
            )
    if is_our_time:
        changed = with_log_append_time(changed if changed is not None else batch, now_ms)
    elif newest_ms != header.max_timestamp:
        # Lookups by time and retention believe the header, and not every producer keeps it right.
        changed = with_max_timestamp(changed if changed is not None else batch, newest_ms)
    if changed is None:
        return batch, header
    return bytearray(changed), read_header(changed)


def _level(settings: TopicSettings, codec: int) -> int | None:
    match codec:
        case Codec.GZIP:
            return settings.compression_gzip_level
        case Codec.LZ4:
            return settings.compression_lz4_level
        case Codec.ZSTD:
            return settings.compression_zstd_level
    return None
