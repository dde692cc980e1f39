"""Records whose shape changes, and records that have none: columns are added, what does not fit goes to the topic's
dead letters, and the counts add up."""

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import confluent_kafka
import pyarrow as pa
import pytest

from anabranch.errors import OptionError, TableError
from anabranch.pipeline.lake.dlq import HEADER, make_topic
from anabranch.pipeline.lake.formats.table import open_table
from anabranch.pipeline.lake.rows.parse import TRACE
from anabranch.pipeline.lake.sink import LakeSink
from support.lake_tables import frame, json_records, read_rows, settings
from support.node_process import SETTINGS, NodeProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FORMATS = ("iceberg", "delta", "parquet")


def _dead_letters(bootstrap: str, topic: str, count: int) -> list[confluent_kafka.Message]:
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "letters", "auto.offset.reset": "earliest"}
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    found: list[confluent_kafka.Message] = []
    while len(found) < count:
        messages = consumer.consume(count - len(found), 20)
        assert messages, f"only {len(found)} of {count} are in {topic}"
        found += messages
    consumer.close()
    return sorted(found, key=lambda message: dict(message.headers())["anabranch.dlq.offset"])


@pytest.mark.parametrize("to", FORMATS)
def test_a_column_that_appears_in_mid_stream_is_added(spark: "SparkSession", tmp_path: Path, to: str) -> None:
    given = settings(tmp_path, to=to)
    sink = LakeSink(spark, given)
    sink.write(frame(spark, json_records([{"a": 1, "o": {"x": 1}}])), 0)
    values = [{"a": 2}] * 3 + [{"a": 3, "b": "new", "o": {"y": [1.5]}}]
    sink.write(frame(spark, json_records(values), start=1), 1)
    rows = read_rows(given)
    assert rows["a"].to_pylist() == [1, 2, 2, 2, 3]
    assert rows["b"].to_pylist() == [None] * 4 + ["new"]
    assert rows["o"].to_pylist()[4] == {"x": None, "y": [1.5]}
    on_disk = {path for path in tmp_path.rglob("*.parquet") if "_delta_log" not in path.parts}
    assert len(on_disk) == len(open_table(given).files()), "files of the first pass are left"


def test_record_of_too_many_fields_is_a_dead_letter_and_gives_the_table_no_columns(
    spark: "SparkSession", node: NodeProcess, tmp_path: Path, unique: str
) -> None:
    given = settings(tmp_path, to="iceberg", bootstrap=node.bootstrap, topic=unique)
    wide = {f"field_{number}": number for number in range(50_000)}
    counts = LakeSink(spark, given).write(frame(spark, json_records([{"a": 1}, wide, {"b": 2}]), slices=1), 0)
    assert (counts.read, counts.written, counts.dlq) == (3, 2, 1)
    assert open_table(given).schema().names == [*TRACE.names, "a", "b"]
    (letter,) = _dead_letters(node.bootstrap, f"{unique}.dlq", 1)
    assert b"more than 1000 columns" in dict(letter.headers())["anabranch.dlq.reason"]


def test_columns_that_tasks_find_apart_stay_within_the_limit_together(
    spark: "SparkSession", node: NodeProcess, tmp_path: Path, unique: str
) -> None:
    given = settings(tmp_path, to="iceberg", bootstrap=node.bootstrap, topic=unique, columns_max=10)
    values = [{f"c{number}": number} for number in range(12)]
    counts = LakeSink(spark, given).write(frame(spark, json_records(values), slices=4), 0)
    assert (counts.read, counts.written, counts.dlq) == (12, 5, 7)
    assert len(open_table(given).schema().names) == 10


@pytest.mark.parametrize("to", FORMATS)
def test_what_does_not_fit_goes_to_the_dead_letters_as_it_was(
    spark: "SparkSession", node: NodeProcess, tmp_path: Path, unique: str, to: str
) -> None:
    given = settings(tmp_path, to=to, bootstrap=node.bootstrap, topic=unique)
    records = [(b"k0", b'{"a": 1}'), (b"k1", b"no json"), (None, b'{"a": "text"}'), (b"k3", b'{"a": 4}')]
    counts = LakeSink(spark, given).write(frame(spark, records, slices=1), 0)
    assert (counts.read, counts.written, counts.dlq) == (4, 2, 2)
    assert read_rows(given)["a"].to_pylist() == [1, 4]
    letters = _dead_letters(node.bootstrap, f"{unique}.dlq", 2)
    assert [(letter.key(), letter.value()) for letter in letters] == records[1:3]
    headers: dict[str, Any] = dict(letters[0].headers())
    assert headers.pop("anabranch.dlq.reason").startswith(b"the value is not JSON")
    assert headers == {
        "trace": b"\x01",
        "anabranch.dlq.topic": b"t",
        "anabranch.dlq.partition": b"0",
        "anabranch.dlq.offset": b"1",
    }


