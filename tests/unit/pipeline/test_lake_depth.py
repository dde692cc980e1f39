"""A record that is nested as deeply as is allowed goes through everything behind the parser, in each format."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from anabranch.pipeline.lake.batch_files import BatchFiles
from anabranch.pipeline.lake.change import Change
from anabranch.pipeline.lake.files import FilePlan, write_rows
from anabranch.pipeline.lake.formats.table import Table, open_table
from anabranch.pipeline.lake.rows.arrow_types import TIMESTAMP, depth_of
from anabranch.pipeline.lake.rows.infer import DEPTH_MAX
from anabranch.pipeline.lake.rows.parse import TRACE, JsonParser, Parsed
from anabranch.pipeline.lake.settings import PipelineSettings
from anabranch.pipeline.lake.upsert import read_rows


def nested(levels: int, *kinds: str) -> Any:
    """Objects, arrays or both in turn."""
    value: Any = 1
    for level in range(levels):
        value = [value] if kinds[level % len(kinds)] == "array" else {"x": value}
    return value


RECORD = {
    "objects": nested(DEPTH_MAX - 1, "object"),
    "arrays": nested(DEPTH_MAX - 1, "array"),
    "both": nested(DEPTH_MAX - 1, "array", "object"),
}


def parsed(table: Table) -> tuple[JsonParser, Parsed]:
    values = [b"k", json.dumps(RECORD).encode(), "t", 0, 0, datetime(2026, 3, 1, tzinfo=UTC)]
    kinds = [pa.binary(), pa.binary(), pa.string(), pa.int32(), pa.int64(), TIMESTAMP]
    names = ["key", "value", "topic", "partition", "offset", "timestamp"]
    columns = [pa.array([value], kind) for value, kind in zip(values, kinds, strict=True)]
    parser = JsonParser(table.schema())
    return parser, parser.parse(pa.table(columns, names))


@pytest.mark.parametrize("to", ["iceberg", "delta", "parquet"])
def test_deepest_record_becomes_a_row(tmp_path: Path, to: str) -> None:
    settings = PipelineSettings("h:1", "t", str(tmp_path), "rows", to=to)
    table = open_table(settings, TRACE)
    parser, _ = parsed(table)
    assert depth_of(pa.struct(parser.schema)) == DEPTH_MAX
    BatchFiles(None, settings)._grow(parser.schema)  # type: ignore[arg-type]
    table = open_table(settings)
    parser, found = parsed(table)
    assert not parser.has_grown
    plan = FilePlan(table.data_folder, "", 0, table.schema(), table.file_schema(), table.parts)
    table.commit(Change((write_rows(plan, (), found.rows),), (), None))
    (row,) = [row for file in open_table(settings).files() for row in read_rows(file, plan).to_pylist()]
    assert {name: row[name] for name in RECORD} == RECORD
