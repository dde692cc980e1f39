"""A partition's log: its segments, oldest first, the last one active.

One thread, the writer, calls everything but `sync`, which is made for a worker, and what a `Slice` allows. An
append writes all of its batches or keeps none. `end_offset` moves when the bytes are in the file,
`synced_offset` when they are on the disk; the difference is what a power cut may take. A failed sync fences
the log for good: what the disk holds is then unknown, and only a restart, which reads it again, can tell. A
crash at any point leaves a folder that `open` recovers. How a log is read is in log_reader.py.
"""

import threading
from collections.abc import Sequence

from anabranch.errors import FencedLogError, OffsetOutOfRangeError, StorageError
from anabranch.log import names
from anabranch.log.disk.checkpoint import RecoveryMark, RecoveryPoint
from anabranch.log.disk.files import Bytes, File, Files, write_fully
from anabranch.log.log_reader import LogReader
from anabranch.log.recovery import Opener, Recovered
from anabranch.log.retention import Age, expired_count, is_expired
from anabranch.log.segment.index import IndexCache
from anabranch.log.segment.rolling import Run, Stamped, fits, is_old, noted, plan_runs
from anabranch.log.segment.scan import NO_TIMESTAMP
from anabranch.log.segment.seal import HeadSums
from anabranch.log.segment.segment import Segment
from anabranch.log.segment.tail import Tail
from anabranch.log.settings import LogConfig
from anabranch.log.swap import Rewritten, delete_segments, finish_swap, undo_leftovers
from anabranch.values import Offset, is_lane_gap


