"""What is said of a table before Spark starts, and that whoever only looks leaves nothing behind."""

import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from anabranch.errors import OptionError, TableError, TableMissingError
from anabranch.pipeline.lake.change import Change, SourceState
from anabranch.pipeline.lake.formats.table import open_table
from anabranch.pipeline.lake.ready import check_ready
from anabranch.pipeline.lake.rows.parse import TRACE
from anabranch.pipeline.lake.settings import PipelineSettings

FORMATS = ("iceberg", "delta", "parquet")


def settings_in(folder: Path, **changes: Any) -> PipelineSettings:
    given = {"bootstrap": "h:1", "topic": "t", "warehouse": str(folder), "table": "rows", **changes}
    return PipelineSettings(**given)


def schema_file(folder: Path, schema: object) -> str:
    path = folder / "schema.json"
    path.write_text(json.dumps(schema))
    return str(path)


ORDER = {"type": "object", "properties": {"id": {"type": "integer"}}}


@pytest.mark.parametrize("to", FORMATS)
def test_looking_for_a_table_that_is_not_there_makes_nothing(tmp_path: Path, to: str) -> None:
    with pytest.raises(TableMissingError):
        open_table(settings_in(tmp_path / "lake", to=to))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("to", FORMATS)
def test_new_place_is_ready_with_nothing_but_its_folders(tmp_path: Path, to: str) -> None:
    settings = settings_in(tmp_path / "lake", to=to, checkpoint=str(tmp_path / "progress"))
    check_ready(settings)
    assert sorted(tmp_path.iterdir()) == [tmp_path / "lake", tmp_path / "progress"]
    assert list((tmp_path / "lake").iterdir()) == []


@pytest.mark.parametrize("to", FORMATS)
def test_file_is_no_warehouse(tmp_path: Path, to: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(TableError, match=r"The warehouse .*/file cannot be made: File exists"):
        check_ready(settings_in(tmp_path / "file", to=to))
    with pytest.raises(TableError, match=r"The warehouse .*/file/lake cannot be made: Not a directory"):
        check_ready(settings_in(tmp_path / "file" / "lake", to=to))


def test_folder_without_permission_is_no_warehouse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # To root every folder is open.
    with pytest.raises(TableError, match="cannot be written to"):
        check_ready(settings_in(tmp_path))


def test_file_is_no_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(TableError, match=r"The checkpoint .*/file cannot be made"):
        check_ready(settings_in(tmp_path, checkpoint=str(tmp_path / "file")))


def test_address_of_an_unknown_kind_is_no_warehouse(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="ftp://x/y cannot be used: Unrecognized filesystem"):
        check_ready(settings_in(tmp_path, checkpoint="ftp://x/y"))


@pytest.mark.parametrize(
    ("catalog", "words"),
    [
        ({"type": "foo"}, "'foo' is not a valid CatalogType"),
        ({"a": "b"}, "URI missing"),
        ({"type": "sql", "uri": "sqlite:////nosuch/folder/x.db"}, "unable to open database file"),
        ({"py-catalog-impl": "nosuch.Catalog"}, "nosuch.Catalog"),
    ],
)
def test_catalog_that_cannot_be_had_is_a_sentence(
    tmp_path: Path, catalog: dict[str, str], words: str
) -> None:
    with pytest.raises(TableError, match=f"The table rows in .* cannot be opened: .*{words}") as raised:
        check_ready(settings_in(tmp_path, catalog=catalog))
    assert "\n" not in str(raised.value)


def test_catalog_that_is_no_database_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "catalog.db").write_text("not a database " * 100)
    with pytest.raises(TableError, match=r"cannot be opened: .*not a database"):
        open_table(settings_in(tmp_path))


def test_catalog_of_another_place_keeps_its_tables_in_the_warehouse(tmp_path: Path) -> None:
    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/elsewhere.db"}
    table = open_table(settings_in(tmp_path / "lake", catalog=catalog), TRACE)
    assert table.data_folder.startswith(f"file://{tmp_path}/lake/")


@pytest.mark.parametrize("text", ["root:x:0:0", "[]", '{"type": "string"}'])
def test_file_that_is_no_schema_of_rows_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "schema.json").write_text(text)
    with pytest.raises(OptionError, match=r"schema\.json"):
        check_ready(settings_in(tmp_path, schema=str(tmp_path / "schema.json")))


def test_key_must_be_a_column_of_the_schema(tmp_path: Path) -> None:
    schema = schema_file(tmp_path, ORDER)
    check_ready(settings_in(tmp_path, schema=schema, mode="upsert", key=("id",)))
    with pytest.raises(OptionError, match="key names nosuch"):
        check_ready(settings_in(tmp_path, schema=schema, mode="upsert", key=("nosuch",)))


@pytest.mark.parametrize("kind", [ORDER, {"type": "array", "items": {"type": "integer"}}])
def test_nested_column_is_no_key(tmp_path: Path, kind: object) -> None:
    schema = schema_file(tmp_path, {"type": "object", "properties": {"id": kind}})
    with pytest.raises(OptionError, match="key names id, a column of objects or lists"):
        check_ready(settings_in(tmp_path, schema=schema, mode="upsert", key=("id",)))


def test_nested_column_of_the_table_is_no_key(tmp_path: Path) -> None:
    open_table(settings_in(tmp_path), pa.schema([*TRACE, ("id", pa.struct([("a", pa.int64())]))]))
    with pytest.raises(OptionError, match="key names id, a column of objects or lists"):
        check_ready(settings_in(tmp_path, mode="upsert", key=("id",)))


def test_partition_must_be_a_column_of_the_schema(tmp_path: Path) -> None:
    with pytest.raises(TableError, match="cannot be partitioned by nosuch"):
        check_ready(settings_in(tmp_path, schema=schema_file(tmp_path, ORDER), partition_by=("nosuch",)))


@pytest.mark.parametrize("to", FORMATS)
def test_key_must_be_a_column_of_a_table_that_has_records(tmp_path: Path, to: str) -> None:
    wanted = settings_in(tmp_path, to=to, mode="upsert", key=("nosuch",))
    table = open_table(wanted, TRACE)
    check_ready(wanted)  # The first records may bring the column.
    table.commit(Change(state=SourceState(1, 0, {0: 5}, 5, 0)))
    with pytest.raises(OptionError, match="key names nosuch"):
        check_ready(wanted)


@pytest.mark.parametrize("to", FORMATS)
def test_other_partitions_than_those_of_the_table_are_refused(tmp_path: Path, to: str) -> None:
    open_table(settings_in(tmp_path, to=to), TRACE)
    with pytest.raises(TableError, match="is partitioned by nothing"):
        check_ready(settings_in(tmp_path, to=to, partition_by=("_partition",)))
