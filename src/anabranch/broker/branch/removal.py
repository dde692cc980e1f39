"""What goes of a partition in mode branch: the old end of its line, and lanes that are in no line any more.

What of the line is too old or too much, the primary finds out, and says so in a row. Every holder then drops what lies
below, lane by lane and segment by segment. A lane that the line does not go through (the other side of a healed split)
stays readable until its newest record is as old as retention.ms says, or the line begins above it.
"""

import logging
from collections.abc import Iterable, Iterator

from anabranch.broker.branch.partition import BranchPartition
from anabranch.broker.workers import Workers, in_heavy_worker
from anabranch.log.log import Log
from anabranch.log.retention import Age, expired_count, is_expired
from anabranch.log.segment.segment import Segment
from anabranch.modes.branch.lines import UnknownBranchError
from anabranch.modes.branch.rows import Lane, Tip, lane_limit
from anabranch.values import Offset

logger = logging.getLogger(__name__)


def expired_start(partition: BranchPartition, now_ms: int) -> Offset:
    """Where the line may begin by its retention; at most what is safe. Raises StorageError."""
    view, config = partition.view, partition.view.config
    active = view.writing
    assert active is not None, "only whoever reigns decides"
    newest = active.segments[-1]
    if newest.published_bytes and is_expired(newest.largest_timestamp()[0], config, now_ms):
        active.roll()
    while True:
        ages = list(_ages(partition))
        excluded = active.segments[-1].published_bytes
        count = expired_count([age for age, _ in ages], excluded, view.start_offset, config, now_ms)
        if not any(_is_wrongly_old(partition, segment, now_ms) for _, segment in ages[:count]):
            break
    ends = [age.next_base for age, _ in ages[:count] if age.next_base <= partition.high_watermark]
    return max(ends, default=view.start_offset)


def _is_wrongly_old(partition: BranchPartition, segment: Segment, now_ms: int) -> bool:
    old = is_expired(segment.largest_timestamp()[0], partition.view.config, now_ms)
    return old and segment.doubts_largest_timestamp()


def _ages(partition: BranchPartition) -> Iterator[tuple[Age, Segment]]:
    """The segments of the line but for the one that is written to, each no further than the line goes through it."""
    view = partition.view
    for span in view.line:
        if view.removed.get(span.lane, span.start) >= span.end:
            continue
        log = partition.lanes.get(span.lane)
        if log is None:
            return  # What is elsewhere may be younger than what follows it.
        for segment in log.segments:
            if segment.base_offset >= span.end or (log is view.writing and segment is log.segments[-1]):
                break
            end = min(segment.published_offset, span.end)
            yield Age(segment.published_bytes, segment.largest_timestamp()[0], end), segment
        if log.end_offset < span.end:
            return


def forgotten(partition: BranchPartition, now_ms: int) -> list[Lane]:
    """Lanes below the line's end that are not in it, or no more, and whose records are all too old, or older than the
    whole line; and those without any. Raises StorageError."""
    view, config = partition.view, partition.view.config
    ends = {span.lane: span.end for span in view.line}
    ends.pop(view.lane, None)
    found = []
    for lane in partition.lanes:
        log = partition.lanes.get(lane)
        assert log is not None
        # Above the lane of the line are those that it may go on with: what is copied now, or joined.
        is_used = lane >= view.lane or view.removed.get(lane, Offset(-1)) < ends.get(lane, Offset(-1))
        if partition.is_alone and _is_blank(log) and lane < view.lane:
            found.append(
                lane
            )  # Of a life in which nobody wrote. With others, it may be just about to be filled.
            continue
        if is_used or not log.size_bytes:
            continue
        if _is_outlived(partition, lane, log) or all(
            is_expired(segment.largest_timestamp()[0], config, now_ms)
            for segment in log.segments
            if segment.published_bytes
        ):
            found.append(lane)
    return found


def _is_outlived(partition: BranchPartition, lane: Lane, log: Log) -> bool:
    """The line has taken it in, and has nothing of that time any more."""
    if lane_limit(lane) > partition.view.start_offset:
        return False
    try:
        return partition.branches.is_behind(partition.tip, Tip(lane, log.end_offset))
    except UnknownBranchError:
        return False


def _is_blank(log: Log) -> bool:
    return log.start_offset == log.end_offset and not log.size_bytes and not log.damaged


async def drop_removed(partition: BranchPartition, lanes: Iterable[Lane], workers: Workers) -> None:
    """Drop these lanes, and what lies below the start of the line. Raises StorageError."""
    view = partition.view
    gone = set(lanes)
    for lane, removed in view.removed.items():
        log = partition.lanes.get(lane)
        if log is None or lane in gone:
            continue
        if removed >= log.end_offset and lane != view.lane:
            gone.add(lane)
            continue
        log.advance_start(min(removed, log.end_offset))
        dropped = log.drop([each for each in log.segments[:-1] if each.published_offset <= removed])
        if dropped:
            logger.info("%d segments of lane %d of %s go", len(dropped), lane, partition.id)
            await in_heavy_worker(workers, lambda log=log, dropped=dropped: log.delete_files(dropped))  # type: ignore[misc]
    for lane in sorted(gone):
        logger.info("lane %d of %s goes", lane, partition.id)
        await in_heavy_worker(workers, partition.lanes.drop(lane).delete)
