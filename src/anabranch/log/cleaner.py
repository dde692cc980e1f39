"""Log compaction: keeps the latest record of every key, by rewriting sealed segments and swapping them in.

One run over one log, in four calls: `plan` decides on the writer's thread which segments are clean, dirty or
too young; `map_keys` (worker) reads the dirty ones and remembers the latest offset of each key, as far as its
memory reaches; `rewrite` (worker), for each group of neighbours that fit into one segment, writes what stays;
`Log.swap_in` and `Log.finish_swap` put it in place. Before each group `Log.prepare_rewrite` ends what a disk
that refused has left of an earlier one. `clean_now` does all of it in one thread. The active segment is never
touched, and what a crash leaves behind at any step is resolved at the next open (`swap.py`).
A run that is repeated does no harm, so the offset up to which a log is clean (`cleaner-offsets`) may be
written whenever it suits. What a run decides is in `record.compaction.run`, which the job on Spark shares.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from anabranch.errors import CorruptDataError, StorageError, WorkStoppedError
from anabranch.log import names
from anabranch.log.disk.files import Bytes, File, Files, write_fully
from anabranch.log.log import Log
from anabranch.log.segment.scan import NO_TIMESTAMP, UNSUMMED_BYTES, Batch, whole_batches
from anabranch.log.segment.segment import Segment
from anabranch.log.segment.slice import verify_region
from anabranch.log.segment.soundness import region_holds
from anabranch.log.segment.tail import Tail
from anabranch.log.settings import LogConfig
from anabranch.log.swap import Rewritten, commit_clean
from anabranch.record.batch import batch_spans, read_header
from anabranch.record.compaction.offset_map import OffsetMap
from anabranch.record.compaction.run import CompactionRun, grouped, map_latest
from anabranch.values import Offset

WRITE_BYTES = 2**20
KEYS_MAX = 500_000


@dataclass(frozen=True)
class CleanPlan:
    """What one run over one log would read: plain values and segments that do not change any more."""

    folder: str
    config: LogConfig
    segments: Sequence[Segment]
    """From the start of the log to the last one that may be cleaned."""
    first_dirty: Offset
    clean_bytes: int
    dirty_bytes: int
    overdue: bool
    """Something has waited for longer than the log's maximal lag."""
    now_ms: int
    stopped: Callable[[], bool]
    """Asked between batches, in the worker: True ends the run with WorkStoppedError."""
    tombstones_stay: bool = False
    """Something older than this log may hold what they delete."""

    @property
    def dirty_ratio(self) -> float:
        return self.dirty_bytes / max(1, self.clean_bytes + self.dirty_bytes)

    @property
    def is_due(self) -> bool:
        return self.dirty_bytes > 0 and (self.overdue or self.dirty_ratio >= self.config.dirty_ratio_min)


@dataclass(frozen=True)
class KeysMapped:
    """The latest offset of every key in [first dirty, upto)."""

    plan: CleanPlan
    latest: OffsetMap
    upto: Offset
    """The log is clean below this once all groups are swapped in."""
    groups: Sequence[Sequence[Segment]]
    last_offsets: Mapping[int, int]

    @property
    def run(self) -> CompactionRun:
        config, now_ms = self.plan.config, self.plan.now_ms
        horizon_ms = now_ms + config.delete_retention_ms
        if self.plan.tombstones_stay:
            now_ms = 0  # Before every horizon: a tombstone is given one, and is kept all the same.
        return CompactionRun(
            self.latest,
            self.upto,
            self.last_offsets,
            now_ms,
            horizon_ms - now_ms,
            config.batch_bytes_max,
        )


def plan(
    log: Log,
    first_dirty: Offset,
    now_ms: int,
    stopped: Callable[[], bool] = lambda: False,
    *,
    safe_end: Offset | None = None,
    tombstones_stay: bool = False,
) -> CleanPlan | None:
    """The writer's thread. None if the log is not to be compacted, or has nothing that may be.

    Segments that reach beyond `safe_end` are left alone: what they have may be withdrawn, and until then it must not
    take the place of anything older.
    """
    config = log.config
    if not config.compacted or log.fenced:
        return None
    segments = []
    for segment in log.segments[:-1]:
        if safe_end is not None and segment.published_offset > safe_end:
            break
        timestamp = segment.largest_timestamp()[0]
        if config.compaction_lag_ms_min > 0 and timestamp > now_ms - config.compaction_lag_ms_min:
            break
        segments.append(segment)
    dirty = [segment for segment in segments if segment.published_offset > first_dirty]
    if not dirty:
        return None
    dirty_bytes = sum(segment.published_bytes for segment in dirty)
    clean_bytes = sum(segment.published_bytes for segment in segments) - dirty_bytes
    oldest = dirty[0].largest_timestamp()[0]
    overdue = 0 <= oldest < now_ms - config.compaction_lag_ms_max
    return CleanPlan(
        log.folder,
        config,
        segments,
        first_dirty,
        clean_bytes,
        dirty_bytes,
        overdue,
        now_ms,
        stopped,
        tombstones_stay,
    )


def most_urgent(plans: Sequence[CleanPlan]) -> CleanPlan | None:
    """Which of the logs to clean next: one that is overdue, else the one with the greatest dirty part."""
    due = [candidate for candidate in plans if candidate.is_due]
    return max(due, key=lambda candidate: (candidate.overdue, candidate.dirty_ratio), default=None)


