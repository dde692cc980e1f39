"""The door to each table format: commits that race, state that lasts, orphans told from files that count."""

import time
import uuid
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.types import LongType

from anabranch.errors import TableError, TableMovedError
from anabranch.pipeline.lake.change import Change, DataFile, SourceState
from anabranch.pipeline.lake.files import FilePlan, write_rows
from anabranch.pipeline.lake.formats.delta import DeltaTable
from anabranch.pipeline.lake.formats.iceberg import IcebergTable
from anabranch.pipeline.lake.formats.table import Table, open_table
from anabranch.pipeline.lake.maintain import sweep_orphans
from anabranch.pipeline.lake.rows.arrow_types import TIMESTAMP, plain_schema
from anabranch.pipeline.lake.rows.parse import TRACE
from anabranch.pipeline.lake.settings import PartitionField, PipelineSettings
from anabranch.pipeline.lake.upsert import read_rows as read_todays_rows
from support.lake_tables import NOON, read_rows, settings

COLUMNS = pa.schema([*TRACE, ("n", pa.int64())])


@pytest.fixture(params=["iceberg", "delta", "parquet"])
def given(request: pytest.FixtureRequest, tmp_path: Path) -> PipelineSettings:
    return settings(tmp_path, to=request.param)


def _file(table: Table, *numbers: int) -> DataFile:
    rows = [
        {"_key": f"k{number}", "_partition": 0, "_offset": number, "_timestamp": NOON, "n": number}
        for number in numbers
    ]
    plan = FilePlan(table.data_folder, "", 0, table.schema(), table.file_schema(), ())
    return write_rows(plan, (), pa.Table.from_pylist(rows, COLUMNS))


def _append(table: Table, batch: int, *numbers: int) -> DataFile:
    file = _file(table, *numbers)
    table.commit(Change((file,), (), SourceState(7, batch, {0: max(numbers) + 1, 2: 5})))
    return file


def test_the_state_is_read_back_as_it_was_committed(given: PipelineSettings) -> None:
    table = open_table(given, COLUMNS)
    assert table.state() is None
    _append(table, 0, 1)
    state = SourceState(2**62 - 1, 8, {0: 2**40, 2: 5, 3: 1}, 2**33, 4)
    table.commit(Change((), (), state))
    assert table.state() == open_table(given).state() == state


@pytest.mark.parametrize("topic_id", [uuid.UUID(int=1), uuid.UUID(int=2**128 - 1), uuid.uuid4()])
def test_the_state_keeps_which_topic_it_was_and_what_was_read(
    given: PipelineSettings, topic_id: uuid.UUID
) -> None:
    table = open_table(given, COLUMNS)
    state = SourceState(7, 0, {0: 1}, 3, 4, 8, topic_id)
    table.commit(Change((), (), state))
    assert open_table(given).state() == state


def test_offsets_of_an_older_topic_do_not_shine_through(given: PipelineSettings) -> None:
    """Delta sets each of them on its own."""
    table = open_table(given, COLUMNS)
    table.commit(Change((), (), SourceState(7, 0, {0: 1, 1: 5, 2: 5}, 3, 0, 3, uuid.UUID(int=1))))
    state = SourceState(7, 1, {0: 2, 2: 1})
    table.commit(Change((), (), state))
    assert open_table(given).state() == state


def test_two_writers_that_read_the_same_table_cannot_both_commit(given: PipelineSettings) -> None:
    first, second = open_table(given, COLUMNS), open_table(given, COLUMNS)
    _append(first, 0, 1)
    with pytest.raises(TableMovedError):
        _append(second, 0, 1)
    second.refresh()
    assert second.state() == SourceState(7, 0, {0: 2, 2: 5})
    assert read_rows(given).num_rows == 1


@pytest.mark.parametrize("has_file", [True, False])
def test_a_commit_without_files_is_refused_after_another_commit(
    given: PipelineSettings, has_file: bool
) -> None:
    """As of a batch whose records were all rejected: its offsets must not take the place of newer ones."""
    first = open_table(given, COLUMNS)
    _append(first, 0, 1)
    second = open_table(given)
    newer = SourceState(7, 2, {0: 9})
    first.commit(Change((), (), SourceState(7, 1, {0: 5})))
    first.commit(Change((_file(first, 8),) if has_file else (), (), newer))
    with pytest.raises(TableMovedError):
        second.commit(Change((), (), SourceState(7, 1, {0: 5})))
    assert open_table(given).state() == newer
    second.refresh()
    second.commit(Change((), (), SourceState(7, 3, {0: 9})))
    assert open_table(given).state() == SourceState(7, 3, {0: 9})


