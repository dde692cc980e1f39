"""Columns as plain rows, by either form of the decoder, and the rows the careful reader makes of the same bytes."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest

from anabranch.errors import AnabranchError
from anabranch.record.batch import batch_spans, read_header
from anabranch.record.columns import columns as module
from anabranch.record.records import Record, records_of

FORMS = ["compiled", "numpy"]
Row = tuple[Any, ...]
MICROSECONDS_MAX = (2**63 - 1) // 1000 * 1000


@contextmanager
def form_in_use(form: str) -> Iterator[None]:
    if form == "compiled":
        pytest.importorskip("anabranch.record._fast", reason="there is no compiled form here")
    with patch.object(module, "COMPILED", form == "compiled"):
        yield


def arrow_batches(form: str, data: Any, **options: Any) -> Iterator[pa.RecordBatch]:
    with form_in_use(form):
        return module.columns(data, **options)


def record_batches(form: str, columns: pa.RecordBatch, **options: Any) -> list[bytes]:
    with form_in_use(form):
        return list(module.batches(columns, **options))


def rows(found: Iterable[pa.RecordBatch]) -> list[Row]:
    """Every row of every batch as a tuple, its time as microseconds: Python's own cannot hold all of them."""
    return [row for batch in found for row in zip(*map(_values, batch.columns), strict=True)]


def _values(column: pa.Array) -> list[Any]:
    column.validate(full=True)
    if pa.types.is_timestamp(column.type):
        return list(column.view(pa.int64()).to_pylist())
    if pa.types.is_list(column.type):
        return [entries and [(e["key"], e["value"]) for e in entries] for entries in column.to_pylist()]
    return list(column.to_pylist())


def read(form: str, data: Any, **options: Any) -> list[Row]:
    return rows(arrow_batches(form, data, **options))


def rows_by_hand(data: Any, start: int = 0, end: int = 2**63 - 1) -> list[Row]:
    """What the columns of whole batches must hold, record by record."""
    found = []
    for first, last in batch_spans(data):
        batch = memoryview(data)[first:last]
        if not read_header(batch).is_control:
            found += [_row(batch, record) for record in records_of(batch) if start <= record.offset < end]
    return found


def _row(batch: memoryview, record: Record) -> Row:
    header = read_header(batch)
    sequence = header.base_sequence
    if sequence >= 0:
        sequence = (sequence + record.offset - header.base_offset) & 0x7FFFFFFF
    return (
        record.key,
        record.value,
        [(as_text(key), value) for key, value in record.headers] or None,
        record.offset,
        max(-MICROSECONDS_MAX, min(record.timestamp * 1000, MICROSECONDS_MAX)),
        int(header.is_log_append_time),
        header.generation,
        header.producer_id,
        header.producer_epoch,
        sequence if sequence >= 0 else -1,
    )


def as_text(key: str) -> str:
    return key.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def by_hand(batch: Any) -> Any:
    """The rows of one batch, or the error that it must be refused with."""
    try:
        return rows_by_hand(batch)
    except AnabranchError as error:
        return type(error), f"The batch at offset {read_header(batch).base_offset} cannot be read: {error}"


def outcome(form: str, data: Any, **options: Any) -> Any:
    try:
        return read(form, data, **options)
    except AnabranchError as error:
        return type(error), str(error)
