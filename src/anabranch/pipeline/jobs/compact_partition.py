"""One task of a compaction: reads the sealed segments of one partition and offers the broker what stays of them.

It runs where the node's data folder is reachable, and only reads the log. What it writes goes into the folder
`offered` beside it (`record.compaction.offer_format`): one file per group of neighbouring segments, then the
manifest, from which on it counts. The decisions are the LogCleaner's own (`record.compaction.run`); whatever goes
wrong here, the broker checks every record before it takes anything in. A crash leaves files without a manifest, which
the next run replaces.

Memory is bounded like the cleaner's: the map of keys, and one unpacked batch.
"""

import fcntl
import os
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from mmap import ACCESS_READ, mmap
from pathlib import Path

from anabranch.errors import CorruptDataError, PipelineError
from anabranch.record.batch import batch_spans, check_batch, read_header
from anabranch.record.compaction.check import OFFER_MS_MAX
from anabranch.record.compaction.offer_format import (
    FOLDER,
    MANIFEST,
    OUTCOME,
    Offer,
    OfferedSource,
    Outcome,
    dump_offer,
    file_name,
    load_outcome,
)
from anabranch.record.compaction.offset_map import OffsetMap
from anabranch.record.compaction.run import CompactionRun, grouped, map_latest
from anabranch.values import Offset

POLL_SECONDS = 0.2
WRITE_BYTES = 2**20


@dataclass(frozen=True)
class CompactTask:
    """What one task is told; the settings are those the broker itself cleans by."""

    partition: int
    folder: str
    first_dirty: int
    """Below this the broker has compacted already: no key appears there twice."""
    segment_bytes: int
    delete_retention_ms: int
    compaction_lag_ms_min: int
    keys_max: int
    batch_bytes_max: int


@dataclass(frozen=True)
class Compacted:
    """What became of one partition."""

    partition: int
    offer_id: str = ""
    """Empty if nothing was offered."""
    reason: str = ""
    """Why nothing was offered, or why the broker refused it."""
    taken: bool = False
    bytes_before: int = 0
    bytes_after: int = 0
    batches_before: int = 0
    batches_after: int = 0


@dataclass(frozen=True)
class SegmentFile:
    """A sealed segment, as long as it was when the folder was read."""

    path: str
    base_offset: Offset
    published_offset: Offset
    published_bytes: int

    def batches(self) -> Iterator[memoryview]:
        """Every batch, once its CRC and its counts hold."""
        if not self.published_bytes:
            return
        with open(self.path, "rb") as file:
            mapped = mmap(
                file.fileno(), 0, access=ACCESS_READ
            )  # Unmapped when nobody holds a batch any more.
        if len(mapped) < self.published_bytes:
            raise CorruptDataError(f"{self.path} has become shorter: the log has changed meanwhile.")
        view = memoryview(mapped)[: self.published_bytes]
        for start, end in batch_spans(view):
            check_batch(view, start, end, fresh=False)
            yield view[start:end]

    def largest_timestamp(self) -> int:
        times = [header.max_timestamp for header in map(read_header, self.batches()) if header.record_count]
        return max(times, default=-1)


def offer_compacted(task: CompactTask, now_ms: int | None = None) -> Compacted:
    """Compact one partition and offer the result. PipelineError if its folder cannot be used from here."""
    started_ms = int(time.time() * 1000) if now_ms is None else now_ms
    aside = Path(task.folder) / FOLDER
    try:
        with _alone(aside) as is_free:
            if not is_free:
                return Compacted(task.partition, reason="another job's offer waits for the broker")
            return _offer(task, aside, started_ms)
    except FileNotFoundError as error:
        raise PipelineError(
            f"{error.filename} is not there: this job must run where the node's data folder is, "
            "and the log must not be compacted by others meanwhile."
        ) from error
    except PermissionError as error:
        raise PipelineError(
            f"{error.filename} cannot be written: run the job as the user the node runs as."
        ) from error


