"""The table of commands: lazy imports, exit codes, and errors as one sentence."""

import json
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

import anabranch
from anabranch.cli.main import COMMANDS, main

NOBODY = "127.0.0.1:1"
"""Port 1 of this machine, where nothing listens."""


def run(*arguments, **more):
    return CliRunner().invoke(main, [str(argument) for argument in arguments], **more)


def imported_by(statement):
    """The modules that a fresh interpreter has after the statement."""
    code = f"import sys\n{statement}\nprint(*sys.modules)"
    return set(
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.split()
    )


def test_the_help_of_all_commands_says_whole_sentences():
    assert "..." not in run("--help").output.partition("\nCommands:")[2]


def test_version_is_told_in_text_and_json():
    assert run("--version").output == f"anabranch {anabranch.__version__}\n"
    assert anabranch.__version__ in run("version").output
    assert json.loads(run("version", "--format", "json").output)["version"] == anabranch.__version__


@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_command_explains_itself(name):
    result = run(name, "--help")
    assert result.exit_code == 0
    assert result.output.startswith("Usage:")
    commands = result.output.partition("\nCommands:")[2]
    assert "..." not in commands


@pytest.mark.parametrize(
    "name", ["version", "up", "cluster", "topic", "produce", "consume", "group", "pipeline", "log", "doctor"]
)
def test_nothing_slow_is_imported_with_a_command(name):
    slow = {"rich", "confluent_kafka", "asyncio", "anabranch.node"}
    assert not slow & imported_by(f"import {COMMANDS[name]}")


def test_node_starts_without_anything_it_does_not_need_yet():
    late = {"rich", "confluent_kafka", "prometheus_client", "anabranch.gateway", "uvicorn", "starlette"}
    assert not late & imported_by(
        "import anabranch.cli.main, anabranch.cli.node.up, anabranch.cli.node.banner, anabranch.node"
    )


def test_unknown_command_is_a_usage_error():
    result = run("fly")
    assert result.exit_code == 2
    assert "No such command 'fly'" in result.output


CLIENT_COMMANDS = [
    ("topic", "create", "demo"),
    ("topic", "list"),
    ("topic", "describe", "demo"),
    ("topic", "alter", "demo", "--partitions", 2),
    ("topic", "delete", "demo", "--yes"),
    ("produce", "demo"),
    ("consume", "demo"),
    ("group", "list"),
    ("group", "describe", "mine"),
    ("group", "reset", "mine", "--to", "earliest"),
    ("group", "delete", "mine", "--yes"),
    ("cluster", "status"),
    ("cluster", "ring"),
    ("cluster", "add", 3),
    ("cluster", "drain", 3),
    ("cluster", "remove", 3, "--yes"),
]


@pytest.mark.parametrize("command", CLIENT_COMMANDS, ids=lambda command: " ".join(map(str, command)))
def test_unreachable_broker_is_one_sentence_and_the_next_step(command):
    result = run(*command, "--bootstrap", NOBODY)
    assert result.exit_code == 1
    assert result.stderr == f"Error: No broker answers at {NOBODY}: start one with `anabranch up`.\n"
    assert result.stdout == ""


@pytest.mark.parametrize("command", CLIENT_COMMANDS, ids=lambda command: " ".join(map(str, command)))
def test_error_is_json_when_json_was_asked_for(command):
    result = run(*command, "--bootstrap", NOBODY, "--format", "json")
    assert result.exit_code == 1
    assert "No broker answers" in json.loads(result.stderr)["error"]


def test_broker_is_taken_from_the_environment():
    result = run("topic", "list", env={"ANABRANCH_BOOTSTRAP": "127.0.0.1:2"})
    assert "127.0.0.1:2" in result.stderr


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("topic", "create", "demo", "--config", "x"), "is not name=value"),
        (("topic", "alter", "demo"), "Nothing to change"),
        (("consume", "demo", "--from", "soon"), "no place to begin"),
        (("group", "reset", "mine", "--to", "soon"), "no place to begin"),
        (("produce", "demo", "--format", "ndjson", "--key-separator", ":"), "is for text"),
        (("topic", "list", "--bootstrap", "nowhere"), "is not HOST:PORT"),
        (("topic", "list", "--timeout", "0"), "timeout"),
        (("topic", "list", "--bootstrap", "h:99999"), "is not HOST:PORT"),
        (("topic", "list", "--bootstrap", "http://h:1"), "needs brackets"),
        (("produce", "orders@5"), "only for reading"),
        (("produce", "demo", "/no/such/file"), "No such file"),
        (("consume", "demo", "--group", "g", "--max", "0"), "--max"),
        (("up", "--set", "no.such.setting=1"), "no.such.setting"),
        (("up", "--set", "num.partitions=many"), "num.partitions"),
        (("up", "--set", "retention.ms"), "write for example --set log.retention.ms=60000"),
        (("up", "--listen", "nowhere"), "is not HOST:PORT"),
        (("up", "--config", "/no/such/file"), "cannot be read"),
        (("up", "--join", "h:1"), "add --peer-listen"),
        (("up", "--peer-listen", "h:1", "--listen", "h:1"), "need a port each"),
        (("up", "--workers", "0"), "a local cluster has 1 to"),
        (("cluster", "up", "--brokers", "99"), "a local cluster has 1 to"),
        (("cluster", "up", "--listen-base", "65535"), "65535 is the last"),
        (("cluster", "up", "--set", "broker.id=1"), "differs between brokers"),
        (("cluster", "up", "--object-store", "ftp://x"), "object.store"),
        (("cluster", "restore", "--object-store", "ftp://x", "--dry-run"), "object.store is no URL"),
        (("cluster", "restore", "--object-store", "file:///tmp"), "--data-dir"),
        (("log", "dump", "/no/such/folder"), "There is nothing at"),
        (("log", "dump", __file__), "is not a segment"),
        (("log", "verify", "/no/such/folder"), "There is nothing at"),
        (("log", "repair", "/no/such/folder", "--dry-run"), "There is nothing at"),
        (("doctor", "--listen", "x"), "is not HOST:PORT"),
        (("pipeline", "load", "/no/such/file.csv", "--topic", "t"), "There is no file"),
    ],
)
def test_wrong_command_line_is_exit_code_two(command, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run(*command)
    assert result.exit_code == 2, result.stderr
    assert said in result.stderr


def _commands(command, path=()):
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            yield from _commands(command.get_command(context, name), (*path, name))
    else:
        yield path, command


LEAVES = dict(_commands(main))


@pytest.mark.parametrize("path", LEAVES, ids=" ".join)
def test_option_that_is_not_there_or_has_no_such_value_is_exit_code_two(path, tmp_path, monkeypatch):
    """Of every command: an unknown option, and nonsense for each that takes a number or a choice."""
    monkeypatch.chdir(tmp_path)
    assert run(*path, "--no-such-option").exit_code == 2
    for parameter in LEAVES[path].params:
        takes_any = isinstance(parameter.type, click.types.StringParamType | click.Path | click.File)
        if isinstance(parameter, click.Option) and not parameter.is_flag and not takes_any:
            result = run(*path, f"{parameter.opts[0]}=nonsense")
            assert result.exit_code == 2, (parameter.opts[0], result.output)
