"""Opens a partition's folder: which segments it has, how far they can be trusted, and what has to go aside.

After a clean stop sizes are believed and nothing is scanned but the last few kilobytes. After any other stop
every batch from the recovery point on has its CRC checked: a torn or zero-filled tail of the last segment is
cut off. So are bytes behind the last record of an earlier segment, whenever they are met: they cost no record.
If an earlier segment is torn, or the file that should follow it is missing, it becomes the last one and
everything after it is quarantined. A crash within recovery is harmless: it only cuts what is bad and moves
what is listed, and then runs again.

Below the recovery point's `synced`, and below the end that the seal of a clean stop names, no write can be torn:
damage there is rot. It stays where it is, and so does what follows it and was safe, in the last segment too: the log
ends where the seal says, and readers get CorruptDataError where they meet the damage. A `precious` log, which nobody
could do without a part of, is not opened then.
"""

from dataclasses import dataclass, field
from functools import partial

from anabranch.errors import AnabranchError, CorruptDataError
from anabranch.log import names
from anabranch.log.disk.checkpoint import RecoveryPoint
from anabranch.log.disk.files import Files
from anabranch.log.quarantine import Quarantined, keep_copy, quarantine
from anabranch.log.segment.index import IndexCache, OffsetIndex, TimeIndex
from anabranch.log.segment.scan import NO_TIMESTAMP, Scan, hop_to
from anabranch.log.segment.seal import HeadSums, Region, Seal, load_seal
from anabranch.log.segment.segment import Segment
from anabranch.log.segment.soundness import ALL_OFFSETS, SoundBatch, survey, survey_regions
from anabranch.log.segment.tail import Tail
from anabranch.log.settings import LogConfig
from anabranch.log.swap import resolve_leftovers
from anabranch.record.batch import batch_spans, crc_holds
from anabranch.values import Offset, SegmentState


@dataclass
class Recovered:
    """The segments, oldest first and the last one active (or none at all), and what recovery had to do."""

    segments: list[Segment] = field(default_factory=list)
    unsynced: list[Segment] = field(default_factory=list)
    """Sealed segments that may never have been synced."""
    quarantined: list[Quarantined] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)
    """What was safe once and is so no more."""
    scanned_bytes: int = 0
    cut_bytes: int = 0
    is_synced: bool = False
    """All of it is known to be on the disk, names included."""


