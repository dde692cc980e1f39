"""BranchTube: the branch log of this broker (seed 003's branch tube), all rows of all partitions, on its own disk.

It is a log of its own, `__branch_log-0`, with one record for each row. A row counts from the moment it is synced, and
not before: only then is it in `branches`, is it told to other brokers, and do subscribers hear of it. So a branch that
anybody knows of is never forgotten here, and its lane is never given again. Those who add while a sync is under way
share the next one, and one batch: never is more than one on its way to the disk, so that a batch that does not hold and
is followed by others was safe once. Such a log is not opened.

Rows are only ever added. Those of topics that are gone are left out when the log is written anew, at a start: aside,
synced, and swapped by renaming. Its offsets go on, so that the recovery point still says how far it reached. Other
brokers may still tell such rows: which topics are gone is remembered in a file beside the log.

All methods but `open` are for the loop's thread.
"""

import asyncio
import json
import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING
from uuid import UUID

from anabranch.broker.topics.topic_folders import TUBE_TOPIC
from anabranch.broker.workers import in_heavy_worker, to_its_end
from anabranch.errors import StorageError
from anabranch.log.disk.checkpoint import RecoveryMark, RecoveryPoint, read_checkpoint, write_checkpoint
from anabranch.log.log import Log
from anabranch.log.settings import LogConfig
from anabranch.modes.branch.lines import Branches
from anabranch.modes.branch.rows import BranchRow, from_json, to_json
from anabranch.record.batch import batch_spans
from anabranch.record.builder import BatchBuilder
from anabranch.record.records import records_of
from anabranch.values import Offset

if TYPE_CHECKING:
    from anabranch.broker.workers import Workers
    from anabranch.clock import Clock
    from anabranch.log.disk.files import Files

logger = logging.getLogger(__name__)

TUBE_FOLDER = f"{TUBE_TOPIC}-0"
NEW, OLD = ".new", ".deleted"
GONE_FILE = "branch-topics-gone"
READ_BYTES = 2**20
CONFIG = LogConfig(retention_ms=-1)

Key = tuple[UUID, int]


