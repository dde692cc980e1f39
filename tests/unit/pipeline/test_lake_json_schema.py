"""A JSON Schema as columns; what it cannot be is said with the place in it."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from anabranch.errors import OptionError
from anabranch.pipeline.lake.rows.arrow_types import TIMESTAMP, depth_of
from anabranch.pipeline.lake.rows.infer import DEPTH_MAX
from anabranch.pipeline.lake.rows.json_schema import GivenSchema, read_json_schema


def _read(tmp_path: Path, schema: Any) -> GivenSchema:
    path = tmp_path / "schema.json"
    path.write_text(schema if isinstance(schema, str) else json.dumps(schema))
    return read_json_schema(str(path))


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def test_types_become_columns(tmp_path: Path) -> None:
    schema = _object(
        i={"type": "integer", "description": "passed over"},
        f={"type": ["number", "null"]},
        t={"type": "string", "format": "date-time"},
        o=_object(b={"type": "boolean"}),
        l={"type": "array", "items": {"type": "string"}},
    )
    schema["title"] = "passed over too"
    schema["required"] = ["i"]
    schema["properties"]["o"]["required"] = ["b"]
    found = _read(tmp_path, schema)
    assert found.columns == pa.schema(
        [
            ("i", pa.int64()),
            ("f", pa.float64()),
            ("t", TIMESTAMP),
            ("o", pa.struct([("b", pa.bool_())])),
            ("l", pa.list_(pa.field("element", pa.string()))),
        ]
    )
    assert sorted(found.required) == [("i",), ("o", "b")]


def test_a_schema_is_nested_no_deeper_than_a_record(tmp_path: Path) -> None:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(DEPTH_MAX // 2):
        schema = _object(x={"type": "array", "items": schema})
    assert depth_of(pa.struct(_read(tmp_path, schema).columns)) == DEPTH_MAX
    with pytest.raises(OptionError, match=r"x\.x.* is nested too deeply"):
        _read(tmp_path, _object(x=schema))
    with pytest.raises(OptionError, match=r"cannot be read: .*recursion"):
        _read(tmp_path, '{"items":' * 5000 + "1" + "}" * 5000)


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ("{", "cannot be read"),
        ({"type": "string"}, 'must be of type "object"'),
        (_object(), 'without "properties"'),
        (_object(a={"type": "string", "pattern": "x"}), "a in .*uses 'pattern', which is not understood"),
        (_object(a=_object(b={"anyOf": []})), r"a\.b in .*uses 'anyOf'"),
        (_object(a={"type": ["string", "integer"]}), "has the type"),
        (_object(a={"type": "null"}), "has the type"),
        (_object(a={}), "has the type null"),
        (_object(a=True), "not an object"),
        (_object(a={"type": "array"}), 'array without "items"'),
        (_object(a={"type": "string", "format": "uuid"}), "the format 'uuid'"),
        (_object(a={"type": "integer", "format": "date-time"}), "the format 'date-time'"),
        (_object(_offset={"type": "integer"}), "_offset, which is a column of the pipeline"),
        (_object(**{"a.b": {"type": "integer"}}), "cannot name a column"),
        ({**_object(a={"type": "integer"}), "required": ["b"]}, "requires 'b'"),
        (
            _object(l={"type": "array", "items": {**_object(a={"type": "integer"}), "required": ["a"]}}),
            "inside an array",
        ),
    ],
)
def test_what_a_table_cannot_keep_is_refused(tmp_path: Path, schema: Any, words: str) -> None:
    with pytest.raises(OptionError, match=words):
        _read(tmp_path, schema)
