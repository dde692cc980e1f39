"""Tables next to each other in a warehouse: nobody's files are swept as another one's orphans."""

from dataclasses import replace
from itertools import permutations
from pathlib import Path

import pyarrow as pa
import pytest

from anabranch.errors import TableError
from anabranch.pipeline.lake.change import Change, DataFile, SourceState
from anabranch.pipeline.lake.files import FilePlan, write_rows
from anabranch.pipeline.lake.formats.neighbours import tables_among
from anabranch.pipeline.lake.formats.table import open_table
from anabranch.pipeline.lake.maintain import sweep_orphans
from anabranch.pipeline.lake.rows.parse import TRACE
from anabranch.pipeline.lake.settings import PipelineSettings
from support.lake_tables import NOON, read_rows, settings

COLUMNS = pa.schema([*TRACE, ("n", pa.int64())])
FORMATS = ("iceberg", "delta", "parquet")


def _one_row(given: PipelineSettings) -> DataFile:
    table = open_table(given, COLUMNS)
    row = {"_key": "k", "_partition": 0, "_offset": 1, "_timestamp": NOON, "n": 1}
    plan = FilePlan(table.data_folder, "", 0, table.schema(), table.file_schema(), ())
    file = write_rows(plan, (), pa.Table.from_pylist([row], COLUMNS))
    table.commit(Change((file,), (), SourceState(7, 0, {0: 2})))
    return file


@pytest.mark.parametrize(("have", "wanted"), list(permutations(FORMATS, 2)))
def test_a_folder_takes_no_second_format(tmp_path: Path, have: str, wanted: str) -> None:
    given = settings(tmp_path, to=have, table="shop.orders")
    _one_row(given)
    other = replace(given, to=wanted)
    for columns in (COLUMNS, None):
        with pytest.raises(
            TableError, match=f"a table in the format {have}.*Say --to {have}, or name another"
        ):
            open_table(other, columns)
    open_table(replace(other, table="shop.others"), COLUMNS)


@pytest.mark.parametrize("to", ["delta", "parquet"])
def test_two_formats_that_share_a_folder_are_not_swept(tmp_path: Path, to: str) -> None:
    """As versions before have made them."""
    given = settings(tmp_path, to="iceberg", table="shop.orders")
    _one_row(given)
    hidden, shown = tmp_path / "hidden", tmp_path / "shop" / "orders"
    (shown / "metadata").rename(hidden)
    _one_row(replace(given, to=to))
    hidden.rename(shown / "metadata")
    for one in (given, replace(given, to=to)):
        with pytest.raises(TableError, match="could not be told apart"):
            sweep_orphans(one, older_than_seconds=0)
        assert read_rows(one).num_rows == 1


@pytest.mark.parametrize(
    ("to", "below"),
    [("delta", "shop.orders.eu"), ("parquet", "shop.orders.data.eu"), ("delta", "shop.orders.metadata")],
)
def test_a_sweep_leaves_tables_further_down_alone(tmp_path: Path, to: str, below: str) -> None:
    lower = settings(tmp_path, to=to, table=below)
    _one_row(lower)
    given = replace(lower, table="shop.orders")
    orphan = Path(_one_row(given).path.removeprefix("file://")).with_name("orphan.parquet")
    orphan.write_text("")
    assert sweep_orphans(given, older_than_seconds=0) == [f"file://{orphan}"]
    assert read_rows(lower).num_rows == read_rows(given).num_rows == 1


def test_tables_are_known_by_their_marks() -> None:
    paths = [
        "s3://w/a/_delta_log/_sidecars/x.parquet",
        "s3://w/a/b/_log/00000000000000000007.json",
        "s3://w/a/c/metadata/v3.gz.metadata.json",
        "s3://w/a/c/metadata/snap-1.avro",
        "s3://w/a/d/_log/notes.json",
        "s3://w/a/metadata/part.parquet",
    ]
    assert tables_among(paths) == {
        "s3://w/a": {"delta"},
        "s3://w/a/b": {"parquet"},
        "s3://w/a/c": {"iceberg"},
    }
