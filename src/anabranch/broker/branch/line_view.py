"""BranchLog: the line of one partition as its readers see it, and its end as the writer does.

A line is only a view: the rows say which spans of which lanes it goes through, and `LaneLogs` has their bytes. What the
rest of the broker asks of a log it may ask here too. Appends go to the lane of the reign, so there has to be one.

A position inside the line is read from there. One in a lane that is known, and not (or not so far) in the line, is
followed by the next record of the line: whoever read another branch goes on behind it. One in a lane that no row knows,
or beyond the end, gets nothing, and no error. Where bytes of the line are not here (`missing_at`), a reader gets
nothing either, unless there is nobody else who could have them: then they are lost, and skipped.

For the loop's thread, but for `sync`.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, cast

from anabranch.broker.branch.lanes.logs import LaneLogs
from anabranch.errors import FencedLogError, OffsetOutOfRangeError, StorageError
from anabranch.log.disk.checkpoint import RecoveryMark
from anabranch.log.log import Log
from anabranch.log.segment.slice import Slice
from anabranch.log.segment.timestamps import Lookup, Moment, first_at_or_after, of_largest_timestamp
from anabranch.modes.branch.lines import Branches, Line, Span, is_known
from anabranch.modes.branch.rows import NO_LANE, Lane, Tip
from anabranch.record.batch import BatchHeader
from anabranch.values import Generation, Offset

if TYPE_CHECKING:
    from anabranch.log.disk.files import File
    from anabranch.log.segment.rolling import Stamped
    from anabranch.log.segment.segment import Segment
    from anabranch.log.settings import LogConfig

NO_GENERATION = Generation(-1)
"""What every batch in a branch says of its leader."""
EMPTY = Slice(cast("File", None), 0, 0)
WITHOUT_LIMIT = 2**62


class BranchLog:
    firm_offset: Offset | None = None

    def __init__(self, name: str, lanes: LaneLogs, branches: Branches, *, skips_lost: bool) -> None:
        self.name = name
        self.lanes = lanes
        self._branches = branches
        self.skips_lost = skips_lost
        """Nobody else has a copy: what is not here is nowhere."""
        self.elsewhere: Callable[[Span, int, bool], Slice | None] | None = None
        """Set among peers: what is not held here, as far as it has come from those who hold it."""
        self.lane = NO_LANE
        """In which the line ends."""
        self.writing: Log | None = None
        """The lane of the reign, which alone is written to."""
        self._before: Line = ()
        self._first = Offset(0)
        self._removed: dict[Lane, Offset] = {}
        self._filled: Line = ()
        self._ends: list[Offset] = []
        """What there is to be read before the last lane, and where each of these ends: of a thousand starts most lanes
        may be empty or gone."""
        self._start_offset = Offset(0)

    # --- the line ------------------------------------------------------------------------------------------------

    def show(self, lane: Lane) -> None:
        """The line that ends in this lane. Raises UnknownBranchError."""
        *before, last = self._branches.line(Tip(lane, Offset(0))) if lane != NO_LANE else (None,)
        self.lane = lane
        self._before = tuple(span for span in before if span is not None)
        self._first = last.start if last is not None else Offset(0)
        self.refresh()

    def refresh(self) -> None:
        """Rows have come that may say what was removed."""
        if self.lane == NO_LANE:
            self._start_offset = Offset(0)
            return
        line = self.line
        self._removed = self._branches.removed_below(line)
        left = (
            Span(span.lane, max(span.start, self._removed.get(span.lane, span.start)), span.end)
            for span in self._before
        )
        self._filled = tuple(span for span in left if span.start < span.end)
        self._ends = [span.end for span in self._filled]
        self._start_offset = max(self._start_offset, self._start_of(line))

    def _start_of(self, line: Line) -> Offset:
        start = line[0].start
        for span in line:
            removed = self._removed.get(span.lane)
            if removed is None:
                break  # Not where this lane begins: whoever has read all that was removed has missed nothing.
            start = removed
            if removed < span.end:
                break
        # If nothing was removed, nobody comes too late, whichever lane was the first.
        return Offset(0) if start == line[0].start else start

    @property
    def tip(self) -> Tip:
        return Tip(self.lane, self.end_offset)

    @property
    def line(self) -> Line:
        if self.lane == NO_LANE:
            return ()
        return (*self._before, Span(self.lane, self._first, self.end_offset))

    @property
    def removed(self) -> dict[Lane, Offset]:
        """Below which offset of a lane of the line records were removed on purpose."""
        return self._removed

    @property
    def start_offset(self) -> Offset:
        return self._start_offset

    @property
    def end_offset(self) -> Offset:
        """The next record gets this offset, or one of a later lane."""
        log = self.lanes.get(self.lane)
        return self._first if log is None else max(log.end_offset, self._first)

    def readable_end(self, end: Offset) -> Offset:
        """Behind the last record of the line below `end`. While nothing was written to its last lane, that is where an
        earlier one ends: whoever has read that far has read everything, and clients tell so by this number alone."""
        if end > self._first:
            return max(self._end_in(self.lane, end), self._start_offset)
        ends = (
            self._end_in(span.lane, min(span.end, end))
            for span in reversed(self._filled)
            if span.start < min(span.end, end)
        )
        return max(next(ends, self._start_offset), self._start_offset)

    def _end_in(self, lane: Lane, end: Offset) -> Offset:
        """The same within a lane: what the topic had before has gaps itself, if it was in branches already."""
        log = self.lanes.get(lane)
        return end if log is None else log.readable_end(end)

    # --- reading -------------------------------------------------------------------------------------------------

    def slice(self, start: Offset, bytes_max: int, upto: Offset, *, whole_first: bool = True) -> Slice:
        """As `LogReader.slice`, but for a start beyond the end, which is none of anybody's errors here."""
        if start < self._start_offset:
            raise OffsetOutOfRangeError(
                f"Offset {start} lies below the start {self._start_offset} of {self.name}."
            )
        if not is_known(self._branches, start):
            return EMPTY
        for log, part in self._parts(start, upto):
            found = log.slice(part.start, bytes_max, part.end, whole_first=whole_first)
            if found.count:
                return found
            if not whole_first and log.slice(part.start, 1, part.end).count:
                return EMPTY  # There is something, which is too large.
        missing = self.missing_at(start, upto) if self.elsewhere is not None else None
        if missing is not None and self.elsewhere is not None:
            return self.elsewhere(missing, bytes_max, whole_first) or EMPTY
        return EMPTY

    def _parts(self, start: Offset, upto: Offset) -> Iterator[tuple[Log, Span]]:
        """What of [start, upto) is held here, up to the first byte that somebody else may have."""
        for span in self._spans_from(start, upto):
            held = self.lanes.held(span.lane)
            if held is None or held.start > span.start:
                if not self.skips_lost:
                    return
                if held is None:
                    continue
            log = self.lanes.get(span.lane)
            assert log is not None
            part = Span(span.lane, max(span.start, held.start), min(span.end, held.end))
            if part.start < part.end:
                yield log, part
            if held.end < span.end and not self.skips_lost:
                return

    def _spans_from(self, start: Offset, upto: Offset) -> Iterator[Span]:
        """What the line has in [start, upto) that was not removed."""
        first = bisect_right(self._ends, start)
        for span in (*self._filled[first:], self._last):
            begin = max(start, span.start)
            end = min(span.end, upto)
            if begin < end:
                yield Span(span.lane, begin, end)

    @property
    def _last(self) -> Span:
        start = max(self._first, self._removed.get(self.lane, self._first))
        return Span(self.lane, start, self.end_offset)

    def missing_at(self, start: Offset, upto: Offset) -> Span | None:
        """What of the line would be read next from `start` on and is not held here; None: what is read next is here, or
        there is nothing."""
        if not is_known(self._branches, start):
            return None
        for span in self._spans_from(max(start, self._start_offset), upto):
            held = self.lanes.held(span.lane)
            if held is None or not held.start <= span.start < held.end:
                return span
            log = self.lanes.get(span.lane)
            assert log is not None
            if log.slice(span.start, 1, min(span.end, held.end)).count:
                return None
            if held.end < span.end:
                return Span(span.lane, held.end, span.end)
        return None

    def is_cut(self, start: Offset, part: Slice, upto: Offset) -> bool:
        """Whether more follows a slice that was read from `start` on, and could be read."""
        for log, held in self._parts(start, upto):
            whole = log.slice(held.start, WITHOUT_LIMIT, held.end)
            if not whole.count:
                continue
            if whole.file is not part.file or whole.count > part.count:
                return True
            active = log.segments[-1]
            if whole.file is not active.file and held.end > active.base_offset:
                return True
        return False

    def batch_headers(self, start: Offset) -> Iterator[BatchHeader]:
        """Every header of the line from the batch that holds `start`, as far as it is here."""
        for span in self._spans_from(max(start, self._start_offset), self.end_offset):
            log = self.lanes.get(span.lane)
            if log is not None:
                yield from headers_of(log, span)

    def offset_for_time(self, timestamp_ms: int) -> Lookup:
        """The first record of the line whose timestamp is not before `timestamp_ms`, of those that are here."""
        for span in self._spans_from(self._start_offset, self.end_offset):
            log = self.lanes.get(span.lane)
            if log is None:
                continue
            found = yield from first_of_time(log, span, timestamp_ms)
            if found is not None:
                return found
        return None

    def max_timestamp(self) -> Lookup:
        """The record of the line with the largest timestamp, of those that are here."""
        best: Moment | None = None
        for span in self._spans_from(self._start_offset, self.end_offset):
            log = self.lanes.get(span.lane)
            found = (yield from newest_of(log, span)) if log is not None else None
            if found is not None and (best is None or found.timestamp > best.timestamp):
                best = found
        return best

    # --- writing -------------------------------------------------------------------------------------------------

    @property
    def fenced(self) -> bool:
        return self.writing is not None and self.writing.fenced

    @property
    def _reigning(self) -> Log:
        if self.writing is None:
            raise FencedLogError(f"{self.name} has no lane to write to now.")
        return self.writing

    def append(self, batches: "Sequence[Stamped]", now_ms: int) -> None:
        self._reigning.append(batches, now_ms)

    def sync(self) -> Offset:
        """Any thread: what was written by the present reign; if there is none, all that is not on the disk yet."""
        writing = self.writing
        if writing is not None:
            return writing.sync()
        for log in self.lanes.logs():
            if not log.is_synced:
                log.sync()
        return self.end_offset

    @property
    def synced_offset(self) -> Offset:
        return self.writing.synced_offset if self.writing is not None else self.end_offset

    @property
    def is_synced(self) -> bool:
        return all(log.is_synced for log in self.lanes.logs())

    def is_sync_small(self, bytes_max: int) -> bool:
        return self.writing is None or self.writing.is_sync_small(bytes_max)

    @property
    def recovery_mark(self) -> RecoveryMark:
        return (
            self.writing.recovery_mark
            if self.writing is not None
            else RecoveryMark(self.end_offset, self.end_offset)
        )

    def roll_if_due(self, now_ms: int) -> bool:
        return self.writing is not None and self.writing.roll_if_due(now_ms)

    # --- as a whole ----------------------------------------------------------------------------------------------

    @property
    def folder(self) -> str:
        return self.lanes.folder

    @property
    def config(self) -> "LogConfig":
        return self.lanes.config

    @config.setter
    def config(self, config: "LogConfig") -> None:
        self.lanes.config = config

    @property
    def size_bytes(self) -> int:
        return self.lanes.size_bytes

    @property
    def segments(self) -> "list[Segment]":
        """Of all lanes that are held, in their order."""
        return [segment for log in self.lanes.logs() for segment in log.segments]

    def flush_indexes(self) -> None:
        self.lanes.flush_indexes()

    def close(self, *, clean: bool = True) -> None:
        self.lanes.close(clean=clean)


