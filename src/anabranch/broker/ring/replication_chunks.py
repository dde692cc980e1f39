"""Pieces of a log on their way to another replica: how long one may be, its bytes, and what it must fulfil there.

A piece is whole batches and begins where one begins. It may have gaps, and even be empty, where the sender's log has
lost records to retention or to the cleaner: who takes it follows that.
"""

from anabranch.errors import AnabranchError, CorruptDataError
from anabranch.log.log import Log
from anabranch.log.segment.slice import Slice
from anabranch.record.batch import BatchHeader, batch_spans, check_batch, read_header
from anabranch.record.buffers import ByteBuffer
from anabranch.values import Generation, Offset

PIECE_BYTES_MAX = 2**20
NO_TIMESTAMP = -1
OF_BEFORE = Generation(0)
"""What a ring has from before it began: it was written by one broker alone, or in branches, and says so or nothing."""

Checked = tuple[memoryview, BatchHeader]


class Pieces:
    """Those of one log. What was found for one follower is at hand for the next, until `forget`."""

    __slots__ = ("_end", "_fitted", "_log", "_read")

    def __init__(self, log: Log) -> None:
        self._log = log
        self._fitted: tuple[Offset, Offset] | None = None
        self._end = Offset(0)
        self._read: tuple[Offset, Offset, list[bytes]] | None = None

    def fits(self, start: Offset, end: Offset) -> Offset:
        if self._fitted != (start, end):
            self._fitted, self._end = (start, end), fits(self._log, start, end)
        return self._end

    def offer(self, start: Offset, end: Offset, data: bytes) -> None:
        """What the log ends with, so that it need not be read back."""
        if len(data) <= PIECE_BYTES_MAX:
            self._fitted, self._end = (start, end), end
            self._read = (start, end, [data])

    def read(self, start: Offset, end: Offset) -> list[bytes]:
        """Raises CorruptDataError, StorageError."""
        read = self._read
        if read is None or read[:2] != (start, end):
            self._read = read = (start, end, read_piece(self._log, start, end))
        return read[2]

    def forget(self) -> None:
        """The log may change."""
        if self._fitted is not None or self._read is not None:
            self._fitted = self._read = None


def fits(log: Log, start: Offset, end: Offset) -> Offset:
    """Where a piece ends that begins at `start`: whole batches, at least one, about `PIECE_BYTES_MAX` at most. What
    cannot be read counts as one piece: sending it will find out what is wrong."""
    try:
        return _fits(log, start, end)
    except AnabranchError:
        return end


def _fits(log: Log, start: Offset, end: Offset) -> Offset:
    at = max(start, log.start_offset)
    if start < at and (first := _first_base(log, at)) > start:
        return min(first, end)
    part = log.slice(at, PIECE_BYTES_MAX, end)
    if not part.count or (end == log.end_offset and _reaches_end(log, part)):
        return end
    return min(_next_offset(part.read()), end)


def _first_base(log: Log, offset: Offset) -> Offset:
    """Where the batch begins that holds `offset`: a deletion may end within one."""
    header = next(log.batch_headers(offset), None)
    return header.base_offset if header is not None else offset


def _reaches_end(log: Log, part: Slice) -> bool:
    active = log.segments[-1]
    return part.file is active.file and part.position + part.count == active.published_bytes


def _next_offset(data: bytes) -> Offset:
    last = 0
    for first, _ in batch_spans(data):
        last = first
    return read_header(data, last).next_offset


def read_piece(log: Log, start: Offset, end: Offset) -> list[bytes]:
    """Its bytes. Raises CorruptDataError, StorageError."""
    at, found = max(start, log.start_offset), []
    while at < end:
        part = log.slice(at, PIECE_BYTES_MAX, end)
        if not part.count:
            break
        data = part.read()
        found.append(data)
        if end == log.end_offset and _reaches_end(log, part):
            break
        at = _next_offset(data)
    return found


def check_batches(data: ByteBuffer) -> list[Checked]:
    """Its batches, each of them whole. Raises CorruptDataError."""
    view = memoryview(data)
    return [
        (view[first:last], check_batch(view, first, last, fresh=False)) for first, last in batch_spans(view)
    ]


Stamped = tuple[memoryview, Offset, Offset, int]


def check_piece(
    data: ByteBuffer, start: Offset, end: Offset, generation: Generation
) -> tuple[list[Stamped], list[BatchHeader]]:
    """The batches of a piece that another replica sent, as a log appends them, and the headers of those that producers
    with an id have written. Raises CorruptDataError if it is not what it is said to be."""
    batches: list[Stamped] = []
    known: list[BatchHeader] = []
    view, at = memoryview(data), start
    for first, last in batch_spans(view):
        header = check_batch(view, first, last, fresh=False)
        base, last_offset = header.base_offset, header.last_offset
        if not at <= base <= last_offset < end:
            raise CorruptDataError(f"Offsets {base} to {last_offset} are not within {at} to {end}.")
        if header.generation != generation and generation != OF_BEFORE:
            raise CorruptDataError(f"Generation {header.generation} was announced as {generation}.")
        newest = header.max_timestamp if header.record_count else NO_TIMESTAMP
        batches.append((view[first:last], base, last_offset, newest))
        if header.producer_id >= 0:
            known.append(header)
        at = Offset(last_offset + 1)
    return batches, known
