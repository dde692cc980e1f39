"""Intake: what a producer's batch must fulfil before it may enter a log, and what the topic makes of it.

In two steps. `check_envelope` looks at the header and the checksum, which is cheap. `check_contents` counts the
records, unpacking them if need be (never beyond a bound), names those that break a rule of the topic, and rewrites the
batch if the topic wants another codec or its own time. The caller first allows little to be unpacked; what needs more
goes to a worker thread, so that nobody else waits for it.
"""

from collections.abc import Callable

from anabranch.broker.write.append_queue import Batch
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
from anabranch.record.buffers import ByteBuffer
from anabranch.record.compression import Codec
from anabranch.record.record_check import check_records
from anabranch.record.records import records_of

NO_TIMESTAMP = -1
LONG_MIN = -(2**63)
UNPACKED_BYTES_AT_ONCE_MAX = 2**20
"""What is unpacked on the loop's thread; more goes to a worker."""

WALKED_BYTES_AT_ONCE_MAX = 2**16
"""What of a request is looked at record by record on the loop's thread; more goes to a worker."""
UNPACKED_BYTES_PER_ROW = 16 * 1024
WALKED_BYTES_PER_ROW = 16
RECOMPRESSED_BYTES_PER_ROW = 512
"""How much of each costs as much time as a row (`turns.py`)."""
RECORD_ERRORS_MAX = 10_000
"""So many records are named that break a rule: as many as the largest batch of a usual client has."""
PLACES_NAMED = 3
"""So many of them in the message, for people."""

_CODEC_OF_NAME = {
    "uncompressed": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}


def check_envelope(view: memoryview, start: int, end: int, settings: TopicSettings) -> BatchHeader:
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


def _are_times_known_good(base_ms: int, newest_ms: int, settings: TopicSettings, now_ms: int) -> bool:
    """Only the records themselves know the oldest of them: a header has the first time and the newest."""
    if base_ms < 0 or newest_ms > LONG_MAX:
        return False  # The first time and a delta may add up to a number that is no time.
    if newest_ms - now_ms > settings.message_timestamp_after_max_ms:
        return False
    return settings.message_timestamp_before_max_ms == LONG_MAX


def _check_each(
    batch: Batch, header: BatchHeader, settings: TopicSettings, now_ms: int, unpacked_bytes_max: int
) -> None:
    """Refuse the batch if single records of it break a rule of the topic, and name them, as Kafka does: if the time of
    one of them is wrong, the whole answer says so."""
    found: list[tuple[int, str]] = []
    has_wrong_time = False
    count = 0
    for index, record in enumerate(records_of(batch, unpacked_bytes_max)):
        if settings.is_compacted and record.key is None:
            why: str | None = "A record of a compacted topic has no key."
        else:
            why = _wrong_time(record.timestamp, header.base_timestamp, settings, now_ms)
            has_wrong_time |= why is not None
        if why is not None:
            count += 1
            if len(found) < RECORD_ERRORS_MAX:
                found.append((index, why))
    if not found:
        return
    places = ", ".join(str(index) for index, _ in found[:PLACES_NAMED])
    more = ", ..." if count > PLACES_NAMED else ""
    message = f"{found[0][1]} Records refused: {count} of the batch (at {places}{more})."
    raise (InvalidTimestampError if has_wrong_time else InvalidRecordError)(message, found)


def _wrong_time(time_ms: int, base_ms: int, settings: TopicSettings, now_ms: int) -> str | None:
    if settings.is_log_append_time:
        return None
    if (
        not LONG_MIN <= time_ms - base_ms <= LONG_MAX
    ):  # As a reader adds them up, in 64 bits; no delta is this large.
        return "A record's time does not fit 64 bits."
    if time_ms == NO_TIMESTAMP:
        return None
    after_ms, before_ms = settings.message_timestamp_after_max_ms, settings.message_timestamp_before_max_ms
    if time_ms - now_ms > after_ms:
        return (
            f"A record's time is {time_ms - now_ms} ms ahead of the broker's clock; message.timestamp.after.max.ms "
            f"allows {after_ms}."
        )
    if before_ms != LONG_MAX and now_ms - time_ms > before_ms:
        return (
            f"A record's time is {now_ms - time_ms} ms behind the broker's clock; message.timestamp.before.max.ms "
            f"allows {before_ms}."
        )
    return None


def _newest_delta(payload: ByteBuffer, count: int, settings: TopicSettings) -> tuple[int, bool]:
    """The largest timestamp delta of the records, and whether each has the key that the topic needs. Raises
    InvalidRecordError if they are not whole: then no single one is to blame."""
    if not settings.is_compacted:
        return check_records(payload, count), True
    try:
        return check_records(payload, count, True), True
    except InvalidRecordError:
        return check_records(payload, count), False


def _uncounted(rows: int) -> None:
    """For workers, for whom nobody waits."""


def _payload(
    batch: Batch, header: BatchHeader, unpacked_bytes_max: int, spend: Callable[[int], None]
) -> ByteBuffer:
    try:
        payload = payload_of(batch, unpacked_bytes_max, header, fresh=True)
    except BatchTooLargeError:
        spend(unpacked_bytes_max // UNPACKED_BYTES_PER_ROW)
        raise
    if header.codec != Codec.NONE:
        spend(1 + len(payload) // UNPACKED_BYTES_PER_ROW)
    return payload


def check_contents(
    batch: Batch,
    header: BatchHeader,
    settings: TopicSettings,
    now_ms: int,
    unpacked_bytes_max: int,
    walked_bytes_max: int = LONG_MAX,
    spend: Callable[[int], None] = _uncounted,
) -> tuple[Batch, BatchHeader]:
    """The batch as the topic keeps it. `BatchTooLargeError`: it unpacks to more than was allowed, or more has to be
    looked at record by record. `spend` is told of the work, in rows."""
    is_our_time = settings.is_log_append_time
    payload = _payload(batch, header, unpacked_bytes_max, spend)
    delta, has_keys = _newest_delta(payload, header.record_count, settings)
    base_ms = header.base_timestamp
    newest_ms = base_ms + delta
    if not has_keys or not (is_our_time or _are_times_known_good(base_ms, newest_ms, settings, now_ms)):
        if len(payload) > walked_bytes_max:
            raise BatchTooLargeError(
                f"{len(payload)} bytes of records are too many to look at one by one here."
            )
        spend(len(payload) // WALKED_BYTES_PER_ROW)
        _check_each(batch, header, settings, now_ms, unpacked_bytes_max)
    codec = _CODEC_OF_NAME.get(settings.compression_type, header.codec)
    changed: bytes | None = None
    if codec != header.codec:
        if len(payload) > unpacked_bytes_max:
            raise BatchTooLargeError(f"{len(payload)} bytes of records are too many to recompress here.")
        spend(len(payload) // RECOMPRESSED_BYTES_PER_ROW)
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