def headers_of(log: Log, span: Span) -> Iterator[BatchHeader]:
    """Of the batches of a span, as far as they are in this log."""
    for header in log.batch_headers(max(span.start, log.start_offset)):
        if header.base_offset >= span.end:
            return
        if header.base_offset >= span.start:
            yield header


def first_of_time(log: Log, span: Span, timestamp_ms: int) -> Lookup:
    """The first record of a span that is not older. Raises StorageError."""
    start = max(span.start, log.start_offset)
    try:
        found = yield from first_at_or_after(log.segments, start, timestamp_ms, log.config.batch_bytes_max)
    except OSError as error:
        raise StorageError(f"{log.folder} cannot be read: {error.strerror or error}.") from error
    return found if found is not None and found.offset < span.end else None


def newest_of(log: Log, span: Span) -> Lookup:
    """The first record of a span with its largest timestamp. Raises StorageError."""
    start = max(span.start, log.start_offset)
    try:
        found = yield from of_largest_timestamp(log.segments, start, log.config.batch_bytes_max)
    except OSError as error:
        raise StorageError(f"{log.folder} cannot be read: {error.strerror or error}.") from error
    if found is None or found.offset < span.end:
        return found
    # It lies behind the place where the line has left this lane.
    newest = max((header.max_timestamp for header in headers_of(log, span)), default=-1)
    return (yield from first_of_time(log, span, newest)) if newest >= 0 else None
