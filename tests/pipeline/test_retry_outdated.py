"""Letters that are tried again do not undo what came after them, and rows are told apart by their topic."""

import json
from dataclasses import replace
from datetime import timedelta

import confluent_kafka.admin
import pyarrow as pa
import pytest

from anabranch.pipeline.jobs import retry
from anabranch.pipeline.jobs.outdated import Evidence, LogRange, judged
from anabranch.pipeline.jobs.retry import Retries, restored, retry_dead_letters
from anabranch.pipeline.jobs.run import run_pipeline
from anabranch.pipeline.jobs.table_rows import read_table
from anabranch.pipeline.lake.change import Change
from anabranch.pipeline.lake.files import FilePlan, write_rows
from anabranch.pipeline.lake.formats.table import open_table
from anabranch.pipeline.lake.rows.parse import TRACE
from anabranch.pipeline.lake.settings import PipelineSettings
from support.lake_tables import NOON, SOURCE_ROWS, frame
from support.lake_tables import settings as settings_of_frames
from support.topics import make_topic, send


@pytest.fixture
def settings(node, unique, tmp_path):
    """A table kept by key, by a schema that does not know `note` yet."""
    make_topic(node.bootstrap, unique, 2)
    (tmp_path / "narrow.json").write_text(schema("id"))
    (tmp_path / "wide.json").write_text(schema("id", "note"))
    return PipelineSettings(
        node.bootstrap,
        unique,
        str(tmp_path),
        "rows",
        mode="upsert",
        schema=str(tmp_path / "narrow.json"),
        once=True,
    )


def schema(*names):
    return json.dumps({"type": "object", "properties": {name: {"type": "integer"} for name in names}})


def widened(settings):
    return replace(settings, schema=settings.schema.replace("narrow", "wide"))


def send_to(settings, *records):
    """All of them to one partition, so that they are in order."""
    pairs = [(key.encode(), None if value is None else json.dumps(value).encode()) for key, value in records]
    send(settings.bootstrap, settings.topic, pairs, partition=0)


def rows(spark, settings, *columns):
    return sorted(tuple(row) for row in read_table(spark, settings, columns).collect())


def told(counts):
    return {name: count for name, count in vars(counts).items() if count and name != "batches"}


def test_a_letter_counts_only_if_nothing_later_of_its_key_does(spark, settings):
    send_to(
        settings,
        ("replaced", {"id": 1, "note": 1}),
        ("deleted", {"id": 1, "note": 1}),
        ("alone", {"id": 1, "note": 1}),
        ("twice", {"id": 1, "note": 1}),
        ("replaced", {"id": 2}),
        ("deleted", {"id": 2}),
        ("deleted", None),
        ("twice", {"id": 2, "note": 2}),
        ("twice", {"id": 3, "never": 3}),
    )
    first = run_pipeline(spark, settings)
    assert (first.read, first.written, first.dlq) == (9, 3, 6)
    counts = retry_dead_letters(spark, widened(settings))
    assert told(counts) == {"read": 6, "written": 3, "dlq": 1, "outdated": 2}
    wanted = [("alone", 1, 1), ("replaced", 2, None), ("twice", 2, 2)]
    assert rows(spark, settings, "_key", "id", "note") == wanted


def test_a_letter_whose_topic_does_not_go_back_to_it_replaces_rows_but_makes_none(spark, settings):
    send_to(
        settings,
        ("row", {"id": 1}),
        ("row", {"id": 2, "note": 2}),
        ("none", {"id": 1, "note": 1}),
        ("end", {}),
    )
    run_pipeline(spark, settings)
    end = confluent_kafka.TopicPartition(settings.topic, 0, 3)
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": settings.bootstrap})
    for deleted in admin.delete_records([end]).values():
        deleted.result(15)
    counts = retry_dead_letters(spark, widened(settings))
    assert told(counts) == {"read": 2, "written": 1, "undecided": 1}
    assert rows(spark, settings, "_key", "id") == [("end", None), ("row", 2)]


def test_a_key_that_is_deleted_while_its_letter_is_judged_stays_deleted(spark, settings, monkeypatch):
    send_to(settings, ("a", {"id": 1, "note": 1}), ("b", {"id": 1}))
    run_pipeline(spark, settings)
    calls = []
    judge = retry.with_verdicts

    def judge_and_be_overtaken(letters, rejected, given):
        verdicts = judge(letters, rejected, given)
        if not calls:
            verdicts = verdicts.localCheckpoint()
            send_to(settings, ("a", None))
            run_pipeline(spark, settings)
        calls.append(1)
        return verdicts

    monkeypatch.setattr(retry, "with_verdicts", judge_and_be_overtaken)
    retries = Retries(spark, widened(settings))
    retries.take(retries._all_letters(spark), 0)
    assert told(retries.counts) == {"read": 1, "outdated": 1}
    assert len(calls) == 2
    assert rows(spark, settings, "_key") == [("b",)]


def test_a_table_kept_by_columns_compares_with_its_rows(spark, settings):
    by_column = replace(settings, key=("id",))
    send_to(by_column, ("a", {"id": 1, "note": 1}), ("b", {"id": 2, "note": 2}), ("c", {"id": 1}))
    run_pipeline(spark, by_column)
    counts = retry_dead_letters(spark, widened(by_column))
    assert told(counts) == {"read": 2, "written": 1, "outdated": 1}
    assert rows(spark, by_column, "id", "_key") == [(1, "c"), (2, "b")]


