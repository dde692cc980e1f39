"""Lookups by time in a log in the object store: the agreed rows name the first one that can have it, a batch's header
says whether it has, and then its records are read. Both may have to wait for the store."""

from functools import partial
from typing import TYPE_CHECKING

from anabranch.broker.topics.archived_prefix import Moment
from anabranch.objects.layout.names import Row
from anabranch.record.batch import batch_spans, read_header
from anabranch.record.records import records_of
from anabranch.values import Offset

if TYPE_CHECKING:
    from anabranch.broker.object.log import ObjectLog

BYTES_PER_LOOK = 2**20
ROWS_PER_LOOK = 4096


async def first_at_or_after(log: "ObjectLog", timestamp_ms: int) -> Moment | None:
    """The first record, from the start of the log, whose timestamp is not before `timestamp_ms`."""
    row = log.objects.row_at_time(log.key, timestamp_ms)
    while row is not None:
        found = await _first_in(log, row, timestamp_ms)
        if found is not None:
            return found
        row = _next_row(log, row, timestamp_ms)  # What it had lies before the start of the log.
    return None


async def of_largest_timestamp(log: "ObjectLog") -> Moment | None:
    """The record with the largest timestamp; the first one if there are several in its row."""
    row = log.objects.newest_row(log.key)
    if row is None or row.max_timestamp < 0:
        return None
    return await _first_in(log, row, row.max_timestamp)


def _next_row(log: "ObjectLog", row: Row, timestamp_ms: int) -> Row | None:
    start = row.next_offset
    while rows := log.objects.rows(log.key, start, ROWS_PER_LOOK):
        for each in rows:
            if each.max_timestamp >= timestamp_ms:
                return each
        start = rows[-1].next_offset
    return None


async def _first_in(log: "ObjectLog", row: Row, timestamp_ms: int) -> Moment | None:
    at = max(row.base_offset, log.start_offset)
    while at < min(row.next_offset, log.end_offset):
        part = await log.loaded(at, BYTES_PER_LOOK, row.next_offset)
        if not part.count:
            return None
        data = memoryview(part.read())
        for first, last in batch_spans(data):
            found = await log.in_worker(
                partial(_first_record, data[first:last], log.start_offset, timestamp_ms)
            )
            if found is not None:
                return found
            at = read_header(data, first).next_offset
    return None


def _first_record(batch: memoryview, start: Offset, timestamp_ms: int) -> Moment | None:
    header = read_header(batch)
    if header.max_timestamp < timestamp_ms or header.last_offset < start:
        return None
    for record in records_of(batch):
        if record.timestamp >= timestamp_ms and record.offset >= start:
            return record.offset, record.timestamp
    return None