@contextmanager
def _alone(aside: Path) -> Iterator[bool]:
    """Whether nobody else is at work on this partition, and no offer waits; held until the block ends."""
    if not aside.parent.is_dir():
        raise FileNotFoundError(2, "no such folder", str(aside.parent))
    if aside.is_symlink():
        raise PipelineError(f"{aside} is a symbolic link, which is not followed: remove it.")
    aside.mkdir(0o700, exist_ok=True)
    handle = os.open(aside, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield not (aside / MANIFEST).exists()
    finally:
        os.close(handle)


def _offer(task: CompactTask, aside: Path, now_ms: int) -> Compacted:
    segments = _old_enough(_sealed_segments(task.folder), task, now_ms)
    dirty = [segment for segment in segments if segment.published_offset > task.first_dirty]
    if not dirty:
        return Compacted(task.partition, reason="there is no sealed segment that was not compacted before")
    run = _run(task, segments, dirty, now_ms)
    reached = [segment for segment in segments if segment.base_offset < run.upto]
    groups = grouped(reached, task.segment_bytes)
    result = replace(_write_groups(aside, groups, run), partition=task.partition, offer_id=uuid.uuid4().hex)
    sources = [[OfferedSource(each.base_offset, each.published_bytes) for each in group] for group in groups]
    _write_manifest(aside, Offer(result.offer_id, run.upto, sources))
    return result


def _sealed_segments(folder: str) -> list[SegmentFile]:
    """All but the last one, which is being written to."""
    names = sorted(name for name in os.listdir(folder) if name.endswith(".log") and name[:20].isdigit())
    bases = [Offset(int(name[:20])) for name in names]
    return [
        SegmentFile(f"{folder}/{name}", base, following, os.path.getsize(f"{folder}/{name}"))
        for name, base, following in zip(names, bases, bases[1:], strict=False)
    ]


def _old_enough(segments: list[SegmentFile], task: CompactTask, now_ms: int) -> list[SegmentFile]:
    """Up to the first segment that min.compaction.lag.ms still protects."""
    if task.compaction_lag_ms_min <= 0:
        return segments
    limit_ms = now_ms - task.compaction_lag_ms_min
    for number, segment in enumerate(segments):
        if segment.largest_timestamp() > limit_ms:
            return segments[:number]
    return segments


def _run(
    task: CompactTask, segments: Sequence[SegmentFile], dirty: Sequence[SegmentFile], now_ms: int
) -> CompactionRun:
    latest = OffsetMap(task.keys_max)
    end, first_dirty = dirty[-1].published_offset, Offset(task.first_dirty)
    upto = map_latest(_batches(dirty), latest, first_dirty, end, task.batch_bytes_max)
    retention_ms = task.delete_retention_ms + OFFER_MS_MAX  # By the broker's clock it must not be too short.
    return CompactionRun(latest, upto, _last_offsets(segments), now_ms, retention_ms, task.batch_bytes_max)


def _batches(segments: Sequence[SegmentFile]) -> Iterator[memoryview]:
    for segment in segments:
        yield from segment.batches()


def _last_offsets(segments: Sequence[SegmentFile]) -> dict[int, int]:
    """The last batch of each producer: one too many does no harm, it stays without records."""
    last: dict[int, int] = {}
    for batch in _batches(segments):
        header = read_header(batch)
        if header.producer_id >= 0:
            last[header.producer_id] = header.last_offset
    return last


# --- writing ---------------------------------------------------------------------------------------------------


def _write_groups(aside: Path, groups: Sequence[Sequence[SegmentFile]], run: CompactionRun) -> Compacted:
    for (
        left
    ) in aside.iterdir():  # Of a run that did not come to its end; an old outcome is nobody's any more.
        left.unlink()
    before, after, batches_before, batches_after = 0, 0, 0, 0
    for group in groups:
        with open(
            aside / file_name(group[0].base_offset), "wb", buffering=WRITE_BYTES, opener=_private
        ) as file:
            for batch in _batches(group):
                stays = run.stays(batch)
                batches_before, before = batches_before + 1, before + len(batch)
                if stays is not None:
                    batches_after, after = batches_after + 1, after + len(stays)
                    file.write(stays)
            file.flush()
            os.fsync(file.fileno())
    return Compacted(
        0, bytes_before=before, bytes_after=after, batches_before=batches_before, batches_after=batches_after
    )


def _private(path: str, flags: int) -> int:
    """An `opener` for files in a data folder: their owner's alone, and no link."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def _write_manifest(aside: Path, offer: Offer) -> None:
    unfinished = aside / f"{MANIFEST}.tmp"
    with open(unfinished, "wb", opener=_private) as file:
        file.write(dump_offer(offer))
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(aside / MANIFEST)
    handle = os.open(aside, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# --- waiting ---------------------------------------------------------------------------------------------------


def await_outcome(folder: str, offered: Compacted, deadline: float) -> Compacted:
    """What the broker made of an offer; `deadline` is of the monotonic clock."""
    path = Path(folder) / FOLDER / OUTCOME
    while True:
        outcome = _outcome(path)
        if outcome is not None and outcome.id in (offered.offer_id, "?"):
            path.unlink(missing_ok=True)
            return replace(offered, taken=outcome.taken, reason=outcome.reason)
        if time.monotonic() > deadline:
            return replace(
                offered, reason="the broker has not answered yet: it looks when its cleaner is due"
            )
        time.sleep(POLL_SECONDS)


def _outcome(path: Path) -> Outcome | None:
    try:
        return load_outcome(path.read_bytes())
    except FileNotFoundError:
        return None
