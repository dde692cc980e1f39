"""The columns that record batches become: their names, their Arrow types, and how the nested one is put together.

    key, value                  binary, null as in the record
    headers                     list of (key string, value binary), null for a record that has none
    offset                      int64
    timestamp                   microseconds, UTC; a record without one has -1 ms, as in the batch
    timestampType, _generation  int32; the type is 0 for the producer's time, 1 for log append time
    producerId, producerEpoch, sequence    int64, int16, int32; -1 without an idempotent producer

Two things do not fit as they are. A time beyond what 64 bits of microseconds hold (some 292,000 years) becomes the
furthest one that does, and a header key that is not UTF-8 gets U+FFFD for what is not: an Arrow string cannot hold it,
and one odd record must not stop its topic.
"""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from anabranch.errors import InvalidRequestError

HEADER_TYPE = pa.struct([("key", pa.string()), ("value", pa.binary())])

TYPES: dict[str, Any] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "headers": pa.list_(HEADER_TYPE),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestampType": pa.int32(),
    "_generation": pa.int32(),
    "producerId": pa.int64(),
    "producerEpoch": pa.int16(),
    "sequence": pa.int32(),
}

FIELDS = tuple(TYPES)


def schema_of(fields: Sequence[str] = FIELDS) -> pa.Schema:
    """The schema of these columns in this order; a name that is none of ours is refused."""
    for name in fields:
        if name not in TYPES:
            raise InvalidRequestError(f"There is no column {name!r}; there are {', '.join(FIELDS)}.")
    return pa.schema([(name, TYPES[name]) for name in fields])


def headers_array(row_count: int, bits: Any, ends: Any, keys: pa.Array, values: pa.Array) -> pa.Array:
    """The headers of `row_count` records from one flat column of keys and one of values; `ends` cuts them."""
    entries = pa.StructArray.from_arrays([_as_text(keys), values], fields=list(HEADER_TYPE))
    return pa.Array.from_buffers(TYPES["headers"], row_count, [bits, ends], children=[entries])


def _as_text(keys: pa.Array) -> pa.Array:
    try:
        return keys.cast(pa.string())
    except pa.ArrowInvalid:
        coded = keys.dictionary_encode()
        texts = [key.decode("utf-8", "replace") for key in coded.dictionary.to_pylist()]
        return pa.array(texts, pa.string()).take(coded.indices)
