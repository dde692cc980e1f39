"""Whether what a job has stored may take the place of the rows it has read, held against the records themselves.

A job is a client, and nothing it says is believed. What was merged has to be the same batches, byte by byte. What was
compacted has to be records of the old rows, unchanged, and each record that is missing has to be one that a compaction
leaves out (`compaction.py`):

- a later record has its key, in the old rows or in the partition behind them;
- it is a tombstone whose time has come, and no older record of its key is left, in the new rows or before the old ones;
- it has no key.

So an empty replacement is refused unless every single record of the old rows is one of these. Keeping more than a
compaction would is no harm. A row's timestamps are checked as well: retention goes by them.

    proof = ReplacementProof(is_compacted=True, now_ms=...)
    proof.add_new(part)         # for each new row, in their order
    proof.add_old(part)         # for each old row, in their order
    proof.add_later(part)       # for rows behind the old ones, until `is_settled`
    proof.add_earlier(part)     # for rows before them, if `has_expired`
    proof.end()

All of them raise OfferRefusedError, and CorruptDataError and its like for bytes that are not what a row says. Any
thread, one at a time.
"""

from collections.abc import Mapping

from anabranch.errors import OfferRefusedError
from anabranch.objects.layout.merge import NO_TIMESTAMP, RowBytes, stamped_batches
from anabranch.record.batch import BatchHeader, read_header
from anabranch.record.compaction.batches import sorted_out
from anabranch.record.compaction.check import OFFER_MS_MAX
from anabranch.record.compaction.keys import keyed_records
from anabranch.record.records import RECORDS_BYTES_MAX, Record, records_of
from anabranch.values import Offset


