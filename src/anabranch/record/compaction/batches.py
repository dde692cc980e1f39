"""Which records of a batch stay when a log is compacted by key: one batch in, at most one batch out.

Shared by the LogCleaner and by jobs over segment files; memory is that of one unpacked batch. What stays
keeps its offset, timestamp and headers, and the batch keeps the offsets and sequences it covered:

- A record stays while it is the latest of its key. Records without a key go: nothing could ever replace them.
- A tombstone (null value) stays until its delete horizon, so that a reader who is late by less than
  `delete_retention_ms` still learns of the deletion. The horizon is set, and kept in the batch's header, by
  the first cleaning that leaves the tombstone in place: the clock starts then, not when it was written.
- Control batches stay whole.
- A batch of which nothing stays goes, unless it is its producer's last: then it stays without records, for it
  holds the sequence by which a repeated batch is recognised.
"""

from collections.abc import Callable
from typing import TypeVar

from anabranch.record.batch import BatchHeader, read_header
from anabranch.record.buffers import ByteBuffer
from anabranch.record.builder import BatchBuilder, emptied_batch
from anabranch.record.compaction.keys import keyed_records
from anabranch.record.records import RECORDS_BYTES_MAX, Record, records_of
from anabranch.values import Offset

Keep = Callable[[int, bytes | None], bool]
"""Whether a record of this offset and key stays."""
Batch = TypeVar("Batch", bytes, bytearray, memoryview)


def keep_latest(latest_offset_of: Callable[[bytes], int | None], upto: Offset) -> Keep:
    """Keeps a record that no later one of its key replaces, as far as a map of the keys below `upto` knows.

    A key the map does not know is kept: to lose a record for a gap in our knowledge would be unforgivable.
    """

    def keep(offset: int, key: bytes | None) -> bool:
        if offset >= upto:
            return True
        if key is None:
            return False
        latest = latest_offset_of(key)
        return latest is None or offset >= latest

    return keep


def compacted(
    batch: Batch,
    keep: Keep,
    *,
    now_ms: int,
    delete_retention_ms: int,
    last_of_producer: bool = False,
    bytes_max: int = RECORDS_BYTES_MAX,
) -> Batch | bytearray | None:
    """What stays of one whole batch: None if nothing does, the very object handed in if nothing changes."""
    header = read_header(batch)
    if header.is_control:
        return batch
    kept, _ = sorted_out(batch, header, keep, now_ms, bytes_max)
    if not kept:
        return _emptied(batch, header, last_of_producer)
    horizon_ms = header.base_timestamp if header.has_delete_horizon else None
    if horizon_ms is None and any(kept.values()):
        horizon_ms = now_ms + delete_retention_ms
    elif len(kept) == header.record_count:
        return batch
    return _rewritten(
        header, [each for each in records_of(batch, bytes_max) if each.offset in kept], horizon_ms
    )


def sorted_out(
    batch: ByteBuffer, header: BatchHeader, keep: Keep, now_ms: int, bytes_max: int
) -> tuple[dict[int, bool], list[int]]:
    """The offsets that stay, each with whether it is a tombstone; and those of tombstones whose time has come."""
    time_has_come = header.has_delete_horizon and now_ms >= header.base_timestamp
    kept: dict[int, bool] = {}
    expired: list[int] = []
    for offset, key, is_tombstone in keyed_records(batch, bytes_max):
        if keep(offset, key):
            if is_tombstone and time_has_come:
                expired.append(offset)
            else:
                kept[offset] = is_tombstone
    return kept, expired


def without_below(batch: ByteBuffer, start: Offset, bytes_max: int = RECORDS_BYTES_MAX) -> bytearray:
    """A batch without its records below an offset; it keeps the offsets and sequences it covered. Raises
    CorruptDataError."""
    header = read_header(batch)
    kept = [record for record in records_of(batch, bytes_max) if record.offset >= start]
    if not kept:
        return emptied_batch(header)
    return _rewritten(header, kept, header.base_timestamp if header.has_delete_horizon else None)


def _emptied(batch: Batch, header: BatchHeader, last_of_producer: bool) -> Batch | bytearray | None:
    if not last_of_producer or header.producer_id < 0:
        return None
    return batch if header.record_count == 0 else emptied_batch(header)


def _rewritten(header: BatchHeader, kept: list[Record], horizon_ms: int | None) -> bytearray:
    builder = BatchBuilder(
        header.base_offset,
        header.codec,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        generation=header.generation,
        transactional=header.is_transactional,
        log_append_time=header.is_log_append_time,
        delete_horizon_ms=horizon_ms,
    )
    for record in kept:
        builder.add(
            record.key, record.value, record.headers, timestamp_ms=record.timestamp, offset=record.offset
        )
    return builder.build(header.last_offset_delta)
