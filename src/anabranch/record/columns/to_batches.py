"""Columns back to record batches: what a job writes into the log, or into segment files.

Taken from the columns are key, value, headers, timestamp and, with `keep_offsets`, offset; one that is missing is null,
a timestamp that is null is -1. Everything else a batch says is the caller's: its codec, its generation. The records are
nobody's (no producer id) and have their producer's time, whatever they had before.

A batch is cut before it would exceed `batch_bytes_max` without compression; a record larger than that is a batch of its
own. Without `keep_offsets` batches are as a producer sends them, from offset 0 without gaps; with it they lie where
their first record lay, and may have gaps, as those that the cleaner wrote.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from anabranch.errors import BatchTooLargeError, InvalidRecordError
from anabranch.record.batch import HEADER, HEADER_BYTES, MAGIC, seal
from anabranch.record.builder import BatchBuilder
from anabranch.record.columns.schema import TYPES
from anabranch.record.compression import compress

Integers = NDArray[np.int64]
ShortIntegers = NDArray[np.int32]

_NO_TIMESTAMP = -1
_DELTA_MAX = 2**31 - 1
_OFFSET_MAX = 2**63 - 1
_BATCH_BYTES_MAX = 2**31 - 1
_INTEGER_STEPS = [2**6, 2**13, 2**20, 2**27]
"""A length below the first takes one byte, below the second two, and so on."""


class Cut(NamedTuple):
    """The rows of one batch, and the most that their records can take."""

    first: int
    last: int
    room: int


class _Bytes(NamedTuple):
    """A column of bytes: where each begins in the text and how long it is, -1 for null."""

    starts: ShortIntegers
    lengths: ShortIntegers
    text: bytes | pa.Buffer

    def sizes(self) -> Integers:
        """What each takes in a record, its length included."""
        return _integer_sizes(self.lengths) + np.maximum(self.lengths, 0)


class Rows:
    """The columns that records are made of: checked, and laid out as numbers."""

    def __init__(self, columns: pa.RecordBatch, keep_offsets: bool) -> None:
        self.count = columns.num_rows
        self.keep_offsets = keep_offsets
        self.offsets = _kept_offsets(columns) if keep_offsets else np.arange(self.count, dtype=np.int64)
        self.timestamps = _milliseconds(_column(columns, "timestamp"))
        self.keys, self.values = _column(columns, "key"), _column(columns, "value")
        self.headers = _column(columns, "headers")
        self.key, self.value = _bytes_of(self.keys), _bytes_of(self.values)
        self.header_starts, self.header_counts = _header_bounds(self.headers)
        names, contents = self.headers.values.flatten()
        if names.null_count:
            raise InvalidRecordError("A header of a record has no key.")
        self.header_key, self.header_value = _bytes_of(names.cast(pa.binary())), _bytes_of(contents)

    def base_offset(self, first: int) -> int:
        return int(self.offsets[first]) if self.keep_offsets else 0

    def record_sizes(self) -> Integers:
        """At most what each row takes as a record: deltas are taken to be as long as the longest could be."""
        ends_of_headers = np.append(0, np.cumsum(self.header_key.sizes() + self.header_value.sizes()))
        headers = (
            ends_of_headers[self.header_starts + self.header_counts] - ends_of_headers[self.header_starts]
        )
        deltas = _span_size(self.timestamps) + _span_size(self.offsets)
        bodies = (
            1 + deltas + self.key.sizes() + self.value.sizes() + _integer_sizes(self.header_counts) + headers
        )
        sizes: Integers = bodies + _integer_sizes(bodies)
        return sizes


def _column(columns: pa.RecordBatch, name: str) -> pa.Array:
    place = columns.schema.get_field_index(name)
    if place < 0:
        return pa.nulls(columns.num_rows, TYPES[name])
    try:
        # Times finer than ours are cut; whatever else would be lost in a cast is refused.
        column = columns.column(place).cast(TYPES[name], safe=name != "timestamp")
        column.validate(full=True)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        kind = columns.schema.field(place).type
        raise InvalidRecordError(
            f"Column {name!r} ({kind}) cannot be written as {TYPES[name]}: {error}"
        ) from error
    return column


def _milliseconds(timestamps: pa.Array) -> Integers:
    microseconds = timestamps.view(pa.int64()).fill_null(_NO_TIMESTAMP * 1000).to_numpy()
    return np.ascontiguousarray(microseconds // 1000, np.int64)


def _kept_offsets(columns: pa.RecordBatch) -> Integers:
    column = _column(columns, "offset")
    if column.null_count:
        raise InvalidRecordError("Offsets can only be kept where every row has one.")
    offsets: Integers = np.ascontiguousarray(column.to_numpy(), np.int64)
    if len(offsets) and (offsets[0] < 0 or np.any(offsets[1:] <= offsets[:-1])):
        raise InvalidRecordError(
            "Offsets can only be kept where they grow from row to row and none is negative."
        )
    return offsets


def _bytes_of(column: pa.Array) -> _Bytes:
    _, ends, text = column.buffers()
    bounds = np.zeros(1, np.int32)
    if len(column):
        bounds = np.frombuffer(ends, np.int32, len(column) + 1, 4 * column.offset)
    lengths = np.diff(bounds)
    lengths[_nulls(column)] = -1
    return _Bytes(bounds[:-1], lengths, b"" if text is None else text)


def _header_bounds(headers: pa.Array) -> tuple[ShortIntegers, ShortIntegers]:
    """Where the headers of each record begin among all headers, and how many it has."""
    bounds = headers.offsets.to_numpy()
    counts = np.diff(bounds)
    counts[_nulls(headers)] = 0
    return bounds[:-1], counts


def _nulls(column: pa.Array) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = column.is_null().to_numpy(zero_copy_only=False)
    return found


def _integer_sizes(numbers: Integers | ShortIntegers) -> Integers:
    """Bytes of each as a variable-length integer; none is below -1."""
    return np.searchsorted(_INTEGER_STEPS, numbers, "right") + 1


def _span_size(numbers: Integers) -> int:
    """Bytes that the difference of any two of these takes at most."""
    span = int(numbers.max()) - int(numbers.min()) if len(numbers) else 0
    return max(1, ((2 * span).bit_length() + 6) // 7)


def cuts(rows: Rows, batch_bytes_max: int) -> Iterator[Cut]:
    """The batches that the rows are cut into."""
    ends = np.cumsum(rows.record_sizes())
    first = before = 0
    while first < rows.count:
        last = int(np.searchsorted(ends, before + batch_bytes_max - HEADER_BYTES, "right"))
        offset_max = min(int(rows.offsets[first]) + _DELTA_MAX, _OFFSET_MAX)
        last = max(first + 1, min(last, int(np.searchsorted(rows.offsets, offset_max, "right"))))
        end = int(ends[last - 1])
        if HEADER_BYTES + end - before > _BATCH_BYTES_MAX:
            raise BatchTooLargeError(f"A record of {end - before} bytes does not fit in a batch.")
        yield Cut(first, last, end - before)
        first, before = last, end


def built(rows: Rows, cut: Cut, codec: int, generation: int) -> bytes:
    """One batch of these rows, record by record."""
    first, last, _ = cut
    builder = BatchBuilder(rows.base_offset(first), codec, generation=generation)
    contents = [column[first:last].to_pylist() for column in (rows.keys, rows.values, rows.headers)]
    times, offsets = rows.timestamps[first:last].tolist(), rows.offsets[first:last].tolist()
    for key, value, headers, time, offset in zip(*contents, times, offsets, strict=True):
        pairs = [(header["key"], header["value"]) for header in headers or ()]
        place = rows.base_offset(first) + offset - offsets[0]
        builder.add(key, value, pairs, timestamp_ms=time, offset=place)
    return bytes(builder.build())


def encoded(rows: Rows, cut: Cut, codec: int, generation: int) -> bytes:
    """The same batch by the compiled encoder."""
    from anabranch.record._fast import encode_records

    section = encode_records(
        *cut,
        rows.timestamps,
        rows.offsets,
        rows.key,
        rows.value,
        rows.header_starts,
        rows.header_counts,
        rows.header_key,
        rows.header_value,
    )
    times, offsets = rows.timestamps[cut.first : cut.last], rows.offsets[cut.first : cut.last]
    span = (int(times[0]), max(_NO_TIMESTAMP, int(times.max())))
    delta, nobody = int(offsets[-1] - offsets[0]), (-1, -1, -1)
    base = rows.base_offset(cut.first)
    batch = bytearray(
        HEADER.pack(base, 0, generation, MAGIC, 0, codec, delta, *span, *nobody, cut.last - cut.first)
    )
    batch += compress(codec, section)
    seal(batch)
    return bytes(batch)
