"""LaneLogs: the lanes of one partition that this broker holds, each an ordinary log in a folder of its own.

    <topic>-<partition>/lane-0000000005/00000000021474836480.log ...

A lane is written once, by one reign, from its start on, and copied by others as a prefix; it is never cut back. So
whatever happens to the lines that go through it, its records stay where they are until retention. A folder that no row
of the branch log names was never served: a crash came before the row. If there are records in it, it is kept aside for
one more start, in case it is the row that got lost.

Methods are for the loop's thread, or for a worker while nobody else has the partition; `sync` is for any.
"""

import logging
import re
from collections.abc import Iterator, Mapping

from anabranch.errors import CorruptDataError, StorageError
from anabranch.log.disk.checkpoint import RecoveryMark, RecoveryPoint
from anabranch.log.disk.files import Files
from anabranch.log.log import Log
from anabranch.log.names import LOG
from anabranch.log.segment.index import IndexCache
from anabranch.log.settings import LogConfig
from anabranch.modes.branch.lines import Span
from anabranch.modes.branch.rows import NO_LANE, Lane, lane_limit
from anabranch.record.batch import batch_spans, check_batch
from anabranch.values import Offset

logger = logging.getLogger(__name__)

ASIDE = ".aside"
_LANE_FOLDER = re.compile(r"lane-(\d{10})(\.aside)?")


def lane_folder(lane: Lane) -> str:
    return f"lane-{lane:010d}"


def is_lane_folder(name: str) -> bool:
    """It has a lane, or what was put aside of one."""
    return _LANE_FOLDER.fullmatch(name) is not None