class BranchTube:
    def __init__(self, files: "Files", data_dir: str, clock: "Clock", workers: "Workers") -> None:
        self._files = files
        self._data_dir = data_dir
        self._folder = f"{data_dir}/{TUBE_FOLDER}"
        self._clock = clock
        self._workers = workers
        self._rows: list[BranchRow] = []
        self._known: set[BranchRow] = set()
        self._wanted: dict[BranchRow, None] = {}
        """To be written, in their order."""
        self._written: set[BranchRow] = set()
        """On their way to the disk."""
        self._branches: dict[Key, Branches] = {}
        self._gone: set[UUID] = set()
        """Topics whose rows nobody needs any more."""
        self._subscribers: list[Callable[[list[BranchRow]], None]] = []
        self._syncing = asyncio.Lock()
        self._log: Log | None = None

    # --- life ----------------------------------------------------------------------------------------------------

    def open(
        self,
        is_gone: Callable[[UUID], bool] = lambda topic_id: False,
        point: RecoveryPoint | None = None,
    ) -> None:
        """Read all rows; those of topics that are gone are left out, here and on the disk. Raises StorageError, and
        CorruptDataError if rows were lost that others may have been told of."""
        try:
            self._finish_swap()
        except OSError as error:
            raise StorageError(f"{self._folder} cannot be opened: {error.strerror or error}.") from error
        gone, _ = read_checkpoint(self._files, self._gone_path)
        self._gone = {UUID(hex=topic_id) for topic_id in gone or ()}
        log = self._open_log(self._folder, point)
        rows = list(_read(log))
        kept = [row for row in rows if row.topic_id not in self._gone and not is_gone(row.topic_id)]
        if len(kept) < len(rows):
            log = self._rewritten(log, kept)
            logger.info("%d rows of the branch log were of topics that are gone", len(rows) - len(kept))
        self._log = log
        self._apply(kept)

    def _open_log(self, folder: str, point: RecoveryPoint | None = None) -> Log:
        log = Log.open(self._files, folder, CONFIG, clean=False, recovery_point=point, precious=True)
        if not log.is_synced:
            log.sync()
        return log

    def _rewritten(self, old: Log, rows: list[BranchRow]) -> Log:
        """A log of these rows alone in the place of the old one. Raises StorageError."""
        new = Log.open(self._files, self._folder + NEW, CONFIG, clean=True, start_offset=old.end_offset)
        if rows:
            self._write_to(new, rows)
        new.sync()
        new.close(clean=True)
        old.close(clean=False)
        try:
            self._files.rename(self._folder, self._folder + OLD)
            self._finish_swap()
        except OSError as error:
            raise StorageError(
                f"{self._folder} cannot be written anew: {error.strerror or error}."
            ) from error
        return self._open_log(self._folder)

    def _finish_swap(self) -> None:
        """Behind a crash too: the new one counts once the old one is out of its place."""
        new, old = self._folder + NEW, self._folder + OLD
        if self._files.exists(new):
            if self._files.exists(self._folder):
                self._remove(new)
            else:
                self._files.rename(new, self._folder)
            self._files.sync_folder(self._data_dir)
        if self._files.exists(old):
            self._remove(old)

    def _remove(self, folder: str) -> None:
        for name in self._files.list(folder):
            self._files.unlink(f"{folder}/{name}")
        self._files.remove_folder(folder)

    def close(self) -> None:
        """Raises StorageError."""
        if self._log is not None:
            self._log.close(clean=True)

    # --- rows ----------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def rows(self) -> list[BranchRow]:
        """All that count, in the order in which they came here."""
        return self._rows

    @property
    def is_fenced(self) -> bool:
        """No row can be added until a restart."""
        return self._own_log.fenced

    @property
    def recovery_mark(self) -> RecoveryMark:
        return self._own_log.recovery_mark

    def rows_since(self, index: int) -> list[BranchRow]:
        """For other brokers: what has come since there were `index` rows here."""
        return self._rows[index:]

    def branches(self, key: Key) -> Branches:
        """What is known of a partition. The same object for ever: it grows."""
        found = self._branches.get(key)
        if found is None:
            found = self._branches[key] = Branches()
        return found

    def subscribe(self, heard: Callable[[list[BranchRow]], None]) -> None:
        """Be told of every row that has come to count."""
        self._subscribers.append(heard)

    async def add(self, rows: Iterable[BranchRow]) -> list[BranchRow]:
        """Make rows count; which of them did not before. When this returns, all of them are on the disk. Raises
        StorageError; then nobody has heard of them."""
        asked = [row for row in rows if row.topic_id not in self._gone]
        fresh = self._want(asked)
        while not self._known.issuperset(asked):
            async with self._syncing:
                if not self._known.issuperset(asked):
                    await to_its_end(self._write_wanted())
        return fresh

    async def forget(self, topics: Iterable[UUID]) -> None:
        """These are gone, and their ids are never given again. Raises StorageError; then their rows stay a while."""
        self._gone |= set(topics)
        gone = sorted(topic_id.hex for topic_id in self._gone)
        try:
            await in_heavy_worker(self._workers, lambda: write_checkpoint(self._files, self._gone_path, gone))
        except OSError as error:
            raise StorageError(f"{self._gone_path} cannot be written: {error.strerror or error}.") from error

    @property
    def _gone_path(self) -> str:
        return f"{self._data_dir}/{GONE_FILE}"

    def add_now(self, rows: Iterable[BranchRow]) -> list[BranchRow]:
        """`add` at a start, when nobody is held up by it."""
        fresh = self._want(list(rows))
        written = self._take_wanted()
        if written:
            self._write_to(self._own_log, written)
            self._own_log.sync()
            self._settle(written)
        return fresh

    def _want(self, rows: list[BranchRow]) -> list[BranchRow]:
        fresh = [row for row in dict.fromkeys(rows) if not self._has_heard(row)]
        self._wanted.update(dict.fromkeys(fresh))
        return fresh

    def _has_heard(self, row: BranchRow) -> bool:
        return row in self._known or row in self._written or row in self._wanted

    def _take_wanted(self) -> list[BranchRow]:
        wanted, self._wanted = self._wanted, {}
        return list(wanted)

    def _write_to(self, log: Log, rows: list[BranchRow]) -> None:
        now_ms = self._clock.wall_ms()
        builder = BatchBuilder(log.end_offset)
        for row in rows:
            builder.add(None, json.dumps(to_json(row), separators=(",", ":")).encode(), timestamp_ms=now_ms)
        batch, last = builder.build(), Offset(log.end_offset + len(rows) - 1)
        log.append([(batch, log.end_offset, last, now_ms)], now_ms)

    async def _write_wanted(self) -> None:
        """All that anybody wants so far, in one batch and one sync."""
        log, written = self._own_log, self._take_wanted()
        if not written:
            raise StorageError(f"{log.folder} could not keep a row that others have asked for too.")
        self._write_to(log, written)
        self._written = set(written)
        try:
            await in_heavy_worker(self._workers, log.sync)
        finally:
            self._written = set()
        self._settle(written)

    def _settle(self, rows: list[BranchRow]) -> None:
        self._apply(rows)
        for heard in self._subscribers:
            heard(rows)

    def _apply(self, rows: list[BranchRow]) -> None:
        for row in rows:
            if row not in self._known:
                self._known.add(row)
                self._rows.append(row)
                self.branches(row.key).add(row)

    @property
    def _own_log(self) -> Log:
        assert self._log is not None, "opened first"
        return self._log


def _read(log: Log) -> Iterable[BranchRow]:
    start = log.start_offset
    while start < log.end_offset:
        part = log.slice(start, READ_BYTES, log.end_offset)
        data = part.read()
        for first, last in batch_spans(data):
            for record in records_of(memoryview(data)[first:last]):
                yield from_json(json.loads(record.value or b"{}"))
                start = Offset(record.offset + 1)
