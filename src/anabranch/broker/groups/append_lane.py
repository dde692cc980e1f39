"""The writes of one group, finished in the order they were begun.

Each write is a task of its own, so several are on their way at once and a client that hangs up takes none of
them along. What a write changes in memory is done by its `finish`, and those run strictly in the order of
`submit`, which is the order of the log: of two commits of one partition the later stays, in memory as on
disk. The `append` handed in must take its place in the log's queue before it first waits.
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


class _Write(NamedTuple):
    task: "asyncio.Future[None]"
    finish: Finish
    offsets: Collection[TopicPartition]


class AppendLane:
    def __init__(self, group_id: str, append: Append) -> None:
        self._group_id = group_id
        self._append = append
        self._writes: deque[_Write] = deque()

    @property
    def is_idle(self) -> bool:
        return not self._writes

    def in_flight(self) -> set[TopicPartition]:
        """The partitions whose offsets these writes change."""
        return {topic_partition for write in self._writes for topic_partition in write.offsets}

    def submit(
        self, records: list[LogRecord], finish: Finish, offsets: Collection[TopicPartition] = ()
    ) -> None:
        task = asyncio.ensure_future(self._append(self._group_id, records))
        self._writes.append(_Write(task, finish, offsets))
        task.add_done_callback(self._settle)

    def _settle(self, _: "asyncio.Future[None]") -> None:
        while self._writes and self._writes[0].task.done():
            write = self._writes.popleft()
            write.finish(_outcome(write.task))


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
