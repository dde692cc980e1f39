"""What a pipeline is told: everything wrong is refused by name, before anything starts."""

from pathlib import Path
from typing import Any

import pytest

from anabranch.errors import OptionError
from anabranch.pipeline.lake.settings import PartitionField, PipelineSettings


def _settings(**changes: Any) -> PipelineSettings:
    given = {"bootstrap": "h:1", "topic": "t", "warehouse": "/lake", "table": "rows", **changes}
    return PipelineSettings(**given)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"to": "hudi"}, "to is 'hudi': it can be iceberg, delta or parquet"),
        ({"mode": "merge"}, "mode is 'merge'"),
        ({"topic": ""}, "needs topic"),
        ({"table": "a b"}, "'a b' is no name for a table"),
        ({"schema": "/no/such.json"}, "no JSON Schema file of that name"),
        ({"partition_by": ("week(at)",)}, r"partition_by is 'week\(at\)'"),
        ({"partition_by": ("day(",)}, "partition_by is"),
        ({"key": ("a",)}, "set mode to upsert"),
        ({"to": "delta", "catalog": {"uri": "x"}}, "catalog belongs to Iceberg"),
        ({"to": "parquet", "warehouse": "s3://bucket/x"}, "needs a local folder"),
        ({"warehouse": "s3://bucket/x"}, "name a catalog"),
        ({"group": " "}, "needs group"),
        ({"trigger_seconds": float("nan")}, "trigger_seconds cannot be nan"),
        ({"max_offsets_per_trigger": 0}, "max_offsets_per_trigger must be above 0"),
        ({"trigger_seconds": -1}, "trigger_seconds cannot be -1"),
        ({"options": {"verify": "perhaps"}}, "verify: 'perhaps' is neither true nor false"),
        ({"options": {"failondataloss": "no"}}, "failOnDataLoss: 'no' is neither"),
        ({"options": {"veryfy": "true"}}, "Did you mean verify"),
        ({"options": {"includeheaders": "false"}}, "includeheaders cannot be .* always reads headers"),
        ({"options": {"startingOffsets": "latest"}}, "is said by --from"),
        ({"options": {"kafka.group.id": "g"}}, "kafka.group.id cannot be .* named by --group"),
        ({"options": {"kafka.sasl.mechanism": "PLAIN"}}, "no encryption and no log-in yet"),
    ],
)
def test_what_is_wrong_is_refused_by_name(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        _settings(**changes)


def test_options_of_the_source_are_those_it_knows_and_the_pipeline_does_not_say() -> None:
    from anabranch.pipeline.lake.settings import SAID_BY_THE_PIPELINE
    from anabranch.pipeline.source.options import READER_NAMES

    given = {"failOnDataLoss": "false", "minPartitions": "4", "kafka.security.protocol": "PLAINTEXT"}
    assert _settings(options=given).options == given
    assert set(SAID_BY_THE_PIPELINE) <= set(READER_NAMES)
    left = {
        "minPartitions",
        "maxRecordsPerPartition",
        "failOnDataLoss",
        "verify",
        "direct",
        "credentialsFile",
        "brokerTimeoutSeconds",
    }
    assert set(READER_NAMES) - set(SAID_BY_THE_PIPELINE) == left


def test_partitions_are_columns_or_parts_of_times() -> None:
    parts = _settings(partition_by=("carrier", "day(at)", "hour(_timestamp)")).partitions()
    assert parts == (
        PartitionField("carrier"),
        PartitionField("at", "day"),
        PartitionField("_timestamp", "hour"),
    )
    assert [part.name for part in parts] == ["carrier", "at_day", "_timestamp_hour"]


def test_a_table_has_the_same_folders_with_and_without_the_namespace_that_stands_for_none() -> None:
    short, long = _settings(table="rows"), _settings(table="default.rows")
    assert short.staging_uri == long.staging_uri == "file:///lake/_staging/rows/t"
    assert short.checkpoint_uri == long.checkpoint_uri == "file:///lake/_checkpoints/rows/t"
    assert short.table_uri == long.table_uri == "file:///lake/default/rows"
    assert _settings(table="default.a.b").staging_uri != _settings(table="a.b").staging_uri


def test_local_folders_become_absolute_addresses(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    given = _settings(warehouse="lake", table="air.flights")
    assert given.warehouse_uri == f"file://{tmp_path}/lake"
    assert given.checkpoint_uri == f"file://{tmp_path}/lake/_checkpoints/air.flights/t"
    assert given.staging_uri == f"file://{tmp_path}/lake/_staging/air.flights/t"
    assert _settings(warehouse="s3://b/x/", to="delta").warehouse_uri == "s3://b/x"


def test_a_table_without_a_namespace_is_in_the_default_one() -> None:
    assert _settings().table_name == "default.rows"
    assert _settings(table="air.flights").table_name == "air.flights"


def test_an_upsert_always_has_a_limit_per_batch() -> None:
    assert _settings().batch_records_max is None
    assert _settings(mode="upsert").batch_records_max == 1_000_000
    assert _settings(mode="upsert", max_offsets_per_trigger=2_000_000).batch_records_max == 2_000_000
