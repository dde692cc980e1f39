"""Record batches to Arrow columns, and back: how jobs over records in bulk read and write the log.

Nothing is believed: what `records_of` refuses is refused here with the same error, which names the offset of the batch.
Rows before it are handed out first. Two forms do the same, the compiled one (`_columns.pxi`) where it is built, else
numpy; `schema.py` says what becomes of a record. Memory: an Arrow batch holds about `CHUNK_BYTES` of unpacked
records, or one record batch if that has more; `bytes_max` bounds what a compressed one may unpack to. A row without
key, value and headers takes 7 bytes in a batch and up to 50 in columns. A process that does little else should let
glibc keep what it frees (`_fast.keep_freed_memory`): to take chunks anew from the system, page by page, was a third of
the time at 1 KB a record.

Nobody imports this module at start-up: it needs pyarrow and numpy, which come with `pip install anabranch[spark]`.
"""

from collections.abc import Collection, Iterator, Sequence
from typing import Protocol

import pyarrow as pa

from anabranch.errors import AnabranchError
from anabranch.record.backend import COMPILED
from anabranch.record.batch import BatchHeader
from anabranch.record.buffers import ByteBuffer
from anabranch.record.columns.numpy_decoder import NumpyDecoder
from anabranch.record.columns.scan import OFFSET_MAX, Judge, whole_size
from anabranch.record.columns.schema import FIELDS, schema_of
from anabranch.record.columns.to_batches import Rows, built, cuts, encoded
from anabranch.record.records import RECORDS_BYTES_MAX

__all__ = ["CHUNK_BYTES", "FIELDS", "OFFSET_MAX", "batches", "columns", "schema_of", "whole_bytes"]

CHUNK_BYTES = 8 * 2**20


class Decoder(Protocol):
    """Gathers the rows of some batches and hands them out as one Arrow batch."""

    @property
    def size_bytes(self) -> int:
        """Of the unpacked records gathered so far."""

    def fill(self, view: memoryview, position: int) -> int:
        """Takes batches from `position` on as long as they need no judgement; where the first other one begins."""

    def add(self, header: BatchHeader, section: bytes | memoryview) -> None:
        """Takes the records of one batch; those that are wrong are refused, here or by `take`."""

    def take(self) -> Iterator[pa.RecordBatch]:
        """The rows gathered so far, if any, and begins anew."""


def whole_bytes(data: ByteBuffer) -> int:
    """How many bytes of `data` are whole batches; what follows them is the beginning of another."""
    view = memoryview(data).cast("B")
    position = 0
    while size := whole_size(view, position):
        position += size
    return position


def columns(
    data: ByteBuffer,
    *,
    start: int = 0,
    end: int = OFFSET_MAX,
    fields: Sequence[str] = FIELDS,
    verify: bool = True,
    aborted: Collection[tuple[int, int]] = (),
    bytes_max: int = RECORDS_BYTES_MAX,
) -> Iterator[pa.RecordBatch]:
    """The rows with `start` <= offset < `end` of batches that follow one another; a torn one at the end is ignored.

    `aborted` are pairs (producer id, first offset) as a Fetch answers them; without any, the records of every
    transaction are rows. `verify=False` leaves out the checksums, not the checks of structure.
    """
    schema = schema_of(fields)
    start, end = min(max(start, 0), OFFSET_MAX), min(max(end, 0), OFFSET_MAX)
    view = memoryview(data).cast("B")
    judge = Judge(start, end, verify, aborted, bytes_max)
    if not COMPILED:
        return _rows(view, judge, NumpyDecoder(schema, start, end))
    from anabranch.record.columns.compiled_decoder import CompiledDecoder

    decoder = CompiledDecoder(
        schema,
        start,
        end,
        verify=verify,
        transactional=not aborted,
        chunk_bytes=CHUNK_BYTES,
        data_bytes=len(view),
    )
    return _rows(view, judge, decoder)


def _rows(view: memoryview, judge: Judge, decoder: Decoder) -> Iterator[pa.RecordBatch]:
    position = 0
    try:
        while size := whole_size(view, position := decoder.fill(view, position)):
            kept = judge.section(view[position : position + size])
            if kept is not None:
                header, section = kept
                if decoder.size_bytes and decoder.size_bytes + len(section) > CHUNK_BYTES:
                    yield from decoder.take()
                decoder.add(header, section)
            position += size
    except AnabranchError:
        yield from decoder.take()
        raise
    yield from decoder.take()


def batches(
    columns: pa.RecordBatch,
    *,
    codec: int = 0,
    batch_bytes_max: int = 2**16,
    keep_offsets: bool = False,
    generation: int = -1,
) -> Iterator[bytes]:
    """The rows as record batches; `to_batches.py` says which columns become what."""
    rows = Rows(columns, keep_offsets)
    make = encoded if COMPILED else built
    return (make(rows, cut, codec, generation) for cut in cuts(rows, batch_bytes_max))