class LaneLogs:
    def __init__(self, files: Files, folder: str, config: LogConfig, cache: IndexCache) -> None:
        self._files = files
        self.folder = folder
        self._config = config
        self._cache = cache
        self._logs: dict[Lane, Log] = {}
        self.highest = NO_LANE
        """Of all lanes of which there ever was a folder, as far as is known here: no such number is given again."""
        self.has_lost_records = False
        """A lane ends before its recovery point."""

    # --- what is held --------------------------------------------------------------------------------------------

    def __contains__(self, lane: Lane) -> bool:
        return lane in self._logs

    def __iter__(self) -> Iterator[Lane]:
        """In the order of their numbers."""
        return iter(sorted(self._logs))

    def get(self, lane: Lane) -> Log | None:
        return self._logs.get(lane)

    def logs(self) -> list[Log]:
        return [self._logs[lane] for lane in self]

    def held(self, lane: Lane) -> Span | None:
        """Which offsets of a lane are here; gaps among them are no records that are missing."""
        log = self._logs.get(lane)
        return None if log is None else Span(lane, log.start_offset, log.end_offset)

    def all_held(self) -> list[Span]:
        return [Span(lane, log.start_offset, log.end_offset) for lane, log in sorted(self._logs.items())]

    @property
    def size_bytes(self) -> int:
        return sum(log.size_bytes for log in self._logs.values())

    @property
    def config(self) -> LogConfig:
        return self._config

    @config.setter
    def config(self, config: LogConfig) -> None:
        self._config = config
        for log in self._logs.values():
            log.config = config

    def recovery_marks(self) -> dict[Lane, RecoveryMark]:
        return {lane: log.recovery_mark for lane, log in self._logs.items()}

    # --- opening -------------------------------------------------------------------------------------------------

    def open(
        self,
        starts: Mapping[Lane, Offset],
        *,
        clean: bool,
        points: Mapping[Lane, RecoveryPoint] | None = None,
        removed: Mapping[Lane, Offset] | None = None,
    ) -> None:
        """Open what rows name (`starts`: where each begins; `removed`: below which offset of one nothing is wanted any
        more), and put the rest out of the way. What recovery found may have to be synced yet. Raises StorageError."""
        try:
            present = self._files.list(self.folder) if self._files.exists(self.folder) else []
            for name in present:
                found = _LANE_FOLDER.fullmatch(name)
                if found is not None:
                    lane = Lane(int(found[1]))
                    self._open_one(lane, name, starts, clean, points or {})
                    self._drop_torn(lane, name, max(starts.get(lane, 0), (removed or {}).get(lane, 0)))
        except OSError as error:
            raise StorageError(f"{self.folder} cannot be opened: {error.strerror or error}.") from error

    def _open_one(
        self,
        lane: Lane,
        name: str,
        starts: Mapping[Lane, Offset],
        clean: bool,
        points: Mapping[Lane, RecoveryPoint],
    ) -> None:
        self.highest = max(self.highest, lane)
        if name.endswith(ASIDE):
            self._remove(f"{self.folder}/{name}")
        elif lane not in starts:
            self._set_aside(name)
        else:
            self._put(lane, self._opened(lane, starts[lane], clean, points.get(lane)))

    def _drop_torn(self, lane: Lane, name: str, start: int) -> None:
        """A copy whose beginning went in a crash, because it was not synced yet, would never get that back: it has to
        be copied anew."""
        log = self._logs.get(lane)
        if log is not None and log.start_offset > start and not log.damaged:
            logger.warning("%s lacks what is below %d, and goes", log.folder, log.start_offset)
            self.drop(lane)
            self._set_aside(name)

    def _opened(self, lane: Lane, start: Offset, clean: bool, point: RecoveryPoint | None) -> Log:
        log = Log.open(
            self._files,
            f"{self.folder}/{lane_folder(lane)}",
            self._config,
            clean=clean,
            recovery_point=point,
            start_offset=start,
            index_cache=self._cache,
        )
        for problem in log.damaged:
            logger.error("%s has lost records that were safe: %s", log.folder, problem)
        for entry in log.quarantined:
            logger.error("recovery moved %s of %s aside: %s", entry.name, log.folder, entry.reason)
        if point is not None and log.end_offset < point.offset:
            self.has_lost_records = True
        return log

    def _set_aside(self, name: str) -> None:
        path = f"{self.folder}/{name}"
        logs = [each for each in self._files.list(path) if each.endswith(LOG)]
        if not any(self._files.size(f"{path}/{each}") for each in logs):
            self._remove(path)
            return
        logger.warning("%s is named by no row of the branch log, and stays aside until the next start", path)
        self._files.rename(path, path + ASIDE)
        self._files.sync_folder(self.folder)

    # --- writing -------------------------------------------------------------------------------------------------

    def make(self, lane: Lane, start: Offset) -> Log:
        """A lane that is not here yet, from `start` on. Its folder is durable. Raises StorageError."""
        assert lane not in self._logs, "a lane is begun once"
        folder = f"{self.folder}/{lane_folder(lane)}"
        try:
            if self._files.exists(folder):
                self._remove(folder)  # Left by an attempt that failed before a row named it.
            self._files.make_folder(folder)
        except OSError as error:
            raise StorageError(f"{folder} cannot be made: {error.strerror or error}.") from error
        log = Log.open(
            self._files, folder, self._config, clean=True, start_offset=start, index_cache=self._cache
        )
        self._put(lane, log)
        return log

    def _put(self, lane: Lane, log: Log) -> None:
        # Into a copy: whoever walks over them in another thread goes on with those it has.
        self._logs = {**self._logs, lane: log}
        self.highest = max(self.highest, lane)

    def append_copied(self, lane: Lane, data: bytes | bytearray, now_ms: int) -> Offset:
        """Batches as another broker has them, offsets included; where the lane ends then. What is here already is left
        out. Raises CorruptDataError, and then nothing was written; StorageError."""
        log = self._logs[lane]
        batches, end = [], log.end_offset
        view = memoryview(data)
        for first, last in batch_spans(data):
            header = check_batch(data, first, last, fresh=False)
            if header.next_offset > lane_limit(lane):
                raise CorruptDataError(f"A batch at {header.base_offset} does not belong to lane {lane}.")
            if header.next_offset <= end:
                continue
            if header.base_offset < end:
                raise CorruptDataError(f"A batch at {header.base_offset} of lane {lane} begins before {end}.")
            batches.append((view[first:last], header.base_offset, header.last_offset, header.max_timestamp))
            end = header.next_offset
        log.append(batches, now_ms)
        return log.end_offset

    def extend(self, lane: Lane, end: Offset) -> None:
        """What lies between the lane's end and `end` is no record, at whoever it is copied from. Raises
        StorageError."""
        log = self._logs[lane]
        if end > log.end_offset:
            log.advance_end(end, keeps_start=True)

    def sync(self, lane: Lane) -> Offset:
        """Any thread: up to where the lane is on the disk now. Raises StorageError."""
        return self._logs[lane].sync()

    # --- removing ------------------------------------------------------------------------------------------------

    def drop(self, lane: Lane) -> "Dropped":
        """Forget a lane; its files are to be deleted in a worker. Whoever reads one of them now reads on."""
        log = self._logs[lane]
        self._logs = {each: kept for each, kept in self._logs.items() if each != lane}
        log.close(clean=False)
        return Dropped(self, lane_folder(lane))

    def remove_folder(self, name: str) -> None:
        """Any thread. Raises StorageError."""
        path = f"{self.folder}/{name}"
        try:
            if self._files.exists(path):
                self._remove(path)
        except OSError as error:
            raise StorageError(f"{path} cannot be removed: {error.strerror or error}.") from error

    def _remove(self, path: str) -> None:
        """What recovery could not trust stays, beside the lanes."""
        for name in self._files.list(path):
            if self._files.is_folder(f"{path}/{name}"):
                self._files.rename(f"{path}/{name}", self._free_name(f"{name}-{path.rpartition('/')[2]}"))
            else:
                self._files.unlink(f"{path}/{name}")
        self._files.sync_folder(
            path
        )  # Else a power cut may bring the lane back, and nobody looks for it then.
        self._files.remove_folder(path)
        self._files.sync_folder(self.folder)

    def _free_name(self, name: str) -> str:
        path, number = f"{self.folder}/{name}", 0
        while self._files.exists(path):
            number += 1
            path = f"{self.folder}/{name}.{number}"
        return path

    def flush_indexes(self) -> None:
        for log in self._logs.values():
            log.flush_indexes()

    def close(self, *, clean: bool) -> None:
        """All are closed, whatever becomes of the others. Raises StorageError."""
        failed: StorageError | None = None
        for log in self._logs.values():
            try:
                log.close(clean=clean)
            except StorageError as error:
                failed = error
        if failed is not None:
            raise failed


class Dropped:
    """A lane that nobody knows any more, until its files are gone."""

    def __init__(self, lanes: LaneLogs, name: str) -> None:
        self._lanes = lanes
        self._name = name

    def delete(self) -> None:
        """Any thread. Raises StorageError; then the next start opens it, and it is dropped again."""
        self._lanes.remove_folder(self._name)
