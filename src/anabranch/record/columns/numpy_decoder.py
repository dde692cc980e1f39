"""Batches to columns with numpy, where the compiled form is not built.

Only one thing about records is sequential: where each of them ends. A short loop finds that; everything inside the
records of a whole chunk is then read field by field, a few numpy calls for each however many records there are.
Batches may be long or short, which is why this does not step through all of them in parallel, one record of each at a
time: a few large ones would make that slower than plain Python.

A field that does not fit marks its record as wrong and is read as if it ended with it, so that nothing outside of the
bytes is touched; the first wrong record then names the batch to refuse.
"""

from array import array
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from anabranch.errors import InvalidRecordError
from anabranch.record.batch import BatchHeader
from anabranch.record.columns.scan import refuse_records
from anabranch.record.columns.schema import TYPES, headers_array
from anabranch.record.varint import VARINT_BITS, VARLONG_BITS, read_varint

Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]
Section = tuple[BatchHeader, bytes | memoryview]

_PADDING = bytes(16)  # An integer that begins at the very end may be looked for in ten bytes more.
_RECORD_BYTES_MIN = 6
_HEADER_BYTES_MIN = 2
_STEP_ROWS_MIN = 64
_TIMESTAMP_MS_MAX = (2**63 - 1) // 1000
_SEQUENCE_MASK = 2**31 - 1


class NumpyDecoder:
    """Keeps the batches it is given, and decodes them when their rows are wanted."""

    def __init__(self, schema: pa.Schema, start: int, end: int) -> None:
        self._schema = schema
        self._start, self._end = start, end
        self._sections: list[Section] = []
        self.size_bytes = 0

    def fill(self, view: memoryview, position: int) -> int:
        return position

    def add(self, header: BatchHeader, section: bytes | memoryview) -> None:
        self._sections.append((header, section))
        self.size_bytes += len(section)

    def take(self) -> Iterator[pa.RecordBatch]:
        sections, self._sections, self.size_bytes = self._sections, [], 0
        chunk = _Chunk(sections)
        wrong = chunk.first_wrong
        if wrong is not None:
            chunk = _Chunk(sections[:wrong])
        rows = np.flatnonzero((chunk.offsets >= self._start) & (chunk.offsets < self._end))
        if len(rows):
            made = [_COLUMNS[name](chunk, rows) for name in self._schema.names]
            yield pa.RecordBatch.from_arrays(made, schema=self._schema)
        if wrong is not None:
            refuse_records(*sections[wrong])


class _Spans(NamedTuple):
    """Keys and values, each row one of both: where they start and end, and which of them are null."""

    places: Integers
    key_nulls: Flags
    value_nulls: Flags


class _Chunk:
    """The records of some batches: the places of what they contain, and their numbers."""

    def __init__(self, sections: list[Section]) -> None:
        self.text = b"".join([*(section for _, section in sections), _PADDING])
        ends, cut = _record_ends(self.text, sections)
        self.batches = [header for header, _ in sections[:cut]]
        self.counts = np.array([header.record_count for header in self.batches], np.int64)
        self.first_wrong = cut
        reader = _Reader(np.frombuffer(self.text, np.uint8), _shifted(ends, 0), ends)
        self._read_numbers(reader)
        self._read_contents(reader)
        if reader.wrong.any():
            self.first_wrong = int(np.searchsorted(np.cumsum(self.counts), np.argmax(reader.wrong), "right"))

    def _read_numbers(self, reader: "_Reader") -> None:
        lengths = reader.integer(VARINT_BITS)
        reader.demand((lengths >= _RECORD_BYTES_MIN) & (reader.at + lengths == reader.ends))
        reader.skip(1)  # Attributes, of which no bit is used.
        self.timestamp_deltas = reader.integer(VARLONG_BITS)
        self.deltas = reader.integer(VARINT_BITS)
        before = _shifted(self.deltas, -1)
        before[(np.cumsum(self.counts) - self.counts)[self.counts > 0]] = -1
        reader.demand((before < self.deltas) & (self.deltas <= self.of_batch("last_offset_delta")))
        self.offsets: Integers = self.of_batch("base_offset") + self.deltas

    def _read_contents(self, reader: "_Reader") -> None:
        key_start, key_end, key_nulls = reader.span()
        value_start, value_end, value_nulls = reader.span()
        places = np.stack([key_start, key_end, value_start, value_end], axis=1)
        self.contents = _Spans(places, key_nulls, value_nulls)
        self.header_counts = reader.integer(VARINT_BITS)
        self.headers = _read_headers(self.text, reader, self.header_counts)
        reader.demand(reader.at == reader.ends)

    def of_batch(self, name: str) -> Integers:
        """What the header of its batch says, for each record."""
        said = np.array([getattr(header, name) for header in self.batches], np.int64)
        return np.repeat(said, self.counts)


