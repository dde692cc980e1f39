"""Files into a topic: a record for each row, with key, time and nulls."""

import json
from contextlib import nullcontext

import confluent_kafka.admin
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from anabranch.cli.main import main
from anabranch.cli.pipeline import load as pipeline_load
from anabranch.errors import OptionError
from anabranch.pipeline.jobs.load import LoadSettings, input_of, load_files
from anabranch.pipeline.jobs.topics import TopicAddress
from anabranch.pipeline.spark.failures import in_a_sentence
from support.reading import read_all
from support.topics import make_topic

CSV = "id,name,at,delay\n1,one,2026-01-31T12:00:00Z,1.5\n2,,2026-01-31T12:00:01Z,NA\n"
ROWS = [{"id": 1, "name": "one", "delay": 1.5}, {"id": 2, "name": None, "delay": None}]
AT_MS = 1_769_860_800_000


@pytest.fixture
def to(node, unique):
    make_topic(node.bootstrap, unique, 2)
    return TopicAddress(node.bootstrap, unique)


def loaded(to):
    """By their value's id: key, value, timestamp."""
    records = read_all(to.bootstrap, to.topic)
    return {json.loads(one.value)["id"]: one for one in records}


def test_csv_becomes_json_with_key_time_and_nulls(spark, to, tmp_path):
    file = tmp_path / "rows.csv"
    file.write_text(CSV)
    settings = LoadSettings([str(file)], "csv", to, "name", "at", {"nullValue": "NA"})
    assert load_files(spark, settings) == 2
    found = loaded(to)
    for row in ROWS:
        value = json.loads(found[row["id"]].value)
        assert {name: value[name] for name in row} == row
    assert [found[number].key for number in (1, 2)] == [b"one", None]
    assert [found[number].timestamp_ms for number in (1, 2)] == [AT_MS, AT_MS + 1000]


def test_json_lines_become_records_and_numbers_are_milliseconds(spark, to, tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps({"id": number, "ms": AT_MS + number}) + "\n" for number in range(100)))
    assert load_files(spark, LoadSettings([str(file)], "json", to, "id", "ms")) == 100
    found = loaded(to)
    assert {number: (one.key, one.timestamp_ms) for number, one in found.items()} == {
        number: (b"%d" % number, AT_MS + number) for number in range(100)
    }


def test_parquet_becomes_records_nested_columns_too(spark, to, tmp_path):
    rows = [{"id": 1, "inner": {"list": [1, None]}}, {"id": 2, "inner": None}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    assert load_files(spark, LoadSettings([str(tmp_path / "rows.parquet")], "parquet", to)) == 2
    assert [json.loads(one.value) for _, one in sorted(loaded(to).items())] == rows
    assert {one.key for one in loaded(to).values()} == {None}


def test_empty_file_writes_nothing(spark, to, tmp_path):
    file = tmp_path / "rows.csv"
    file.write_text("id,name\n")
    assert load_files(spark, LoadSettings([str(file)], "csv", to, "id")) == 0
    assert read_all(to.bootstrap, to.topic) == []


@pytest.mark.parametrize("option", ["key", "timestamp"])
def test_column_that_is_not_there_is_refused_with_those_that_are(spark, to, tmp_path, option):
    file = tmp_path / "rows.csv"
    file.write_text(CSV)
    with pytest.raises(OptionError, match=f"--{option} nothing: there is no such column, but id, name"):
        load_files(spark, LoadSettings([str(file)], "csv", to, **{option: "nothing"}))


def test_no_topic_is_made_for_a_column_that_is_not_there(spark, node, unique, tmp_path, monkeypatch):
    file = tmp_path / "rows.csv"
    file.write_text(CSV)
    monkeypatch.setattr(pipeline_load, "one_job", lambda *_, **__: nullcontext(spark))
    place = ["pipeline", "load", str(file), "--topic", unique, "--bootstrap", node.bootstrap]
    result = CliRunner().invoke(main, [*place, "--key", "nothing"])
    assert (result.exit_code, "--key nothing: there is no such column" in result.stderr) == (2, True)
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": node.bootstrap})
    assert unique not in admin.list_topics(timeout=15).topics
    result = CliRunner().invoke(main, [*place, "--key", "name"])
    assert result.stdout == f"Loaded 2 records into {unique}.\n"


def test_row_that_cannot_be_read_stops_the_job(spark, to, tmp_path):
    from py4j.protocol import Py4JJavaError

    file = tmp_path / "rows.jsonl"
    file.write_text('{"id": 1}\n{"id": \n')
    with pytest.raises(Py4JJavaError) as raised:
        load_files(spark, LoadSettings([str(file)], "json", to))
    assert in_a_sentence(raised.value).startswith("[MALFORMED_RECORD_IN_PARSING")
    assert read_all(to.bootstrap, to.topic) == []


@pytest.mark.parametrize(
    ("files", "kind"),
    [
        (["a.csv"], "csv"),
        (["a.tsv.gz"], "csv"),
        (["a.json", "b.NDJSON"], "json"),
        (["x.parquet/"], "parquet"),
    ],
)
def test_names_of_files_tell_what_they_are(files, kind):
    assert input_of(files) == kind
