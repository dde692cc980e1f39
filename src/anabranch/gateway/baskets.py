"""Basket: the records that wait for one partition, and the task that writes them, batch by batch."""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from anabranch.errors import AnabranchError, RequestTimedOutError
from anabranch.gateway.calls import TopicView

if TYPE_CHECKING:
    from anabranch.gateway.gathering import Gatherer

Headers = Sequence[tuple[str, bytes | None]]
BATCH_RECORDS_MAX = 10_000

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
    placed: "asyncio.Future[Placed]"


class Basket:
    def __init__(self, gatherer: "Gatherer", view: TopicView, index: int) -> None:
        self._gatherer = gatherer
        self.view = view
        self.index = index
        self._waiting: list[Waiting] = []
        self._bytes = 0
        self._full = asyncio.Event()
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
            try:
                await self._gatherer.deliver(self.view, self.index, records)
            except Exception as error:  # A defect of ours must not leave its writers waiting for ever.
                logger.exception("a gathered batch could not be written: this is a defect")
                fail(records, RequestTimedOutError(f"A defect, see the log: {type(error).__name__}."))
            finally:
                self._gatherer.budget.give(sum(record.size for record in records))
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
