"""Whether somebody else's compaction of a batch is the one our own rules would have made.

The job on Spark compacts segments aside and offers the result; the broker believes none of it. `check_compacted` holds
one batch of the log against what was offered in its place: the records that stay are exactly those that
`compaction.py` keeps, each with its offset, time, key, value and headers; the batch covers the same offsets and
sequences; nothing else has come in. Bytes need not be the same, for codecs may pack differently elsewhere.

Two things may differ from what the cleaner would write now, and neither takes anything from a reader: a tombstone
that has just expired may still be there, and a tombstone's horizon may be later, by `OFFER_MS_MAX` and the time the
offer has waited; never earlier.
"""

from anabranch.errors import AnabranchError, OfferRefusedError
from anabranch.record.batch import DELETE_HORIZON, BatchHeader, read_header
from anabranch.record.buffers import ByteBuffer
from anabranch.record.builder import emptied_batch
from anabranch.record.compaction import keep_latest
from anabranch.record.compaction_run import CompactionRun
from anabranch.record.records import Record, records_of

OFFER_MS_MAX = 3_600_000
"""How long an offer may lie before the broker takes it in: the job sets horizons later by this much."""


def check_compacted(source: ByteBuffer, offered: ByteBuffer | None, run: CompactionRun) -> None:
    """OfferRefusedError unless `offered` (None: nothing) may take the place of `source`, a batch of our own."""
    header = read_header(source)
    if run.is_left_alone(header):
        if offered is None or memoryview(offered) != memoryview(source):
            raise OfferRefusedError(f"The batch at offset {header.base_offset} must stay as it is.")
        return
    must, may = _wanted(source, header, run)
    if offered is None:
        _check_gone(header, must, run)
        return
    records = _records(offered, header, run.bytes_max)
    _check_records(header, records, must, may)
    if records:
        _check_header(header, read_header(offered), records, run)
    elif memoryview(offered) not in (memoryview(source), memoryview(emptied_batch(header))):
        raise OfferRefusedError(f"The batch at offset {header.base_offset} is not emptied as we would.")


def _wanted(
    source: ByteBuffer, header: BatchHeader, run: CompactionRun
) -> tuple[list[Record], dict[int, Record]]:
    """The records that have to be there, and by offset those that may be: tombstones whose time has come."""
    keep = keep_latest(run.latest.get, run.upto)
    expired = header.has_delete_horizon and run.now_ms >= header.base_timestamp
    must: list[Record] = []
    may: dict[int, Record] = {}
    for record in records_of(source, run.bytes_max):
        if keep(record):
            if expired and record.value is None:
                may[record.offset] = record
            else:
                must.append(record)
    return must, may


def _check_gone(header: BatchHeader, must: list[Record], run: CompactionRun) -> None:
    if must:
        raise OfferRefusedError(f"The record at offset {must[0].offset} is missing.")
    if header.producer_id >= 0 and run.is_last_of_producer(header):
        raise OfferRefusedError(
            f"The batch at offset {header.base_offset} is its producer's last, and is missing."
        )


def _records(offered: ByteBuffer, header: BatchHeader, bytes_max: int) -> list[Record]:
    try:
        return list(records_of(offered, bytes_max))
    except AnabranchError as error:
        raise OfferRefusedError(f"The batch offered for offset {header.base_offset}: {error}") from error


def _check_records(
    header: BatchHeader, records: list[Record], must: list[Record], may: dict[int, Record]
) -> None:
    rest = [record for record in records if may.get(record.offset) != record]
    if rest == must:
        return
    wanted, found = set(must), set(rest)
    wrong = min(record.offset for record in wanted ^ found)
    what = "missing or changed" if wrong in {record.offset for record in must} else "not one that stays"
    raise OfferRefusedError(f"In the batch at offset {header.base_offset}, record {wrong} is {what}.")


def _check_header(header: BatchHeader, new: BatchHeader, records: list[Record], run: CompactionRun) -> None:
    # An unchanged header may know a later time than its records do, since an earlier compaction took the newest.
    newest = max(max(record.timestamp for record in records), min(header.max_timestamp, new.max_timestamp))
    expected = header._replace(
        batch_length=new.batch_length,
        crc=new.crc,
        attributes=header.attributes & ~DELETE_HORIZON | new.attributes & DELETE_HORIZON,
        base_timestamp=new.base_timestamp,
        max_timestamp=newest,
        record_count=len(records),
    )
    if new != expected:
        raise OfferRefusedError(f"The header of the batch at offset {header.base_offset} is not right.")
    if not _horizon_holds(header, new, records, run):
        raise OfferRefusedError(
            f"The tombstones in the batch at offset {header.base_offset} would not go at their time."
        )


def _horizon_holds(header: BatchHeader, new: BatchHeader, records: list[Record], run: CompactionRun) -> bool:
    if header.has_delete_horizon:
        return new.has_delete_horizon and new.base_timestamp == header.base_timestamp
    has_tombstones = any(record.value is None for record in records)
    if not (has_tombstones and new.has_delete_horizon):
        return has_tombstones == new.has_delete_horizon
    earliest = run.now_ms + run.delete_retention_ms
    return earliest <= new.base_timestamp <= earliest + 2 * OFFER_MS_MAX
