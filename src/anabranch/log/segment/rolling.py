"""When a new segment begins: the active one is full, old, or its index or its offsets have no room left.

Decides and touches no file. `Log` asks before it writes an append, so that a failed write has only files to
undo, and when housekeeping looks for segments that grew old in silence.
"""

from collections.abc import Sequence

from anabranch.log.disk.files import Bytes
from anabranch.log.segment.scan import UNSUMMED_BYTES, Batch
from anabranch.log.segment.segment import Segment
from anabranch.log.settings import SEGMENT_BYTES_MAX, LogConfig
from anabranch.record.backend import COMPILED
from anabranch.record.index_format import RELATIVE_OFFSET_MAX, TIME_ENTRY_BYTES
from anabranch.values import Offset

Stamped = tuple[Bytes, Offset, Offset, int]
"""A batch with its place: bytes, base offset, last offset, largest timestamp."""

Run = tuple[Offset | None, Sequence[Stamped]]
"""Batches that go into one file: a new segment with this base offset, or the active one (None)."""


def fits(
    active: Segment, size: int, last_offset: Offset, newest: int, config: LogConfig, now_ms: int
) -> bool:
    """Whether an append still goes into the active segment as a whole, as nearly always: the short answer.

    It has `size` bytes, ends with `last_offset`, and `newest` is its largest timestamp. False says only that
    `plan_runs` has to be asked.
    """
    tail, written, created_ms = active.tail, active.published_bytes, active.created_ms
    assert tail is not None
    first_timestamp, size = tail.first_timestamp, written + size
    if created_ms is None or first_timestamp is None or not written:
        return False  # Who begins a segment decides from when its age is counted.
    segment_ms = _segment_ms(config) if config.compacted else config.segment_ms
    return (
        size <= config.segment_bytes
        and size <= SEGMENT_BYTES_MAX
        and last_offset - active.base_offset <= RELATIVE_OFFSET_MAX
        and now_ms - created_ms <= segment_ms
        and newest - first_timestamp <= segment_ms
        # Each index has one more entry at most; those of the time index are the larger ones.
        and (max(len(tail.index.offsets), len(tail.time_index.offsets)) + 1) * TIME_ENTRY_BYTES
        <= config.index_bytes_max
    )


def plan_runs(active: Segment, batches: Sequence[Stamped], config: LogConfig, now_ms: int) -> list[Run]:
    """Which of the batches still go into the active segment, and where new ones begin."""
    assert active.tail is not None
    base, size, first_timestamp = active.base_offset, active.published_bytes, active.tail.first_timestamp
    run: list[Stamped] = []
    runs: list[Run] = [(None, run)]
    full = active.index_bytes_wanted > config.index_bytes_max or is_old(active, config, now_ms)
    for batch in batches:
        length = len(batch[0])
        if (size and (full or _outgrows(size + length, first_timestamp, batch[3], config))) or (
            batch[2] - base > RELATIVE_OFFSET_MAX
        ):
            base, size, first_timestamp, full = batch[1], 0, None, False
            run = []
            runs.append((base, run))
        if not size:
            first_timestamp = batch[3] if batch[3] >= 0 else None
        size += length
        run.append(batch)
    return runs if runs[0][1] else runs[1:]


def is_old(segment: Segment, config: LogConfig, now_ms: int) -> bool:
    return segment.created_ms is not None and now_ms - segment.created_ms > _segment_ms(config)


def _outgrows(size: int, first_timestamp: int | None, timestamp: int, config: LogConfig) -> bool:
    if size > min(config.segment_bytes, SEGMENT_BYTES_MAX):
        return True
    # Kafka's rule: age is counted in the records' own time, lest a backfill of old records roll at every append.
    return first_timestamp is not None and timestamp - first_timestamp > _segment_ms(config)


def _segment_ms(config: LogConfig) -> int:
    """A record that must be compacted in time must not wait in the active segment for longer."""
    if config.compacted:
        return min(config.segment_ms, config.compaction_lag_ms_max)
    return config.segment_ms


def noted_pure(batches: Sequence[Stamped]) -> list[Batch]:
    """What the segment's tail notes of batches that were written."""
    return [
        (len(data), last, timestamp, bytes(data[:UNSUMMED_BYTES])) for data, _, last, timestamp in batches
    ]


if COMPILED:
    from anabranch.record._fast import noted as noted
else:
    noted = noted_pure