def test_the_first_commit_without_files_is_refused_after_another(given: PipelineSettings) -> None:
    first, second = open_table(given, COLUMNS), open_table(given)
    first.commit(Change((), (), SourceState(7, 0, {0: 5})))
    with pytest.raises(TableMovedError):
        second.commit(Change((), (), SourceState(7, 0, {0: 3})))
    assert open_table(given).state() == SourceState(7, 0, {0: 5})


def test_whoever_refreshes_may_commit_again(given: PipelineSettings) -> None:
    first, second = open_table(given, COLUMNS), open_table(given, COLUMNS)
    _append(first, 0, 1)
    second.refresh()
    _append(second, 1, 2)
    first.refresh()
    _append(first, 2, 3)
    assert read_rows(given)["n"].to_pylist() == [1, 2, 3]


def test_a_file_cannot_be_taken_out_twice(given: PipelineSettings) -> None:
    first = open_table(given, COLUMNS)
    old = _append(first, 0, 1)
    second = open_table(given)
    first.commit(Change((_file(first, 1),), (old,)))
    with pytest.raises(TableMovedError):
        second.commit(Change((_file(second, 1),), (old,)))
    second.refresh()
    with pytest.raises(TableMovedError):
        second.commit(Change((_file(second, 1),), (old,)))
    assert read_rows(given)["n"].to_pylist() == [1]


def test_a_swap_of_files_leaves_the_state_alone(given: PipelineSettings) -> None:
    table = open_table(given, COLUMNS)
    old = [_append(table, 0, 1), _append(table, 1, 2)]
    table.commit(Change((_file(table, 1, 2),), tuple(old)))
    assert open_table(given).state() == SourceState(7, 1, {0: 3, 2: 5})
    assert read_rows(given)["n"].to_pylist() == [1, 2]


def test_a_file_that_is_gone_is_not_committed(given: PipelineSettings) -> None:
    table = open_table(given, COLUMNS)
    file = _file(table, 1)
    Path(file.path.removeprefix("file://")).unlink()
    with pytest.raises((TableError, FileNotFoundError)):
        table.commit(Change((file,), (), SourceState(7, 0, {0: 2})))
    assert open_table(given).state() is None


def test_a_sweep_takes_orphans_and_nothing_else(given: PipelineSettings) -> None:
    table = open_table(given, COLUMNS)
    old = _append(table, 0, 1)
    _append(table, 1, 2)
    table.commit(Change((_file(table, 1),), (old,)))
    orphan = _file(table, 9)
    assert sweep_orphans(given, older_than_seconds=3600) == []
    assert sweep_orphans(given, older_than_seconds=0) == [orphan.path]
    assert Path(old.path.removeprefix("file://")).exists(), "an older state of the table still needs it"
    assert read_rows(given)["n"].to_pylist() == [1, 2]


def test_what_only_expired_states_needed_is_an_orphan(given: PipelineSettings) -> None:
    table = open_table(given, COLUMNS)
    old = _append(table, 0, 1)
    table.commit(Change((_file(table, 1),), (old,)))
    assert open_table(given).expire(2**42) > 0
    sweep_orphans(given, older_than_seconds=0)
    assert not Path(old.path.removeprefix("file://")).exists()
    assert read_rows(given)["n"].to_pylist() == [1]
    assert open_table(given).state() == SourceState(7, 0, {0: 2, 2: 5})


def test_columns_are_added_and_widened(given: PipelineSettings) -> None:
    narrow = pa.schema([*TRACE, ("n", pa.int64()), ("s", pa.struct([("a", pa.int64())]))])
    table = open_table(given, narrow)
    wider = pa.struct([("a", pa.int64()), ("b", pa.list_(pa.field("element", pa.string())))])
    table.evolve(pa.schema([*TRACE, ("n", pa.int64()), ("s", wider), ("new", pa.float64())]))
    found = open_table(given).schema()
    assert found.field("s").type.equals(wider)
    assert found.field("new").type == pa.float64()


@pytest.mark.parametrize("to", ["iceberg", "parquet"])
def test_a_column_widens_over_files_that_have_it_narrow(tmp_path: Path, to: str) -> None:
    given = settings(tmp_path, to=to)
    table = open_table(given, pa.schema([*TRACE, ("n", pa.int32())]))
    _append(table, 0, 1)
    table.evolve(COLUMNS)
    _append(table, 1, 2**40)
    assert open_table(given).schema().field("n").type == pa.int64()
    assert read_rows(given)["n"].to_pylist() == [1, 2**40]


