"""Walks over the batches of a `.log` file, from one batch boundary on: by their lengths alone, or with every
CRC.

Used by recovery and verification (CRCs, large chunks), by index rebuilds (lengths, large chunks) and by
lookups (lengths, a few kilobytes). Safe in any thread: it only reads. Nothing in the file is believed: an
impossible length, magic or offset ends the walk with a reason.
"""

from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple

from anabranch.errors import CorruptDataError
from anabranch.log.disk.files import File
from anabranch.record.batch import HEADER_BYTES, LOG_OVERHEAD, BatchHeader, read_header
from anabranch.record.crc32c import crc32c
from anabranch.values import Offset

CHUNK_BYTES = 2 * 2**20
HOP_BYTES = 8 * 2**10
UNSUMMED_BYTES = 17
"""The head of a batch that its own CRC leaves out: base offset, length, generation, magic."""

NO_TIMESTAMP = -1

# base offset, length, magic, crc, last offset delta, max timestamp, record count
_SCANNED = Struct(">qi4xbI2xi8xq14xi")
_LENGTH_MIN = HEADER_BYTES - LOG_OVERHEAD
_MAGIC = 2
_CRC_FROM = 21

Batch = tuple[int, int, int, bytes]
"""What is noted of one batch: its size, last offset, largest timestamp (-1 if it has no record), first 17
bytes."""