@dataclass
class Opener:
    """One run over one folder."""

    files: Files
    folder: str
    config: LogConfig
    cache: IndexCache
    clean: bool
    point: RecoveryPoint | None
    start_offset: Offset
    precious: bool = False
    shares_syncs: bool = False
    """Several writes may have waited for one sync: a torn batch may be followed by whole ones."""
    keeps_cuts: bool = False
    """A copy of whatever is cut off goes to the quarantine, also of what looks like a write that was cut short."""
    closed_at: Offset = Offset(0)  # noqa: RUF009 - a number with a name, not a call that matters
    """Where the log ended at a clean stop, if its last segment has become shorter since."""
    result: Recovered = field(default_factory=Recovered)

    def run(self) -> Recovered:
        bases = self._drop_expired(self._bases(self._names_present()))
        for number, base in enumerate(bases):
            following = bases[number + 1] if number + 1 < len(bases) else None
            segment = self._segment(base)
            problem = self._open_sealed(segment, following) if following is not None else None
            if following is not None and problem is not None and self._was_safe(following):
                self._note_damage(problem)
                problem = None
            self.result.segments.append(segment)
            if not self.clean and following is not None and problem is None:
                self._doubt(segment, following)
            if following is None or problem is not None:
                if problem is not None:
                    segment.state = SegmentState.RECOVERING
                    self._set_aside(bases[number + 1 :], problem)
                self._open_active(segment, following)
                break
        self.result.is_synced = self._is_synced()
        return self.result

    def check_end(self) -> None:
        """After `run`: say so if the log does not reach as far as it was safe."""
        segments = self.result.segments
        end = segments[-1].published_offset if segments else self.start_offset
        if self.precious and self.start_offset and (not segments or end < self.start_offset):
            self._note_damage(f"{self.folder} does not reach its start at {self.start_offset}")
        if end < self.safe_end:
            self._note_damage(f"{self.folder} ends at {end}, and was safe up to {self.safe_end}")

    def check_start(self) -> None:
        """After `run`, if the durable start is sure to be right: say so if what begins there is gone."""
        segments = self.result.segments
        if self.point is not None and segments and segments[0].base_offset > self.start_offset:
            first = segments[0].base_offset
            self._note_damage(f"{self.folder} begins at {first}, and began at {self.start_offset} before")

    @property
    def safe_end(self) -> Offset:
        """How far the log is known to have been safe: the recovery point says it, and the seal of a clean stop."""
        return max(self.point.synced if self.point is not None else Offset(0), self.closed_at)

    def _was_safe(self, following: Offset) -> bool:
        return self.point is not None and following <= self.point.synced

    def _is_synced(self) -> bool:
        result = self.result
        if self.clean:
            return True
        if result.cut_bytes or result.quarantined or result.damaged or result.unsynced or not result.segments:
            return False
        active = result.segments[-1]
        # A sync makes the names durable too; of an empty segment nobody knows whether there has been one.
        return active.published_bytes > 0 and self._was_safe(active.published_offset)

    def _note_damage(self, problem: str) -> None:
        if self.precious:
            raise CorruptDataError(f"{problem}: restore {self.folder} from a backup.")
        self.result.damaged.append(problem)

    # --- which files ----------------------------------------------------------------------------------------

    def _names_present(self) -> list[str]:
        try:
            present = self.files.list(self.folder)
        except FileNotFoundError:
            self.files.make_folder(self.folder)
            return []
        if resolve_leftovers(self.files, self.folder, present):
            present = self.files.list(self.folder)
        return present

    def _bases(self, present: list[str]) -> list[Offset]:
        bases = []
        for name in present:
            base = names.base_offset_of(name)
            if name.endswith(names.DELETED):
                self.files.unlink(f"{self.folder}/{name}")
            elif name.endswith(names.LOG):
                if base is None or name != f"{base:020d}{names.LOG}":
                    reason = "its name is not twenty digits and .log"
                    self.result.quarantined += quarantine(self.files, self.folder, [name], reason)
                else:
                    bases.append(base)
            elif (
                base is not None and name[20:] in names.SIDECARS and f"{name[:20]}{names.LOG}" not in present
            ):
                self.files.unlink(f"{self.folder}/{name}")  # Derived from a log that is gone.
        return bases

    def _drop_expired(self, bases: list[Offset]) -> list[Offset]:
        """Segments wholly below the start of the log were being deleted when the process stopped."""
        first = 0
        while first + 1 < len(bases) and bases[first + 1] <= self.start_offset:
            self._unlink(bases[first])
            first += 1
        return bases[first:]

    def _unlink(self, base: Offset) -> None:
        for suffix in names.SUFFIXES:
            path = names.segment_path(self.folder, base, suffix)
            if self.files.exists(path):
                self.files.unlink(path)

    def _segment(self, base: Offset) -> Segment:
        segment = Segment(self.files, self.folder, base, self.config, self.cache)
        segment.published_bytes = self.files.size(segment.file.path)
        segment.synced_bytes = segment.published_bytes
        return segment

    # --- segments before the last ---------------------------------------------------------------------------

    def _open_sealed(self, segment: Segment, following: Offset) -> str | None:
        """Why the log cannot go on after this segment, or None."""
        segment.published_offset = following
        segment.state = SegmentState.SEALED
        seal = self._seal(segment)
        if seal is not None and seal.final:
            if seal.log_bytes > segment.published_bytes:
                return _size_problem(segment, seal)
            if seal.next_base != following:
                return f"the segment {seal.next_base} is missing after {segment.file.path}"
            is_trusted = self._is_trusted(following) and seal.log_bytes == segment.published_bytes
            return None if is_trusted else self._scan_sealed(segment, following, seal)
        if not segment.published_bytes and not self.config.compacted:
            return f"{segment.file.path} is empty but not the last"
        # Without a seal nobody has said how long it is: even if all its records are known to be whole, a write
        # that failed may have left bytes behind them.
        return None if self.clean else self._scan_sealed(segment, following, None)

    def _doubt(self, segment: Segment, following: Offset) -> None:
        """A process that was killed leaves whole segments in the page cache: the next sync must reach them."""
        if self.point is None or following > self.point.synced:
            segment.synced_bytes = -1
            self.result.unsynced.append(segment)

    def _is_trusted(self, following: Offset) -> bool:
        """Whether everything before this offset is known to be whole."""
        return self.clean or (self.point is not None and following <= self.point.offset)

    def _scan_sealed(self, segment: Segment, following: Offset, seal: Seal | None) -> str | None:
        segment.file.forget_cache()
        scan = Scan(segment.file, 0, segment.published_bytes, segment.offsets, check_crc=True)
        tail = Tail(segment.base_offset, self.config.index_interval_bytes)
        for batches in scan:
            tail.note(batches)
        self.result.scanned_bytes += scan.position
        is_all_there = scan.position == seal.log_bytes if seal is not None else scan.next_offset == following
        if scan.reason is not None and is_all_there:
            # A write that was taken back, or what never was one; the log goes on in the next file.
            self._cut(segment, scan, segment.published_bytes, are_records=False)
            segment.published_bytes = segment.synced_bytes = scan.position
        elif scan.reason is not None:
            return f"{segment.file.path} is damaged at position {scan.position}: {scan.reason}"
        elif seal is not None and not is_all_there:
            return _size_problem(segment, seal)
        # A seal has the word of the process that wrote it; the cleaner leaves gaps, and says so by a seal.
        if scan.next_offset < following and seal is None and not self.config.compacted:
            return f"{segment.file.path} ends before {scan.next_offset} and is followed by {following}"
        segment.warm.add(0, scan.position)
        tail.finish()
        segment.write_indexes(tail)
        return None

    def _set_aside(self, bases: list[Offset], problem: str) -> None:
        if self.precious and not self.shares_syncs:
            self._note_damage(problem)
        present = set(self.files.list(self.folder))
        wanted = []
        for base in bases:
            segment_names = [f"{base:020d}{suffix}" for suffix in names.SUFFIXES]
            if self.files.size(f"{self.folder}/{segment_names[0]}"):
                wanted += [name for name in segment_names if name in present]
            else:
                self._unlink(base)
        if wanted:
            reason = f"it follows what cannot be trusted: {problem}"
            self.result.quarantined += quarantine(self.files, self.folder, wanted, reason)
        self.files.sync_folder(self.folder)

    # --- the last segment -----------------------------------------------------------------------------------

    def _open_active(self, segment: Segment, following: Offset | None) -> None:
        """`following` is where the segment behind a torn one began: what made it torn must not be taken for whole."""
        seal = self._seal(segment)
        tail, offsets = None, segment.offsets
        if following is not None:
            sealed_end = seal.next_base if seal is not None and seal.final else following
            offsets = range(segment.base_offset, max(following, sealed_end))
        elif self.clean:
            tail = self._trusted_tail(segment, seal)
        if tail is None:
            tail = self._scanned_tail(segment, seal, offsets)
        if seal is not None and not seal.final and seal.log_bytes > tail.end_bytes and not self.keeps_cuts:
            self.closed_at = seal.next_base
        if seal is None or seal.final or seal.log_bytes > tail.end_bytes:
            self._drop_seal(segment)
        segment.activate(tail)

    def _drop_seal(self, segment: Segment) -> None:
        """It speaks of what is gone, durably: were it to come back after a power cut, it would be believed about
        the records that were written instead. One that was written at a clean stop speaks of what was synced;
        it stays."""
        path = names.segment_path(self.folder, segment.base_offset, names.SEAL)
        if self.files.exists(path):
            self.files.unlink(path)
            self.files.sync_folder(self.folder)

    def _trusted_tail(self, segment: Segment, seal: Seal | None) -> Tail | None:
        """After a clean stop: walk only what follows the last index entry. None if that does not work out.

        The seal was not synced at that stop: a power cut may have left an older one, which speaks of a shorter
        log, or none.
        """
        covering = _covering(segment, seal)
        is_current = covering is not None and covering.log_bytes == segment.published_bytes
        indexes = self._sealed_indexes(segment, covering if is_current else None)
        saved = (len(indexes[0]), len(indexes[1])) if indexes is not None else None
        tail, start = self._resumed(segment, *(indexes or (OffsetIndex(), TimeIndex())), covering)
        scan = self._walk(segment, tail, start, segment.offsets, covering, check_crc=False)
        if scan.reason is not None:
            return None
        if is_current:
            segment.note_closed(saved)
        return tail

    def _walk(
        self,
        segment: Segment,
        tail: Tail,
        start: int,
        offsets: range,
        seal: Seal | None,
        *,
        check_crc: bool = True,
    ) -> Scan:
        """Note the batches from `start` on. Those that the seal covers must end with the offset that it names: the end
        of the log must not rest on a changed head."""
        if seal is not None and start < seal.log_bytes:
            covered = range(offsets.start, seal.next_base)
            scan = Scan(segment.file, start, seal.log_bytes, covered, check_crc=check_crc)
            for batches in scan:
                tail.note(batches)
            if scan.reason is None and scan.next_offset != seal.next_base:
                scan.reason = f"it ends at offset {scan.next_offset}, and was closed at {seal.next_base}"
            if scan.reason is not None:
                return scan
            start = seal.log_bytes
        if seal is not None and start == seal.log_bytes:
            offsets = range(seal.next_base, offsets.stop)
        scan = Scan(segment.file, start, segment.published_bytes, offsets, check_crc=check_crc)
        for batches in scan:
            tail.note(batches)
        return scan

    def _sealed_indexes(self, segment: Segment, seal: Seal | None) -> tuple[OffsetIndex, TimeIndex] | None:
        """The indexes as they are on disk, if the seal knows them: retention must not go by others."""
        if seal is None:
            return None
        try:
            index, time_index = segment.read_indexes()
        except (OSError, CorruptDataError):
            return None
        largest = time_index.timestamps[-1] if time_index else NO_TIMESTAMP
        return (index, time_index) if seal.max_timestamp == largest else None

    def _scanned_tail(self, segment: Segment, seal: Seal | None, offsets: range) -> Tail:
        end = segment.published_bytes
        # Where a person decides what goes, nothing damaged stays; but what is left must not be summed anew.
        covering = None if self.keeps_cuts else _covering(segment, seal)
        known = seal if self.keeps_cuts else covering
        tail, start = self._resumed(segment, *self._indexes_below_point(segment), known)
        segment.file.forget_cache(start)
        scan = self._walk(segment, tail, start, offsets, covering)
        if scan.position == start > 0 and scan.reason is not None:
            # The batch that the index leads to does not hold: only those before it tell which offset comes next.
            tail, start = self._resumed(segment, OffsetIndex(), TimeIndex(), known)
            scan = self._walk(segment, tail, start, offsets, covering)
        self.result.scanned_bytes += scan.position - start
        cut_from = max(start, covering.log_bytes) if covering is not None else start
        if scan.reason is not None and (around := self._around_damage(segment, scan, covering, offsets)):
            self._note_damage(f"{segment.file.path} is damaged at position {scan.position}: {scan.reason}")
            tail, cut_from = around, around.end_bytes
            scan = self._walk(segment, tail, cut_from, range(tail.next_offset, offsets.stop), None)
        if scan.position < end:
            sums = known.sums if known is not None and self.keeps_cuts else HeadSums()
            stop = _end_of_sound(segment, sums.regions(cut_from, scan.position), offsets, scan.position)
            if stop < scan.position:
                scan.reason = f"the head of the batch here was changed, and behind it {scan.reason}"
                scan.position = stop
                self._cut(segment, scan, end)
                segment.published_bytes = stop
                return self._scanned_tail(segment, seal, offsets)
        segment.warm.add(start, scan.position)
        if known is not None and scan.position < known.log_bytes:
            tail.sums = tail.sums.below(scan.position)
        if scan.position < end:
            self._cut(segment, scan, end)
        if not self._was_safe(tail.next_offset):
            segment.synced_bytes = -1  # It may never have been synced; the next sync makes sure.
        return tail

    def _around_damage(self, segment: Segment, scan: Scan, seal: Seal | None, offsets: range) -> Tail | None:
        """A tail with what holds of what was safe, which no write can have torn; None if the scan met no damage there.
        Safe is what a seal covers, and what comes before a batch that begins below the recovery point's `synced`."""
        covered = seal.log_bytes if seal is not None else 0
        end = segment.published_bytes
        is_sealed = seal is not None and (
            scan.position < covered or (scan.position == covered and scan.next_offset != seal.next_base)
        )
        if not is_sealed and not self._safe_among(segment, scan.position, end, scan.next_offset, offsets):
            return None
        tail = Tail(segment.base_offset, self.config.index_interval_bytes)
        if seal is not None:
            tail.sums = seal.sums.below(covered)
            sealed = range(offsets.start, seal.next_base)
            _note_sound(segment, tail, _survey(segment, seal.sums.regions(0, covered), sealed))
            if (tail.end_bytes, tail.next_offset) != (covered, seal.next_base):
                tail.skip_to(covered, seal.next_base)
            if seal.max_timestamp > tail.max_timestamp:
                tail.max_timestamp, tail.max_timestamp_offset = seal.max_timestamp, Offset(seal.next_base - 1)
        behind = range(tail.next_offset, offsets.stop)
        _note_sound(segment, tail, self._safe_among(segment, covered, end, tail.next_offset, behind))
        return tail if is_sealed or tail.end_bytes > scan.position else None

    def _safe_among(
        self, segment: Segment, start: int, end: int, next_offset: int, offsets: range
    ) -> list[SoundBatch]:
        """The batches of these bytes that hold, up to the last one before which everything was safe. A batch before it
        that claims a larger offset than was safe lies about it."""
        synced = self.point.synced if self.point is not None else Offset(0)
        if start >= end or not synced:
            return []

        data, region = memoryview(segment.file.pread(end - start, start)), Region(start, end, None)
        among = partial(survey, data, region, next_offset=next_offset, safe_upto=synced)
        found = [batch for batch in among(offsets) if batch.base_offset <= synced]
        below = among(range(offsets.start, min(offsets.stop, synced)))
        return max(found, below, key=lambda batches: batches[-1].end if batches else 0)

    def _indexes_below_point(self, segment: Segment) -> tuple[OffsetIndex, TimeIndex]:
        """What the indexes say up to the recovery point, if they can be believed; else nothing, and all is
        scanned."""
        nothing = OffsetIndex(), TimeIndex()
        if self.point is None or self.point.offset <= segment.base_offset:
            return nothing
        try:
            index, time_index = segment.read_indexes()
            entry = index.entry_at_or_before(self.point.offset - 1 - segment.base_offset)
            if entry is None or not time_index:
                return nothing
            found = hop_to(segment.file, entry[1], segment.published_bytes, -1)
        except (OSError, CorruptDataError):
            return nothing
        if found is None or found.last_offset != segment.base_offset + entry[0]:
            return nothing
        index.cut(entry[1] + 1)
        time_index.cut(entry[0])
        return index, time_index

    def _resumed(
        self, segment: Segment, index: OffsetIndex, time_index: TimeIndex, seal: Seal | None
    ) -> tuple[Tail, int]:
        """With the sums of this seal, or those that lie below the last index entry."""
        tail = Tail(segment.base_offset, self.config.index_interval_bytes)
        first_timestamp = None
        if index:
            try:
                header = segment.first_header()
            except CorruptDataError:
                index, time_index, header = OffsetIndex(), TimeIndex(), None  # The scan will say it.
            first_timestamp = header.max_timestamp if header is not None else None
        sums = seal.sums.below(seal.log_bytes) if seal is not None else self._sums_below(segment, index)
        start = tail.resume(index, time_index, sums, first_timestamp)
        return tail, start

    def _sums_below(self, segment: Segment, index: OffsetIndex) -> HeadSums:
        if not index:
            return HeadSums()
        return segment.read_sums().below(index.positions[-1])

    def _cut(self, segment: Segment, scan: Scan, end: int, *, are_records: bool = True) -> None:
        """Cut to the last good batch. What is more than a torn end is kept aside first. `are_records`: all that the
        segment should have may not be there."""
        rest = segment.file.pread(end - scan.position, scan.position)
        is_rot = are_records and self._was_safe(Offset(scan.next_offset + 1))
        is_odd = rest.count(0) != len(rest) and _another_batch_follows(rest)
        if is_rot or (is_odd and are_records and not self.shares_syncs):
            self._note_damage(f"{segment.file.path} is damaged at position {scan.position}: {scan.reason}")
        if is_rot or is_odd or self.keeps_cuts:
            name = f"{segment.base_offset:020d}{names.LOG}"
            kept = keep_copy(self.files, self.folder, name, scan.position, rest, str(scan.reason))
            self.result.quarantined += kept
        segment.file.truncate(scan.position)
        segment.file.sync()
        self.result.cut_bytes += end - scan.position

    def _seal(self, segment: Segment) -> Seal | None:
        try:
            return load_seal(
                self.files.read(names.segment_path(self.folder, segment.base_offset, names.SEAL))
            )
        except (OSError, CorruptDataError):
            return None