def test_a_record_of_a_megabyte_that_does_not_fit_stops_nobody(
    spark: "SparkSession", node: NodeProcess, tmp_path: Path, unique: str
) -> None:
    given = settings(tmp_path, bootstrap=node.bootstrap, topic=unique)
    counts = LakeSink(spark, given).write(frame(spark, [(b"k", b"x" * 1_040_000), (b"l", b'{"a": 1}')]), 0)
    assert (counts.written, counts.dlq) == (1, 1)
    (letter,) = _dead_letters(node.bootstrap, f"{unique}.dlq", 1)
    assert len(letter.value()) == 1_040_000


def test_making_the_topic_of_the_dead_letters_says_nothing(
    node: NodeProcess, unique: str, capfd: pytest.CaptureFixture[str]
) -> None:
    only_for_readers = {"fetch.min.bytes": "1"}  # The library warns of it.
    make_topic({"bootstrap.servers": node.bootstrap, **only_for_readers}, unique)
    assert capfd.readouterr().err == ""


def test_dead_letters_keep_their_times_whatever_the_broker_does_otherwise(
    tmp_path: Path, unique: str
) -> None:
    with NodeProcess(tmp_path, {**SETTINGS, "log.message.timestamp.type": "LogAppendTime"}) as node:
        make_topic({"bootstrap.servers": node.bootstrap}, unique)
        producer = confluent_kafka.Producer({"bootstrap.servers": node.bootstrap})
        producer.produce(unique, b"x", headers={HEADER + "offset": b"0"}, timestamp=1_700_000_000_000)
        assert producer.flush(15) == 0
        letter = _dead_letters(node.bootstrap, unique, 1)[0]
    assert letter.timestamp() == (confluent_kafka.TIMESTAMP_CREATE_TIME, 1_700_000_000_000)


def test_tasks_that_disagree_about_a_new_column_lose_nothing(
    spark: "SparkSession", node: NodeProcess, tmp_path: Path, unique: str
) -> None:
    given = settings(tmp_path, bootstrap=node.bootstrap, topic=unique)
    values = [{"a": "x", "n": number} if number % 2 else {"a": 1} for number in range(10)]
    counts = LakeSink(spark, given).write(frame(spark, json_records(values), slices=4), 0)
    assert counts.read == 10
    assert counts.written == read_rows(given).num_rows == 5
    assert counts.dlq == 5


def test_a_json_schema_gives_columns_and_refuses_the_rest(
    spark: "SparkSession", node: NodeProcess, tmp_path: Path, unique: str
) -> None:
    schema = {
        "type": "object",
        "properties": {"at": {"type": "string", "format": "date-time"}, "n": {"type": "number"}},
        "required": ["at"],
    }
    (tmp_path / "schema.json").write_text(json.dumps(schema))
    given = settings(
        tmp_path,
        bootstrap=node.bootstrap,
        topic=unique,
        schema=str(tmp_path / "schema.json"),
        partition_by=("day(at)",),
    )
    values = [{"at": "2026-03-01T23:00:00-02:00", "n": 1}, {"n": 2}, {"at": "2026-03-01T00:00:00Z", "z": 3}]
    counts = LakeSink(spark, given).write(frame(spark, json_records(values)), 0)
    assert (counts.written, counts.dlq) == (1, 2)
    row = read_rows(given).to_pylist()[0]
    assert (row["at"].isoformat(), row["n"]) == ("2026-03-02T01:00:00+00:00", 1.0)


@pytest.mark.parametrize("to", FORMATS)
def test_rows_are_partitioned_by_column_and_by_day(spark: "SparkSession", tmp_path: Path, to: str) -> None:
    given = settings(tmp_path, to=to, partition_by=("carrier", "day(_timestamp)"))
    values = [
        {"carrier": carrier, "n": number} for number, carrier in enumerate(["UA", "AA", None, "UA", "a/b c"])
    ]
    sink = LakeSink(spark, given)
    sink.write(frame(spark, json_records(values), slices=1), 0)
    sink.write(frame(spark, json_records([{"carrier": "UA", "n": 5}]), start=5), 1)
    rows = read_rows(given)
    assert rows["carrier"].to_pylist() == ["UA", "AA", None, "UA", "a/b c", "UA"]
    assert rows["n"].to_pylist() == [0, 1, 2, 3, 4, 5]
    folders = {path.parent.name for path in tmp_path.rglob("*.parquet")}
    assert folders == {"_timestamp_day=2026-03-01"}
    assert len({path.parent for path in tmp_path.rglob("*.parquet")}) == 4


