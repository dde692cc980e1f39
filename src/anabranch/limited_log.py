"""Rate limit for log lines: a stranger who can cause a line cannot fill a disk with it.

    handler = LimitedHandler(logging.StreamHandler(), clock)      # installed once, where logging is configured

Lines are alike if they come from the same statement and, where they tell of an exception, of the same type: both are
bounded by the code, whatever clients send. Each kind has a token bucket: `LINES_BURST` at once, enough for one line per
partition of a large broker, then `LINES_PER_MINUTE`. The line with which a bucket runs empty is followed by one that
says so; a minute later the next line of any kind, or the end of the process, tells how many were suppressed.
Debug lines are not limited: whoever asks for them wants all of them.
"""

import logging
from collections import OrderedDict
from dataclasses import dataclass

from anabranch.clock import Clock

LINES_BURST = 400
LINES_PER_MINUTE = 10
KINDS_MAX = 1000
"""Kinds remembered at once. The code has fewer statements that log; beyond, the one unused for longest is dropped."""
MINUTE_MS = 60_000

Kind = tuple[str, int, str, int, str]
"""Logger, level, file and line of the statement, and the type of the exception or nothing."""


def kind_of(record: logging.LogRecord) -> Kind:
    error = record.exc_info[0] if record.exc_info else None
    name = error.__qualname__ if error is not None else ""
    return record.name, record.levelno, record.pathname, record.lineno, name


@dataclass(slots=True)
class _Bucket:
    tokens: float
    refilled_ms: int
    suppressed: int = 0
    suppressed_since_ms: int = 0


class RepeatLimit:
    """The token buckets, without any I/O: `take` decides, `summaries` tells what was suppressed."""

    def __init__(self, burst: int = LINES_BURST, per_minute: int = LINES_PER_MINUTE) -> None:
        self._burst = burst
        self._per_minute = per_minute
        self._buckets: OrderedDict[Kind, _Bucket] = OrderedDict()
        self._suppressing: set[Kind] = set()

    def take(self, kind: Kind, now_ms: int) -> bool:
        """Whether a line of this kind may be written now; if not, it is counted."""
        bucket = self._bucket(kind, now_ms)
        if bucket.tokens >= 1:
            bucket.tokens -= 1
            return True
        if not bucket.suppressed:
            bucket.suppressed_since_ms = now_ms
            self._suppressing.add(kind)
        bucket.suppressed += 1
        return False

    def is_newly_spent(self, kind: Kind) -> bool:
        """Whether the next line of this kind would be the first that is suppressed, unless some time passes."""
        bucket = self._buckets[kind]
        return bucket.tokens < 1 and not bucket.suppressed

    def summaries(self, now_ms: int, *, at_once: bool = False) -> list[tuple[Kind, int]]:
        """Kinds of which lines were suppressed for a minute or more, and how many; each count is told once."""
        due = [
            kind
            for kind in self._suppressing
            if at_once or now_ms - self._buckets[kind].suppressed_since_ms >= MINUTE_MS
        ]
        return [(kind, self._settled(kind)) for kind in due]

    def _settled(self, kind: Kind) -> int:
        bucket = self._buckets[kind]
        count, bucket.suppressed = bucket.suppressed, 0
        self._suppressing.discard(kind)
        return count

    def _bucket(self, kind: Kind, now_ms: int) -> _Bucket:
        bucket = self._buckets.get(kind)
        if bucket is None:
            bucket = self._buckets[kind] = _Bucket(self._burst, now_ms)
            if len(self._buckets) > KINDS_MAX:
                dropped, _ = self._buckets.popitem(last=False)
                self._suppressing.discard(dropped)
        self._buckets.move_to_end(kind)
        earned = (now_ms - bucket.refilled_ms) * self._per_minute / MINUTE_MS
        bucket.tokens = min(self._burst, bucket.tokens + max(0.0, earned))
        bucket.refilled_ms = now_ms
        return bucket


class LimitedHandler(logging.Handler):
    """A handler in front of another one, which gets only as many lines of a kind as the limit lets through.

    logging calls `emit` under the handler's lock, so any thread may log."""

    def __init__(self, target: logging.Handler, clock: Clock, limit: RepeatLimit | None = None) -> None:
        super().__init__()
        self._target = target
        self._clock = clock
        self._limit = limit if limit is not None else RepeatLimit()

    def emit(self, record: logging.LogRecord) -> None:
        now_ms = self._clock.monotonic_ms()
        for kind, count in self._limit.summaries(now_ms):
            self._summarise(kind, count)
        if record.levelno <= logging.DEBUG:
            self._target.handle(record)
            return
        kind = kind_of(record)
        if not self._limit.take(kind, now_ms):
            return
        self._target.handle(record)
        if self._limit.is_newly_spent(kind):
            text = "more lines like the last one are counted and not written, until they come less often"
            self._target.handle(_line(kind, text))

    def flush(self) -> None:
        """Also called when the process ends: what was suppressed by then is told."""
        for kind, count in self._limit.summaries(self._clock.monotonic_ms(), at_once=True):
            self._summarise(kind, count)
        self._target.flush()

    def _summarise(self, kind: Kind, count: int) -> None:
        _, _, path, number, _ = kind
        text = f"{count} more lines like those of {path.rpartition('/')[2]}:{number} were suppressed"
        self._target.handle(_line(kind, text))


def _line(kind: Kind, text: str) -> logging.LogRecord:
    name, level, path, number, _ = kind
    return logging.LogRecord(name, level, path, number, text, None, None)