def _size_problem(segment: Segment, seal: Seal) -> str:
    return f"{segment.file.path} has {segment.published_bytes} bytes and was sealed with {seal.log_bytes}"


def _covering(segment: Segment, seal: Seal | None) -> Seal | None:
    """The seal, if it was written at a clean stop, when all that it speaks of was on the disk, and is true."""
    return seal if seal is not None and not seal.final and seal.log_bytes <= segment.published_bytes else None


def _survey(segment: Segment, regions: list[Region], offsets: range) -> list[SoundBatch]:
    """`regions` are all of the segment, `offsets` those that its batches have had."""

    def bytes_of(region: Region) -> memoryview:
        return memoryview(segment.file.pread(region.end - region.start, region.start))

    return survey_regions(regions, bytes_of, offsets, next_offset=offsets.start, end_offset=offsets.stop)


def _note_sound(segment: Segment, tail: Tail, sound: list[SoundBatch]) -> None:
    """Note batches that hold; what lies between them is skipped."""
    runs: list[SoundBatch] = []
    for batch in sound:
        if runs and runs[-1].end == batch.position:
            runs[-1] = runs[-1]._replace(end=batch.end, last_offset=batch.last_offset)
        else:
            runs.append(batch)
    for run in runs:
        if run.position != tail.end_bytes:
            tail.skip_to(run.position, Offset(run.base_offset))
        offsets = range(run.base_offset, run.last_offset + 1)
        for batches in Scan(segment.file, run.position, run.end, offsets, check_crc=False):
            tail.note(batches)