def _shifted(numbers: Integers, first: int) -> Integers:
    """For each number the one before it."""
    before = np.full_like(numbers, first)
    before[1:] = numbers[:-1]
    return before


def _record_ends(text: bytes, sections: list[Section]) -> tuple[Integers, int | None]:
    """Where each record ends, and the number of the first batch whose records do not end where it does."""
    ends = array("q")
    start = 0
    for number, (header, section) in enumerate(sections):
        known, end = len(ends), start + len(section)
        try:
            fits = _walk(text, start, header.record_count, ends) == end
        except (IndexError, InvalidRecordError):
            fits = False
        if not fits:
            return np.array(ends[:known], np.int64), number
        start = end
    return np.array(ends, np.int64), None


def _walk(text: bytes, position: int, count: int, ends: "array[int]") -> int:
    append = ends.append
    for _ in range(count):
        byte = text[position]
        if byte < 128:
            position += 1 + (byte >> 1)
        elif (more := text[position + 1]) < 128:
            position += 2 + (more << 6 | (byte & 127) >> 1)
        else:
            length, position = read_varint(text, position)
            if length < 0:
                raise InvalidRecordError(f"A record cannot have {length} bytes.")
            position += length
        append(position)
    return position


class _Reader:
    """Reads the same field of every record at once, and remembers of which records that could not be."""

    def __init__(self, text: NDArray[np.uint8], at: Integers, ends: Integers) -> None:
        self.text = text
        self.at, self.ends = at, ends
        self.wrong = np.zeros(len(ends), np.bool_)

    def demand(self, holds: Flags) -> None:
        self.wrong |= ~holds

    def integer(self, bits: int) -> Integers:
        """A variable-length integer, as `varint` reads it."""
        byte = self.text[self.at]
        raw = (byte & 127).astype(np.uint64)
        at = self.at + 1
        more = np.flatnonzero(byte > 127)
        for shift in range(7, bits, 7):
            if not len(more):
                break
            byte = self.text[at[more]]
            raw[more] |= (byte & 127).astype(np.uint64) << np.uint64(shift)
            if shift == 63:
                self.wrong[more[byte > 1]] = True
            at[more] += 1
            more = more[byte > 127]
        self.wrong[more] = True
        if bits == VARINT_BITS:
            self.wrong |= raw >> np.uint64(32) != 0
        self._move(at)
        return (raw >> np.uint64(1)).view(np.int64) ^ -(raw & np.uint64(1)).view(np.int64)

    def span(self) -> tuple[Integers, Integers, Flags]:
        """A key or a value: where it starts and ends, and whether it is null."""
        lengths = self.integer(VARINT_BITS)
        nulls = lengths == -1
        self.wrong |= lengths < -1
        start = self.at
        self.skip(np.maximum(lengths, 0))
        return start, self.at, nulls

    def skip(self, lengths: Integers | int) -> None:
        self._move(self.at + lengths)

    def _move(self, at: Integers) -> None:
        self.wrong |= at > self.ends
        self.at = np.minimum(at, self.ends)


