"""The writes of one group: one append at a time, in the order they were asked for.

What a write changes in memory is done by its `finish`, in the order of `submit`, which is thereby the order of
the log: of two commits of one partition the later stays, in memory as on disk, whatever `append` does inside.
Writes that come while one is under way are appended together afterwards, so a busy group costs few appends. An
append is a task of its own: a client that hangs up takes nothing along. A lane that is abandoned ends every write
with an error and hands nothing more to the log.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection
from typing import NamedTuple

from anabranch.coordination.groups.messages import LogRecord
from anabranch.errors import (
    BackPressureError,
    CoordinatorNotAvailableError,
    NotCoordinatorError,
    NotEnoughCopiesError,
    NotOwnerError,
    RequestTimedOutError,
    StorageError,
    UnknownTopicOrPartitionError,
)
from anabranch.values import TopicPartition

Append = Callable[[str, list[LogRecord]], Awaitable[None]]
Finish = Callable[[Exception | None], None]

_RETRIABLE = (
    StorageError,
    BackPressureError,
    NotEnoughCopiesError,
    RequestTimedOutError,
    UnknownTopicOrPartitionError,
)


# Together they stay well below what a record batch may weigh, so that no write fails for its neighbour's size.
_TOGETHER_BYTES_MAX = 256 * 1024


class _Write(NamedTuple):
    records: list[LogRecord]
    finish: Finish
    offsets: Collection[TopicPartition]

    def size_bytes(self) -> int:
        return sum(len(key) + len(value or b"") for key, value in self.records)


class AppendLane:
    def __init__(self, group_id: str, append: Append) -> None:
        self._group_id = group_id
        self._append = append
        self._waiting: deque[_Write] = deque()
        self._running: deque[_Write] = deque()
        self._abandoned: Exception | None = None

    @property
    def is_idle(self) -> bool:
        return not self._running and not self._waiting

    def in_flight(self) -> set[TopicPartition]:
        """The partitions whose offsets these writes change."""
        writes = (*self._running, *self._waiting)
        return {topic_partition for write in writes for topic_partition in write.offsets}

    def submit(
        self, records: list[LogRecord], finish: Finish, offsets: Collection[TopicPartition] = ()
    ) -> None:
        assert self._abandoned is None
        self._waiting.append(_Write(records, finish, offsets))
        if not self._running:
            self._begin()

    def abandon(self, error: Exception) -> None:
        """End every write with this error now. What the log has been handed already it may still keep."""
        self._abandoned = error
        self._running.extend(self._waiting)
        self._waiting.clear()
        self._end_running(error)

    def _begin(self) -> None:
        size_bytes = 0
        while self._waiting:
            size_bytes += self._waiting[0].size_bytes()
            if self._running and size_bytes > _TOGETHER_BYTES_MAX:
                break
            self._running.append(self._waiting.popleft())
        records = [record for write in self._running for record in write.records]
        task = asyncio.ensure_future(self._write(records))
        task.add_done_callback(self._settle)

    async def _write(self, records: list[LogRecord]) -> None:
        if self._abandoned is not None:
            raise self._abandoned  # It was abandoned before this task had its first turn.
        await self._append(self._group_id, records)

    def _settle(self, task: "asyncio.Future[None]") -> None:
        outcome = _outcome(task)  # Read even if nobody is left to tell: an error nobody looks at is reported.
        try:
            self._end_running(outcome)
        finally:
            if self._waiting:
                self._begin()

    def _end_running(self, outcome: Exception | None) -> None:
        try:
            while self._running:
                self._running.popleft().finish(outcome)
        finally:
            if self._running:
                self._end_running(
                    outcome
                )  # A defect in one finish must not keep the others waiting for ever.


def _outcome(task: "asyncio.Future[None]") -> Exception | None:
    if task.cancelled():
        return CoordinatorNotAvailableError("The node stops.")
    error = task.exception()
    if isinstance(error, _RETRIABLE):
        return CoordinatorNotAvailableError(f"The group's log did not take the change: {error}")
    if isinstance(error, NotOwnerError):
        return NotCoordinatorError(str(error))
    if error is None or isinstance(error, Exception):
        return error
    return CoordinatorNotAvailableError(f"The group's log was interrupted: {error!r}")
