"""Records to rows: JSON values into typed Arrow columns, with a reason for each that does not fit.

Two ways to the same result. Arrow's own JSON reader takes many records at once when all of them are ordinary objects
that fit the known columns. Anything else goes the slow way, record by record, where the rules of `column_tree.py` and
`infer.py` decide; so what becomes of a record never depends on its neighbours, but for one case: new columns, whose
type the first typed value gives, and of which there are `columns_max` at most. When new columns are met, `has_grown`
tells the caller to evolve the table and to parse everything again.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from anabranch.pipeline.lake.rows.arrow_types import TIMESTAMP, conform, plain_schema
from anabranch.pipeline.lake.rows.column_tree import COLUMNS_MAX, ColumnTree, check_known, fitted_fields
from anabranch.pipeline.lake.rows.infer import (
    DEPTH_MAX,
    TOO_DEEP,
    MisfitError,
    check_depth,
)
from anabranch.pipeline.lake.rows.quick_json import parse_quickly

TRACE = pa.schema(
    [
        ("_key", pa.string()),
        ("_topic", pa.string()),
        ("_partition", pa.int32()),
        ("_offset", pa.int64()),
        ("_timestamp", TIMESTAMP),
    ]
)
"""Which record a row came from; first in every table."""

RAW = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())])))),
        ("_topic", pa.string()),
        ("_partition", pa.int32()),
        ("_offset", pa.int64()),
        ("_timestamp", TIMESTAMP),
    ]
)

SLOW_ROWS_MAX = 32
"""How many records go the slow way together when one of them has to."""
FAN_OUT = 8


class Parsed(NamedTuple):
    rows: pa.Table
    """Those that fit, with the columns that were asked for."""
    origin: pa.Array
    """The position of each among the records that came in."""
    reasons: pa.Array
    """For each record that came in: null, or why it is no row."""


class RawParser:
    """Bytes as they are; no record is ever refused."""

    def parse(self, records: pa.Table) -> Parsed:
        return _all_fit(conform(_renamed(records), RAW))


class JsonParser:
    """Values are JSON objects. `fixed`: the columns are given by a JSON Schema, and do not grow.

    One parser serves one task: the columns it has met stay known from chunk to chunk.
    """

    def __init__(
        self,
        schema: pa.Schema,
        fixed: bool = False,
        required: Sequence[Sequence[str]] = (),
        reserved: frozenset[str] = frozenset(),
        widens: bool = True,
        key: Sequence[str] = (),
        columns_max: int = COLUMNS_MAX,
    ) -> None:
        """`required`: paths of columns that must be there. `reserved`: names that no column can have. `widens`: can an
        int column become a long one? `key`: columns that rows are told apart by. `columns_max`: that the table may
        grow to."""
        self._reserved, self._key = reserved, key
        self._fields = list(plain_schema(schema))
        self._tree = ColumnTree(self._fields, widens=widens, columns_max=columns_max)
        self._fixed, self._required = fixed, [tuple(path) for path in required]
        self.has_grown = False

    @property
    def schema(self) -> pa.Schema:
        return pa.schema(self._tree.fields() if self.has_grown else self._fields)

    def parse(self, records: pa.Table) -> Parsed:
        """Rows and reasons; no rows once columns are missing from the table, which `has_grown` says."""
        if records.num_rows == 0:
            return _all_fit(self.schema.empty_table())
        parts = list(self._parts(records, 0))
        rows = [self.schema.empty_table()] if self.has_grown else [part.rows for part in parts]
        return Parsed(
            pa.concat_tables(rows),
            pa.concat_arrays([part.origin for part in parts]),
            pa.concat_arrays([part.reasons for part in parts]),
        )

    def _parts(self, records: pa.Table, start: int) -> Iterator[Parsed]:
        """Quickly if that is possible; else in smaller and smaller parts, so that few records go the slow way."""
        parsed = self._quickly(records)
        if parsed is None and records.num_rows <= SLOW_ROWS_MAX:
            parsed = self._slowly(records)
        if parsed is not None:
            yield Parsed(parsed.rows, pc.add(parsed.origin, start), parsed.reasons)
            return
        step = max(SLOW_ROWS_MAX, -(-records.num_rows // FAN_OUT))
        for first in range(0, records.num_rows, step):
            yield from self._parts(records.slice(first, step), start + first)

    def _quickly(self, records: pa.Table) -> Parsed | None:
        if any(field.name in self._key and pa.types.is_nested(field.type) for field in self.schema):
            return None
        values = records.column("value").combine_chunks()
        body = parse_quickly(values, self._columns(), self._fixed)
        trace, unfit_keys = _trace(records)
        if body is None or unfit_keys is not None or not self._has_required(body):
            return None
        return _all_fit(conform(_beside(trace, body), self.schema))

    def _columns(self) -> pa.Schema:
        return pa.schema([field for field in self.schema if field.name not in TRACE.names])

    def _has_required(self, rows: pa.Table) -> bool:
        """Top-level columns are looked at as a whole; nested ones are left to the slow way."""
        return all(len(path) == 1 and rows.column(path[0]).null_count == 0 for path in self._required)

    def _slowly(self, records: pa.Table) -> Parsed:
        trace, unfit_keys = _trace(records)
        rows: list[dict[str, Any]] = []
        reasons: list[str | None] = []
        for position, value in enumerate(records.column("value").to_pylist()):
            try:
                if unfit_keys is not None and unfit_keys[position].as_py():
                    raise MisfitError(
                        "the key is not UTF-8, which a column of text needs (schema raw takes any)"
                    )
                rows.append(self._row({} if value is None else decode(value)))
                reasons.append(None)
            except MisfitError as error:
                reasons.append(str(error))
        reason_column = pa.array(reasons, pa.string())
        origin = pc.indices_nonzero(pc.is_null(reason_column)).cast(pa.int64())
        if self.has_grown:
            return Parsed(self.schema.empty_table(), origin, reason_column)
        body = pa.Table.from_pylist(rows, self._columns()) if len(self._columns()) else None
        return Parsed(conform(_beside(trace.take(origin), body), self.schema), origin, reason_column)

    def _row(self, values: dict[str, Any]) -> dict[str, Any]:
        for name in TRACE.names:
            if values.get(name) is not None:
                raise MisfitError(
                    f"{name} is a column of the pipeline: a record cannot have a field of that name"
                )
        for name in values if self._reserved else ():
            if name.casefold() in self._reserved and values[name] is not None:
                raise MisfitError(
                    f"{name} cannot become a column: the table is partitioned by a field of that name"
                )
        _check_key(self._key, values)
        for path in self._required:
            _check_required(values, path)
        if self._fixed:
            check_known(self._tree.root, values)
        if self._tree.take(values):
            self.has_grown = True
        return {} if self.has_grown else fitted_fields(self._tree.root, values)


def _all_fit(rows: pa.Table) -> Parsed:
    return Parsed(rows, pa.array(range(len(rows)), pa.int64()), pa.nulls(len(rows), pa.string()))


def decode(value: bytes) -> dict[str, Any]:
    try:
        decoded = json.loads(value.decode("utf-8"), parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        raise MisfitError(f"the value is not UTF-8: {error.reason} at byte {error.start}") from error
    except RecursionError as error:
        raise MisfitError(TOO_DEEP) from error
    except ValueError as error:
        raise MisfitError(f"the value is not JSON: {error}") from error
    if not isinstance(decoded, dict):
        raise MisfitError(f"the value is JSON, but no object: {type(decoded).__name__}")
    if (
        value.count(b"{") + value.count(b"[") > DEPTH_MAX
    ):  # Most values have fewer: these need no closer look.
        check_depth(decoded)
    _check_unicode(value, decoded)
    return decoded


def _refuse_constant(text: str) -> Any:
    raise MisfitError(f"the value is not JSON: {text} is no number")


def _check_unicode(value: bytes, decoded: dict[str, Any]) -> None:
    """Half of a surrogate pair can be escaped in JSON, but is no character and has no UTF-8 form."""
    if b"\\u" not in value:
        return
    try:
        json.dumps(decoded, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as error:
        raise MisfitError("the value has half of a surrogate pair in it, which is no character") from error


def _check_key(names: Sequence[str], fields: dict[str, Any]) -> None:
    """Arrow can neither group nor join by what is nested."""
    for name in names:
        if isinstance(fields.get(name), (dict, list)):
            what = "an object" if isinstance(fields[name], dict) else "an array"
            raise MisfitError(f"{name} is {what}: an upsert goes by it, and needs a single value")


def _check_required(fields: dict[str, Any], path: tuple[str, ...]) -> None:
    value: Any = fields
    for depth, name in enumerate(path):
        value = value.get(name)
        if value is None:
            if depth < len(path) - 1:
                return  # What is inside an object is required only where the object is.
            raise MisfitError(f"{'.'.join(path)} is required, and missing or null")
        if depth < len(path) - 1 and not isinstance(value, dict):
            return  # That it does not fit is said elsewhere.


def _trace(records: pa.Table) -> tuple[pa.Table, pa.Array | None]:
    """The trace columns, and which keys are not UTF-8 if any is not."""
    keys = records.column("key").combine_chunks()
    unfit = None
    try:
        texts = keys.cast(pa.string())
    except pa.ArrowInvalid:
        decoded = [_text_or_none(key) for key in keys.to_pylist()]
        texts = pa.array(decoded, pa.string())
        unfit = pc.and_(pc.is_valid(keys), pc.is_null(texts))
    place = [records.column(name) for name in ("topic", "partition", "offset", "timestamp")]
    return conform(pa.Table.from_arrays([texts, *place], names=TRACE.names), TRACE), unfit


def _text_or_none(key: bytes | None) -> str | None:
    try:
        return None if key is None else key.decode("utf-8")
    except UnicodeDecodeError:
        return None


def _beside(trace: pa.Table, body: pa.Table | None) -> pa.Table:
    if body is None:
        return trace
    return pa.Table.from_arrays(
        [*trace.columns, *body.columns], names=[*trace.column_names, *body.column_names]
    )


def _renamed(records: pa.Table) -> pa.Table:
    names = {name: f"_{name}" for name in ("topic", "partition", "offset", "timestamp")}
    return records.rename_columns([names.get(name, name) for name in records.column_names])
