"""`anabranch pipeline`: what is said without Spark, and that nothing of Spark is touched before it must be."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import tomllib
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from anabranch.cli.client import Broker
from anabranch.cli.common import Failure
from anabranch.cli.main import main
from anabranch.cli.pipeline.pipeline import COMMANDS
from anabranch.cli.pipeline.spark import (
    ENDING_SIGNALS,
    NEEDED,
    require_master,
    require_spark,
    sparks_log,
    stopping,
)
from anabranch.errors import TableError

NOBODY = "127.0.0.1:1"
"""Port 1 of this machine, where nothing listens."""

WITHOUT_SPARK = """
import sys
for name in ("pyspark", "py4j", "pyarrow", "pandas", "numpy", "pyiceberg", "deltalake"):
    sys.modules[name] = None  # An import of it is an error from here on.
from anabranch.cli.main import main
main(sys.argv[1:])
"""


def run(*arguments):
    return CliRunner().invoke(main, ["pipeline", *map(str, arguments)])


def run_without_spark(*arguments):
    """In an interpreter that cannot import Spark nor anything it brings."""
    command = [sys.executable, "-c", WITHOUT_SPARK, "pipeline", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


TABLE = ("--topic", "demo", "--warehouse", "w", "--table", "t")
WRONG = [
    (("run", *TABLE, "--to", "csv"), "'csv' is not one of"),
    (("run", "--topic", "demo", "--warehouse", "w"), "Missing option '--table'"),
    (("run", *TABLE, "--mode", "merge"), "'merge' is not one of"),
    (("run", *TABLE, "--key", "id"), "upsert"),
    (("run", *TABLE, "--schema", "nowhere.json"), "nowhere.json"),
    (("run", *TABLE, "--partition-by", "week(day)"), "week(day)"),
    (("run", *TABLE, "--to", "delta", "--catalog", "type=rest"), "Iceberg"),
    (("run", *TABLE, "--catalog", "rest"), "is not name=value"),
    (("run", "--topic", "demo", "--warehouse", "s3://lake", "--table", "t"), "name a catalog"),
    (("run", *TABLE, "--group", ""), "needs group"),
    (("run", *TABLE, "--every", "nan"), "cannot be nan"),
    (("run", *TABLE, "--from", "soon"), "no place to begin"),
    (("run", *TABLE, "--max-per-batch", "0"), "max-per-batch"),
    (("run", *TABLE, "--master", "localhost"), "none Spark knows"),
    (("run", *TABLE, "--master", "local[0]"), "none Spark knows"),
    (("run", *TABLE, "--conf", "spark.master=localhost"), "none Spark knows"),
    (("run", *TABLE, "--master", "spark://host"), "none Spark knows"),
    (("run", *TABLE, "--master", "local-cluster[2]"), "none Spark knows"),
    (("run", *TABLE, "--conf", "spark.x"), "is not name=value"),
    (("run", *TABLE, "--conf", "driver.memory=1g"), "begin with `spark.`"),
    (("run", *TABLE, "--bootstrap", "nowhere"), "is not HOST:PORT"),
    (("run", *TABLE, "--option", "failOnDataLoss"), "is not name=value"),
    (
        ("run", *TABLE, "--option", "failOnDataLoss=maybe"),
        "failOnDataLoss: 'maybe' is neither true nor false",
    ),
    (("run", *TABLE, "--option", "failOnLoss=false"), "Did you mean failOnDataLoss?"),
    (("run", *TABLE, "--option", "subscribe=other"), "--topic (topic) names"),
    (("backfill", *TABLE, "--option", "direct=sometimes"), "'sometimes' is none of auto, never and require"),
    (("load", "--topic", "demo"), "FILE"),
    (("load", "x.csv", "--topic", "demo", "--option", "sep"), "is not name=value"),
    (("load", "x.csv", "--topic", "demo", "--partitions", "0"), "partitions"),
    (("load", "x.csv", "--topic", "demo", "--config", "retention.ms"), "is not name=value"),
    (("replay", "--topic", "a", "--to-topic", "b", "--config", "x"), "is not name=value"),
    (("replay", "--topic", "a", "--to-topic", "a"), "is the topic itself"),
    (("replay", "--topic", "a", "--to-topic", "b", "--until", "soon"), "no place to begin"),
    (("replay", "--to-topic", "b"), "either --topic, or --table"),
    (("replay", "--to-topic", "b", *TABLE), "either --topic, or --table"),
    (("replay", "--topic", "a", "--to-topic", "b", "--key", "id"), "are for tables"),
    (("replay", "--table", "t", "--to-topic", "b"), "Missing option '--warehouse'"),
    (("backfill", *TABLE, "--until", "soon"), "no place to begin"),
    (("backfill", *TABLE, "--tasks", "0"), "tasks"),
    (("replay-dlq", *TABLE, "--key", "id"), "upsert"),
    (("status", "--topic", "demo", "--table", "t"), "Missing option '--warehouse'"),
    (("maintain", "--warehouse", "w", "--table", "t", "--expire", "week"), "is no duration"),
    (("maintain", "--warehouse", "w", "--table", "../t"), "no name for a table"),
    (("compact", "--topic", "a", "--wait", "2"), "is no duration"),
    (("audit", ".", "--master", "local[x]"), "none Spark knows"),
]


def test_status_says_what_does_not_add_up_and_that_the_topic_is_another(monkeypatch):
    from anabranch.pipeline.jobs.status import PipelineStatus

    found = PipelineStatus("demo", "default.t", "g", 3, 3, 3, 11, 8, 2, 1, 1, 8, 100, is_same_topic=False)
    monkeypatch.setattr("anabranch.cli.client.Broker.require_answer", lambda _: None)
    monkeypatch.setattr("anabranch.pipeline.jobs.status.pipeline_status", lambda _: found)
    result = run("status", *TABLE)
    assert result.exit_code == 1
    assert "11 records were read, but 10 are accounted for." in result.stderr
    assert "demo was deleted and made again: the table has rows of the old topic only." in result.stdout


def test_options_of_the_source_reach_the_pipeline(monkeypatch, tmp_path):
    from anabranch.pipeline.jobs.run import Counts

    monkeypatch.chdir(tmp_path)
    taken = []
    monkeypatch.setattr("anabranch.cli.pipeline.run._starting", lambda *_: "earliest")
    monkeypatch.setattr("anabranch.cli.pipeline.run.running_spark", lambda *_: nullcontext())
    monkeypatch.setattr(
        "anabranch.pipeline.jobs.run.run_pipeline",
        lambda _, settings, **__: taken.append(settings) or Counts(),
    )
    result = run("run", *TABLE, "--option", "failOnDataLoss=false", "--option", "verify=false")
    assert result.exit_code == 0, result.stderr
    assert taken[0].options == {"failOnDataLoss": "false", "verify": "false"}


@pytest.mark.parametrize(
    ("command", "said"), WRONG, ids=lambda value: " ".join(value) if type(value) is tuple else ""
)
def test_wrong_command_line_is_exit_code_two(command, said):
    result = run(*command)
    assert result.exit_code == 2
    assert said in result.stderr


@pytest.mark.parametrize(
    ("command", "said"), WRONG[:1] + WRONG[3:4] + WRONG[-1:], ids=["choice", "rule", "master"]
)
def test_bad_option_never_touches_spark(command, said):
    result = run_without_spark(*command)
    assert result.returncode == 2
    assert said in result.stderr


@pytest.mark.parametrize("name", [None, *COMMANDS])
def test_help_needs_no_spark(name):
    result = run_without_spark(*([] if name is None else [name]), "--help")
    assert result.returncode == 0
    assert result.stdout.startswith("Usage:")


def test_missing_extra_is_one_sentence_and_the_next_step(tmp_path):
    (tmp_path / "demo-0").mkdir()
    (tmp_path / "demo-0" / f"{0:020d}.log").touch()
    result = run_without_spark("audit", tmp_path, "--format", "json")
    assert result.returncode == 1
    assert json.loads(result.stderr)["error"].endswith("pip install 'anabranch[spark]'.")


@pytest.mark.parametrize(
    "command",
    [
        ("run", *TABLE),
        ("load", __file__, "--input", "csv", "--topic", "demo"),
        ("replay", "--topic", "a", "--to-topic", "b"),
        ("backfill", *TABLE),
        ("replay-dlq", *TABLE),
        ("status", *TABLE),
        ("compact", "--topic", "a"),
    ],
    ids=lambda command: command[0],
)
def test_unreachable_broker_is_said_before_spark_starts(command):
    result = run_without_spark(*command, "--bootstrap", NOBODY)
    assert result.returncode == 1
    assert result.stderr == f"Error: No broker answers at {NOBODY}: start one with `anabranch up`.\n"


def test_folder_without_a_log_is_said_before_spark_starts(tmp_path):
    result = run_without_spark("audit", tmp_path)
    assert result.returncode == 1
    assert "holds no partition" in result.stderr


@pytest.mark.parametrize(
    ("files", "said"),
    [
        (["x.txt"], "--input"),
        (["a.csv", "b.json"], "--input"),
        (["missing.csv"], "no file"),
        (["missing/*.csv"], "no file"),
    ],
)
def test_files_that_cannot_be_loaded_are_named_before_spark_starts(files, said):
    result = run("load", *files, "--topic", "demo")
    assert result.exit_code == 2
    assert said in result.stderr


@pytest.fixture
def broker_answers(monkeypatch):
    """As if there were one with the topic `demo`; and whoever starts Spark nevertheless is told off."""
    from anabranch.cli.pipeline import backfill as pipeline_backfill
    from anabranch.cli.pipeline import dlq as pipeline_dlq
    from anabranch.cli.pipeline import run as pipeline_run

    def refuse(*_, **__):
        raise AssertionError("Spark was started")

    monkeypatch.setattr(pipeline_run, "offsets_at", lambda broker, topic, where: {0: 0})
    monkeypatch.setattr(pipeline_run, "running_spark", refuse)
    monkeypatch.setattr(pipeline_backfill, "range_of", lambda broker, topic, start, until: ({0: 0}, {0: 1}))
    monkeypatch.setattr(pipeline_backfill, "one_job", refuse)
    monkeypatch.setattr(Broker, "admin", lambda broker: None)
    monkeypatch.setattr(Broker, "partitions", lambda broker, admin: {"demo": [0], "demo.dlq": [0]})
    monkeypatch.setattr(pipeline_dlq, "one_job", refuse)


@pytest.mark.usefixtures("broker_answers")
@pytest.mark.parametrize("job", ["run", "backfill", "replay-dlq"])
@pytest.mark.parametrize(
    ("options", "exit_code", "said"),
    [
        (("--warehouse", __file__), 1, "cannot be made: File exists"),
        (("--warehouse", "w", "--catalog", "type=foo"), 1, "'foo' is not a valid CatalogType"),
        (("--warehouse", "w", "--schema", __file__), 2, "cannot be read"),
        (("--warehouse", "w", "--schema", "raw", "--mode", "upsert", "--key", "id"), 2, "key names id"),
        (("--warehouse", "w", "--schema", "raw", "--partition-by", "id"), 1, "no such column"),
    ],
    ids=["warehouse", "catalog", "schema", "key", "partition"],
)
def test_table_that_cannot_be_had_is_said_before_spark_starts(
    job, options, exit_code, said, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    result = run(job, "--topic", "demo", "--table", "t", *options)
    assert (result.exit_code, result.exception.__class__) == (exit_code, SystemExit)
    assert said in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("broker_answers")
def test_topic_without_dead_letters_has_nothing_to_try_again(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Broker, "partitions", lambda broker, admin: {"demo": [0]})
    result = run("replay-dlq", *TABLE, "--format", "json")
    assert (result.exit_code, json.loads(result.stdout)["read"]) == (0, 0)
    assert result.stderr == "demo has no dead letters: there is no topic demo.dlq.\n"
    monkeypatch.setattr(Broker, "partitions", lambda broker, admin: {})
    result = run("replay-dlq", *TABLE)
    assert (result.exit_code, result.stderr[:37]) == (1, "Error: There is no topic called demo:")


@pytest.mark.parametrize("to", ["iceberg", "delta", "parquet"])
@pytest.mark.parametrize("job", [("maintain",), ("replay", "--to-topic", "b")], ids=lambda job: job[0])
def test_table_that_is_not_there_is_said_and_nothing_is_made(job, to, tmp_path):
    result = run(*job, "--table", "t", "--to", to, "--warehouse", tmp_path / "lake")
    assert (result.exit_code, result.stderr[:22]) == (1, "Error: There is no tab")
    assert list(tmp_path.iterdir()) == []


def test_columns_of_a_replayed_table_are_looked_at_before_a_topic_is_made(tmp_path):
    from anabranch.pipeline.lake.formats.table import open_table
    from anabranch.pipeline.lake.rows.parse import TRACE
    from anabranch.pipeline.lake.settings import PipelineSettings

    open_table(PipelineSettings("h:1", "t", str(tmp_path), "rows"), TRACE)
    place = ("--table", "rows", "--warehouse", tmp_path, "--to-topic", "b", "--bootstrap", NOBODY)
    result = run("replay", *place, "--timestamp", "at")
    assert result.exit_code == 2
    assert "--timestamp at: there is no such column, but _key" in result.stderr


def test_status_of_a_topic_that_nobody_knows_is_an_error(monkeypatch):
    from anabranch.pipeline.jobs import status

    nothing = SimpleNamespace(table="default.t", partitions=[], batch=-1)
    monkeypatch.setattr(status, "pipeline_status", lambda settings: nothing)
    monkeypatch.setattr(Broker, "require_answer", lambda broker: None)
    result = run("status", *TABLE)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "There is no topic demo at" in result.stderr


# --- Spark's log ------------------------------------------------------------------------------------------------


@pytest.fixture
def temporary_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_log_of_spark_goes_away_when_all_went_well(temporary_folder):
    with sparks_log() as log:
        assert list(temporary_folder.iterdir()) == [log]
    assert list(temporary_folder.iterdir()) == []


@pytest.mark.parametrize(
    "error",
    [Failure("Stopped."), TableError("It is gone."), KeyboardInterrupt()],
    ids=lambda error: type(error),
)
def test_log_of_spark_goes_away_when_the_error_says_it_all(temporary_folder, error):
    with pytest.raises((Failure, KeyboardInterrupt)), sparks_log():
        raise error
    assert list(temporary_folder.iterdir()) == []


def test_log_of_spark_stays_with_an_error_that_nobody_foresaw_and_tells_where_it_was_met(temporary_folder):
    with pytest.raises(Failure) as failure, sparks_log() as log:
        _write_and_fail(log)
    assert failure.value.message == f"out of paper. The whole story is in {log}."
    assert log.read_text().startswith("Spark's words\nTraceback")


def _write_and_fail(log):
    log.write_text("Spark's words\n")
    raise ValueError("out of paper")


SAYS_THINGS = """
import logging
from anabranch.cli.pipeline.spark import sparks_log
with sparks_log() as log:
    logging.error("a call was broken off")
    logging.getLogger("py4j.clientserver").error("another")
    logging.getLogger("anabranch.pipeline").warning("The checkpoint is new.")
    print(log.read_text())
