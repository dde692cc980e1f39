"""Compacted logs: how to fill and read them, and what is left of one whose machine went down at some step."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from random import Random

from log_helpers import FOLDER, NOW_MS, read_all

from anabranch.log.cleaner import CleanPlan, plan
from anabranch.log.log import Log
from anabranch.log.settings import LogConfig
from anabranch.record.batch import read_header
from anabranch.record.builder import BatchBuilder
from anabranch.record.compaction.run import grouped
from anabranch.record.records import records_of
from anabranch.testing.fakes.disk import FakeDisk, PowerLoss
from anabranch.values import Offset

CONFIG = LogConfig(segment_bytes=600, index_interval_bytes=100, compacted=True, deleted=False)
Table = dict[bytes, bytes | None]


def open_compacted(disk: FakeDisk, *, clean: bool = False, config: LogConfig = CONFIG) -> Log:
    return Log.open(disk, FOLDER, config, clean=clean)


def put(log: Log, pairs: list[tuple[bytes, bytes | None]], **fields: int | bool) -> None:
    base = log.end_offset
    builder = BatchBuilder(base, **fields)
    for key, value in pairs:
        builder.add(key, value, timestamp_ms=NOW_MS)
    log.append([(builder.build(), base, Offset(base + len(pairs) - 1), NOW_MS)], NOW_MS)


def table(log: Log) -> Table:
    """The last value of every key, as a reader from the beginning sees it."""
    latest: Table = {}
    for batch in read_all(log):
        if not read_header(batch).is_control:
            for record in records_of(batch):
                assert record.key is not None
                latest[record.key] = record.value
    return latest


def fill_table(log: Log, rng: Random, batches: int, keys: int = 8) -> None:
    for _ in range(batches):
        pairs: list[tuple[bytes, bytes | None]] = []
        for _ in range(rng.randrange(1, 4)):
            value = None if rng.random() < 0.1 else rng.randbytes(rng.randrange(1, 40))
            pairs.append((b"key%d" % rng.randrange(keys), value))
        put(log, pairs, codec=rng.choice((0, 0, 1)))


def small_segments(disk: FakeDisk, rng: Random) -> Log:
    """A log whose segments are so small that the cleaner merges them by threes and more."""
    log = open_compacted(disk, config=replace(CONFIG, segment_bytes=200))
    fill_table(log, rng, 16)
    log.config = CONFIG
    assert max(map(len, grouped(log.segments[:-1], CONFIG.segment_bytes))) >= 3
    return log


def due_plan(log: Log, first_dirty: int = 0, now_ms: int = NOW_MS) -> CleanPlan:
    found = plan(log, Offset(first_dirty), now_ms)
    assert found is not None
    return found


@dataclass
class Killed:
    """A log whose machine went down at this step of some work on it, or which came through the last one."""

    step: int
    disk: FakeDisk
    rng: Random
    table: Table
    end_offset: Offset

    def disks(self, crashes: int) -> Iterator[FakeDisk]:
        """What a disk may hold now: everything if only the process died, else some of what was not synced."""
        after = self.disk.copy()
        after.kill()
        yield after
        for _ in range(crashes):
            after = self.disk.copy()
            after.crash(self.rng)
            yield after


def killed_at_every_step(
    seed: int,
    work: Callable[[FakeDisk, Log], object],
    prepare: Callable[[FakeDisk, Log], object] | None = None,
) -> Iterator[Killed]:
    """Does the work again and again, each time on a new log and one operation further, until it is done."""
    rng, step, finished = Random(seed), 0, False
    while not finished:
        step += 1
        disk = FakeDisk()
        log = small_segments(disk, Random(seed))
        log.sync()
        killed = Killed(step, disk, rng, table(log), log.end_offset)
        if prepare is not None:
            prepare(disk, log)
        disk.crash_at = disk.operations + step
        try:
            work(disk, log)
            finished = True
        except PowerLoss:
            pass
        yield killed


def opened_as_before(killed: Killed, disk: FakeDisk) -> Log:
    """The log on one of these disks, which must hold what it held before the work began."""
    log = open_compacted(disk)
    assert (table(log), log.end_offset, log.quarantined) == (killed.table, killed.end_offset, []), (
        f"step {killed.step}"
    )
    return log