class Log(LogReader):
    def __init__(
        self, files: Files, folder: str, config: LogConfig, cache: IndexCache, recovered: Recovered
    ) -> None:
        super().__init__(folder, config, recovered.segments)
        self.quarantined = recovered.quarantined
        self.damaged = recovered.damaged
        self.scanned_bytes = recovered.scanned_bytes
        self.cut_bytes = recovered.cut_bytes
        self._files = files
        self._cache = cache
        self.synced_offset: Offset = self._start_offset
        self.firm_offset: Offset | None = None
        """Where others have a say in what the log holds: what lies above may still be cut, and a recovery must not
        miss it. None: nothing is ever cut."""
        self._fenced_because: str | None = None
        self._unsynced = recovered.unsynced
        self._unsynced_lock = threading.Lock()
        self._folder_changes = 0
        self._folder_changes_synced = 0
        self._sync_lock = threading.Lock()
        self._folder_lock = threading.Lock()
        self._unfinished: list[Rewritten] = []

    @classmethod
    def open(
        cls,
        files: Files,
        folder: str,
        config: LogConfig,
        *,
        clean: bool,
        recovery_point: RecoveryPoint | None = None,
        start_offset: Offset = Offset(0),  # noqa: B008 - a number with a name, not a call that matters
        index_cache: IndexCache | None = None,
        precious: bool = False,
        shares_syncs: bool = False,
        was_in_lanes: bool = False,
        keeps_cuts: bool = False,
        is_only_copy: bool = False,
        is_start_sure: bool = False,
    ) -> "Log":
        """Open or make a partition's folder; `clean` says that the last process closed it and said so.

        `start_offset` is the durable start of the log: what lies wholly below it is removed. Raises
        StorageError; and CorruptDataError if the log is `precious` and has lost something that was safe, or may
        have been: unless it `shares_syncs`, what it lost was safe if whole batches follow. One that `was_in_lanes` may
        begin within a gap between two of them. With `keeps_cuts` nothing is cut off without a copy in the quarantine.
        One that `is_only_copy` and has lost its end goes on where it was safe, with a gap: nobody else has what it
        lacks, and offsets that were given before are not given again. `is_start_sure`: a log that begins behind
        `start_offset` has lost what came before.
        """
        cache = index_cache if index_cache is not None else IndexCache()
        opener = Opener(
            files,
            folder,
            config,
            cache,
            clean,
            recovery_point,
            start_offset,
            precious,
            shares_syncs,
            keeps_cuts,
        )
        try:
            recovered = opener.run()
            opener.check_end()
            if is_start_sure:
                opener.check_start()
            _drop_ended(files, folder, recovered, start_offset)
            made = not recovered.segments
            if made:
                # Offsets that were given before are not given again, even if all of their records are lost.
                synced = recovery_point.synced if recovery_point is not None else start_offset
                base = max(start_offset, synced)
                recovered.segments.append(_create_segment(files, folder, base, config, cache))
        except OSError as error:
            raise StorageError(f"{folder} cannot be opened: {error.strerror or error}.") from error
        log = cls(files, folder, config, cache, recovered)
        log._folder_changes = 1 if made or not recovered.is_synced else 0
        log.advance_start(min(start_offset, log.end_offset))
        if was_in_lanes and is_lane_gap(start_offset, log._bases[0]):
            log._start_offset = start_offset  # Whoever has read all before the gap has missed nothing.
        if is_only_copy and log.end_offset < opener.safe_end:
            log.advance_end(opener.safe_end)
        if clean:
            log.synced_offset = log.end_offset
        elif recovery_point is not None:
            log.synced_offset = max(log.start_offset, min(recovery_point.synced, log.end_offset))
        return log

    # --- what is known --------------------------------------------------------------------------------------

    @property
    def fenced(self) -> bool:
        return self._fenced_because is not None

    @property
    def is_synced(self) -> bool:
        """All there is has reached the disk."""
        return self.synced_offset == self.end_offset and self._folder_changes == self._folder_changes_synced

    def is_sync_small(self, bytes_max: int) -> bool:
        """A sync now would concern the active segment alone, and at most that much of it."""
        active = self._active
        return (
            active.published_bytes - active.synced_bytes <= bytes_max
            and not self._unsynced
            and self._folder_changes == self._folder_changes_synced
        )

    @property
    def recovery_mark(self) -> RecoveryMark:
        """For the checkpoint of recovery points. A fenced log's cache holds what its disk may not."""
        written = self.synced_offset if self.fenced else self.end_offset
        if self.firm_offset is not None:
            return RecoveryMark(min(self.synced_offset, self.firm_offset), min(written, self.firm_offset))
        return RecoveryMark(self.synced_offset, written)

    # --- append ---------------------------------------------------------------------------------------------

    def append(self, batches: Sequence[Stamped], now_ms: int) -> None:
        """Write stamped batches at the end: all of them, or StorageError and none. FencedLogError: never
        again."""
        if self._fenced_because is not None:
            self._refuse_if_fenced()
        if not batches:
            return
        active = self._active
        data, first_offset, last_offset, newest = batches[0]
        assert first_offset >= active.published_offset, "offsets are given in order"
        buffers, size = [data], len(data)
        if len(batches) > 1:
            buffers = [batch[0] for batch in batches]
            size = sum([len(buffer) for buffer in buffers])
            last_offset, newest = batches[-1][2], max([batch[3] for batch in batches])
        if fits(active, size, last_offset, newest, self.config, now_ms):
            self._write_on(active, buffers, size)
            active.note_appended(noted(batches))
            return
        runs = plan_runs(active, batches, self.config, now_ms)
        created = self._write(runs)
        for base, run in runs:
            if base is not None:
                self._roll_onto(created[base], base, keeps_start=True)
            if self._active.created_ms is None:
                self._active.created_ms = now_ms
            self._active.note_appended(noted(run))

    def _write_on(self, active: Segment, buffers: list[Bytes], size: int) -> None:
        """The usual case: all of it goes to the end of the active segment, in one call."""
        try:
            if active.file.pwritev(buffers, active.published_bytes) != size:
                write_fully(active.file, buffers, active.published_bytes)  # Which finds out why.
        except OSError as error:
            self._undo({})
            raise self._unwritable(error) from error

    def _write(self, runs: list[Run]) -> dict[Offset, File]:
        """Put all bytes into their files; nothing in memory changes yet, so that a failure has only files to
        undo."""
        created: dict[Offset, File] = {}
        try:
            for base, run in runs:
                file, position = self._active.file, self._active.published_bytes
                if base is not None:
                    file, position = self._files.create(self._log_path(base)), 0
                    created[base] = file
                write_fully(file, [batch[0] for batch in run], position)
        except OSError as error:
            self._undo(created)
            raise self._unwritable(error) from error
        return created

    def _unwritable(self, error: OSError) -> StorageError:
        return StorageError(f"{self.folder} took no write: {error.strerror or error}.")

    def _undo(self, created: dict[Offset, File]) -> None:
        # Until these are synced too, a power cut may bring back what was taken back, next to what came later.
        self._active.cuts += 1
        self._folder_changes += len(created)
        try:
            self._active.file.truncate(self._active.published_bytes)
            for base, file in created.items():
                file.close()
                self._files.unlink(self._log_path(base))
        except OSError as error:
            self._fence(f"a failed write could not be taken back: {error.strerror or error}", error)

    # --- rolling --------------------------------------------------------------------------------------------

    def roll(self) -> None:
        """Seal the active segment and begin an empty one; nothing happens if it is empty itself."""
        self._refuse_if_fenced()
        if not self._active.published_bytes:
            return
        base = self.end_offset
        try:
            file = self._files.create(self._log_path(base))
        except OSError as error:
            raise StorageError(f"{self.folder} cannot begin a segment: {error.strerror or error}.") from error
        self._roll_onto(file, base)

    def roll_if_due(self, now_ms: int) -> bool:
        """Roll a segment that has been written to for `segment_ms`."""
        due = self._active.published_bytes > 0 and is_old(self._active, self.config, now_ms)
        if self._active.created_ms is None:
            self._active.created_ms = now_ms
        if due:
            self.roll()
        return due

    def _roll_onto(self, file: File, base: Offset, *, keeps_start: bool = False) -> None:
        """What was begun without a record stays where a seal has named it: were that written anew, a crash in between
        would look like a missing file. `keeps_start`: it also stays where the log begins, which may be with a gap."""
        file.close()  # The segment opens the file itself, when it first needs it.
        segment = _new_segment(self._files, self.folder, base, self.config, self._cache)
        old = self._active
        is_kept = keeps_start or old.published_bytes > 0 or len(self._segments) > 1
        if is_kept:
            old.seal(base)
            with self._unsynced_lock:
                self._unsynced.append(old)  # Before the switch: `sync` looks at the active segment first.
        else:
            self._forget(old)
        self._segments.append(segment)
        self._bases.append(base)
        self._active = segment
        self._folder_changes += 1
        if not is_kept:
            self.delete_files([old])

    # --- sync -----------------------------------------------------------------------------------------------

    def sync(self) -> Offset:
        """Any thread: make durable what was appended before this; answers the offset up to which all is."""
        with self._sync_lock:
            if self._fenced_because is not None:
                self._refuse_if_fenced()
            # In this order: a roll puts the old segment among the unsynced before it replaces the active one.
            active = self._active
            target = active.published_offset
            try:
                if self._unsynced or self._folder_changes != self._folder_changes_synced:
                    self._sync_all(active)
                else:
                    active.sync()
            except OSError as error:
                self._fence(f"a sync failed: {error.strerror or error}", error)
            if target > self.synced_offset:
                self.synced_offset = target
            return target

    def _sync_all(self, active: Segment) -> None:
        """After a roll: what was sealed, and the names of the files too."""
        with self._unsynced_lock:
            sealed, folder_changes = list(self._unsynced), self._folder_changes
        for segment in sealed:
            segment.sync()
            segment.sync_sidecars()
        active.sync()
        if folder_changes != self._folder_changes_synced:
            self._files.sync_folder(self.folder)
        self._folder_changes_synced = folder_changes
        self._settle(sealed)

    def _settle(self, segments: Sequence[Segment]) -> None:
        """These need no more sync."""
        with self._unsynced_lock:
            self._unsynced = [segment for segment in self._unsynced if segment not in segments]

    def _fence(self, reason: str, error: OSError) -> None:
        self._fenced_because = reason
        raise FencedLogError(f"{self.folder} takes no more writes until a restart: {reason}.") from error

    def _refuse_if_fenced(self) -> None:
        if self._fenced_because is not None:
            raise FencedLogError(f"{self.folder} takes no writes until a restart: {self._fenced_because}.")

    # --- the old end ----------------------------------------------------------------------------------------

    def advance_start(self, offset: Offset) -> None:
        """Readers may not go below `offset` any more. The caller keeps it durable; it never moves back."""
        if offset > self.end_offset:
            raise OffsetOutOfRangeError(
                f"Offset {offset} lies beyond the end {self.end_offset} of {self.folder}."
            )
        self._start_offset = max(self._start_offset, offset)

    def expired(self, now_ms: int) -> list[Segment]:
        """The segments that retention or DeleteRecords lets go, oldest first; hand them to `drop`.

        An active segment that is expired as a whole is rolled first, as Kafka does, so that it may go too.
        """
        if self._active.published_bytes and not self.fenced and self._active_may_go(now_ms):
            self.roll()
        expired = self._seem_expired(now_ms)
        while any(self._is_wrongly_old(segment, now_ms) for segment in expired):
            expired = self._seem_expired(now_ms)
        return expired

    def _is_wrongly_old(self, segment: Segment, now_ms: int) -> bool:
        old = is_expired(segment.largest_timestamp()[0], self.config, now_ms)
        return old and segment.doubts_largest_timestamp()

    def _seem_expired(self, now_ms: int) -> list[Segment]:
        sealed = self._segments[:-1]
        ages = [
            Age(segment.published_bytes, segment.largest_timestamp()[0], self._run_end(number))
            for number, segment in enumerate(sealed)
        ]
        count = expired_count(ages, self._active.published_bytes, self._start_offset, self.config, now_ms)
        return sealed[:count]

    def _active_may_go(self, now_ms: int) -> bool:
        return is_expired(self._active.largest_timestamp()[0], self.config, now_ms)

    def drop(self, segments: Sequence[Segment]) -> list[Segment]:
        """Take the oldest segments out of the log and move its start; then `delete_files` in a worker.

        Answers those that were still there. Keep the new start offset durable before their files go. Before a gap
        between lanes the start is where the gap begins: whoever has read that far has missed nothing.
        """
        dropped = []
        start = self._start_offset
        for segment in segments:
            if self._segments[0] is not segment or segment is self._active:
                break
            start = max(start, self._run_end(0))
            self._forget(segment)
            dropped.append(segment)
        self._start_offset = start
        return dropped

    def delete_files(self, segments: Sequence[Segment]) -> None:
        """Any thread; after `drop`. StorageError if a file stays behind: the next `open` removes it."""
        with self._folder_lock:
            try:
                delete_segments(self._files, segments)
            except OSError as error:
                raise StorageError(f"{self.folder} cannot delete: {error.strerror or error}.") from error

    # --- compaction --------------------------------------------------------------------------------------

    def swap_in(self, rewritten: Rewritten) -> bool:
        """Put a cleaned segment in the place of those it was made of, in memory; then `finish_swap`.

        False if they are not all there any more (retention was faster): then nothing changes, and
        `finish_swap` removes the cleaned files.
        """
        old = list(rewritten.sources)
        first = self._segments.index(old[0]) if old[0] in self._segments else len(self._segments)
        if self._segments[first : first + len(old)] != old or self._active in old:
            return False
        for segment in old:
            self._forget(segment)
            segment.close()  # From now on its name means another file: only who has it pinned reads on.
        base, config = old[0].base_offset, self.config
        cleaned = Segment(self._files, self.folder, base, config, self._cache, suffix=names.SWAP)
        cleaned.take_cleaned(rewritten.tail, old[-1].published_offset)
        self._segments.insert(first, cleaned)
        self._bases.insert(first, base)
        rewritten.cleaned = cleaned
        return True

    def finish_swap(self, rewritten: Rewritten) -> None:
        """Any thread; after `swap_in`, whatever it answered. Brings the files in line with the log."""
        with self._folder_lock:
            self._unfinished.append(rewritten)
            self._finish_swaps()

    def prepare_rewrite(self) -> None:
        """Any thread; before each `rewrite`. Ends what an earlier one could not, or its files would be taken
        for those of the next. StorageError if the disk still refuses."""
        with self._folder_lock:
            self._finish_swaps()
            try:
                undo_leftovers(self._files, self.folder)
            except OSError as error:
                raise StorageError(f"{self.folder} cannot swap: {error.strerror or error}.") from error

    def _finish_swaps(self) -> None:
        try:
            while self._unfinished:
                finish_swap(self._files, self.folder, self._unfinished[0])
                del self._unfinished[0]
        except OSError as error:
            raise StorageError(f"{self.folder} cannot swap: {error.strerror or error}.") from error

    def _forget(self, segment: Segment) -> None:
        number = self._segments.index(segment)
        del self._segments[number], self._bases[number]
        segment.dropped = True
        self._settle([segment])

    # --- upkeep ---------------------------------------------------------------------------------------------

    def flush_indexes(self) -> None:
        """Write what the indexes have in memory, so that a recovery may begin near the end. StorageError if
        not."""
        try:
            for segment in self._segments:
                segment.save()
        except OSError as error:
            raise StorageError(
                f"{self.folder} cannot keep its indexes: {error.strerror or error}."
            ) from error

    def truncate_to(self, offset: Offset) -> None:
        """Forget every batch that reaches `offset` or beyond, durably. Later segments go, newest first."""
        self._refuse_if_fenced()
        if offset < self._start_offset:
            raise OffsetOutOfRangeError(
                f"Offset {offset} lies below the start {self._start_offset} of {self.folder}."
            )
        assert self.firm_offset is None or offset >= self.firm_offset, "what is firm is not cut"
        with self._sync_lock:
            try:
                self._truncate(offset)
            except OSError as error:
                self._fence(f"a truncation failed half way: {error.strerror or error}", error)

    def cut_back(self, offset: Offset) -> None:
        """End right at `offset`, durably, even if all there is begins behind it."""
        if offset < self._start_offset:
            self._refuse_if_fenced()
            self._start_offset = max(offset, Offset(min(self._bases[0], self._start_offset)))
        self.truncate_to(max(offset, self._start_offset))
        if self.end_offset != offset:
            self._begin_at(offset, keeps_start=self.end_offset < offset)
            self._start_offset = min(self._start_offset, offset)
            self.synced_offset = min(self.synced_offset, offset)

    def advance_end(self, offset: Offset, *, keeps_start: bool = False) -> None:
        """Go on at `offset`: what lies between is no more, at whoever this log is copied from. One without records
        begins there then, unless it `keeps_start`: then there never was anything between."""
        self._refuse_if_fenced()
        assert offset > self.end_offset, "offsets are given in order"
        self._begin_at(offset, keeps_start=keeps_start)

    def _begin_at(self, offset: Offset, *, keeps_start: bool = False) -> None:
        is_blank = len(self._segments) == 1 and not self._active.published_bytes
        try:
            file = self._files.create(self._log_path(offset))
        except OSError as error:
            raise StorageError(f"{self.folder} cannot begin a segment: {error.strerror or error}.") from error
        self._roll_onto(file, offset, keeps_start=keeps_start)
        if is_blank and not keeps_start:
            self._start_offset = max(self._start_offset, offset)

    def _truncate(self, offset: Offset) -> None:
        while len(self._segments) > 1 and self._active.base_offset >= offset:
            last = self._active
            self._active = self._segments[-2]
            self._forget(last)
            self.delete_files([last])
        segment = self._active
        found = segment.locate(offset)
        size = found.position if found is not None else segment.published_bytes
        segment.reopen(size)
        self.synced_offset = min(self.synced_offset, self.end_offset)
        self._settle([segment])

    def restart_at(self, offset: Offset) -> None:
        """Forget every batch, durably, and go on at `offset`, wherever that lies. A crash half way leaves a hole: the
        caller has to know of it, and to call `clear_segments` before the next `open`."""
        self._refuse_if_fenced()
        with self._sync_lock, self._folder_lock:
            for segment in self._segments:
                segment.dropped = True
                segment.close()
            try:
                clear_segments(self._files, self.folder, offset)
            except OSError as error:
                self._fence(f"it could not begin anew: {error.strerror or error}", error)
            with self._unsynced_lock:
                self._unsynced = []
            self._active = _new_segment(self._files, self.folder, offset, self.config, self._cache)
            self._segments[:], self._bases[:] = [self._active], [offset]
            self._start_offset = self.synced_offset = offset
            self._folder_changes_synced = self._folder_changes

    def close(self, *, clean: bool = True) -> None:
        """End the log. A clean close leaves records and indexes synced and the seal written: the next `open` trusts
        them. What has not changed since a clean open is not touched."""
        try:
            if clean:
                self._close_cleanly()
        finally:
            for segment in self._segments:
                segment.close()

    def _close_cleanly(self) -> None:
        self._refuse_if_fenced()  # One whose truncation failed half way has no tail to save.
        self.flush_indexes()
        active, changed = self._active, not self._active.is_closed
        try:
            if changed:
                active.save_at_close()
            self.sync()
            if changed:
                active.write_closing_seal()
        except OSError as error:
            raise StorageError(
                f"{self.folder} cannot keep its indexes: {error.strerror or error}."
            ) from error

    def _log_path(self, base: Offset) -> str:
        return names.segment_path(self.folder, base, names.LOG)