def test_letters_of_a_dead_letter_topic_that_was_made_again_are_tried(spark, settings, caplog):
    given = replace(settings, mode="append")
    send_to(given, ("a", {"id": 1, "note": 1}))
    run_pipeline(spark, given)
    assert told(retry_dead_letters(spark, widened(given))) == {"read": 1, "written": 1}
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": given.bootstrap})
    admin.delete_topics([given.dlq_topic])[given.dlq_topic].result(15)
    send_to(given, ("b", {"id": 2, "other": 2}))
    run_pipeline(spark, given)
    assert told(retry_dead_letters(spark, widened(given))) == {"read": 1, "dlq": 1}
    assert "was deleted and made again since its letters were last tried" in caplog.text


def test_rows_of_another_topic_are_not_taken_for_a_letters_own(spark, settings):
    one = replace(settings, mode="append")
    other = replace(one, topic=f"{one.topic}_other")
    make_topic(other.bootstrap, other.topic, 2)
    send_to(one, ("a", {"id": 1, "note": 1}), ("a", {"id": 2}))
    send_to(other, ("b", {"id": 3}), ("b", {"id": 4}))
    run_pipeline(spark, one)
    run_pipeline(spark, other)
    counts = retry_dead_letters(spark, widened(one))
    assert told(counts) == {"read": 1, "written": 1}
    assert rows(spark, one, "_topic", "_offset", "id") == [
        (one.topic, 0, 1), (one.topic, 1, 2), (other.topic, 0, 3), (other.topic, 1, 4),
    ]  # fmt: skip


def test_a_letter_whose_headers_do_not_tell_its_place_is_a_record_of_its_own(spark):
    def letter(**told):
        headers = [(f"anabranch.dlq.{name}", value) for name, value in told.items()]
        return (None, None, [("own", b"1"), *headers], "t.dlq", 0, 7, NOON, 0, 0, None)

    letters = [
        letter(),
        letter(topic=b"t", partition=b"3", offset=b"5"),
        letter(topic=b"t", partition=b"3", offset=b"five"),
        letter(topic=b"t", partition=b"99999999999", offset=b"5"),
        letter(partition=b"3", offset=b"5"),
    ]
    records = restored(spark.createDataFrame(letters, SOURCE_ROWS).coalesce(1)).collect()
    assert [(record.topic, record.partition, record.offset) for record in records] == [
        ("t.dlq", 0, 7), ("t", 3, 5), ("t.dlq", 0, 7), ("t.dlq", 0, 7), ("t.dlq", 0, 7),
    ]  # fmt: skip
    assert {tuple(header.key for header in record.headers) for record in records} == {("own",)}


def test_rows_that_name_no_topic_are_known_by_their_time_too(spark, tmp_path):
    given = settings_of_frames(tmp_path)
    old = pa.schema([field for field in TRACE if field.name != "_topic"])
    table = open_table(given, old)
    row = {"_key": "a", "_partition": 0, "_timestamp": NOON}
    plan = FilePlan(table.data_folder, "", 0, table.schema(), table.file_schema(), ())
    own, other = {**row, "_offset": 0}, {**row, "_offset": 1, "_timestamp": NOON + timedelta(seconds=1)}
    file = write_rows(plan, (), pa.Table.from_pylist([own, other], old))
    table.commit(Change((file,), (), None))
    kept = Retries(spark, given)._without_rows(frame(spark, [(b"a", b"{}"), (b"a", b"{}")]))
    assert [row["offset"] for row in kept.collect()] == [1]


def test_what_the_log_says_of_a_letter(spark):
    """Each key is a case: where its letter stood, and what else there is."""
    late, early = NOON + timedelta(seconds=1), NOON - timedelta(seconds=1)

    def records(keys, start=0, partition=0, time=NOON):
        return frame(
            spark, [(key.encode(), b"") for key in keys], start=start, partition=partition, time=time
        )

    letters = (
        records(["present", "replaced", "rejected", "newer", "older", "gap"], start=10)
        .unionByName(records(["before", "before-row"], start=0))
        .unionByName(records(["behind-row"], start=30))
    )
    log = (
        records(["present", "replaced", "rejected", "newer", "older"], start=10)
        .unionByName(records(["replaced", "rejected"], start=20, time=early))
        .unionByName(records(["newer"], partition=1, time=late))
        .unionByName(records(["older"], start=50, partition=1, time=early))
    )
    rejected = records(["rejected"], start=21).select("partition", "offset")
    keys = records(["before-row", "behind-row", "present"]).select("key")
    ranges = {0: LogRange(5, 30, 5), 1: LogRange(0, 60, 0)}

    def verdicts(is_compacted):
        found = judged(letters, Evidence(log, rejected, keys, ranges, is_compacted))
        return {bytes(row["key"]).decode(): row["_verdict"] for row in found.collect()}

    wanted = {
        "present": "current",
        "replaced": "outdated",
        "rejected": "current",
        "newer": "outdated",
        "older": "current",
        "gap": "outdated",
        "before": "undecided",
        "before-row": "current",
        "behind-row": "undecided",
    }
    assert verdicts(is_compacted=True) == wanted
    assert verdicts(is_compacted=False) == {**wanted, "gap": "undecided"}
