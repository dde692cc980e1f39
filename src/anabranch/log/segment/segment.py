"""One segment: a `.log` file of record batches, its `.index` and `.timeindex`, and the `.seal` once it is
full.

One writer appends to the active segment; any thread may read its file below `published_bytes`, which moves
only after the bytes are in the file. A sealed segment never changes. The `Tail` of the active one holds its
indexes in memory; they are written by `save` (at seal, at close, and whenever the broker asks), never by an
append. How a segment is read is in reader.py.
"""

import errno
from collections.abc import Sequence
from contextlib import suppress
from itertools import accumulate

from anabranch.errors import CorruptDataError
from anabranch.log import names
from anabranch.log.disk.files import Files, NotAFileError
from anabranch.log.segment.index import IndexCache, OffsetIndex, TimeIndex
from anabranch.log.segment.reader import SegmentReader
from anabranch.log.segment.scan import NO_TIMESTAMP, Batch, Scan
from anabranch.log.segment.seal import HeadSums
from anabranch.log.segment.tail import Tail
from anabranch.log.settings import LogConfig
from anabranch.record.crc32c import crc32c
from anabranch.record.index_format import TIME_ENTRY_BYTES
from anabranch.values import Offset, SegmentState


class Segment(SegmentReader):
    def __init__(
        self,
        files: Files,
        folder: str,
        base_offset: Offset,
        config: LogConfig,
        cache: IndexCache,
        suffix: str = "",
    ) -> None:
        super().__init__(files, folder, base_offset, config, cache, suffix)
        self.synced_bytes = 0
        """How much of the file is known to be on disk; moved by whoever synced."""
        self.cuts = 0
        """How often a failed write was cut off again; a cut too must reach the disk before anything is safe."""
        self._synced_cuts = 0
        self.created_ms: int | None = None
        self.dropped = False
        self._saved_entries: int | None = None
        self._saved_times: int | None = None
        self._closed_bytes: int | None = None
        """For how much of the log the sidecars on disk are those of a clean close."""

    # --- the writer -----------------------------------------------------------------------------------------

    def activate(self, tail: Tail) -> None:
        """Become the segment that is appended to, with what is known of its content."""
        self.tail = tail
        self.state = SegmentState.ACTIVE
        self.publish(tail.next_offset, tail.end_bytes)

    def publish(self, end_offset: Offset, end_bytes: int) -> None:
        """The bytes are in the file: readers may go this far."""
        self.published_offset = end_offset
        self.published_bytes = end_bytes

    def note_appended(self, batches: Sequence[Batch]) -> None:
        """Batches that were just written at `published_bytes`."""
        tail = self.tail
        assert tail is not None
        tail.note(batches)
        self.warm.add(self.published_bytes, tail.end_bytes)
        self.published_offset = tail.next_offset
        self.published_bytes = tail.end_bytes

    @property
    def index_bytes_wanted(self) -> int:
        """The larger of the two indexes, once it has one more entry."""
        assert self.tail is not None
        return max(self.tail.index.size_bytes, self.tail.time_index.size_bytes) + TIME_ENTRY_BYTES

    def seal(self, next_base: Offset) -> None:
        """No more appends; the next segment begins at `next_base`. The sidecars may have to wait for room on
        the disk."""
        assert self.tail is not None
        self.published_offset = next_base
        self.state = SegmentState.SEALED
        self.tail.finish()
        self._largest = (self.tail.max_timestamp, self.tail.max_timestamp_offset)
        self._is_largest_sure = True
        with suppress(OSError):  # Derived data: `save` is asked again later, and a reader could do without.
            self.save()

    def save(self) -> None:
        """Write the indexes out (not synced), and the seal of a sealed segment, which then needs no memory."""
        if self.tail is None:
            return
        sealed = self.state is SegmentState.SEALED
        if sealed:
            self.tail.finish()
        # The time index first: were only the other there after a kill, the largest timestamp would be taken
        # as too small.
        self._saved_times = self._append(names.TIME_INDEX, self.tail.time_index, self._saved_times)
        self._saved_entries = self._append(names.INDEX, self.tail.index, self._saved_entries)
        if sealed:
            self._write(names.SEAL, self._dumped_seal(self.tail, final=True))
            self._cache.put(self._key, (self.tail.index, self.tail.time_index))
            self.tail = None

    def save_at_close(self) -> None:
        """The indexes of an active segment that may be gone on with later, synced: they have no sum by which a
        start could tell older ones from these."""
        assert self.tail is not None
        self.tail.finish()
        self.save()
        for suffix in (names.TIME_INDEX, names.INDEX):
            self._sync_if_there(names.segment_path(self.folder, self.base_offset, suffix))

    def write_closing_seal(self) -> None:
        """After everything was synced: a seal that is found must never speak of bytes that were lost. It need not
        be synced itself."""
        assert self.tail is not None
        self._write(names.SEAL, self._dumped_seal(self.tail, final=False))
        self._closed_bytes = self.published_bytes

    @property
    def is_closed(self) -> bool:
        """The sidecars on disk are those of a clean close, and nothing was appended since."""
        return self.tail is not None and (self._closed_bytes or 0) == self.published_bytes

    def note_closed(self, saved: tuple[int, int] | None) -> None:
        """The seal on disk speaks of the whole segment; and so many entries of the two indexes are there, if they
        are of use at all."""
        self._closed_bytes = self.published_bytes
        if saved is not None:
            self._saved_entries, self._saved_times = saved

    def _dumped_seal(self, tail: Tail, *, final: bool) -> bytes:
        return tail.sums.dump(self.published_offset, self.published_bytes, tail.max_timestamp, final=final)

    def take_cleaned(self, tail: Tail, next_base: Offset) -> None:
        """Stand for a file the cleaner has written and synced, from the first byte to the last."""
        self.state = SegmentState.SEALED
        self.published_offset = next_base
        self.published_bytes = self.synced_bytes = tail.end_bytes
        self.warm.add(0, tail.end_bytes)
        self._sums = tail.sums
        self._largest = (tail.max_timestamp, tail.max_timestamp_offset)
        self._is_largest_sure = True
        self._cache.put(self._key, (tail.index, tail.time_index))

    def reopen(self, size: int) -> None:
        """Become the active segment again, cut to `size` (a batch boundary), durably. The sidecars are made
        anew. OSError, before anything was changed, if what is left cannot be told."""
        tail = self._tail_below(size)
        present = [path for path in self.paths()[1:] if self._files.exists(path)]
        for path in present:
            self._files.unlink(path)
        if present:
            # A seal that a power cut brought back would be believed about other records.
            self._files.sync_folder(self.folder)
        self.file.truncate(size)
        self.file.sync()
        self._cache.discard(self._key)
        self._sums = self._largest = self._saved_entries = self._saved_times = self._closed_bytes = None
        self._is_largest_sure = False
        self.verified.cut(size)
        self.warm.cut(size)
        self._stops = {}
        self.activate(tail)
        self.synced_bytes = size

    def _tail_below(self, size: int) -> Tail:
        """What is known of the first `size` bytes. Only what follows the last index entry is read again: were all of
        it, one changed head would end the log there, or get a sum of its own."""
        index, time_index = self._indexes()
        index, time_index = index.copy(), time_index.copy()
        index.cut(size)
        header = None
        try:
            if index:
                last = index.offsets[-1], index.positions[-1]
                self._batch_of(last)
                time_index.cut(last[0])
                header = self.first_header() if self.tail is None else None
        except CorruptDataError:
            index, time_index = OffsetIndex(), TimeIndex()
        first_timestamp = header.max_timestamp if header is not None else None
        if self.tail is not None:
            first_timestamp = self.tail.first_timestamp
        sums = self._sums_below(size)
        tail = Tail(self.base_offset, self._config.index_interval_bytes)
        if not index:
            time_index = TimeIndex()
        start = tail.resume(index, time_index, sums, first_timestamp if index else None)
        scan, heads = Scan(self.file, start, size, self.offsets, check_crc=False), dict[int, bytes]()
        for batches in scan:
            for batch in batches:
                heads[tail.end_bytes] = batch[3]
                tail.note([batch])
        if tail.end_bytes != size:
            raise OSError(errno.EIO, f"damaged at position {scan.position}: {scan.reason}", self.file.path)
        for region in sums.regions(max(heads), size) if heads else ():
            # The end of the log rests on the last head; of others the sums that were kept will tell.
            known = b"".join([head for at, head in heads.items() if region.start <= at < region.end])
            if region.start >= start and region.crc not in (None, crc32c(known)):
                raise OSError(errno.EIO, "the head of the last batch was changed", self.file.path)
        return tail

    def _sums_below(self, size: int) -> HeadSums:
        known = self._head_sums()
        sums = known.cut(size)
        region = known.regions(size, self.published_bytes)[0] if size < self.published_bytes else None
        if region is not None and region.crc is not None and region.start < size:
            # What the cut leaves of a region gets sums of its own, if the whole of it still has those that were kept.
            scan = Scan(self.file, region.start, region.end, self.offsets, check_crc=False)
            batches = [batch for found in scan for batch in found]
            if crc32c(b"".join([batch[3] for batch in batches])) == region.crc:
                ends = accumulate((batch[0] for batch in batches), initial=region.start)
                sums.note(
                    region.start, [batch for batch, at in zip(batches, ends, strict=False) if at < size]
                )
        return sums

    def sync(self) -> None:
        """Any thread. Make the log durable up to what was published when this began."""
        covered, cuts = self.published_bytes, self.cuts
        if (covered == self.synced_bytes and cuts == self._synced_cuts) or self.dropped:
            return
        try:
            self.file.sync()
        except OSError:
            if self.dropped:
                return  # Retention or the cleaner removed it meanwhile; there is nothing left to keep.
            raise
        self.synced_bytes, self._synced_cuts = covered, cuts

    def close(self) -> None:
        self._cache.discard(self._key)
        self.file.close()

    # --- files ----------------------------------------------------------------------------------------------

    def sync_sidecars(self) -> None:
        """Any thread; after `save`. A sidecar that is not there yet is made again when it is missed."""
        for path in self.paths()[1:]:
            self._sync_if_there(path)

    def _sync_if_there(self, path: str) -> None:
        file = self._files.open(path)
        try:
            file.sync()
        except (FileNotFoundError, IsADirectoryError, NotAFileError):
            # Not written yet, or retention or the cleaner has removed it meanwhile, or it never was one of ours: no
            # reason to fence.
            pass
        finally:
            file.close()

    def _append(self, suffix: str, index: OffsetIndex | TimeIndex, saved: int | None) -> int | None:
        """Write the entries that are not in the file yet; all of them the first time, whatever was there.

        An active segment whose offset index is empty needs no file: thousands of small partitions would have
        two each.
        """
        assert self.tail is not None
        entries, first = len(index), saved or 0
        if saved is None or entries > saved:
            path = names.segment_path(self.folder, self.base_offset, suffix)
            is_needed = self.tail.index or self.state is SegmentState.SEALED
            if not is_needed and not self._files.exists(path):
                return None
            self._files.write(path, index.dump(first), first * index.entry_bytes)
        return entries


__all__ = ["NO_TIMESTAMP", "Segment"]