def _end_of_sound(segment: Segment, regions: list[Region], offsets: range, position: int) -> int:
    """Where the batches end that may stay before a cut at `position`: the offset at which the log ends must not rest on
    a changed head. Of a region that is cut only what comes before its first changed head stays, because nobody could
    tell that head any more. Without a sum, the batches right behind the cut tell which of those before it is wrong."""
    for region in reversed(regions):
        is_summed = region.crc is not None
        if not is_summed:
            end = _end_of_whole(segment, position)
            if end == position:
                return position
            region = region._replace(end=end)
        data = memoryview(segment.file.pread(region.end - region.start, region.start))
        if len(data) < region.end - region.start:
            return position
        found = survey(data, region, offsets)
        if is_summed and not found and len(survey(data, region._replace(crc=None), offsets)) != 1:
            return position  # Nothing tells which head it is.
        if found and found[-1].end == region.end <= position:
            return position
        stop = region.start
        for batch in found:
            if batch.position == stop and batch.end <= position:
                stop = batch.end
        if stop > region.start:
            return stop
        position = stop
    return position


def _end_of_whole(segment: Segment, position: int) -> int:
    """Where the batches from `position` on end that hold, by their CRCs and growing offsets. What lies behind the first
    that does not may be the inside of its records."""
    scan = Scan(segment.file, position, segment.published_bytes, ALL_OFFSETS, check_crc=True)
    for _ in scan:
        pass
    return scan.position


def _another_batch_follows(rest: bytes) -> bool:
    """Whether a whole batch comes after the first, bad one: then this is no write that was cut short."""
    try:
        spans = batch_spans(rest)
        next(spans)
        start, end = next(spans)
    except (AnabranchError, StopIteration):
        return False
    return crc_holds(rest, start, end)
