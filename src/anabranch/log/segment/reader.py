"""One segment as its readers see it: where a batch is, what a fetch sends of it, what its indexes and its seal say.

Any thread may read the file below `published_bytes`; everything in here is for the writer's thread. A sealed segment
reads its indexes when a lookup needs them, through a cache that all logs share; one that is missing or cannot be true
is made anew. `Segment` (segment.py) is the heir that is written to.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial

from anabranch.errors import CorruptDataError
from anabranch.log import names
from anabranch.log.disk.files import File, Files
from anabranch.log.segment.index import IndexCache, OffsetIndex, TimeIndex
from anabranch.log.segment.ranges import Ranges
from anabranch.log.segment.scan import HOP_BYTES, Batch, Located, Scan, headers_from, hop_to, last_whole
from anabranch.log.segment.seal import REGION_BYTES, HeadSums, Region, Seal, load_seal
from anabranch.log.segment.slice import Bounds, Slice
from anabranch.log.segment.soundness import ALL_OFFSETS, SoundBatch, region_holds, survey
from anabranch.log.segment.tail import Tail
from anabranch.log.settings import LogConfig
from anabranch.record.batch import BatchHeader, batch_spans, read_header
from anabranch.record.crc32c import crc32c
from anabranch.record.index_format import RELATIVE_OFFSET_MAX, TIME_ENTRY, TIME_ENTRY_BYTES
from anabranch.values import Offset, SegmentState

STOPS_MAX = 16
"""Places where readers stopped that a segment remembers."""


class SegmentReader:
    def __init__(
        self,
        files: Files,
        folder: str,
        base_offset: Offset,
        config: LogConfig,
        cache: IndexCache,
        suffix: str = "",
    ) -> None:
        self.base_offset = base_offset
        self.folder = folder
        self.state = SegmentState.RECOVERING
        self._key = names.segment_path(folder, base_offset, names.LOG)
        self.file: File = files.open(f"{self._key}{suffix}")
        self.published_offset: Offset = base_offset
        self.published_bytes = 0
        self.verified = Ranges()
        """Which bytes were checked since the file was last changed, which `_stamp` tells."""
        self.warm = Ranges()
        """Which bytes this process wrote, or has read lately."""
        self._stamp: int | None = None
        self._stops: dict[Offset, int] = {}
        """Where recent readers stopped: the next offset, and the position of its batch. A cut replaces the dictionary:
        slices made before it still write to the old one."""
        self._is_beyond_walking = False
        self.tail: Tail | None = None
        self._files = files
        self._config = config
        self._cache = cache
        self._sums: HeadSums | None = None
        self._largest: tuple[int, Offset] | None = None
        self._is_largest_sure = False
        self._batches: tuple[int, Offset] | None = None

    def __repr__(self) -> str:
        return f"<Segment {self.base_offset}..{self.published_offset} {self.state.value}>"

    @property
    def offsets(self) -> range:
        """Those that a batch in here may have."""
        sealed = self.state is SegmentState.SEALED
        end = self.published_offset if sealed else self.base_offset + RELATIVE_OFFSET_MAX + 1
        return range(self.base_offset, end)

    # --- batches --------------------------------------------------------------------------------------------

    def locate(self, offset: Offset) -> Located | None:
        """The first batch whose last offset is not below `offset`; None if the segment ends before."""
        if offset >= self.published_offset:
            return None
        if self.tail is not None:
            position = self.tail.position_of(offset)
            if position is not None:
                return hop_to(self.file, position, self.published_bytes, -1)
        return self._locate_by_index(offset, may_rebuild=True)

    def _locate_by_index(self, offset: Offset, *, may_rebuild: bool) -> Located | None:
        index, _ = self._indexes()
        entry = index.entry_at_or_before(offset - self.base_offset)
        if entry is None:
            return hop_to(self.file, 0, self.published_bytes, offset)
        try:
            indexed = self._batch_of(entry)
        except CorruptDataError:
            # Either the index or the log lies. If the log is whole as a chain of batches, it was the index.
            if not may_rebuild or self._is_beyond_walking:
                raise
            try:
                self.rebuild_indexes()
            except CorruptDataError:
                self._is_beyond_walking = True  # So that nobody walks all of it for each read.
                raise
            return self._locate_by_index(offset, may_rebuild=False)
        if indexed.last_offset >= offset:
            return indexed
        return hop_to(self.file, indexed.position, self.published_bytes, offset)

    def _batch_of(self, entry: tuple[int, int]) -> Located:
        """The batch an index entry speaks of; CorruptDataError if it is not there."""
        relative_offset, position = entry
        indexed = hop_to(self.file, position, self.published_bytes, -1) if position >= 0 else None
        if indexed is None or indexed.last_offset != self.base_offset + relative_offset:
            raise CorruptDataError(f"The index of {self.file.path} disagrees with it at position {position}.")
        return indexed

    def slice(self, start: Offset, bytes_max: int, upto: Offset, *, whole_first: bool) -> Slice | None:
        """Whole batches from the one that holds `start`, or the next; None if the segment ends before."""
        try:
            return self._slice(start, bytes_max, upto, whole_first=whole_first)
        except CorruptDataError:
            return self._doubtful_slice(start, max(bytes_max, 1 if whole_first else 0), upto)

    def _slice(self, start: Offset, bytes_max: int, upto: Offset, *, whole_first: bool) -> Slice | None:
        if (going_on := self._going_on(start, bytes_max, upto)) is not None:
            return self._slice_of(*going_on, None, start, upto, is_first_known=True)
        tail = self.tail
        position = tail.position_of(start) if tail is not None and start < self.published_offset else None
        first_end = tail.batch_end(position) if tail is not None and position is not None else None
        first = None
        if position is None or first_end is None:
            first = self.locate(start)
            if first is None:
                self.confirm_end(start)
                return None
            position, first_end = first.position, first.position + first.size
        limit, reached = self._limit(upto)
        end = self._slice_end(position, first_end, limit, bytes_max, whole_first)
        if end <= position:
            walked = [located for located in (first, reached) if located is not None]
            if walked and first_end > limit:
                self._confirm(walked)
            return Slice(self.file, position, 0)
        return self._slice_of(position, end, first, start, upto)

    def _going_on(self, start: Offset, bytes_max: int, upto: Offset) -> tuple[int, int] | None:
        """Start and end of the next slice of a reader that stopped at the end of a region; None: heads have to be read
        to find them."""
        position = self._stops.get(start)
        if position is None:
            return None
        limit: int | None = self.published_bytes
        if upto < self.published_offset:
            limit = self.tail.position_of(upto) if self.tail is not None else None
        if limit is None or position >= limit:
            return None
        if position + bytes_max >= limit:
            return position, limit
        end = self._region_end(position, bytes_max)
        return (position, end) if end is not None else None

    def _region_end(self, position: int, bytes_max: int) -> int | None:
        """Where to end a slice so that whoever reads on has nothing to read twice; None: that would cost too much."""
        reach = position + bytes_max
        return self._head_sums().last_boundary(reach - bytes_max // 8, reach)

    def _slice_of(
        self,
        position: int,
        end: int,
        first: Located | None,
        start: Offset,
        upto: Offset,
        *,
        is_first_known: bool = False,
    ) -> Slice:
        """The batches in [position, end); `first` is the one at `position` if heads had to be believed to find it.
        `is_first_known`: the batch at `position` holds no offset below `start`."""
        walked_from = first.walked_from if first is not None else position
        sums = self._head_sums()
        if self._is_verified(walked_from, end):
            return Slice(
                self.file,
                position,
                end - position,
                start=start,
                upto=upto,
                stamp=self._stamp,
                regions_later=partial(_in_parts, sums, self._indexes()[0], walked_from, end),
            )
        regions = sums.regions(walked_from, end)
        are_summed = regions[0].crc is not None and regions[-1].crc is not None
        before = sums.closed_before(regions[0].start)
        behind = self._one_more(regions[-1]) if first is not None or regions[-1].heads is None else []
        low = start if is_first_known and regions[0].start == position else self.base_offset
        return Slice(
            self.file,
            position,
            end - position,
            regions,
            partial(self._note_checked, self._stops),
            start=start,
            upto=upto,
            is_warm=self.warm.covers(walked_from, end),
            wider=self._wider(regions[0].start, end) if first is not None and regions[-1].crc is None else (),
            offsets=ALL_OFFSETS if are_summed else range(low, self.published_offset),
            behind=() if are_summed or regions[-1].crc is not None else self._behind(end),
            around=[*before, *regions, *behind] if before or behind else (),
            bounds=self._bounds,
        )

    def _doubtful_slice(self, start: Offset, bytes_max: int, upto: Offset) -> Slice:
        """The way to `start` is damaged: from where the index says it begins, whatever holds there. From one entry
        before, since where no sums were kept a batch that lies about its offsets shows by those before it."""
        sums, index = self._head_sums(), self._indexes()[0]
        entry = index.entry_at_or_before(start - self.base_offset)
        if entry is not None:
            entry = index.entry_at_or_before(entry[0] - 1)
        position = entry[1] if entry is not None and 0 <= entry[1] < self.published_bytes else 0
        end = sums.boundary_from(position + max(bytes_max, REGION_BYTES), self.published_bytes)
        first = sums.regions(position, end)[0].start
        position = next((region.start for region in sums.closed_before(first)), position)
        regions = sums.regions(position, end)
        return Slice(
            self.file,
            position,
            min(bytes_max, end - position),
            regions,
            partial(self._note_checked, self._stops),
            start=start,
            upto=upto,
            is_warm=self.warm.covers(position, end),
            is_doubtful=True,
            wider=self._wider(position, end),
            offsets=range(self.base_offset, self.published_offset),
            around=[*regions, *self._one_more(regions[-1])],
            bounds=self._bounds,
        )

    @property
    def _bounds(self) -> Bounds:
        return Bounds(self.base_offset, self.published_bytes, self.published_offset)

    def _behind(self, position: int) -> list[SoundBatch]:
        """What the heads of the next two batches say, where only they can tell that the one before lies about its
        offsets."""
        found: list[SoundBatch] = []
        with suppress(CorruptDataError):
            while len(found) < 2 and (located := hop_to(self.file, position, self.published_bytes, -1)):
                position += located.size
                found.append(SoundBatch(located.position, position, located.base_offset, located.last_offset))
        return found

    def _one_more(self, region: Region) -> list[Region]:
        """What follows the region, if its end is known: its heads tell about those before it. The batch that a reader
        has asked for is there if a changed head before it said that it held the offset itself."""
        end = region.end
        if end >= self.published_bytes or region.crc is None:
            return []
        sums = self._head_sums()
        return sums.regions(end, sums.boundary_from(end + REGION_BYTES, self.published_bytes))

    def _wider(self, position: int, end: int) -> Sequence[Sequence[Region]]:
        """From `position` on, four times as much each time, as far as a batch can reach behind `end`."""
        sums, size = self._head_sums(), end - position
        reach = min(self.published_bytes, end + self._config.batch_bytes_max + REGION_BYTES)
        found = []
        while end < reach:
            size *= 4
            end = sums.boundary_from(max(end + 1, min(position + size, reach)), self.published_bytes)
            found.append(sums.regions(position, end))
        return found

    def _confirm(self, walked: Sequence[Located]) -> None:
        """That there is nothing to read must not rest on a changed head. Raises CorruptDataError unless all that was
        walked over to these batches holds, and they too."""
        start = min(located.walked_from for located in walked)
        furthest = max(walked, key=lambda located: located.position + located.size)
        end = furthest.position + furthest.size
        if self._is_verified(start, end):
            return
        # Where no sums were kept, only its neighbours can tell that a batch lies about its offset.
        following = hop_to(self.file, end, self.published_bytes, -1)
        if furthest.last_offset >= (
            following.base_offset if following is not None else self.published_offset
        ):
            raise CorruptDataError(f"{self.file.path} is damaged between positions {start} and {end}.")
        regions = self._head_sums().regions(start, end)
        looked_at = Slice(self.file, start, end - start, regions, partial(self._note_checked, self._stops))
        looked_at.verify()
        looked_at.mark_verified()

    def confirm_end(self, start: Offset) -> None:
        """After `locate` found nothing: raise CorruptDataError unless the last batch is known to end before `start`."""
        if start >= self.published_offset or not self.published_bytes:
            return
        entry = self._indexes()[0].entry_at_or_before(start - self.base_offset)
        position = entry[1] if entry is not None else 0
        try:
            end = Located(position, self.published_bytes - position, start, start, position)
            self._confirm([end])
        except CorruptDataError:
            last = self._head_sums().regions(position, self.published_bytes)[-1]
            data = memoryview(self.file.pread(last.end - last.start, last.start))
            sound = survey(data, last, end_offset=self.published_offset)
            if not sound or sound[-1].end != self.published_bytes or sound[-1].last_offset >= start:
                raise

    # --- what was checked -----------------------------------------------------------------------------------

    def _note_checked(
        self,
        stops: dict[Offset, int],
        start: int,
        end: int,
        stamp: int | None,
        next_offset: int | None,
    ) -> None:
        """Do as `note_verified`, and remember that `next_offset`, if it is known, begins where these bytes end."""
        self.note_verified(start, end, stamp)
        if next_offset is None:
            return
        if self.tail is None or self.tail.position_of(Offset(next_offset)) is None:
            stops[Offset(next_offset)] = end
            if len(stops) > STOPS_MAX:
                del stops[next(iter(stops))]

    def note_verified(self, start: int, end: int, stamp: int | None) -> None:
        """These bytes held when the file had that stamp; None: nobody can tell later whether they still do."""
        self.warm.add(start, end)
        if stamp is None:
            return
        if stamp != self._stamp:
            self.verified.clear()
            self._stamp = stamp
        self.verified.add(start, end)

    def forget_verified(self) -> None:
        """Everything is to be checked again before it leaves. A sealed segment may not be in memory any more."""
        self.verified.clear()
        if self.tail is None:
            self.warm.clear()

    def _is_verified(self, start: int, end: int) -> bool:
        if not self.verified.covers(start, end):
            return False
        assert self._stamp is not None, "what nobody could tell later was not noted"
        if self.file.stamp() == self._stamp:
            return True
        self.verified.clear()
        return False

    def _limit(self, upto: Offset) -> tuple[int, Located | None]:
        """Where the first batch begins that reaches `upto` or beyond, and that batch if heads had to be believed to
        find it."""
        if upto >= self.published_offset:
            return self.published_bytes, None
        if self.tail is not None and (position := self.tail.position_of(upto)) is not None:
            return position, None
        located = self.locate(upto)
        return (located.position if located is not None else self.published_bytes), located

    def _slice_end(self, position: int, first_end: int, limit: int, bytes_max: int, whole_first: bool) -> int:
        if first_end > limit:
            return position
        reach = position + bytes_max
        if reach >= limit:
            return limit
        if first_end - position > bytes_max:
            return first_end if whole_first else position
        boundary = self._region_end(position, bytes_max)
        if boundary is None and self.tail is not None:
            boundary = self.tail.boundary_within(position, reach)
        if boundary is None:
            boundary = self._indexed_boundary(position, reach)
        if boundary is None or boundary < first_end:
            boundary = last_whole(self.file, position, limit, bytes_max)
        return max(first_end, boundary)

    def _indexed_boundary(self, position: int, limit: int) -> int | None:
        entry = self._indexes()[0].last_entry_within(position, limit)
        if entry is not None and self.tail is None:
            try:
                self._batch_of(entry)
            except CorruptDataError:
                return None  # Walk there instead: what is wrong with the log itself shows on the way.
        return entry[1] if entry is not None else None

    def headers(self, start: Offset) -> Iterator[BatchHeader]:
        """Headers of the batches from the one that holds `start`, up to what is published now."""
        first = self.locate(start)
        return (
            headers_from(self.file, first.position, self.published_bytes) if first is not None else iter(())
        )

    def sound_headers(
        self, start: Offset, on_damage: Callable[[CorruptDataError], None]
    ) -> Iterator[BatchHeader]:
        """Headers of the batches that hold, from the one that has `start`; others are left out and told. Raises
        OSError."""
        try:
            index = self._indexes()[0]
        except CorruptDataError:
            index = OffsetIndex()  # It is missing, and the log too damaged to make it anew.
        entry = index.entry_at_or_before(start - self.base_offset)
        position = entry[1] if entry is not None and entry[1] < self.published_bytes else 0
        next_offset: int = self.base_offset
        for region in _in_parts(self._head_sums(), index, position, self.published_bytes):
            data = memoryview(self.file.pread(region.end - region.start, region.start))
            behind = self._behind(region.end) if region.crc is None else []
            following = region_holds(data, region, next_offset)
            if following is None or (behind and following > behind[0].base_offset):
                on_damage(CorruptDataError(f"{self.file.path} is damaged from position {region.start} on."))
                offsets = range(next_offset, self.published_offset)
                found = survey(data, region, offsets, behind, next_offset=next_offset)
                positions = [batch.position - region.start for batch in found]
            else:
                positions = [at for at, _ in batch_spans(data)]
            for at in positions:
                header = read_header(data, at)
                next_offset = header.next_offset
                if next_offset > start:
                    yield header

    def first_header(self) -> BatchHeader | None:
        return next(headers_from(self.file, 0, self.published_bytes, HOP_BYTES), None)

    def headers_at(self, position: int) -> Iterator[BatchHeader]:
        """Headers from a batch boundary on."""
        return headers_from(self.file, position, self.published_bytes)

    @property
    def batches_end(self) -> Offset:
        """Behind the last batch: of a sealed segment that may be before the next one begins. Raises CorruptDataError,
        OSError."""
        if self.tail is not None:
            return self.tail.next_offset
        if self._batches is None or self._batches[0] != self.published_bytes:
            self._batches = self.published_bytes, self._find_batches_end()
        return self._batches[1]

    def _find_batches_end(self) -> Offset:
        entry = self._indexes()[0].last_entry_within(-1, self.published_bytes)
        position, end = 0, self.base_offset
        if entry is not None:
            try:
                position = self._batch_of(entry).position
            except CorruptDataError:
                position = 0  # Only the index may be wrong; what is wrong with the log shows on the way.
        for header in headers_from(self.file, position, self.published_bytes, HOP_BYTES):
            end = header.next_offset
        return end

    # --- time -----------------------------------------------------------------------------------------------

    def largest_timestamp(self) -> tuple[int, Offset]:
        """The largest timestamp and the last offset of the batch that has it; -1 if no record has one."""
        if self.tail is not None:
            return self.tail.max_timestamp, self.tail.max_timestamp_offset
        if self._largest is None:
            self._largest = self._read_largest_timestamp()
        return self._largest

    def _read_largest_timestamp(self) -> tuple[int, Offset]:
        """From the last entry of the time index: retention asks every segment, so none is loaded whole."""
        path = names.segment_path(self.folder, self.base_offset, names.TIME_INDEX)
        try:
            size = self._files.size(path)
            file = self._files.open(path)
            entry = file.pread(TIME_ENTRY_BYTES, size - TIME_ENTRY_BYTES) if size >= TIME_ENTRY_BYTES else b""
            file.close()
            if size % TIME_ENTRY_BYTES == 0 and len(entry) == TIME_ENTRY_BYTES:
                timestamp, relative_offset = TIME_ENTRY.unpack(entry)
                if timestamp >= 0 and 0 <= relative_offset < self.published_offset - self.base_offset:
                    return timestamp, Offset(self.base_offset + relative_offset)
        except OSError:
            pass  # Missing or unreadable, which the rebuild below answers.
        tail = self.rebuild_indexes()
        return tail.max_timestamp, tail.max_timestamp_offset

    def doubts_largest_timestamp(self) -> bool:
        """Whether the time index was wrong about a sealed segment: nothing may be deleted on its word alone.

        The seal knows, or else a walk over the log; from then on `largest_timestamp` is right. Raises
        CorruptDataError if neither can tell.
        """
        if self.tail is not None or self._is_largest_sure:
            return False
        believed = self.largest_timestamp()[0]
        seal = self._final_seal()
        if seal is None or seal.max_timestamp != believed:
            self._largest = self._walked_largest_timestamp(seal)
        self._is_largest_sure = True
        return self.largest_timestamp()[0] != believed

    def _walked_largest_timestamp(self, seal: Seal | None) -> tuple[int, Offset]:
        try:
            tail = self.rebuild_indexes()
        except CorruptDataError:
            if seal is None:
                raise
            return seal.max_timestamp, self.base_offset
        return tail.max_timestamp, tail.max_timestamp_offset

    def _final_seal(self) -> Seal | None:
        try:
            seal = load_seal(self._read(names.SEAL))
        except (OSError, CorruptDataError):
            return None
        return seal if seal.final else None

    def offset_before(self, timestamp: int) -> Offset:
        """An offset below which every record of the segment is earlier than `timestamp`."""
        return Offset(self.base_offset + self._indexes()[1].offset_before(timestamp))

    # --- indexes --------------------------------------------------------------------------------------------

    def _indexes(self) -> tuple[OffsetIndex, TimeIndex]:
        if self.tail is not None:
            return self.tail.index, self.tail.time_index
        return self._cache.get(self._key, self._load_indexes)

    def _load_indexes(self) -> tuple[OffsetIndex, TimeIndex]:
        try:
            # Every entry of a sealed segment is compared with its log when it is used (`_batch_of`).
            return self.read_indexes(check_order=False)
        except (OSError, CorruptDataError):
            pass  # Missing, or of no use: they are made again from the log.
        try:
            tail = self.rebuild_indexes()
        except CorruptDataError:
            tail = self._walked_around_damage()
        return tail.index, tail.time_index

    def read_indexes(self, *, check_order: bool = True) -> tuple[OffsetIndex, TimeIndex]:
        """As they are on disk; OSError or CorruptDataError if they cannot be used."""
        index = OffsetIndex.load(self._read(names.INDEX), self.published_bytes, check_order=check_order)
        return index, TimeIndex.load(self._read(names.TIME_INDEX))

    def rebuild_indexes(self) -> Tail:
        """Make both indexes anew by walking the log; CorruptDataError if the walk cannot reach its end."""
        tail = Tail(self.base_offset, self._config.index_interval_bytes)
        scan = Scan(self.file, 0, self.published_bytes, self.offsets, check_crc=False)
        for batches in scan:
            tail.note(batches)
        if scan.reason is not None:
            raise CorruptDataError(f"{self.file.path} is damaged at position {scan.position}: {scan.reason}.")
        tail.finish()
        self._cache.put(self._key, (tail.index, tail.time_index))
        self.write_indexes(tail)
        return tail

    def _walked_around_damage(self) -> Tail:
        """What leads to the batches of the regions whose heads hold, and where there are no sums to those in front of
        the first damage. For this process only: once the log is repaired, indexes are made of all of it."""
        tail = Tail(self.base_offset, self._config.index_interval_bytes)
        for region in self._head_sums().regions(0, self.published_bytes):
            offsets = range(tail.next_offset, self.offsets.stop)
            scan, batches = Scan(self.file, region.start, region.end, offsets, check_crc=False), list[Batch]()
            for found in scan:
                batches += found
            if region.crc in (None, crc32c(b"".join([batch[3] for batch in batches]))):
                if region.start != tail.end_bytes:
                    tail.skip_to(region.start, tail.next_offset)
                tail.note(batches)
        tail.finish()
        return tail

    def write_indexes(self, tail: Tail) -> None:
        """Replace the index files of a sealed segment. On a full disk those in memory serve until they are
        made again."""
        with suppress(OSError):
            self._write(names.TIME_INDEX, tail.time_index.dump())
            self._write(names.INDEX, tail.index.dump())

    def _head_sums(self) -> HeadSums:
        if self.tail is not None:
            return self.tail.sums
        if self._sums is None:
            self._sums = self.read_sums()
        return self._sums

    def regions_from(self, start: int, bytes_max: int) -> list[Region]:
        """The regions of a sealed segment from the boundary `start` on, at least one, then within the limit.

        Where no sums were kept nobody knows the batch boundaries without reading: all of it is one region.
        """
        taken: list[Region] = []
        for region in self._head_sums().each_region(start, self.published_bytes):
            if taken and region.end - start > bytes_max:
                break
            taken.append(region)
        return taken

    def regions_around(self, start: int, end: int) -> list[Region]:
        """The regions that [start, end) lies in."""
        return self._head_sums().regions(start, end)

    def sealed_regions(self) -> list[Region]:
        """Any thread. All regions of a sealed segment."""
        return self._head_sums().regions(0, self.published_bytes)

    def smallest_regions(self) -> list[Region]:
        """All of the segment in the smallest pieces that can be checked."""
        sums = self._head_sums()
        single = sums.open_batches()
        closed_end = single[0].start if single else self.published_bytes
        return (sums.regions(0, closed_end) if closed_end else []) + single

    def note_repaired(self) -> None:
        """The file holds again what was lost of it."""
        self.verified.clear()
        self._cache.discard(self._key)
        self._is_beyond_walking = False

    def read_sums(self) -> HeadSums:
        """Of the seal on disk, or none at all: then batches are verified by their own CRCs alone."""
        try:
            seal = load_seal(self._read(names.SEAL))
        except (OSError, CorruptDataError):
            return HeadSums()
        return seal.sums if seal.log_bytes <= self.published_bytes else seal.sums.below(self.published_bytes)

    # --- files ----------------------------------------------------------------------------------------------

    def paths(self) -> list[str]:
        """Every file of the segment, the `.log` first."""
        return [names.segment_path(self.folder, self.base_offset, suffix) for suffix in names.SUFFIXES]

    def _read(self, suffix: str) -> bytes:
        return self._files.read(names.segment_path(self.folder, self.base_offset, suffix))

    def _write(self, suffix: str, data: bytes) -> None:
        self._files.write(names.segment_path(self.folder, self.base_offset, suffix), data)


def _in_parts(sums: HeadSums, index: OffsetIndex, start: int, end: int) -> list[Region]:
    """The regions there, those without a sum cut where the index says that a batch begins."""
    found = []
    for region in sums.regions(start, end):
        at, reach = region.start, REGION_BYTES
        while region.crc is None and at + reach < region.end:
            entry = index.last_entry_within(at, at + reach)
            if entry is None:
                reach *= 2
                continue
            found.append(Region(at, entry[1], None))
            at, reach = entry[1], REGION_BYTES
        found.append(region._replace(start=at))
    return found
