"""JoinedLanes: the lanes of a line on their way to become one log (`lanes_to_log.py`).

Each is recovered, cut where the line leaves it, and sealed so that it says where the next one begins: then their
segments, one behind the other, are a log with gaps. Nothing that a line wants is changed by this, so it can be repeated
from any state that a crash may leave.

Where some of a line is missing, the log ends there, and the rest comes from other replicas again; unless there are
none: then everything is taken that is there.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any

from anabranch.broker.branch.lanes.logs import lane_folder
from anabranch.broker.branch.lanes.snapshots import LaneSnapshots
from anabranch.broker.branch.line_view import headers_of
from anabranch.log import names
from anabranch.log.disk.checkpoint import RecoveryPoint
from anabranch.log.disk.files import Files
from anabranch.log.log import Log
from anabranch.log.segment.index import IndexCache
from anabranch.log.settings import LogConfig
from anabranch.modes.branch.lane_producers import LaneProducers
from anabranch.modes.branch.lines import Span
from anabranch.modes.branch.rows import Lane
from anabranch.values import Offset

logger = logging.getLogger(__name__)

PointOf = Callable[[Lane], RecoveryPoint | None]


class JoinedLanes:
    """For one thread, while nobody else has the partition."""

    def __init__(self, files: Files, folder: str, config: LogConfig, cache: IndexCache) -> None:
        self._files = files
        self._folder = folder
        self._config = config
        self._cache = cache
        self._logs: list[tuple[Span, Log]] = []
        self._is_damaged = False
        self._missing: list[Span] = []
        self.lost: list[str] = []
        """Folders with records that are not in the log, because something before them is missing."""

    @property
    def is_whole(self) -> bool:
        return not self._missing and not self._is_damaged

    # --- lanes ---------------------------------------------------------------------------------------------------

    def open(self, spans: Sequence[Span], point_of: PointOf) -> None:
        """Raises StorageError."""
        for span in spans:
            folder = f"{self._folder}/{lane_folder(span.lane)}"
            if not self._files.exists(folder):
                self._missing.append(span)
                continue
            log = Log.open(
                self._files,
                folder,
                self._config,
                clean=False,
                recovery_point=_below(point_of(span.lane), span.end),
                start_offset=span.start,
                index_cache=self._cache,
            )
            self._logs.append((span, log))
            for problem in log.damaged:
                logger.error("%s has lost records that were safe: %s", log.folder, problem)
            self._is_damaged = self._is_damaged or bool(log.damaged or log.quarantined)
            if log.start_offset > span.start or log.end_offset < span.end:
                self._missing.append(span)

    def join(self, start: Offset, end: Offset, *, skips_lost: bool) -> Offset:
        """Cut, seal and sync them; where their log ends: at `end`, if all of the line is here. Raises StorageError."""
        for span in sorted(self._missing):
            logger.error("%s has not all of lane %d from %d to %d", self._folder, *span)
        if self._missing and not skips_lost:
            end = self._stop_at(min(self._missing), start)
        following = end
        for span, log in reversed(self._logs):
            if log.end_offset > span.end and not _goes_on_at(log, span.end, following):
                log.truncate_to(max(span.end, log.start_offset))
            if log.end_offset < following:
                log.advance_end(following)
            else:
                log.roll()
            log.flush_indexes()
            log.sync()
            if len(log.segments) > 1:
                following = log.segments[0].base_offset
        return end

    def _stop_at(self, hole: Span, start: Offset) -> Offset:
        """Keep what comes before the hole; where that ends."""
        for span, log in self._logs:
            is_begun = span == hole and log.start_offset <= span.start
            if span > hole or (span == hole and not is_begun):
                self.lost.append(lane_folder(span.lane))
                log.close(clean=False)
        self._logs = [(span, log) for span, log in self._logs if lane_folder(span.lane) not in self.lost]
        return min(self._logs[-1][1].end_offset, self._logs[-1][0].end) if self._logs else start

    def close(self) -> None:
        for _, log in self._logs:
            log.close(clean=False)

    # --- what they are -------------------------------------------------------------------------------------------

    def first_base(self, end: Offset) -> Offset:
        """Where the log begins, after `join` has said where it ends."""
        return min((log.segments[0].base_offset for _, log in self._logs), default=end)

    def segment_files(self) -> list[list[str]]:
        """The files of the log after `join`: each with the folder of its lane. Raises OSError."""
        found = []
        for span, log in self._logs:
            folder = lane_folder(span.lane)
            bases = {segment.base_offset for segment in log.segments[:-1]}
            for name in self._files.list(f"{self._folder}/{folder}"):
                if names.base_offset_of(name) in bases and name[20:] in names.SUFFIXES:
                    found.append([folder, name])
        return found

    def producers(self, end: Offset) -> list[list[Any]]:
        """Who has written to the line, as a snapshot: of batches that were joined the last numbers count, whatever
        order they came in. Raises StorageError."""
        table = LaneProducers(end)
        snapshots = LaneSnapshots(self._files, self._folder)
        snapshot = snapshots.newest(
            span._replace(end=min(span.end, log.end_offset)) for span, log in self._logs
        )
        made = Offset(-1)
        if snapshot is not None:
            table.restore(snapshot)
            made = Offset(snapshot["offset"])
        for span, log in self._logs:
            if span.end > made:
                table.replay_all(headers_of(log, span._replace(start=max(span.start, made))))
        return table.snapshot(end)


def _below(point: RecoveryPoint | None, end: Offset) -> RecoveryPoint | None:
    """What is known of a lane that may have been cut here already."""
    return point and RecoveryPoint(min(point.offset, end), min(point.synced, end))


def _goes_on_at(log: Log, end: Offset, following: Offset) -> bool:
    """Whether an earlier attempt has sealed it already: to cut it once more could take a gap that it ends with."""
    return log.end_offset == following and not log.slice(end, 1, following).count
