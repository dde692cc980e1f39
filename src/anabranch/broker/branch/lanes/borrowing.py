"""Borrowing: what readers of a line want that is held by other brokers only, in memory for a moment.

A slice never waits: what is not at hand is asked for, and whoever waits to read the partition is woken when it has come
(or when nobody has it, which leaves them as they are: nothing is skipped). All partitions share one small memory.
"""

import asyncio
import logging
from collections import OrderedDict
from typing import TYPE_CHECKING

from anabranch.broker.branch.lanes.reads import LaneReading, Piece
from anabranch.errors import AnabranchError
from anabranch.log.segment.slice import Slice
from anabranch.modes.branch.lines import Span
from anabranch.modes.branch.rows import Lane
from anabranch.record.batch import batch_spans, read_header
from anabranch.values import Offset

if TYPE_CHECKING:
    from uuid import UUID

    from anabranch.broker.branch.partition import BranchPartition

BYTES_MAX = 32 * 2**20
ASKED_MAX = 16
"""Questions under way at a time: whoever asks beyond that is not answered, and asks again."""
FOLLOWING_MS = 300
"""How long nothing is asked again that nobody had."""

Place = tuple["UUID", int, Lane]

logger = logging.getLogger(__name__)


class BorrowedSlice(Slice):
    """Batches in memory."""

    __slots__ = ("_data", "is_cut")

    def __init__(self, data: bytes, *, is_cut: bool) -> None:
        self.count = len(data)
        self.verified = True
        self.is_warm = True
        self.damage = None
        self._data = data
        self.is_cut = is_cut

    def read(self) -> bytes:
        return self._data

    def checked(self) -> memoryview:
        return memoryview(self._data)

    def mark_verified(self) -> None:
        """Nothing is remembered of them."""

    def verify(self) -> None:
        """They were when they came."""

    def fileno(self) -> None:
        return None


class Borrowing:
    def __init__(self, reading: LaneReading) -> None:
        self._reading = reading
        self._pieces: OrderedDict[tuple[Place, Offset], Piece] = OrderedDict()
        self._size_bytes = 0
        self._asked: dict[tuple[Place, Offset], asyncio.Task[None]] = {}

    def slice(
        self, partition: "BranchPartition", span: Span, bytes_max: int, *, whole_first: bool
    ) -> Slice | None:
        """The beginning of a span that is not held here, if it is at hand; else it is asked for."""
        place = (*partition.key, span.lane)
        piece = self._at(place, span.start)
        if piece is None:
            self._ask(partition, place, span)
            return None
        if not piece.data and piece.end < span.end:
            rest = Span(span.lane, piece.end, span.end)
            return self.slice(partition, rest, bytes_max, whole_first=whole_first)
        data = _cut(piece.data, span, bytes_max, whole_first=whole_first)
        return BorrowedSlice(data, is_cut=len(data) < len(piece.data)) if data else None

    def _at(self, place: Place, start: Offset) -> Piece | None:
        for (of, first), piece in self._pieces.items():
            if of == place and first <= start < piece.end:
                self._pieces.move_to_end((of, first))
                return piece
        return None

    def _ask(self, partition: "BranchPartition", place: Place, span: Span) -> None:
        if (place, span.start) in self._asked or len(self._asked) >= ASKED_MAX:
            return
        task = asyncio.get_running_loop().create_task(self._load(partition, place, span))
        self._asked[place, span.start] = task
        task.add_done_callback(lambda _: self._asked.pop((place, span.start), None))

    async def _load(self, partition: "BranchPartition", place: Place, span: Span) -> None:
        try:
            piece = await self._reading.read_elsewhere(partition, span)
        except AnabranchError as error:
            logger.warning("records of %s cannot be had from another broker: %s", partition.id, error)
            piece = None
        if piece is None:
            await asyncio.sleep(FOLLOWING_MS / 1000)
            return
        self._keep(place, span.start, piece)
        partition.wake()

    def _keep(self, place: Place, start: Offset, piece: Piece) -> None:
        before = self._pieces.pop((place, start), None)
        self._size_bytes += len(piece.data) - (len(before.data) if before is not None else 0)
        self._pieces[place, start] = piece
        while self._size_bytes > BYTES_MAX and len(self._pieces) > 1:
            _, dropped = self._pieces.popitem(last=False)
            self._size_bytes -= len(dropped.data)

    async def stop(self) -> None:
        asked = list(self._asked.values())
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)


def _cut(data: bytes, span: Span, bytes_max: int, *, whole_first: bool) -> bytes:
    """Whole batches from the span's start on, and no more than are wanted."""
    begin, end = None, 0
    for first, last in batch_spans(data):
        header = read_header(data, first)
        if header.next_offset <= span.start:
            continue
        if header.base_offset >= span.end:
            break
        if begin is None:
            begin = first
            if last - first > bytes_max and not whole_first:
                return b""
        elif last - begin > bytes_max:
            break
        end = last
    return data[begin:end] if begin is not None else b""
