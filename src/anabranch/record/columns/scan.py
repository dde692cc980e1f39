"""Which batches of a stretch of log become rows, and what is said of those that cannot.

Left out are batches outside the wanted offsets, control batches, and those of aborted transactions: the rule of Kafka's
read-committed consumers, which follows the batches in their order. Everything else is checked before a record of it is
looked at. Errors name the offset at which the batch says it begins.
"""

from collections import deque
from collections.abc import Collection
from struct import Struct
from typing import NoReturn

from anabranch.errors import AnabranchError, BatchTooLargeError, CorruptDataError, InvalidRecordError
from anabranch.record.batch import (
    CODEC_MASK,
    HEADER,
    HEADER_BYTES,
    LOG_OVERHEAD,
    MAGIC,
    BatchHeader,
    check_batch,
    payload_of,
    read_header,
)
from anabranch.record.control import read_marker
from anabranch.record.records import records_of

OFFSET_MAX = 2**63 - 1
SECTION_BYTES_MAX = 2**31 - 1024
"""Of one batch, unpacked: the columns of an Arrow batch count their bytes in 31 bits."""

_BASE_OFFSET_AND_LENGTH = Struct(">qi")
_MAGIC_POSITION = 16


def whole_size(view: memoryview, position: int) -> int:
    """How many bytes the batch at `position` has; 0 if it is not there, or not all of it."""
    left = len(view) - position
    if left < LOG_OVERHEAD:
        return 0
    base_offset, length = _BASE_OFFSET_AND_LENGTH.unpack_from(view, position)
    size = int(LOG_OVERHEAD + length)
    if size > left:
        return 0
    if size < HEADER_BYTES or view[position + _MAGIC_POSITION] != MAGIC:
        try:
            check_batch(view, position, position + max(size, 0))
        except AnabranchError as error:
            raise named(error, base_offset) from error
    return size


def named(error: AnabranchError, base_offset: int) -> AnabranchError:
    """The same complaint, with the place that it is about."""
    return type(error)(f"The batch at offset {base_offset} cannot be read: {error}")


def refuse_records(header: BatchHeader, section: bytes | memoryview) -> NoReturn:
    """Says what is wrong with records that a decoder found to be wrong."""
    plain = header._replace(
        attributes=header.attributes & ~CODEC_MASK, batch_length=HEADER_BYTES - LOG_OVERHEAD + len(section)
    )
    try:
        deque(records_of(HEADER.pack(*plain) + section), maxlen=0)
    except AnabranchError as error:
        raise named(error, header.base_offset) from error
    raise AssertionError("The careful reader takes records that the decoder of columns refuses.")


class AbortedTransactions:
    """Follows the batches of a log and knows which belong to transactions that were aborted.

    `aborted` are pairs of a producer id and the first offset of its transaction, as a Fetch answers them: only those
    whose end marker lies in the batches to come, or behind them.
    """

    def __init__(self, aborted: Collection[tuple[int, int]]) -> None:
        self._to_come = sorted(aborted, key=lambda pair: pair[1], reverse=True)
        self._producers: set[int] = set()

    def leave_out(self, header: BatchHeader, batch: memoryview, bytes_max: int) -> bool:
        """Whether the batch is one that no reader sees: a control batch, or one of an aborted transaction."""
        while self._to_come and self._to_come[-1][1] <= header.last_offset:
            self._producers.add(self._to_come.pop()[0])
        if not header.is_control:
            return header.is_transactional and header.producer_id in self._producers
        if header.producer_id in self._producers and _is_abort(batch, bytes_max):
            self._producers.discard(header.producer_id)
        return True


def _is_abort(batch: memoryview, bytes_max: int) -> bool:
    """Whether a control batch ends a transaction by undoing it; one that the cleaner emptied says nothing."""
    record = next(records_of(batch, bytes_max), None)
    marker = None if record is None else read_marker(record)
    return marker is not None and not marker.committed


class Judge:
    """Decides about each batch of a stretch in turn."""

    def __init__(
        self, start: int, end: int, verify: bool, aborted: Collection[tuple[int, int]], bytes_max: int
    ) -> None:
        self._start, self._end = start, end
        self._verify = verify
        self._transactions = AbortedTransactions(aborted)
        self._bytes_max = min(bytes_max, SECTION_BYTES_MAX)

    def section(self, batch: memoryview) -> tuple[BatchHeader, bytes | memoryview] | None:
        """The header and the unpacked records of a batch whose rows are wanted; None if none of them is."""
        header = read_header(batch)
        try:
            _check_offsets(header)
            if header.base_offset >= self._end and not header.is_control:
                return None
            self._check(header, batch)  # Even if the batch seems to end before the start: so says a header.
            if (
                self._transactions.leave_out(header, batch, self._bytes_max)
                or header.last_offset < self._start
            ):
                return None
            return header, payload_of(batch, self._bytes_max, header)
        except AnabranchError as error:
            raise named(error, header.base_offset) from error

    def _check(self, header: BatchHeader, batch: memoryview) -> None:
        if self._verify:
            check_batch(batch, 0, len(batch), fresh=False)
        elif not 0 <= header.record_count <= header.last_offset_delta + 1:
            raise InvalidRecordError(
                f"A batch of {header.record_count} records does not fit below delta {header.last_offset_delta}."
            )
        if len(batch) > SECTION_BYTES_MAX:
            raise BatchTooLargeError(f"{len(batch)} bytes are more than one batch of columns can hold.")


def _check_offsets(header: BatchHeader) -> None:
    """The checksum leaves the base offset out, and a batch that lies nowhere must not pass for one not asked for."""
    if header.base_offset < 0 or header.last_offset > OFFSET_MAX:
        raise CorruptDataError("No record can lie at such an offset.")