def map_keys(
    plan: CleanPlan,
    keys_max: int = KEYS_MAX,
    last_offsets: Mapping[int, int] | None = None,
    upto: Offset | None = None,
) -> KeysMapped:
    """Any thread. Raises CorruptDataError: a log with a bad batch is not rewritten.

    `last_offsets` is the last offset of each producer that must still be recognised; without it, the last one
    of each in these segments. Keys from `upto` on are not looked at.
    """
    latest = OffsetMap(keys_max)
    dirty = [segment for segment in plan.segments if segment.published_offset > plan.first_dirty]
    end = plan.segments[-1].published_offset if upto is None else upto
    bytes_max = plan.config.batch_bytes_max
    reached_offset = map_latest(batches_of(plan, dirty), latest, plan.first_dirty, end, bytes_max)
    reached = [segment for segment in plan.segments if segment.base_offset < reached_offset]
    if last_offsets is None:
        last_offsets = _last_offsets(plan.segments)
    groups = grouped(reached, plan.config.segment_bytes)
    return KeysMapped(plan, latest, reached_offset, groups, last_offsets)


def _last_offsets(segments: Sequence[Segment]) -> dict[int, int]:
    last: dict[int, int] = {}
    for segment in segments:
        for header in segment.headers_at(0):
            if header.producer_id >= 0:
                last[header.producer_id] = header.last_offset
    return last


def rewrite(files: Files, mapped: KeysMapped, group: Sequence[Segment]) -> Rewritten:
    """Any thread. Writes what stays of the group, complete on disk as `.swap` when this returns.

    Raises CorruptDataError, and StorageError (a full disk): then nothing has changed but a `.clean` file,
    which the next attempt replaces.
    """
    return write_aside(files, mapped, group, _kept(mapped, group))


def write_aside(
    files: Files, mapped: KeysMapped, group: Sequence[Segment], batches: Iterator[Bytes]
) -> Rewritten:
    """The same for batches that somebody else has thought out."""
    base = group[0].base_offset
    path = f"{names.segment_path(mapped.plan.folder, base, names.LOG)}{names.CLEAN}"
    try:
        if files.exists(path):
            files.unlink(path)
        tail = Tail(base, mapped.plan.config.index_interval_bytes)
        file = files.create(path)
        for written in _chunks(batches):
            _write(file, tail, written)
        commit_clean(files, mapped.plan.folder, file, tail, group[-1].published_offset)
    except OSError as error:
        raise StorageError(f"{mapped.plan.folder} cannot be cleaned: {error.strerror or error}.") from error
    return Rewritten(group, tail)


def _kept(mapped: KeysMapped, group: Sequence[Segment]) -> Iterator[Bytes]:
    run = mapped.run
    for batch in batches_of(mapped.plan, group):
        stays = run.stays(batch)
        if stays is not None:
            yield stays


def batches_of(plan: CleanPlan, segments: Sequence[Segment]) -> Iterator[memoryview]:
    """Every batch of these segments, checked; WorkStoppedError when the plan says so."""
    for segment in segments:
        for batch in _checked_batches(segment):
            if plan.stopped():
                raise WorkStoppedError(f"The cleaning of {plan.folder} was stopped.")
            yield batch


def _checked_batches(segment: Segment) -> Iterator[memoryview]:
    """With their heads, if sums were kept: a wrong offset must not get a seal of its own."""
    regions = segment.sealed_regions()
    if any(region.crc is None for region in regions):
        yield from whole_batches(segment.file, segment.published_bytes)
        return
    for region in regions:
        data = memoryview(segment.file.pread(region.end - region.start, region.start))
        if region_holds(data, region) is None:
            verify_region(segment.file, region)
            raise CorruptDataError(f"{segment.file.path} was damaged at {region.start} a moment ago.")
        for start, end in batch_spans(data):
            yield data[start:end]


def _chunks(batches: Iterator[Bytes]) -> Iterator[list[Bytes]]:
    chunk: list[Bytes] = []
    size = 0
    for batch in batches:
        chunk.append(batch)
        size += len(batch)
        if size >= WRITE_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _write(file: File, tail: Tail, batches: Sequence[Bytes]) -> None:
    write_fully(file, batches, tail.end_bytes)
    tail.note([_noted(batch) for batch in batches])


def _noted(batch: Bytes) -> Batch:
    header = read_header(batch)
    timestamp = header.max_timestamp if header.record_count else NO_TIMESTAMP
    return len(batch), header.last_offset, timestamp, bytes(batch[:UNSUMMED_BYTES])


def clean_now(files: Files, log: Log, clean_plan: CleanPlan, keys_max: int = KEYS_MAX) -> Offset:
    """A whole run in the caller's thread (tests, the CLI); answers the offset below which the log is clean."""
    mapped = map_keys(clean_plan, keys_max)
    for group in mapped.groups:
        log.prepare_rewrite()
        rewritten = rewrite(files, mapped, group)
        swapped = log.swap_in(rewritten)
        log.finish_swap(rewritten)
        if not swapped:
            return clean_plan.first_dirty
    return mapped.upto
