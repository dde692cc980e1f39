"""When letters have to be judged again because the table changed meanwhile."""

import pyarrow as pa
import pytest

from anabranch.errors import TableMovedError
from anabranch.pipeline.jobs.retry import Retries
from anabranch.pipeline.lake.change import Change, SourceState
from anabranch.pipeline.lake.files import FilePlan, write_rows
from anabranch.pipeline.lake.formats.table import open_table
from anabranch.pipeline.lake.rows.parse import TRACE
from anabranch.pipeline.lake.settings import PipelineSettings

COLUMNS = TRACE.append(pa.field("id", pa.int64()))


def settings_in(folder, **changes):
    given = {"mode": "upsert", "to": "parquet", **changes}
    return PipelineSettings("127.0.0.1:1", "t", str(folder), "rows", **given)


def retries_of(settings):
    """As they are once the letters of a batch are judged."""
    retries = Retries(None, settings)
    retries._judged_at = retries._moment()
    return retries


def commit_of_the_pipeline(settings):
    table = open_table(settings, COLUMNS)
    plan = FilePlan(table.data_folder, "", 0, table.schema(), table.file_schema(), ())
    file = write_rows(plan, (), pa.Table.from_pylist([{"_key": "a", "id": 1}], COLUMNS))
    table.commit(Change((file,), (), SourceState(1, 0, {0: 1})))


def test_table_that_another_pipeline_made_meanwhile_has_letters_judged_again(tmp_path):
    settings = settings_in(
        tmp_path, partition_by=("id",)
    )  # It cannot be made before records bring that column.
    retries = retries_of(settings)
    commit_of_the_pipeline(settings)
    with pytest.raises(TableMovedError, match="has changed since the letters were judged"):
        retries._check_still()


def test_table_that_the_letters_themselves_make_is_no_change(tmp_path):
    settings = settings_in(tmp_path, partition_by=("id",))
    retries = retries_of(settings)
    open_table(settings, COLUMNS)
    retries._check_still()


def test_table_kept_by_columns_may_change_as_it_likes(tmp_path):
    settings = settings_in(tmp_path, key=("id",))
    open_table(settings, COLUMNS)
    retries = retries_of(settings)
    commit_of_the_pipeline(settings)
    retries._check_still()
