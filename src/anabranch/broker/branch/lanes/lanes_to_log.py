"""The last line of a partition that left branches: its lanes become one log again.

    t-0/lane-0000000005/00000000021474836480.log ...  ->  t-0/00000000021474836480.log ...

While a partition leaves branches, each broker that is to keep it holds all of the line and says so in the file
`leaving`: which lanes, from where, up to where. Once the table says that the partition has left by that very decision,
the files of those lanes are moved up as they are: offsets stay, and what lies between two lanes is a gap as compaction
leaves them. What lies behind the place where the line leaves a lane is not part of it: the line took it in elsewhere.

Each step can be repeated, and is, if a crash comes between: say that it has begun; recover, cut, seal and sync the
lanes; write what is known of producers; say which files are to be moved; move them; remove the rest; say that it is
done. The file stays as long as the log does: it alone knows where that begins until retention moves it.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from anabranch.broker.branch.lanes.joined_lanes import JoinedLanes, PointOf
from anabranch.broker.branch.lanes.log_to_lanes import CLOSING_FILE, JOINING_FILE
from anabranch.broker.branch.lanes.logs import LaneLogs, is_lane_folder
from anabranch.broker.topics.partition_opener import PRODUCERS_FILE
from anabranch.broker.topics.topic_folders import BRANCH_FILE, LEAVING_FILE, LOST, RING_FILE, clear_folder
from anabranch.cluster.metadata.rows import Placement
from anabranch.errors import StorageError
from anabranch.log.disk.checkpoint import RecoveryPoint, read_checkpoint, write_checkpoint
from anabranch.log.disk.files import Files
from anabranch.log.log import begin_with_gap
from anabranch.log.names import LOG, base_offset_of, segment_path
from anabranch.log.segment.index import IndexCache
from anabranch.log.settings import LogConfig
from anabranch.modes.branch.lines import Branches, Span
from anabranch.modes.branch.rows import NO_LANE, Lane, Tip
from anabranch.values import Offset

logger = logging.getLogger(__name__)

EARLIER = "what it held is of an earlier time, and others have it"


class LastLine(NamedTuple):
    move: int
    """The decision to leave."""
    start: Offset
    """The first offset that is wanted of it."""
    end: Offset
    """Where the log ends, and goes on: behind all lanes."""
    spans: Sequence[Span]
    """What of which lanes, in their order."""


def last_line(branches: Branches, tip: Tip, *, move: int, start: Offset, end: Offset) -> LastLine:
    """The line that ends in `tip`, without what was removed of it; `start`: of the line as its readers see it, `end`:
    where its log is to go on. Raises UnknownBranchError."""
    line = branches.line(tip)
    removed = branches.removed_below(line)
    left = (Span(lane, max(first, start, removed.get(lane, first)), last) for lane, first, last in line)
    return LastLine(move, start, end, tuple(span for span in left if span.start < span.end))


def write_leaving(files: Files, folder: str, line: LastLine) -> None:
    """In a worker: say that all of the line is held here, and synced. Raises StorageError."""
    _write(files, folder, {**line._asdict(), "spans": [list(span) for span in line.spans]})


def _line_of(state: Mapping[str, Any]) -> LastLine:
    spans = tuple(Span(Lane(lane), Offset(start), Offset(end)) for lane, start, end in state["spans"])
    return LastLine(state["move"], Offset(state["start"]), Offset(state["end"]), spans)


def _write(files: Files, folder: str, state: Mapping[str, Any]) -> None:
    path = f"{folder}/{LEAVING_FILE}"
    try:
        write_checkpoint(files, path, state)
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error.strerror or error}.") from error


class Taken(NamedTuple):
    """What has become of a line."""

    start: Offset
    """Where its readers may begin."""
    point: RecoveryPoint | None
    """Up to where it was synced, if that was done now."""
    is_whole: bool = True
    """False: some of it was lost here."""


class LeavingFolder(NamedTuple):
    """The folder of a partition that has left branches."""

    files: Files
    folder: str
    config: LogConfig
    cache: IndexCache

    def take(self, move: int, view: int, point_of: PointOf, *, is_only_copy: bool = False) -> Taken | None:
        """Any thread: make the line that left by this decision the log of a view; None: it is not here. `point_of`:
        what is known of a lane; `is_only_copy`: what is lost here is nowhere. Raises StorageError."""
        state, reason = read_checkpoint(self.files, f"{self.folder}/{LEAVING_FILE}")
        if state is None:
            if self.files.exists(f"{self.folder}/{LEAVING_FILE}"):
                logger.error("%s/%s says what is held of a line, but %s", self.folder, LEAVING_FILE, reason)
            return None
        if state["move"] != move:
            return None
        try:
            return self._taken(state, view, point_of, is_only_copy)
        except OSError as error:
            raise StorageError(
                f"{self.folder} cannot leave mode branch: {error.strerror or error}."
            ) from error

    def _taken(self, state: dict[str, Any], view: int, point_of: PointOf, is_only_copy: bool) -> Taken:
        start = Offset(state["start"])
        if state.get("is_done"):
            return Taken(start, None)
        if "view" not in state:
            # From here on the lanes are not for a start whose table does not know yet that the partition has left.
            state = self._said({**state, "view": view})
        if "names" not in state:
            state = self._said({**state, **self._prepared(_line_of(state), point_of, is_only_copy)})
        self._move(state)
        self._remove_the_rest(set(state["lost"]))
        self._said({**state, "spans": [], "names": [], "is_done": True})
        end = Offset(state["log_end"])
        return Taken(start, RecoveryPoint(end, end), state["is_whole"])

    def _said(self, state: dict[str, Any]) -> dict[str, Any]:
        _write(self.files, self.folder, state)
        return state

    def _prepared(self, line: LastLine, point_of: PointOf, is_only_copy: bool) -> dict[str, Any]:
        """Everything that has to be on the disk before files are moved, and which they are."""
        lanes = JoinedLanes(self.files, self.folder, self.config, self.cache)
        try:
            lanes.open(line.spans, point_of)
            end = lanes.join(line.start, line.end, skips_lost=is_only_copy)
            snapshot = {"offset": end, "producers": lanes.producers(end)}
            write_checkpoint(self.files, f"{self.folder}/{PRODUCERS_FILE}", snapshot)
        finally:
            lanes.close()
        return {
            "names": lanes.segment_files(),
            "first": lanes.first_base(end),
            "log_end": end,
            "lost": lanes.lost,
            "is_whole": lanes.is_whole,
        }

    def _move(self, state: Mapping[str, Any]) -> None:
        """Those that are not there yet. Others of such a name are of a start that did not know of the lanes yet, and
        found no log here."""
        files, folder = self.files, self.folder
        planned = {name for _, name in state["names"]}
        for name in files.list(folder):
            if base_offset_of(name) is not None and name not in planned:
                files.unlink(f"{folder}/{name}")
        for lane, name in state["names"]:
            if files.exists(f"{folder}/{lane}/{name}"):
                files.rename(f"{folder}/{lane}/{name}", f"{folder}/{name}")
        end, first = Offset(state["log_end"]), Offset(state["first"])
        files.create(segment_path(folder, end, LOG)).close()
        if state["start"] < first:
            begin_with_gap(files, folder, Offset(state["start"]), first)
        files.sync_folder(folder)
        for lane in sorted({lane for lane, _ in state["names"]}):
            if files.exists(f"{folder}/{lane}"):
                files.sync_folder(f"{folder}/{lane}")

    def _remove_the_rest(self, lost: set[str]) -> None:
        files, folder = self.files, self.folder
        lanes = LaneLogs(files, folder, self.config, self.cache)
        for name in files.list(folder):
            if name in lost:
                logger.error(
                    "%s/%s was not all there: it is kept aside, and no part of the log", folder, name
                )
                files.rename(f"{folder}/{name}", f"{folder}/{name}{LOST}")
            elif is_lane_folder(name):
                lanes.remove_folder(name)
            elif name in (BRANCH_FILE, CLOSING_FILE, JOINING_FILE, RING_FILE):
                files.unlink(f"{folder}/{name}")
        files.sync_folder(folder)


# --- of which time a folder is ---------------------------------------------------------------------------------------


def view_in(files: Files, folder: str, name: str) -> int:
    """In which view one of the files of a folder was written that say so; -1: it does not."""
    state, _ = read_checkpoint(files, f"{folder}/{name}")
    return int(state.get("view", -1)) if state is not None else -1


def clear_earlier(files: Files, folder: str, placement: Placement) -> None:
    """Before lanes are opened: remove what is of an earlier time in branches, or was about to become a log after it.
    Raises StorageError."""
    branched, left = view_in(files, folder, BRANCH_FILE), view_in(files, folder, LEAVING_FILE)
    if max(branched, left) > placement.view:
        raise StorageError(f"{folder} is of a later time than the table that says it is in branches.")
    has_log = left >= 0 and files.exists(f"{folder}/{RING_FILE}")
    if 0 <= branched < placement.view or (left >= 0 and not has_log):
        clear_folder(files, folder, EARLIER)


def say_view(files: Files, folder: str, placement: Placement) -> None:
    """A folder without lanes that anybody adopted says of which time it is, too. Raises StorageError."""
    path = f"{folder}/{BRANCH_FILE}"
    try:
        if not files.exists(path):
            state = {"adopted": NO_LANE, "next": NO_LANE, "view": placement.view}
            write_checkpoint(files, path, state)
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error.strerror or error}.") from error


def has_lanes(files: Files, folder: str) -> bool:
    """Whether there is anything of a time in branches."""
    known = (BRANCH_FILE, CLOSING_FILE, JOINING_FILE, LEAVING_FILE)
    return files.exists(folder) and any(name in known or is_lane_folder(name) for name in files.list(folder))
