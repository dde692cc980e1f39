"""The writes of one group: one append at a time, in the order they were asked for.

What a write changes in memory is done by its `finish`, in the order of `submit`, which is thereby the order of
the log: of two commits of one partition the later stays, in memory as on disk, whatever `append` does inside.
Writes that come while one is under way are appended together afterwards, so a busy group costs few appends. An
append is a task of its own: a client that hangs up takes nothing along.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection
from typing import NamedTuple

from anabranch.broker.groups.messages import LogRecord
from anabranch.errors import (
    BackPressureError,
    CoordinatorNotAvailableError,
    NotCoordinatorError,
    NotOwnerError,
    RequestTimedOutError,
    StorageError,
    UnknownTopicOrPartitionError,
)
from anabranch.values import TopicPartition

Append = Callable[[str, list[LogRecord]], Awaitable[None]]
Finish = Callable[[Exception | None], None]

_RETRIABLE = (StorageError, BackPressureError, RequestTimedOutError, UnknownTopicOrPartitionError)


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
        self._waiting.append(_Write(records, finish, offsets))
        if not self._running:
            self._begin()

    def _begin(self) -> None:
        size_bytes = 0
        while self._waiting:
            size_bytes += self._waiting[0].size_bytes()
            if self._running and size_bytes > _TOGETHER_BYTES_MAX:
                break
            self._running.append(self._waiting.popleft())
        records = [record for write in self._running for record in write.records]
        task = asyncio.ensure_future(self._append(self._group_id, records))
        task.add_done_callback(self._settle)

    def _settle(self, task: "asyncio.Future[None]") -> None:
        outcome = _outcome(task)
        try:
            while self._running:
                self._running.popleft().finish(outcome)
        finally:
            if self._running:
                self._settle(task)  # A defect in one finish must not keep the others waiting for ever.
            elif self._waiting:
                self._begin()


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
