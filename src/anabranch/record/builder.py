"""Records in, one batch out: for the cleaner, the CLI, internal logs and tests.

Not for the produce path, where a batch stays the bytes its producer made. Offsets may have gaps and the last
offset may lie beyond the last record, so that a thinned batch covers the offsets it covered before. A builder
makes one batch; `build` may be called again, and gives the same bytes unless records were added.
"""

from collections.abc import Iterable
from typing import TypedDict, Unpack

from anabranch.errors import InvalidRecordError
from anabranch.record.batch import (
    CODEC_MASK,
    CONTROL,
    DELETE_HORIZON,
    HEADER,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    MAGIC,
    TRANSACTIONAL,
    BatchHeader,
    seal,
)
from anabranch.record.compression import compress
from anabranch.record.control import marker_key, marker_value
from anabranch.record.records import Record
from anabranch.record.varint import append_varint, wrapped_int64

Headers = Iterable[tuple[str, bytes | None]]

_NO_TIMESTAMP = -1
_DELTA_MAX = 2**31 - 1
_TIMESTAMP_MAX = 2**63 - 1


class BatchFields(TypedDict, total=False):
    """What a batch may be told about itself; see `BatchBuilder` for the defaults."""

    base_offset: int
    codec: int
    level: int | None
    producer_id: int
    producer_epoch: int
    base_sequence: int
    generation: int
    transactional: bool
    control: bool
    log_append_time: bool
    delete_horizon_ms: int | None


class BatchBuilder:
    def __init__(
        self,
        base_offset: int = 0,
        codec: int = 0,
        level: int | None = None,
        *,
        producer_id: int = -1,
        producer_epoch: int = -1,
        base_sequence: int = -1,
        generation: int = -1,
        transactional: bool = False,
        control: bool = False,
        log_append_time: bool = False,
        delete_horizon_ms: int | None = None,
    ) -> None:
        self._base_offset = base_offset
        self._level = level
        self._producer = (producer_id, producer_epoch, base_sequence)
        self._generation = generation
        self._attributes = (
            codec
            | (LOG_APPEND_TIME if log_append_time else 0)
            | (TRANSACTIONAL if transactional else 0)
            | (CONTROL if control else 0)
            | (DELETE_HORIZON if delete_horizon_ms is not None else 0)
        )
        self._base_timestamp = delete_horizon_ms
        self._max_timestamp = _NO_TIMESTAMP
        self._last_offset_delta = -1
        self._count = 0
        self._records = bytearray()

    @property
    def size_bytes(self) -> int:
        """What the batch would take if it were built now without compression."""
        return HEADER_BYTES + len(self._records)

    @property
    def record_count(self) -> int:
        return self._count

    def add(
        self,
        key: bytes | None,
        value: bytes | None,
        headers: Headers = (),
        *,
        timestamp_ms: int,
        offset: int | None = None,
    ) -> None:
        """Appends one record, at the next offset or at a later one if `offset` says so."""
        delta = self._last_offset_delta + 1 if offset is None else offset - self._base_offset
        if not self._last_offset_delta < delta <= _DELTA_MAX:
            raise InvalidRecordError(f"Delta {delta} cannot follow {self._last_offset_delta} in a batch.")
        if not -_TIMESTAMP_MAX - 1 <= timestamp_ms <= _TIMESTAMP_MAX:
            raise InvalidRecordError(f"Timestamp {timestamp_ms} does not fit in 64 bits.")
        if self._base_timestamp is None:
            self._base_timestamp = timestamp_ms
        body = _record_body(
            wrapped_int64(timestamp_ms - self._base_timestamp), delta, key, value, tuple(headers)
        )
        append_varint(self._records, len(body))
        self._records += body
        self._last_offset_delta = delta
        self._max_timestamp = max(self._max_timestamp, timestamp_ms)
        self._count += 1

    def build(self, last_offset_delta: int | None = None) -> bytearray:
        """The finished batch; `last_offset_delta` lets it cover offsets beyond its last record."""
        if not self._count or self._base_timestamp is None:
            raise InvalidRecordError("A batch needs at least one record.")
        last = self._last_offset_delta if last_offset_delta is None else last_offset_delta
        if not self._last_offset_delta <= last <= _DELTA_MAX:
            raise InvalidRecordError(f"A batch with delta {self._last_offset_delta} cannot end at {last}.")
        batch = _header_bytes(
            self._base_offset,
            self._generation,
            self._attributes,
            last,
            (self._base_timestamp, self._max_timestamp),
            self._producer,
            self._count,
        )
        batch += compress(self._attributes & CODEC_MASK, self._records, self._level)
        seal(batch)
        return batch


def build_batch(records: Iterable[Record], **fields: Unpack[BatchFields]) -> bytearray:
    """One batch of records at the offsets they have; its base offset is the first one's unless given."""
    builder = None
    for record in records:
        if builder is None:
            fields.setdefault("base_offset", record.offset)
            builder = BatchBuilder(**fields)
        builder.add(
            record.key, record.value, record.headers, timestamp_ms=record.timestamp, offset=record.offset
        )
    if builder is None:
        raise InvalidRecordError("A batch needs at least one record.")
    return builder.build()


def control_batch(
    *,
    committed: bool,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    timestamp_ms: int,
    base_offset: int = 0,
    generation: int = -1,
) -> bytearray:
    """The batch that ends a transaction of this producer in one partition."""
    builder = BatchBuilder(
        base_offset,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        generation=generation,
        transactional=True,
        control=True,
    )
    builder.add(marker_key(committed), marker_value(coordinator_epoch), timestamp_ms=timestamp_ms)
    return builder.build()


def emptied_batch(header: BatchHeader) -> bytearray:
    """The batch of this header without any record: it still holds its offsets and its producer's sequence."""
    batch = _header_bytes(
        header.base_offset,
        header.generation,
        header.attributes & ~(CODEC_MASK | DELETE_HORIZON),
        header.last_offset_delta,
        (_NO_TIMESTAMP, header.max_timestamp),
        (header.producer_id, header.producer_epoch, header.base_sequence),
        0,
    )
    seal(batch)
    return batch


def _header_bytes(
    base_offset: int,
    generation: int,
    attributes: int,
    last_offset_delta: int,
    timestamps: tuple[int, int],
    producer: tuple[int, int, int],
    record_count: int,
) -> bytearray:
    """A header whose length and CRC `seal` has yet to write."""
    return bytearray(
        HEADER.pack(
            base_offset,
            0,
            generation,
            MAGIC,
            0,
            attributes,
            last_offset_delta,
            *timestamps,
            *producer,
            record_count,
        )
    )


def _record_body(
    timestamp_delta: int,
    offset_delta: int,
    key: bytes | None,
    value: bytes | None,
    headers: tuple[tuple[str, bytes | None], ...],
) -> bytearray:
    body = bytearray(1)  # Attributes of a record: no bit of them has a meaning yet.
    append_varint(body, timestamp_delta)
    append_varint(body, offset_delta)
    _append_bytes(body, key)
    _append_bytes(body, value)
    append_varint(body, len(headers))
    for name, header_value in headers:
        _append_bytes(body, name.encode("utf-8", "surrogateescape"))
        _append_bytes(body, header_value)
    return body


def _append_bytes(body: bytearray, data: bytes | None) -> None:
    if data is None:
        append_varint(body, -1)
        return
    append_varint(body, len(data))
    body += data