class ReplacementProof:
    def __init__(
        self,
        *,
        is_compacted: bool,
        now_ms: int,
        delete_retention_ms: int = 0,
        keys_max: int = 2**20,
        bytes_max: int = RECORDS_BYTES_MAX,
    ) -> None:
        """`is_compacted`: records may be missing. `keys_max`: how many keys are remembered at once."""
        self._is_compacted = is_compacted
        self._now_ms = now_ms
        self._delete_retention_ms = delete_retention_ms
        self._keys_max = keys_max
        self._bytes_max = bytes_max
        self._new: dict[Offset, memoryview] = {}
        """By its base offset, each batch that no old one has accounted for."""
        self._missing: dict[bytes, int] = {}
        """Of each key the last record that is missing, as far as nothing was found that replaces it."""
        self._expired: dict[bytes, int] = {}
        """The same of tombstones whose time has come."""
        self._kept: dict[bytes, int] = {}
        """Of each key the last record in the new rows."""

    # --- what is held against each other -----------------------------------------------------------------------------

    def add_new(self, part: RowBytes) -> None:
        newest = NO_TIMESTAMP
        for batch in stamped_batches(*part):
            header = read_header(batch)
            if header.base_offset in self._new:
                raise OfferRefusedError(f"The batch at offset {header.base_offset} is there twice.")
            self._new[header.base_offset] = batch
            if header.record_count:
                newest = max(newest, header.max_timestamp)
        if newest != part.row.max_timestamp:
            raise OfferRefusedError(
                f"A new row says that its newest record is of {part.row.max_timestamp}, and it is of {newest}."
            )

    def add_old(self, part: RowBytes) -> None:
        for batch in stamped_batches(*part):
            header = read_header(batch)
            offered = self._new.pop(header.base_offset, None)
            if not self._is_compacted:
                if offered is None or bytes(offered) != bytes(batch):
                    raise _changed(header)
            elif header.is_control or header.is_transactional:
                if offered is None or bytes(offered) != bytes(batch):
                    raise OfferRefusedError(f"The batch at offset {header.base_offset} must stay as it is.")
            else:
                self._compare(batch, header, offered)

    def _compare(self, batch: memoryview, header: BatchHeader, offered: memoryview | None) -> None:
        kept = self._records_kept(batch, header, offered)
        _, expired = sorted_out(batch, header, lambda offset, key: True, self._now_ms, self._bytes_max)
        gone = frozenset(expired)
        for offset, key, _ in keyed_records(batch, self._bytes_max):
            if key is None:
                continue
            # The last record of a key decides: what was found of those before it holds no more.
            self._missing.pop(key, None)
            self._expired.pop(key, None)
            table = self._kept if offset in kept else self._expired if offset in gone else self._missing
            table[bytes(key)] = offset
        if len(self._missing) + len(self._expired) + len(self._kept) > self._keys_max:
            raise OfferRefusedError(
                f"The rows have more than {self._keys_max} keys, which is more than can be checked: replace fewer."
            )

    def _records_kept(
        self, batch: memoryview, header: BatchHeader, offered: memoryview | None
    ) -> Mapping[int, Record] | frozenset[int]:
        """The offsets of those that stay, each of them checked."""
        if offered is None:
            return frozenset()
        if bytes(offered) == bytes(batch):
            return frozenset(offset for offset, _, _ in keyed_records(batch, self._bytes_max))
        new = read_header(offered)
        ours = {record.offset: record for record in records_of(batch, self._bytes_max)}
        records = list(records_of(offered, self._bytes_max))
        if any(ours.get(record.offset) != record for record in records):
            raise _changed(header)
        if _identity(new) != _identity(header):
            raise OfferRefusedError(f"The header of the batch at offset {header.base_offset} differs.")
        self._check_horizon(header, new, records)
        return {record.offset: record for record in records}

    def _check_horizon(self, header: BatchHeader, new: BatchHeader, records: list[Record]) -> None:
        """A tombstone may not go before its time."""
        if not new.has_delete_horizon or not any(record.value is None for record in records):
            return
        if header.has_delete_horizon:
            holds = new.base_timestamp == header.base_timestamp
        else:
            holds = new.base_timestamp + OFFER_MS_MAX >= self._now_ms + self._delete_retention_ms
        if not holds:
            raise OfferRefusedError(
                f"The tombstones in the batch at offset {header.base_offset} would go before their time."
            )

    # --- the rest of the partition -----------------------------------------------------------------------------------

    @property
    def is_settled(self) -> bool:
        """Nothing is missing that has to be found behind the old rows."""
        return not self._missing

    @property
    def has_expired(self) -> bool:
        """Tombstones have gone: nothing older of their keys may be left before the old rows."""
        return bool(self._expired)

    def add_later(self, part: RowBytes) -> None:
        for batch in stamped_batches(*part):
            header = read_header(batch)
            if header.is_control or header.is_transactional:
                continue
            for _, key, _ in keyed_records(batch, self._bytes_max):
                if key is not None:
                    self._missing.pop(key, None)

    def add_earlier(self, part: RowBytes) -> None:
        for batch in stamped_batches(*part):
            header = read_header(batch)
            if header.is_control or header.is_transactional:
                continue
            for offset, key, _ in keyed_records(batch, self._bytes_max):
                if key is not None and key in self._expired:
                    raise OfferRefusedError(
                        f"The tombstone at offset {self._expired[key]} is missing, and the record at {offset}, which "
                        "it deletes, is not."
                    )

    def end(self) -> None:
        if self._new:
            raise OfferRefusedError(f"The batch at offset {min(self._new)} is none of those replaced.")
        if self._missing:
            raise OfferRefusedError(
                f"The record at offset {min(self._missing.values())} is missing, though nothing replaces it."
            )
        for key, offset in self._expired.items():
            if key in self._kept:
                raise OfferRefusedError(
                    f"The tombstone at offset {offset} is missing, and the record at {self._kept[key]}, which it "
                    "deletes, is not."
                )


def _changed(header: BatchHeader) -> OfferRefusedError:
    return OfferRefusedError(f"The batch at offset {header.base_offset} is missing, or has other records.")


def _identity(header: BatchHeader) -> tuple[int, ...]:
    """What compacting a batch leaves as it is."""
    return (
        header.base_offset,
        header.last_offset_delta,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
    )