@pytest.mark.parametrize("schema", ["records", "file"])
def test_a_number_too_large_for_an_int_column_of_a_delta_table_is_a_dead_letter(
    spark: "SparkSession", node: NodeProcess, tmp_path: Path, unique: str, schema: str
) -> None:
    """The table is another engine's: ours have long columns."""
    path = tmp_path / "schema.json"
    path.write_text('{"type": "object", "properties": {"n": {"type": "integer"}}}')
    told = "records" if schema == "records" else str(path)
    given = settings(tmp_path, to="delta", bootstrap=node.bootstrap, topic=unique, schema=told)
    open_table(given, pa.schema([*TRACE, ("n", pa.int32())]))
    counts = LakeSink(spark, given).write(frame(spark, json_records([{"n": 1}, {"n": 2**31}])), 0)
    assert (counts.written, counts.dlq) == (1, 1)
    (letter,) = _dead_letters(node.bootstrap, given.dlq_topic, 1)
    assert b"columns of this table cannot be widened" in dict(letter.headers())["anabranch.dlq.reason"]
    assert read_rows(given)["n"].to_pylist() == [1]


def _dated(folder: Path, *more: str) -> str:
    kinds = {"at": {"type": "string", "format": "date-time"}, **{name: {"type": "integer"} for name in more}}
    path = folder / f"dated{len(more)}.json"
    path.write_text(json.dumps({"type": "object", "properties": kinds}))
    return str(path)


@pytest.mark.parametrize("to", FORMATS)
def test_a_column_may_have_the_name_that_its_table_would_give_to_a_partition_field(
    spark: "SparkSession", tmp_path: Path, to: str
) -> None:
    given = settings(tmp_path, to=to, schema=_dated(tmp_path, "at_day"), partition_by=("day(at)",))
    values = [{"at": f"2026-03-0{day}T12:00:00Z", "at_day": day} for day in (1, 2)]
    LakeSink(spark, given).write(frame(spark, json_records(values), slices=1), 0)
    LakeSink(spark, given).write(frame(spark, json_records(values), start=2, slices=1), 1)
    assert read_rows(given)["at_day"].to_pylist() == [1, 2, 1, 2]
    assert len({file.partition for file in open_table(given).files()}) == 2


@pytest.mark.parametrize("to", ["iceberg", "delta"])
def test_a_column_that_comes_later_cannot_have_the_name_of_a_partition_field(
    spark: "SparkSession", tmp_path: Path, to: str
) -> None:
    given = settings(tmp_path, to=to, schema=_dated(tmp_path), partition_by=("day(at)",))
    LakeSink(spark, given)
    with pytest.raises(
        TableError, match="at_day cannot be added: the table is partitioned by a field of that"
    ):
        LakeSink(spark, replace(given, schema=_dated(tmp_path, "at_day")))


@pytest.mark.parametrize("to", ["iceberg", "delta"])
def test_a_record_with_a_field_named_like_a_partition_field_is_a_dead_letter(
    spark: "SparkSession", node: NodeProcess, tmp_path: Path, unique: str, to: str
) -> None:
    given = settings(
        tmp_path, to=to, bootstrap=node.bootstrap, topic=unique, partition_by=("day(_timestamp)",)
    )
    records = json_records([{"n": 1}, {"_Timestamp_Day": 2}])
    counts = LakeSink(spark, given).write(frame(spark, records), 0)
    assert (counts.written, counts.dlq) == (1, 1)
    (letter,) = _dead_letters(node.bootstrap, given.dlq_topic, 1)
    assert b"is partitioned by a field of that name" in dict(letter.headers())["anabranch.dlq.reason"]


def test_a_table_cannot_be_partitioned_by_a_column_it_lacks(spark: "SparkSession", tmp_path: Path) -> None:
    sink = LakeSink(spark, settings(tmp_path, partition_by=("carier",)))
    with pytest.raises(
        TableError, match="no such column among _key, _topic, _partition, _offset, _timestamp, carrier"
    ):
        sink.write(frame(spark, json_records([{"carrier": "UA"}])), 0)


def test_a_schema_file_that_asks_for_more_than_a_table_can_keep_is_refused(
    spark: "SparkSession", tmp_path: Path
) -> None:
    (tmp_path / "schema.json").write_text('{"type": "object", "properties": {"a": {"oneOf": []}}}')
    with pytest.raises(OptionError, match=r"a in .*schema\.json uses 'oneOf'"):
        LakeSink(spark, settings(tmp_path, schema=str(tmp_path / "schema.json")))
