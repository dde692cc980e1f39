"""Basket: the records that wait for one partition, and the task that writes them, batch by batch."""

import asyncio
import logging
from collections import deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from anabranch.errors import AnabranchError, RequestTimedOutError
from anabranch.gateway.calls import TopicView

if TYPE_CHECKING:
    from anabranch.gateway.produce.produce_batcher import Gatherer

Headers = Sequence[tuple[str, bytes | None]]
BATCH_RECORDS_MAX = 10_000
HELD_BYTES = 600
"""What a waiting record takes besides what it counts in its batch, with whoever waits for it: measured."""

logger = logging.getLogger(__name__)


class Placed(NamedTuple):
    """Where a record has been written."""

    partition: int
    offset: int
    timestamp: int


class Waiting(NamedTuple):
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp: int
    size: int
    deadline_ms: int
    """By then its writer is told what became of it."""
    placed: "asyncio.Future[Placed]"

    @property
    def held_bytes(self) -> int:
        """What it takes in memory until it is written."""
        return self.size + HELD_BYTES


class Basket:
    def __init__(self, gatherer: "Gatherer", view: TopicView, index: int) -> None:
        self._gatherer = gatherer
        self.view = view
        self.index = index
        self._waiting: list[Waiting] = []
        self._bytes = 0
        self._full = asyncio.Event()
        self._under_way: deque[Waiting] = deque()
        """Of the batch that is being written: those whose writers have not been told anything."""
        self.may_be_written = False
        """Whether that batch may have been written though nobody has said so."""
        self.cause: AnabranchError | None = None
        """Why the last try to write it failed."""
        self.task: asyncio.Task[None] | None = None

    def add(self, record: Waiting) -> None:
        self._waiting.append(record)
        self._bytes += record.size
        if self._bytes >= self._gatherer.batch_bytes_max or len(self._waiting) >= BATCH_RECORDS_MAX:
            self._full.set()
        if self.task is None:
            self.task = asyncio.ensure_future(self._run())

    def hurry(self) -> None:
        self._full.set()

    async def _run(self) -> None:
        await self._linger()
        while self._waiting:
            records = self._take()
            self._gatherer.taken(self, records)
            self._under_way = deque(records)
            try:
                await self._gatherer.deliver(self, records)
            except Exception as error:  # A defect of ours must not leave its writers waiting for ever.
                logger.exception("a gathered batch could not be written: this is a defect")
                fail(records, RequestTimedOutError(f"A defect, see the log: {type(error).__name__}."))
            finally:
                self._under_way.clear()
                self.may_be_written, self.cause = False, None
                self._gatherer.budget.give(sum(record.held_bytes for record in records))
        self.task = None
        self._gatherer.ended(self)

    async def _linger(self) -> None:
        if self._gatherer.linger_seconds <= 0:
            return
        try:
            async with asyncio.timeout(self._gatherer.linger_seconds):
                await self._full.wait()
        except TimeoutError:
            pass

    def expire(self, now_ms: int) -> None:
        """Tell the writers whose time is over. What is under way goes on; what was not tried is not tried any more."""
        while self._under_way and self._under_way[0].deadline_ms <= now_ms:
            record = self._under_way.popleft()
            if not record.placed.done():
                fail([record], self._gatherer.late(self))
        late = 0
        while late < len(self._waiting) and self._waiting[late].deadline_ms <= now_ms:
            late += 1
        if late:
            expired, self._waiting = self._waiting[:late], self._waiting[late:]
            self._bytes -= sum(record.size for record in expired)
            self._gatherer.budget.give(sum(record.held_bytes for record in expired))
            fail(expired, self._gatherer.never_tried(self))

    def _take(self) -> list[Waiting]:
        """The next batch: as many as fit, in order."""
        count, size = 0, 0
        limit = min(self._gatherer.batch_bytes_max, self.view.settings.max_message_bytes)
        for record in self._waiting[:BATCH_RECORDS_MAX]:
            if count and size + record.size > limit:
                break
            size += record.size
            count += 1
        taken, self._waiting = self._waiting[:count], self._waiting[count:]
        self._bytes -= size
        if not self._waiting:
            self._full.clear()
        return taken


def fail(records: Iterable[Waiting], error: AnabranchError) -> None:
    for record in records:
        if not record.placed.done():
            record.placed.set_exception(error)
            record.placed.exception()  # A writer that is gone is no defect.
