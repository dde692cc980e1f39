"""`anabranch pipeline`: what is said without Spark, and that nothing of Spark is touched before it must be."""

import json
import subprocess
import sys
from contextlib import nullcontext

import pytest
from click.testing import CliRunner

from anabranch.cli.main import main
from anabranch.cli.pipeline import COMMANDS

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
    (("run", *TABLE, "--from", "soon"), "no place to begin"),
    (("run", *TABLE, "--max-per-batch", "0"), "max-per-batch"),
    (("run", *TABLE, "--master", "localhost"), "none Spark knows"),
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
    from anabranch.pipeline.status import PipelineStatus

    found = PipelineStatus("demo", "default.t", "g", 3, 3, 3, 11, 8, 2, 1, 1, 8, 100, is_same_topic=False)
    monkeypatch.setattr("anabranch.cli.client.Broker.require_answer", lambda _: None)
    monkeypatch.setattr("anabranch.pipeline.status.pipeline_status", lambda _: found)
    result = run("status", *TABLE)
    assert result.exit_code == 1
    assert "11 records were read, but 10 are accounted for." in result.stderr
    assert "demo was deleted and made again: the table has rows of the old topic only." in result.stdout


def test_options_of_the_source_reach_the_pipeline(monkeypatch):
    from anabranch.pipeline.run import Counts

    taken = []
    monkeypatch.setattr("anabranch.cli.pipeline_run._starting", lambda *_: "earliest")
    monkeypatch.setattr("anabranch.cli.pipeline_run.running_spark", lambda *_: nullcontext())
    monkeypatch.setattr(
        "anabranch.pipeline.run.run_pipeline", lambda _, settings, **__: taken.append(settings) or Counts()
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
    [(["x.txt"], "--input"), (["a.csv", "b.json"], "--input"), (["missing.csv"], "no file")],
)
def test_files_that_cannot_be_loaded_are_named_before_spark_starts(files, said):
    result = run("load", *files, "--topic", "demo")
    assert result.exit_code == 1
    assert said in result.stderr