def clear_segments(files: Files, folder: str, base: Offset) -> None:
    """Leave one empty segment that begins at `base`, durably, and nothing else."""
    files.make_folder(folder)
    for name in files.list(folder):
        if names.base_offset_of(name) is not None:
            files.unlink(f"{folder}/{name}")
    files.create(names.segment_path(folder, base, names.LOG)).close()
    files.sync_folder(folder)


def begin_with_gap(files: Files, folder: str, start: Offset, first: Offset) -> None:
    """Let the log of a folder, whose first segment begins at `first`, begin at `start` already. The caller syncs the
    folder. Raises OSError."""
    files.create(names.segment_path(folder, start, names.LOG)).close()
    seal = HeadSums().dump(first, 0, NO_TIMESTAMP, final=True)
    files.write(names.segment_path(folder, start, names.SEAL), seal, sync=True)


def _drop_ended(files: Files, folder: str, recovered: Recovered, start_offset: Offset) -> None:
    """A log that has lost its end below its durable start goes on there, as Kafka's does.

    All it has left was deleted before. Were its lost offsets given again, the next open would take the new
    records for deleted ones.
    """
    if recovered.segments and recovered.segments[-1].published_offset < start_offset:
        delete_segments(files, recovered.segments)
        files.sync_folder(folder)
        recovered.segments.clear()
        recovered.unsynced.clear()


def _new_segment(files: Files, folder: str, base: Offset, config: LogConfig, cache: IndexCache) -> Segment:
    segment = Segment(files, folder, base, config, cache)
    segment.activate(Tail(base, config.index_interval_bytes))
    return segment


def _create_segment(files: Files, folder: str, base: Offset, config: LogConfig, cache: IndexCache) -> Segment:
    files.create(names.segment_path(folder, base, names.LOG)).close()
    return _new_segment(files, folder, base, config, cache)


__all__ = ["Log", "LogConfig", "Stamped", "begin_with_gap", "clear_segments"]