def _read_headers(text: bytes, reader: _Reader, counts: Integers) -> _Spans:
    """All headers of all records, one after the other; the reader is moved behind them.

    The first headers of all records are read at once, then the second ones and so on, until so few records have more
    that it is quicker to walk through each.
    """
    reader.demand((counts >= 0) & (counts <= (reader.ends - reader.at) // _HEADER_BYTES_MIN))
    counts = np.where(reader.wrong, 0, counts)
    places = np.zeros((int(counts.sum()), 4), np.int64)
    value_nulls = np.zeros(len(places), np.bool_)
    firsts = np.cumsum(counts) - counts
    rows, number = np.flatnonzero(counts), 0
    while len(rows) >= _STEP_ROWS_MIN:
        step = _Reader(reader.text, reader.at[rows], reader.ends[rows])
        key_start, key_end, key_nulls = step.span()
        value_start, value_end, nulls = step.span()
        step.demand(~key_nulls)
        places[firsts[rows] + number] = np.stack([key_start, key_end, value_start, value_end], axis=1)
        value_nulls[firsts[rows] + number] = nulls
        reader.at[rows], reader.wrong[rows] = step.at, step.wrong
        number += 1
        rows = rows[(counts[rows] > number) & ~step.wrong]
    for row in rows.tolist():
        first, last = int(firsts[row]) + number, int(firsts[row] + counts[row])
        try:
            at, end = int(reader.at[row]), int(reader.ends[row])
            reader.at[row] = _walk_headers(text, at, end, places[first:last], value_nulls[first:last])
        except InvalidRecordError:
            reader.wrong[row] = True
    return _Spans(places, np.zeros(len(places), np.bool_), value_nulls)


def _walk_headers(text: bytes, at: int, end: int, places: Integers, value_nulls: Flags) -> int:
    """Past the headers of one record, as many as there are places for."""
    for number in range(len(places)):
        length, key = read_varint(text, at)
        if not 0 <= length <= end - key:
            raise InvalidRecordError(f"A header's key of {length} bytes does not fit in its record.")
        key_end = key + length
        length, value = read_varint(text, key_end)
        if length != -1 and not 0 <= length <= end - value:
            raise InvalidRecordError(f"A header's value of {length} bytes does not fit in its record.")
        at = value + max(length, 0)
        places[number] = key, key_end, value, at
        value_nulls[number] = length == -1
    return at


# --- The columns


def _gathered(text: bytes, places: Integers, which: int, rows: Integers, nulls: Flags) -> pa.Array:
    """The bytes at the `which`-th and the next place of each of these rows, one after the other.

    All places in their order are the bounds of pieces of the text, of which every fourth is wanted.
    """
    bounds = np.append(places.reshape(-1), len(text)).astype(np.int32)
    pieces = pa.Array.from_buffers(
        pa.binary(), len(bounds) - 1, [None, pa.py_buffer(bounds), pa.py_buffer(text)]
    )
    return pieces.take(pa.array(rows * 4 + which, mask=nulls if nulls.any() else None))


def _keys(chunk: _Chunk, rows: Integers) -> pa.Array:
    return _gathered(chunk.text, chunk.contents.places, 0, rows, chunk.contents.key_nulls[rows])


def _values(chunk: _Chunk, rows: Integers) -> pa.Array:
    return _gathered(chunk.text, chunk.contents.places, 2, rows, chunk.contents.value_nulls[rows])


def _headers(chunk: _Chunk, rows: Integers) -> pa.Array:
    counts = chunk.header_counts[rows]
    wanted = np.zeros(len(chunk.header_counts), np.bool_)
    wanted[rows] = True
    entries = np.flatnonzero(np.repeat(wanted, chunk.header_counts))
    places, key_nulls, value_nulls = chunk.headers
    keys = _gathered(chunk.text, places, 0, entries, key_nulls[entries])
    values = _gathered(chunk.text, places, 2, entries, value_nulls[entries])
    ends = np.append(0, np.cumsum(counts)).astype(np.int32)
    bits = np.packbits(counts > 0, bitorder="little")
    return headers_array(len(rows), pa.py_buffer(bits), pa.py_buffer(ends), keys, values)


def _timestamps(chunk: _Chunk, rows: Integers) -> pa.Array:
    by_producer = chunk.of_batch("base_timestamp") + chunk.timestamp_deltas
    is_log_append = chunk.of_batch("is_log_append_time") == 1
    times = np.where(is_log_append, chunk.of_batch("max_timestamp"), by_producer)[rows]
    times = np.clip(times, -_TIMESTAMP_MS_MAX, _TIMESTAMP_MS_MAX) * 1000
    return pa.array(times).view(TYPES["timestamp"])


def _sequences(chunk: _Chunk, rows: Integers) -> pa.Array:
    base = chunk.of_batch("base_sequence")
    sequences = np.where(base < 0, -1, base + chunk.deltas & _SEQUENCE_MASK)[rows]
    return pa.array(sequences.astype(np.int32))


def _said_by_batch(column: str, name: str) -> Callable[[_Chunk, Integers], pa.Array]:
    def made(chunk: _Chunk, rows: Integers) -> pa.Array:
        return pa.array(chunk.of_batch(name)[rows], TYPES[column])

    return made


_COLUMNS: dict[str, Callable[[_Chunk, Integers], pa.Array]] = {
    "key": _keys,
    "value": _values,
    "headers": _headers,
    "offset": lambda chunk, rows: pa.array(chunk.offsets[rows]),
    "timestamp": _timestamps,
    "timestampType": _said_by_batch("timestampType", "is_log_append_time"),
    "_generation": _said_by_batch("_generation", "generation"),
    "producerId": _said_by_batch("producerId", "producer_id"),
    "producerEpoch": _said_by_batch("producerEpoch", "producer_epoch"),
    "sequence": _sequences,
}
