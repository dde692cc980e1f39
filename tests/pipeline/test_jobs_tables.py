"""Backfill, retries of dead letters, and status, over real tables."""

import json

import confluent_kafka.admin
import pytest

from anabranch.pipeline.jobs.backfill import run_backfill
from anabranch.pipeline.jobs.retry import retry_dead_letters
from anabranch.pipeline.jobs.run import run_pipeline
from anabranch.pipeline.jobs.status import pipeline_status
from anabranch.pipeline.jobs.table_rows import read_table
from anabranch.pipeline.lake.settings import PipelineSettings
from anabranch.pipeline.lake.sink import STEPS
from support.reading import read_all
from support.topics import make_topic, send

KINDS = ["iceberg", "delta", "parquet"]
RECORDS = 40


@pytest.fixture
def settings(request, node, unique, tmp_path):
    """A pipeline over a topic of two partitions with records that all fit."""
    make_topic(node.bootstrap, unique, 2)
    for number in range(2):
        rows = ({"id": 100 * number + i} for i in range(RECORDS))
        send(node.bootstrap, unique, ((None, json.dumps(row).encode()) for row in rows), partition=number)
    kind = getattr(request, "param", "iceberg")
    return PipelineSettings(node.bootstrap, unique, str(tmp_path), "numbers", to=kind, once=True)


def offsets(settings, *numbers):
    return json.dumps({settings.topic: {str(place): offset for place, offset in enumerate(numbers)}})


def rows(spark, settings, *columns):
    return sorted(tuple(row) for row in read_table(spark, settings, columns).collect())


# --- backfill -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", KINDS, indirect=True)
def test_backfill_takes_the_range_once(spark, settings):
    wanted = offsets(settings, 10, 0), offsets(settings, 30, 5)
    counts = run_backfill(spark, settings, *wanted)
    assert (counts.read, counts.written, counts.dlq, counts.batches) == (25, 25, 0, 1)
    again = run_backfill(spark, settings, *wanted)
    assert (again.read, again.skipped) == (0, 1)
    ids = [(number,) for number in (*range(10, 30), *range(100, 105))]
    assert rows(spark, settings, "id") == ids


def test_backfill_whose_checkpoint_was_lost_is_not_taken_twice(spark, settings, tmp_path):
    import shutil

    wanted = offsets(settings, 0, 0), offsets(settings, 5, 5)
    run_backfill(spark, settings, *wanted)
    shutil.rmtree(tmp_path / "_checkpoints")
    assert run_backfill(spark, settings, *wanted).skipped == 1
    assert run_backfill(spark, settings, *wanted).skipped == 1
    assert len(rows(spark, settings, "id")) == 10


def test_backfill_of_the_same_range_of_a_topic_made_again_is_another_one(spark, settings):
    wanted = offsets(settings, 0, 0), offsets(settings, 5, 5)
    run_backfill(spark, settings, *wanted)
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": settings.bootstrap})
    admin.delete_topics([settings.topic])[settings.topic].result(15)
    make_topic(settings.bootstrap, settings.topic, 2)
    for number in range(2):
        send(settings.bootstrap, settings.topic, [(None, b'{"id": -1}')] * 5, partition=number)
    assert run_backfill(spark, settings, *wanted).written == 10
    assert run_backfill(spark, settings, *wanted).skipped == 1
    assert [number for (number,) in rows(spark, settings, "id")] == [-1] * 10 + [*range(5), *range(100, 105)]


def test_backfill_of_before_the_topics_identity_was_kept_is_not_taken_twice(
    spark, settings, monkeypatch, caplog
):
    wanted = offsets(settings, 0, 0), offsets(settings, 5, 5)
    with monkeypatch.context() as before:
        before.setattr("anabranch.pipeline.jobs.backfill.id_of", lambda topic: None)
        run_backfill(spark, settings, *wanted)
    assert run_backfill(spark, settings, *wanted).skipped == 1
    assert "take the range in two parts" in caplog.text
    assert len(rows(spark, settings, "id")) == 10


def test_backfill_leaves_the_place_of_the_running_pipeline_alone(spark, settings):
    run_pipeline(spark, settings)
    before = pipeline_status(settings)
    run_backfill(spark, settings, offsets(settings, 0, 0), offsets(settings, 1, 1))
    after = pipeline_status(settings)
    assert (after.batch, after.written, after.partitions) == (before.batch, before.written, before.partitions)
    assert after.rows == before.rows + 2
    assert run_pipeline(spark, settings).read == 0


# --- dead letters -------------------------------------------------------------------------------------------