def test_delta_says_that_it_widens_no_column(tmp_path: Path) -> None:
    table = open_table(settings(tmp_path, to="delta"), pa.schema([*TRACE, ("n", pa.int32())]))
    with pytest.raises(TableError, match="cannot take n"):
        table.evolve(COLUMNS)


def test_a_column_that_another_engine_renamed_keeps_its_values_when_files_are_written_anew(
    tmp_path: Path,
) -> None:
    given = settings(tmp_path)
    old = _append(open_table(given, COLUMNS), 0, 1, 2)
    catalog = load_catalog("anabranch", type="sql", uri=f"sqlite:///{tmp_path}/catalog.db")
    with catalog.load_table("default.rows").update_schema() as update:
        update.rename_column("n", "amount")
    with catalog.load_table("default.rows").update_schema() as update:
        update.add_column("n", LongType())
    catalog.close()
    before = read_rows(given)
    assert before["amount"].to_pylist() == [1, 2]
    table = open_table(given)
    plan = FilePlan(table.data_folder, "", 0, table.schema(), table.file_schema(), ())
    table.commit(Change((write_rows(plan, (), read_todays_rows(old, plan)),), (old,)))
    assert read_rows(given).to_pylist() == before.to_pylist()


def test_any_catalog_of_pyiceberg_will_do(tmp_path: Path) -> None:
    catalog = {
        "name": "own",
        "type": "sql",
        "uri": f"sqlite:///{tmp_path}/own.db",
        "warehouse": f"file://{tmp_path}/w",
    }
    given = settings(tmp_path / "unused", catalog=catalog)
    table = open_table(given, COLUMNS)
    _append(table, 0, 1)
    assert open_table(given).state() == SourceState(7, 0, {0: 2, 2: 5})
    assert table.data_folder.startswith(f"file://{tmp_path}/w/")
    assert not (tmp_path / "unused").exists()


def test_a_table_partitioned_otherwise_is_refused(given: PipelineSettings) -> None:
    open_table(given, COLUMNS)
    with pytest.raises(TableError, match="is partitioned by nothing"):
        open_table(replace(given, partition_by=("n",)))


def test_a_table_knows_what_it_is_partitioned_by(given: PipelineSettings) -> None:
    parted = replace(given, partition_by=("n", "day(_timestamp)"))
    made = open_table(parted, COLUMNS)
    assert made.parts == parted.partitions()
    found = open_table(given)
    assert found.parts == parted.partitions()
    assert found.schema().names == made.schema().names
    with pytest.raises(TableError, match=r"is partitioned by n, day\(_timestamp\): partition_by must say so"):
        open_table(replace(given, partition_by=("n",)))


def test_a_part_of_a_time_is_no_column_of_its_name(given: PipelineSettings) -> None:
    open_table(replace(given, partition_by=("day(_timestamp)",)), COLUMNS)
    with pytest.raises(TableError, match=r"is partitioned by day\(_timestamp\): partition_by must say so"):
        open_table(replace(given, partition_by=("_timestamp_day",)))


def test_a_parquet_table_can_have_a_column_of_the_name_of_its_folders(tmp_path: Path) -> None:
    given = settings(tmp_path, to="parquet", partition_by=("day(_timestamp)",))
    table = open_table(given, COLUMNS)
    assert table.reserved == frozenset()
    table.evolve(pa.schema([*COLUMNS, ("_timestamp_day", pa.string())]))
    plan = FilePlan(table.data_folder, "", 0, table.schema(), table.file_schema(), table.parts)
    row = {"_partition": 0, "_offset": 1, "_timestamp": NOON, "_timestamp_day": "Sunday"}
    file = write_rows(plan, ("2026-03-01",), pa.Table.from_pylist([row], table.schema()))
    table.commit(Change((file,), (), SourceState(7, 0, {0: 2})))
    assert "_timestamp_day=2026-03-01/" in file.path
    assert read_todays_rows(file, plan)["_timestamp_day"].to_pylist() == ["Sunday"]
    assert read_rows(given)["_timestamp_day"].to_pylist() == ["Sunday"]


def test_a_column_is_no_part_of_a_time_by_its_name(given: PipelineSettings) -> None:
    parted = replace(given, partition_by=("sold_day",))
    columns = pa.schema([*TRACE, ("sold", TIMESTAMP), ("sold_day", pa.string())])
    made = open_table(parted, columns)
    made.evolve(pa.schema([*columns, ("n", pa.int64())]))
    found = open_table(given)
    assert found.parts == parted.partitions()
    assert found.schema().names == [*columns.names, "n"]


