"""A JSON Schema file as columns: the part of the language that a table can keep, and a refusal by name of the rest.

Understood: `type` (one, or one with "null"), `properties`, `required`, `items`, `format: date-time`. Words that only
describe are passed over. Unlike in JSON Schema, a field that the schema does not name does not fit: the table would
have to drop it.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import pyarrow as pa

from anabranch.errors import OptionError
from anabranch.pipeline.lake.rows.arrow_types import TIMESTAMP
from anabranch.pipeline.lake.rows.infer import DEPTH_MAX, MisfitError, check_name
from anabranch.pipeline.lake.rows.parse import TRACE

DESCRIBING = {"$schema", "$id", "$comment", "title", "description", "examples", "default", "deprecated"}
UNDERSTOOD = {"type", "properties", "required", "items", "format"}
SCALARS = {"string": pa.string(), "integer": pa.int64(), "number": pa.float64(), "boolean": pa.bool_()}


class GivenSchema(NamedTuple):
    columns: pa.Schema
    required: list[tuple[str, ...]]


def read_json_schema(path: str) -> GivenSchema:
    try:
        value = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise OptionError(f"The JSON Schema {path} cannot be read: {error}.") from error
    required: list[tuple[str, ...]] = []
    kind = _Reader(path, required).kind(value, (), 1)
    if not pa.types.is_struct(kind):
        raise OptionError(f'The JSON Schema {path} must be of type "object": a row has columns.')
    for name in TRACE.names:
        if kind.get_field_index(name) >= 0:
            raise OptionError(
                f"The JSON Schema {path} names {name}, which is a column of the pipeline's own."
            )
    return GivenSchema(pa.schema(list(kind.fields)), required)


class _Reader:
    """Walks one schema; remembers what is required on the way."""

    def __init__(self, path: str, required: list[tuple[str, ...]]) -> None:
        self._path, self._required = path, required

    def kind(self, schema: Any, place: tuple[str, ...], depth: int, in_list: bool = False) -> pa.DataType:
        if not isinstance(schema, dict):
            self._refuse(f"is {json.dumps(schema)}, not an object", place)
        for word in schema:
            if word not in UNDERSTOOD | DESCRIBING:
                self._refuse(f"uses {word!r}, which is not understood", place)
        name = self._type_name(schema, place)
        if name in ("object", "array") and depth > DEPTH_MAX:
            self._refuse(f"is nested too deeply: a table can have {DEPTH_MAX} levels", place)
        if name == "object":
            return self._struct(schema, place, depth, in_list)
        if name == "array":
            if "items" not in schema:
                self._refuse('is an array without "items"', place)
            return pa.list_(pa.field("element", self.kind(schema["items"], place, depth + 1, True)))
        return self._scalar(schema, name, place)

    def _scalar(self, schema: dict[str, Any], name: str, place: tuple[str, ...]) -> pa.DataType:
        given = schema.get("format")
        if given is None:
            return SCALARS[name]
        if (name, given) != ("string", "date-time"):
            self._refuse(f"has the format {given!r}; only date-time, of a string, is understood", place)
        return TIMESTAMP

    def _struct(
        self, schema: dict[str, Any], place: tuple[str, ...], depth: int, in_list: bool
    ) -> pa.DataType:
        properties = schema.get("properties")
        if not isinstance(properties, dict) or not properties:
            self._refuse('is an object without "properties"', place)
        fields: list[pa.Field] = []
        folded: dict[str, str] = {}
        for name, inner in properties.items():
            try:
                check_name(name, name, folded)
            except MisfitError as error:
                self._refuse(f"cannot be a table: {error}", place)
            folded[name.casefold()] = name
            fields.append(pa.field(name, self.kind(inner, (*place, name), depth + 1, in_list)))
        self._note_required(schema.get("required", []), properties, place, in_list)
        return pa.struct(fields)

    def _note_required(
        self, names: Any, properties: dict[str, Any], place: tuple[str, ...], in_list: bool
    ) -> None:
        if not isinstance(names, list):
            self._refuse('has a "required" that is no list', place)
        if names and in_list:
            self._refuse('has "required" inside an array, which is not understood', place)
        for name in names:
            if name not in properties:
                self._refuse(f"requires {name!r}, which it does not describe", place)
            self._required.append((*place, name))

    def _type_name(self, schema: dict[str, Any], place: tuple[str, ...]) -> str:
        given = schema.get("type")
        names = [name for name in given if name != "null"] if isinstance(given, list) else [given]
        if len(names) != 1 or names[0] not in {*SCALARS, "object", "array"}:
            self._refuse(
                f"has the type {json.dumps(given)}: one of {', '.join(SCALARS)}, object or array", place
            )
        return str(names[0])

    def _refuse(self, what: str, place: tuple[str, ...]) -> NoReturn:
        where = f"{'.'.join(place)} in {self._path}" if place else self._path
        raise OptionError(f"The JSON Schema cannot be used: {where} {what}.")