class Scan:
    """One walk over [position, end). Iterate: each turn is the whole batches of one chunk.

    Batches must have growing offsets within `offsets`. Afterwards `position` is where the last good batch
    ends, `next_offset` what follows it, and `reason` says why the walk ended early, or is None.
    """

    def __init__(
        self,
        file: File,
        position: int,
        end: int,
        offsets: range,
        *,
        check_crc: bool,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:
        self.position = position
        self.next_offset = offsets.start
        self.reason: str | None = None
        self._file = file
        self._end = end
        self._offset_end = offsets.stop
        self._check_crc = check_crc
        self._chunk_bytes = chunk_bytes

    def __iter__(self) -> Iterator[list[Batch]]:
        while self.position < self._end and self.reason is None:
            data = self._file.pread(min(self._chunk_bytes, self._end - self.position), self.position)
            batches = self._walk(data)
            if not batches and self.reason is None:
                data = self._read_large(data)
                batches = self._walk(data)
                if not batches and self.reason is None:
                    self.reason = "the file ends within a batch"
            if batches:
                yield batches

    def _read_large(self, data: bytes) -> bytes:
        """The whole of a batch that is larger than a chunk, or what the file has of it."""
        wanted = HEADER_BYTES
        if len(data) >= HEADER_BYTES:
            wanted = read_header(data).size_bytes
        return self._file.pread(min(wanted, self._end - self.position), self.position)

    def _walk(self, data: bytes) -> list[Batch]:
        view = memoryview(data)
        unpack, checked, next_offset = _SCANNED.unpack_from, self._check_crc, self.next_offset
        left, offset_end = self._end - self.position, self._offset_end
        batches: list[Batch] = []
        append = batches.append
        at, size = 0, len(data)
        while size - at >= HEADER_BYTES:
            base, length, magic, crc, delta, max_timestamp, count = unpack(data, at)
            stop = at + LOG_OVERHEAD + length
            last = base + delta
            if (
                magic != _MAGIC
                or length < _LENGTH_MIN
                or stop > left
                or not next_offset <= base <= last < offset_end
            ):
                self.reason = _complaint(base, length, magic, delta, next_offset, left - at)
                break
            if stop > size:
                break
            if checked and crc32c(view[at + _CRC_FROM : stop]) != crc:
                self.reason = f"the checksum of the batch at offset {base} does not hold"
                break
            if not count:
                max_timestamp = NO_TIMESTAMP
            append((stop - at, last, max_timestamp, data[at : at + UNSUMMED_BYTES]))
            next_offset = last + 1
            at = stop
        self.position += at
        self.next_offset = next_offset
        return batches


def _complaint(base: int, length: int, magic: int, delta: int, next_offset: int, left: int) -> str:
    if not (base or length or magic):
        return "zeros follow"
    if magic != _MAGIC:
        return f"magic {magic} is not that of a batch"
    if length < _LENGTH_MIN or length + LOG_OVERHEAD > left:
        return f"a batch announces {length + LOG_OVERHEAD} bytes where {left} are left"
    if base < next_offset:
        return f"offset {base} follows {next_offset - 1}"
    return f"a batch ends {delta} from offset {base}"


class Located(NamedTuple):
    """One batch found by its offset, and where the walk to it began."""

    position: int
    size: int
    base_offset: Offset
    last_offset: Offset
    walked_from: int


def hop_to(file: File, position: int, end: int, offset: int) -> Located | None:
    """The first batch from `position` on whose last offset is not below `offset`; None if all of them are."""
    walked_from, data, data_at = position, b"", 0
    before = -1
    while position < end:
        if position + HEADER_BYTES > data_at + len(data):
            data, data_at = file.pread(min(HOP_BYTES, end - position), position), position
        if len(data) - (position - data_at) < HEADER_BYTES:
            raise CorruptDataError(f"{file.path} ends within a batch header at position {position}.")
        base, length, magic, _, delta, _, _ = _SCANNED.unpack_from(data, position - data_at)
        size = length + LOG_OVERHEAD
        if magic != _MAGIC or size < HEADER_BYTES or delta < 0 or base <= before or size > end - position:
            complaint = _complaint(base, length, magic, delta, before + 1, end - position)
            raise CorruptDataError(f"{file.path} is damaged at position {position}: {complaint}.")
        before = base + delta
        if before >= offset:
            return Located(position, size, Offset(base), Offset(before), walked_from)
        position += size
    return None


def last_whole(file: File, position: int, end: int, bytes_max: int) -> int:
    """Where the last batch ends that lies whole in the first `bytes_max` bytes from `position`."""
    limit = min(end, position + bytes_max)
    found = position
    while (located := hop_to(file, found, end, -1)) and found + located.size <= limit:
        found += located.size
    return found


def whole_batches(file: File, end: int, batch_bytes_max: int | None = None) -> Iterator[memoryview]:
    """Every batch of a file from its beginning, its CRC checked; CorruptDataError at the first that is not
    whole, or larger than `batch_bytes_max`."""
    position = 0
    while position < end:
        data = file.pread(min(CHUNK_BYTES, end - position), position)
        if len(data) >= HEADER_BYTES and (size := read_header(data).size_bytes) > len(data):
            if batch_bytes_max is not None and size > max(CHUNK_BYTES, batch_bytes_max):
                raise CorruptDataError(f"{file.path} has a batch of {size} bytes at position {position}.")
            data = file.pread(min(size, end - position), position)
        spans = _crc_spans(memoryview(data))
        yield from spans
        walked = sum(map(len, spans))
        if not walked:
            raise CorruptDataError(f"{file.path} is damaged at position {position}.")
        position += walked


def _crc_spans(view: memoryview) -> list[memoryview]:
    """The batches at the front of a chunk, up to the first that is cut off or bad."""
    found, at = [], 0
    while len(view) - at >= HEADER_BYTES:
        header = read_header(view, at)
        stop = at + header.size_bytes
        if header.magic != _MAGIC or header.size_bytes < HEADER_BYTES or stop > len(view):
            break
        if crc32c(view[at + _CRC_FROM : stop]) != header.crc:
            break
        found.append(view[at:stop])
        at = stop
    return found


def headers_from(
    file: File, position: int, end: int, chunk_bytes: int = CHUNK_BYTES
) -> Iterator[BatchHeader]:
    """Every header in [position, end); CorruptDataError where the walk cannot go on."""
    while position < end:
        data = file.pread(min(chunk_bytes, end - position), position)
        at = 0
        while len(data) - at >= HEADER_BYTES:
            header = read_header(data, at)
            if header.magic != _MAGIC or not HEADER_BYTES <= header.size_bytes <= end - position:
                raise CorruptDataError(f"{file.path} is damaged at position {position}.")
            yield header
            at += header.size_bytes
            position += header.size_bytes
        if len(data) < HEADER_BYTES:
            raise CorruptDataError(f"{file.path} ends within a batch header at position {position}.")