def test_a_delta_table_that_does_not_say_what_it_is_partitioned_by_can_be_told(tmp_path: Path) -> None:
    """As other engines make them."""
    from deltalake import DeltaTable

    given = settings(tmp_path, to="delta")
    columns = pa.schema([*plain_schema(TRACE), ("sold", TIMESTAMP), ("sold_day", pa.string())])
    (tmp_path / "default" / "rows").mkdir(parents=True)
    DeltaTable.create(given.table_uri, columns, partition_by=["sold_day"])
    assert open_table(given).parts == (PartitionField("sold", "day"),)
    told = open_table(replace(given, partition_by=("sold_day",)))
    assert told.parts == (PartitionField("sold_day"),)
    assert "sold_day" in told.schema().names


def test_a_sweep_takes_what_killed_batches_of_any_topic_staged(given: PipelineSettings) -> None:
    open_table(given, COLUMNS)
    staged = []
    for one in (given, replace(given, topic="other"), replace(given, table="elsewhere")):
        folder = Path(one.staging_uri.removeprefix("file://"))
        folder.mkdir(parents=True)
        (folder / "rejected.parquet").write_text("")
        staged.append(folder / "rejected.parquet")
    sweep_orphans(given, older_than_seconds=0)
    assert [path.exists() for path in staged] == [False, False, True]


def test_deltas_state_outlives_a_checkpoint_of_its_log(tmp_path: Path) -> None:
    from deltalake import DeltaTable

    given = settings(tmp_path, to="delta")
    table = open_table(given, COLUMNS)
    _append(table, 3, 1)
    DeltaTable(table.data_folder).create_checkpoint()
    for entry in Path(table.data_folder.removeprefix("file://"), "_delta_log").glob("*0.json"):
        entry.unlink()
    assert open_table(given).state() == SourceState(7, 3, {0: 2, 2: 5})


def test_deltas_own_folders_are_not_swept(tmp_path: Path) -> None:
    """Other engines keep checkpoints in parts, sidecars and changes there, which no entry of ours names."""
    given = settings(tmp_path, to="delta", partition_by=("hour(_timestamp)",))
    root = Path(open_table(given, COLUMNS).data_folder.removeprefix("file://"))
    kept = [
        "_delta_log/00000000000000000010.checkpoint.0000000001.0000000002.parquet",
        "_delta_log/00000000000000000012.checkpoint.80a083e8-7026-4e79-81be-64bd76c43a11.parquet",
        "_delta_log/_sidecars/3a0d65cd-4056-49b8-937b-95f9e3ee90e5.parquet",
        "_change_data/cdc-0.parquet",
        "_timestamp_hour=2026-03-01-12/_change_data/cdc-1.parquet",
    ]
    for name in [*kept, "_timestamp_hour=2026-03-01-12/orphan.parquet"]:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("")
    orphan = f"file://{root}/_timestamp_hour=2026-03-01-12/orphan.parquet"
    assert sweep_orphans(given, older_than_seconds=0) == [orphan]
    assert all((root / name).exists() for name in kept)


def test_a_table_that_is_not_there_is_missed_by_name(given: PipelineSettings) -> None:
    with pytest.raises(TableError, match="There is no table"):
        open_table(given)


def _rolled_back(table: IcebergTable, snapshot: int) -> None:
    table._table.manage_snapshots().rollback_to_snapshot(snapshot).commit()
    table.refresh()


@pytest.fixture
def rolling(tmp_path: Path) -> IcebergTable:
    table = open_table(settings(tmp_path), COLUMNS)
    assert isinstance(table, IcebergTable)
    return table


def test_a_rollback_of_iceberg_takes_the_state_along(rolling: IcebergTable) -> None:
    _append(rolling, 0, 1)
    before = rolling.state()
    merged = _append(rolling, 0, 1)
    rolling.commit(Change((_file(rolling, 1),), (merged,)))  # As `maintain` does, without a state.
    set_back_to = rolling.version()
    _append(rolling, 1, 2)
    assert set_back_to is not None
    _rolled_back(rolling, set_back_to)
    assert rolling.state() == before
    _append(rolling, 1, 3)
    assert rolling.state() == SourceState(7, 1, {0: 4, 2: 5})


def test_a_rollback_of_iceberg_to_before_the_first_batch_leaves_no_state(rolling: IcebergTable) -> None:
    rolling.commit(Change((_file(rolling, 1),)))
    set_back_to = rolling.version()
    _append(rolling, 0, 2)
    assert set_back_to is not None
    _rolled_back(rolling, set_back_to)
    assert rolling.state() is None