"""


def test_log_of_spark_takes_what_the_bridge_to_the_jvm_says_and_nothing_else():
    said = subprocess.run(
        [sys.executable, "-c", SAYS_THINGS], capture_output=True, text=True, timeout=60, check=True
    )
    assert said.stdout == "a call was broken off\nanother\n\n"
    assert said.stderr == "The checkpoint is new.\n"


@pytest.mark.parametrize("number", ENDING_SIGNALS)
def test_log_of_spark_goes_away_when_the_command_is_ended(temporary_folder, number):
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt), sparks_log():
        signal.raise_signal(number)
    assert list(temporary_folder.iterdir()) == []
    assert signal.getsignal(number) is before


@pytest.mark.usefixtures("temporary_folder")
def test_command_under_nohup_outlives_its_terminal():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with sparks_log():
            signal.raise_signal(signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_log_of_spark_goes_away_with_the_second_ctrl_c(temporary_folder, monkeypatch):
    left = []
    monkeypatch.setattr(os, "_exit", lambda code: left.append((code, list(temporary_folder.iterdir()))))
    with sparks_log(), stopping("Stopping."):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
    assert left == [(130, [])]


def test_extra_that_is_only_half_there_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyiceberg", None)
    with pytest.raises(Failure, match=r"needs pyiceberg too: pip install 'anabranch\[spark\]'"):
        require_spark()


@pytest.mark.parametrize(
    "command", [("load", __file__, "--input", "csv", "--topic", "b"), ("replay", "--topic", "a", "--to-topic", "b")],
    ids=lambda command: command[0],
)  # fmt: skip
def test_missing_extra_is_said_before_a_topic_is_made(command, monkeypatch):
    from anabranch.cli.pipeline import load as pipeline_load
    from anabranch.cli.pipeline import replay as pipeline_replay

    made = []
    for module in (pipeline_load, pipeline_replay):
        monkeypatch.setattr(module, "require_topic", lambda *given: made.append(given))
    monkeypatch.setattr(pipeline_replay, "range_of", lambda *_: ({0: 0}, {0: 1}))
    monkeypatch.setattr(Broker, "require_answer", lambda broker: None)
    monkeypatch.setitem(sys.modules, "pyspark", None)
    result = run(*command)
    assert (result.exit_code, made) == (1, [])
    assert result.stderr.endswith("pip install 'anabranch[spark]'.\n")


def test_extra_names_all_that_the_pipeline_imports():
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    named = {re.split(r"[^a-z0-9]", each)[0] for each in project["optional-dependencies"]["spark"]}
    assert set(NEEDED) - {"py4j"} <= named  # That one is a part of pyspark.


def test_cluster_whose_masters_do_not_answer_is_said():
    with pytest.raises(Failure, match="No Spark master answers at spark://127"):
        require_master(f"spark://{NOBODY},{NOBODY}")


def test_cluster_of_which_one_master_answers_will_do():
    with socket.create_server(("127.0.0.1", 0)) as server:
        require_master(f"spark://{NOBODY},127.0.0.1:{server.getsockname()[1]}")
