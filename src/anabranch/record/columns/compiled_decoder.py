"""Batches to columns by the compiled decoder: its memory becomes Arrow arrays as it is."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from anabranch.record._fast import ColumnDecoder
from anabranch.record.batch import BatchHeader
from anabranch.record.columns.scan import refuse_records
from anabranch.record.columns.schema import TYPES, headers_array


class CompiledDecoder:
    """Decodes each batch when it is given; see `_columns.pxi`."""

    def __init__(
        self,
        schema: pa.Schema,
        start: int,
        end: int,
        *,
        verify: bool,
        transactional: bool,
        chunk_bytes: int,
        data_bytes: int,
    ) -> None:
        """`transactional` batches need no judgement if no transaction was aborted; `data_bytes` are to be read."""
        self._schema = schema
        self._decoder = ColumnDecoder(
            schema.names, start, end, verify, transactional, chunk_bytes, data_bytes
        )
        self.fill = self._decoder.fill

    @property
    def size_bytes(self) -> int:
        return self._decoder.size_bytes

    def add(self, header: BatchHeader, section: bytes | memoryview) -> None:
        if not self._decoder.add(header, section):
            refuse_records(header, section)

    def take(self) -> Iterator[pa.RecordBatch]:
        row_count, header_count, memory = self._decoder.take()
        if row_count:
            made = [_array(name, memory[name], row_count, header_count) for name in self._schema.names]
            yield pa.RecordBatch.from_arrays(made, schema=self._schema)


def _array(name: str, memory: Any, row_count: int, header_count: int) -> pa.Array:
    if name in ("key", "value"):
        return _bytes_array(memory, row_count)
    if name != "headers":
        return pa.Array.from_buffers(TYPES[name], row_count, [None, pa.py_buffer(memory)], 0)
    bits, ends, keys, values = memory
    return headers_array(
        row_count,
        _buffer(bits),
        _buffer(ends),
        _bytes_array(keys, header_count),
        _bytes_array(values, header_count),
    )


def _bytes_array(memory: tuple[Any, Any, Any], count: int) -> pa.Array:
    bits, ends, data = memory
    return pa.Array.from_buffers(
        pa.binary(), count, [_buffer(bits), _buffer(ends), _buffer(data)], -1 if bits else 0
    )


def _buffer(memory: Any) -> Any:
    return None if memory is None else pa.py_buffer(memory)