def test_icebergs_state_outlives_the_snapshots_that_had_it(rolling: IcebergTable) -> None:
    _append(rolling, 0, 1)
    rolling.commit(Change((_file(rolling, 2),)))
    rolling.expire(2**42)
    rolling.refresh()
    assert len(rolling._table.snapshots()) == 1
    assert rolling.state() == SourceState(7, 0, {0: 2, 2: 5})


def test_icebergs_state_may_be_written_by_an_older_version_in_between(
    rolling: IcebergTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    _append(rolling, 0, 1)
    with monkeypatch.context() as older:
        older.setattr(IcebergTable, "_summary", lambda table, state: {"anabranch.batch": str(state.batch)})
        _append(rolling, 1, 2)
    assert rolling.state() == SourceState(7, 1, {0: 3, 2: 5})


def test_a_rollback_of_iceberg_to_a_snapshot_whose_state_nobody_knows_is_said(
    rolling: IcebergTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as older:
        older.setattr(IcebergTable, "_summary", lambda table, state: {"anabranch.batch": str(state.batch)})
        _append(rolling, 0, 1)
    set_back_to = rolling.version()
    _append(rolling, 1, 2)
    assert set_back_to is not None
    _rolled_back(rolling, set_back_to)
    with pytest.raises(TableError, match="does not say how far t had come"):
        rolling.state()


@pytest.fixture
def restorable(tmp_path: Path) -> DeltaTable:
    table = open_table(settings(tmp_path, to="delta"), COLUMNS)
    assert isinstance(table, DeltaTable)
    return table


def _restored(table: DeltaTable, to: int | datetime) -> None:
    table._table.restore(to)
    table.refresh()


def test_a_restore_of_delta_takes_the_state_along(restorable: DeltaTable) -> None:
    _append(restorable, 0, 1)
    restorable.commit(Change((_file(restorable, 9),)))  # As `maintain` does, without a state.
    before, set_back_to = restorable.state(), restorable.version()
    _append(restorable, 1, 2)
    newest, last = restorable.state(), restorable.version()
    assert set_back_to is not None
    assert last is not None
    _restored(restorable, set_back_to)
    assert restorable.state() == before
    _restored(restorable, last)  # They thought better of it.
    assert restorable.state() == newest
    _restored(restorable, set_back_to)
    _append(restorable, 1, 3)
    assert restorable.state() == SourceState(7, 1, {0: 4, 2: 5})


def test_a_restore_of_delta_to_before_the_first_batch_leaves_no_state(restorable: DeltaTable) -> None:
    _append(restorable, 0, 1)
    _restored(restorable, 0)
    assert restorable.state() is None


def test_a_restore_of_delta_to_a_moment_takes_the_state_along(restorable: DeltaTable, tmp_path: Path) -> None:
    _append(restorable, 0, 1)
    before, moment = restorable.state(), time.time_ns() // 1_000_000 + 1
    # Delta goes by the time of change of its files, which the kernel takes from a clock that moves every few ms.
    stamp = tmp_path / "stamp"
    stamp.touch()
    while stamp.stat().st_mtime_ns // 1_000_000 <= moment:
        time.sleep(0.001)
        stamp.touch()
    _append(restorable, 1, 2)
    _restored(restorable, datetime.fromtimestamp(moment / 1000, UTC))
    assert restorable.state() == before


def test_a_restore_of_delta_to_what_nobody_can_read_any_more_is_said(restorable: DeltaTable) -> None:
    _append(restorable, 0, 1)
    _append(restorable, 1, 2)
    _restored(restorable, 1)
    (Path(restorable.data_folder.removeprefix("file://")) / "_delta_log" / f"{1:020d}.json").unlink()
    with pytest.raises(TableError, match="how far its pipeline had come by then cannot be read"):
        restorable.state()


def test_deltas_state_may_be_written_by_an_older_version_in_between(
    restorable: DeltaTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    transactions = DeltaTable._transactions

    def older(table: DeltaTable, state: SourceState | None) -> list[Any]:
        news = ("/read", "/topic/high", "/topic/low", "/kept/owner", "/kept/batch", "/kept/version")
        return [one for one in transactions(table, state) if not one.app_id.endswith(news)]

    restorable.commit(Change((), (), SourceState(7, 0, {0: 5}, 4, 1, 5, uuid.UUID(int=1))))
    with monkeypatch.context() as patch:
        patch.setattr(DeltaTable, "_transactions", older)
        restorable.commit(Change((), (), SourceState(7, 1, {0: 8}, 7, 1)))
    state = restorable.state()
    assert state == SourceState(7, 1, {0: 8}, 7, 1)
    assert state.records_read == 8