@pytest.fixture
def rejected(spark, settings):
    """One record that is not JSON and one of the wrong type, in the dead letter topic."""
    run_pipeline(spark, settings)
    bad = [(b"a", b"no json"), (b"b", b'{"id": "text"}')]
    send(settings.bootstrap, settings.topic, bad, partition=1)
    counts = run_pipeline(spark, settings)
    assert (counts.read, counts.written, counts.dlq) == (2, 0, 2)
    return settings


def test_letters_that_still_do_not_fit_go_back_with_their_place(spark, rejected):
    counts = retry_dead_letters(spark, rejected)
    assert (counts.read, counts.written, counts.dlq, counts.repeated) == (2, 0, 2, 0)
    letters = read_all(rejected.bootstrap, rejected.dlq_topic)
    assert len(letters) == 4
    told = [dict(letter.headers) for letter in letters]
    places = [
        (one["anabranch.dlq.topic"], one["anabranch.dlq.partition"], one["anabranch.dlq.offset"])
        for one in told
    ]
    assert sorted(places[2:]) == sorted(places[:2])
    assert set(places) == {(rejected.topic.encode(), b"1", b"%d" % (RECORDS + n)) for n in range(2)}
    assert all(len(one) == 4 for one in told)


def test_letters_that_fit_now_become_rows_with_their_own_place_once(spark, rejected, tmp_path):
    from dataclasses import replace

    raw = replace(rejected, schema="raw", table="everything")
    counts = retry_dead_letters(spark, raw)
    assert (counts.read, counts.written, counts.dlq) == (2, 2, 0)
    wanted = [(1, RECORDS, b"a", b"no json"), (1, RECORDS + 1, b"b", b'{"id": "text"}')]
    assert [
        tuple(map(_bytes, row)) for row in rows(spark, raw, "_partition", "_offset", "key", "value")
    ] == wanted
    assert retry_dead_letters(spark, raw).read == 0


def _bytes(value):
    return bytes(value) if isinstance(value, bytearray) else value


def test_letters_of_records_that_are_rows_already_are_left_out(spark, rejected, tmp_path):
    import shutil
    from dataclasses import replace

    raw = replace(rejected, schema="raw", table="everything")
    retry_dead_letters(spark, raw)
    for letter in read_all(rejected.bootstrap, rejected.dlq_topic):
        _send_again(rejected, letter)
    shutil.rmtree(tmp_path / "_checkpoints")  # Everything is looked at again.
    counts = retry_dead_letters(spark, raw)
    assert (counts.read, counts.written, counts.repeated) == (4, 0, 4)
    assert len(rows(spark, raw, "_offset")) == 2


def _send_again(settings, letter):
    import confluent_kafka

    producer = confluent_kafka.Producer({"bootstrap.servers": settings.bootstrap})
    producer.produce(settings.dlq_topic, letter.value, letter.key, headers=letter.headers)
    assert producer.flush(30) == 0


# --- status -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", KINDS, indirect=True)
def test_status_tells_counts_batches_and_lag(spark, settings):
    run_pipeline(spark, settings)
    send(settings.bootstrap, settings.topic, [(None, b'{"id": 7}')] * 3, partition=1)
    found = pipeline_status(settings)
    assert (found.read, found.written, found.dlq, found.rows) == (2 * RECORDS, 2 * RECORDS, 0, 2 * RECORDS)
    assert (found.batch, found.batch_begun, found.batch_finished) == (0, 0, 0)
    assert [(one.table_offset, one.end_offset, one.lag) for one in found.partitions] == [
        (RECORDS, RECORDS, 0),
        (RECORDS, RECORDS + 3, 3),
    ]
    assert [one.group_offset for one in found.partitions] == [RECORDS, RECORDS]
    assert found.snapshot is not None
    assert found.size_bytes > 0


def test_status_counts_what_was_rejected(rejected):
    found = pipeline_status(rejected)
    assert (found.read, found.written, found.dlq) == (2 * RECORDS + 2, 2 * RECORDS, 2)


def test_status_tells_a_read_that_does_not_add_up(spark, settings):
    from dataclasses import replace

    from anabranch.pipeline.lake.change import Change
    from anabranch.pipeline.lake.formats.table import open_table

    run_pipeline(spark, settings)
    table = open_table(settings)
    table.commit(Change((), (), replace(table.state(), read=2 * RECORDS + 1)))
    found = pipeline_status(settings)
    assert (found.read, found.written, found.dlq) == (2 * RECORDS + 1, 2 * RECORDS, 0)


def test_command_line_knows_the_last_step_of_a_batch():
    from anabranch.cli.pipeline.run import LAST_STEP

    assert STEPS[-1] == LAST_STEP
