"""Whether somebody else's compaction of a batch is the one our own rules would have made.

The job on Spark compacts segments aside and offers the result; the broker believes none of it. `check_compacted` holds
one batch of the log against what was offered in its place: the records that stay are exactly those that
`compaction.py` keeps, each with its offset, time, key, value and headers; the batch covers the same offsets and
sequences; nothing else has come in. Bytes need not be the same, for codecs may pack differently elsewhere.

Two things may differ from what the cleaner would write now, and neither takes anything from a reader: a tombstone
that has just expired may still be there, and a tombstone's horizon may be later, by `OFFER_MS_MAX` and the time the
offer has waited; never earlier.
"""

from collections.abc import Collection, Mapping

from anabranch.errors import AnabranchError, OfferRefusedError
from anabranch.record.batch import DELETE_HORIZON, BatchHeader, read_header
from anabranch.record.buffers import ByteBuffer
from anabranch.record.builder import emptied_batch
from anabranch.record.compaction.batches import keep_latest, sorted_out
from anabranch.record.compaction.run import CompactionRun
from anabranch.record.records import Record, records_of

OFFER_MS_MAX = 3_600_000
"""How long an offer may lie before the broker takes it in: the job sets horizons later by this much."""


def check_compacted(source: ByteBuffer, offered: ByteBuffer | None, run: CompactionRun) -> None:
    """OfferRefusedError unless `offered` (None: nothing) may take the place of `source`, a batch of our own."""
    header = read_header(source)
    if run.is_left_alone(header):
        if offered is None or not _same(offered, source):
            raise OfferRefusedError(f"The batch at offset {header.base_offset} must stay as it is.")
        return
    keep = keep_latest(run.latest.get, run.upto)
    kept, expired = sorted_out(source, header, keep, run.now_ms, run.bytes_max)
    if offered is None:
        _check_gone(header, kept, run)
    elif _same(offered, source):
        _check_unchanged(header, kept, expired)
    else:
        _check_thinned(source, offered, header, run, kept, expired)


def _same(one: ByteBuffer, other: ByteBuffer) -> bool:
    return len(one) == len(other) and bytes(one) == bytes(other)  # Views compare byte by byte, and slowly.


def _check_gone(header: BatchHeader, kept: Mapping[int, bool], run: CompactionRun) -> None:
    if kept:
        raise OfferRefusedError(f"The record at offset {min(kept)} is missing.")
    if header.producer_id >= 0 and run.is_last_of_producer(header):
        raise OfferRefusedError(
            f"The batch at offset {header.base_offset} is its producer's last, and is missing."
        )


def _check_unchanged(header: BatchHeader, kept: Mapping[int, bool], expired: Collection[int]) -> None:
    if len(kept) + len(expired) != header.record_count:
        raise OfferRefusedError(f"The batch at offset {header.base_offset} has records that do not stay.")
    if any(kept.values()) and not header.has_delete_horizon:
        raise _bad_horizon(header)


def _check_thinned(
    source: ByteBuffer,
    offered: ByteBuffer,
    header: BatchHeader,
    run: CompactionRun,
    kept: Mapping[int, bool],
    expired: Collection[int],
) -> None:
    ours = list(records_of(source, run.bytes_max))
    may: dict[int, Record] = {record.offset: record for record in ours if record.offset in expired}
    records = _records(offered, header, run.bytes_max)
    _check_records(header, records, [record for record in ours if record.offset in kept], may)
    if records:
        _check_header(header, read_header(offered), records, run)
    elif not _same(offered, emptied_batch(header)):
        raise OfferRefusedError(f"The batch at offset {header.base_offset} is not emptied as we would.")


def _bad_horizon(header: BatchHeader) -> OfferRefusedError:
    return OfferRefusedError(
        f"The tombstones in the batch at offset {header.base_offset} would not go at their time."
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
        raise _bad_horizon(header)


def _horizon_holds(header: BatchHeader, new: BatchHeader, records: list[Record], run: CompactionRun) -> bool:
    if header.has_delete_horizon:
        return new.has_delete_horizon and new.base_timestamp == header.base_timestamp
    has_tombstones = any(record.value is None for record in records)
    if not (has_tombstones and new.has_delete_horizon):
        return has_tombstones == new.has_delete_horizon
    earliest = run.now_ms + run.delete_retention_ms
    return earliest <= new.base_timestamp <= earliest + 2 * OFFER_MS_MAX
