"""The commands themselves, as processes: what they print, and how they stop."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from anabranch.errors import TableError
from anabranch.pipeline.jobs.run import run_pipeline
from anabranch.pipeline.jobs.status import pipeline_status
from anabranch.pipeline.lake.settings import PipelineSettings
from support.node_process import NodeProcess
from support.topics import make_topic, send
from support.waiting import wait_until

PROGRAM = Path(sys.executable).with_name("anabranch")
SECONDS_MAX = 240
SPARK = ("--master", "local[2]", "--conf", "spark.driver.memory=1g")


def pipeline(*arguments):
    return [PROGRAM, "pipeline", *map(str, arguments), "--format", "json"]


def answer(*arguments):
    """Of a command that must succeed, and say nothing but its answer."""
    result = subprocess.run(
        pipeline(*arguments), capture_output=True, text=True, timeout=SECONDS_MAX, check=False
    )
    assert (result.returncode, result.stderr) == (0, "")
    return json.loads(result.stdout)


@pytest.fixture
def place(node, unique, tmp_path):
    """The options of a pipeline over a topic with ten records."""
    make_topic(node.bootstrap, unique)
    send(node.bootstrap, unique, ((None, b'{"id": %d}' % number) for number in range(10)))
    options = ("--topic", unique, "--warehouse", tmp_path, "--table", "demo", "--bootstrap", node.bootstrap)
    return unique, options


def test_run_goes_on_until_ctrl_c_and_once_takes_the_rest(node, place, tmp_path):
    topic, options = place
    settings = PipelineSettings(node.bootstrap, topic, str(tmp_path), "demo")
    command = pipeline("run", *options, "--every", "0.5", *SPARK)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            wait_until(lambda: _rows(settings) == 10, "the first batch", SECONDS_MAX)
            send(node.bootstrap, topic, [(None, b'{"id": 10}')])
            wait_until(lambda: _rows(settings) == 11, "the second batch", SECONDS_MAX)
            process.send_signal(signal.SIGINT)
            said, complaints = process.communicate(timeout=SECONDS_MAX)
        finally:
            process.kill()
    assert process.returncode == 0, complaints
    assert json.loads(said) == {"read": 11, "written": 11, "dlq": 0, "batches": 2}
    assert complaints == "\nStopping after the present batch. Press Ctrl-C again to stop at once.\n"
    send(node.bootstrap, topic, [(None, b'{"id": 11}'), (None, b"no json")])
    counts = answer("run", *options, "--once", *SPARK)
    assert counts == {"read": 2, "written": 1, "dlq": 1, "batches": 1}
    found = answer("status", *options)
    assert (found["read"], found["written"], found["dlq"], found["rows"]) == (13, 12, 1, 12)
    assert found["partitions"][0]["lag"] == 0


def _rows(settings):
    time.sleep(0.5)  # Asking costs something, and the answer needs a Spark to come up.
    try:
        return pipeline_status(settings).rows
    except TableError:
        return 0


def test_error_of_a_job_is_one_sentence_and_names_sparks_log(node, unique, tmp_path):
    make_topic(node.bootstrap, unique)
    file = tmp_path / "rows.jsonl"
    file.write_text('{"id": 1}\n{"id": \n')
    command = pipeline("load", file, "--topic", unique, "--bootstrap", node.bootstrap, *SPARK)
    result = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_MAX, check=False)
    assert (result.returncode, result.stdout) == (1, "")
    said = json.loads(result.stderr)["error"]
    assert said.startswith("[MALFORMED_RECORD_IN_PARSING")
    log = Path(said.rpartition("is in ")[2].rstrip("."))
    assert "MALFORMED_RECORD_IN_PARSING" in log.read_text()
    log.unlink()


def test_table_is_maintained_and_a_second_time_nothing_is_left_to_do(spark, place, node, tmp_path):
    topic, _ = place
    settings = PipelineSettings(
        node.bootstrap, topic, str(tmp_path), "demo", once=True, max_offsets_per_trigger=3
    )
    assert run_pipeline(spark, settings).batches == 4
    kept = ("maintain", "--warehouse", tmp_path, "--table", "demo", "--topic", topic, *SPARK)
    assert answer(*kept)["files_merged"] == 4
    assert answer(*kept)["files_merged"] == 0
    assert pipeline_status(settings).rows == 10


# Whatever is compacted here, the job has compacted.
WITHOUT_CLEANER = {"log.cleaner.enable": "false", "log.cleaner.backoff.ms": "50"}


def test_compacted_topic_is_thinned_out_and_any_other_refused(unique, tmp_path):
    with NodeProcess(tmp_path, WITHOUT_CLEANER) as node:
        make_topic(node.bootstrap, unique, cleanup_policy="compact", segment_bytes="16384")
        records = ((b"%d" % (number % 5), bytes(100)) for number in range(2000))
        send(node.bootstrap, unique, records, **{"batch.size": 2048})
        (done,) = answer("compact", "--topic", unique, "--bootstrap", node.bootstrap, *SPARK)["partitions"]
        make_topic(node.bootstrap, f"{unique}.plain")
        refused = subprocess.run(
            pipeline("compact", "--topic", f"{unique}.plain", "--bootstrap", node.bootstrap),
            capture_output=True, text=True, timeout=SECONDS_MAX, check=False,
        )  # fmt: skip
    assert (done["taken"], done["bytes_after"] < done["bytes_before"]) == (True, True), done["reason"]
    assert refused.returncode == 1
    assert "is not a compacted topic" in json.loads(refused.stderr)["error"]
