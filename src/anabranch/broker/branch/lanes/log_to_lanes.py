"""The first lane of a partition that went over to branches: what its replicas had kept until then.

    <topic>-<partition>/00000000000000000000.log ...  ->  <topic>-<partition>/lane-0000000000/...

The view ended at an offset that everybody agrees on (`cluster/metadata/residence.py`), so two rows that follow from
the table say what the lane is; every broker adds them to its branch log by itself. A replica whose table of
generations has the one that sealed the view is equal to all others as far as it goes: its files are moved as they
are, and if it ends earlier, that is a copy which is not complete yet. Any other replica begins anew: a majority has
everything.

Each step can be repeated, and is, if a crash comes between: recover, cut and sync the log; say so in the file
`joining`; move the files; say which lane is adopted; forget the ring.
"""

import logging
from typing import NamedTuple
from uuid import UUID

from anabranch.broker.branch.lanes.logs import lane_folder
from anabranch.broker.topics.topic_folders import BRANCH_FILE, LEAVING_FILE, RING_FILE, clear_folder
from anabranch.cluster.metadata.rows import Placement
from anabranch.errors import StorageError
from anabranch.log.disk.checkpoint import RecoveryPoint, read_checkpoint, write_checkpoint
from anabranch.log.disk.files import Files
from anabranch.log.log import Log
from anabranch.log.names import base_offset_of
from anabranch.log.segment.index import IndexCache
from anabranch.log.settings import LogConfig
from anabranch.modes.branch.rows import (
    NO_LANE,
    NOWHERE,
    BranchRow,
    Lane,
    Tip,
    lane_of,
    opened,
    sealed,
    started,
)
from anabranch.modes.ring.effects import Kept
from anabranch.values import Offset

logger = logging.getLogger(__name__)

JOINING_FILE = "joining"
CLOSING_FILE = "closing"
"""What a broker has promised to whoever brings the partition out of branches."""


def first_lane(placement: Placement) -> Lane:
    return lane_of(max(placement.start - 1, 0))


def first_tip(placement: Placement) -> Tip:
    """Where the records of before end."""
    return Tip(first_lane(placement), placement.start)


def first_rows(key: tuple[UUID, int], placement: Placement) -> list[BranchRow]:
    """The same at every broker."""
    lane, start = first_lane(placement), placement.lane_start
    rows = [opened(key, NOWHERE, lane, start=Offset(0)), sealed(key, first_tip(placement))]
    return [*rows, started(key, lane, start)] if start else rows


class FirstLane(NamedTuple):
    """What is to be taken over, in one folder."""

    files: Files
    folder: str
    placement: Placement

    def take(self, config: LogConfig, cache: IndexCache, point: RecoveryPoint | None) -> RecoveryPoint | None:
        """Any thread. Up to where the lane was synced, if that was done now. Raises StorageError."""
        try:
            return self._take(config, cache, point)
        except OSError as error:
            raise StorageError(
                f"{self.folder} cannot go over to mode branch: {error.strerror or error}."
            ) from error

    def _take(
        self, config: LogConfig, cache: IndexCache, point: RecoveryPoint | None
    ) -> RecoveryPoint | None:
        joining, _ = read_checkpoint(self.files, f"{self.folder}/{JOINING_FILE}")
        if joining is None:
            if self._is_done or not self.files.exists(f"{self.folder}/{RING_FILE}"):
                return None
            if not self._is_equal:
                why = "it was not equal to its leader when it went over to mode branch"
                clear_folder(self.files, self.folder, why)
                return None
            end = self._completed(config, cache, point)
            joining = {"end": end, "names": self._segment_files()}
            write_checkpoint(self.files, f"{self.folder}/{JOINING_FILE}", joining)
        self._move(joining["names"])
        return RecoveryPoint(Offset(joining["end"]), Offset(joining["end"]))

    @property
    def _is_done(self) -> bool:
        """Whatever the ring may have left since, lanes are what counts."""
        known = (BRANCH_FILE, lane_folder(first_lane(self.placement)))
        return any(self.files.exists(f"{self.folder}/{name}") for name in known)

    @property
    def _is_equal(self) -> bool:
        """Whether its records are those of the leader that sealed the view, as far as there are any."""
        state, _ = read_checkpoint(self.files, f"{self.folder}/{RING_FILE}")
        return state is not None and Kept.from_state(state).table.last == self.placement.generation

    def _completed(self, config: LogConfig, cache: IndexCache, point: RecoveryPoint | None) -> Offset:
        """Recover the log, without what came too late for the boundary, and sync it: where it ends."""
        log = Log.open(self.files, self.folder, config, clean=False, recovery_point=point, index_cache=cache)
        for problem in log.damaged:
            logger.error("%s has lost records that were safe: %s", log.folder, problem)
        if log.end_offset > self.placement.start:
            log.truncate_to(max(self.placement.start, log.start_offset))
        log.sync()
        log.close(clean=True)
        return log.end_offset

    def _segment_files(self) -> list[str]:
        return sorted(name for name in self.files.list(self.folder) if base_offset_of(name) is not None)

    def _move(self, names: list[str]) -> None:
        """Those that are not there yet. Others of such a name are of a start that did not know of the change yet, and
        found no log here."""
        files, folder = self.files, self.folder
        lane = first_lane(self.placement)
        target = f"{folder}/{lane_folder(lane)}"
        if not files.exists(target):
            files.make_folder(target)
        for name in names:
            if not files.exists(f"{target}/{name}"):
                files.rename(f"{folder}/{name}", f"{target}/{name}")
        files.sync_folder(target)
        for name in self._segment_files():
            files.unlink(f"{folder}/{name}")
        files.sync_folder(folder)
        adopted = {"adopted": lane, "next": NO_LANE, "view": self.placement.view}
        write_checkpoint(files, f"{folder}/{BRANCH_FILE}", adopted)
        for name in (LEAVING_FILE, RING_FILE, JOINING_FILE):
            if files.exists(f"{folder}/{name}"):
                files.unlink(f"{folder}/{name}")
                files.sync_folder(folder)
