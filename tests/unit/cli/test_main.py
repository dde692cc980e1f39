"""The table of commands: lazy imports, exit codes, and errors as one sentence."""

import json
import subprocess
import sys

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
        "import anabranch.cli.main, anabranch.cli.up, anabranch.cli.banner, anabranch.node"
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
    ],
)
def test_wrong_command_line_is_exit_code_two(command, said):
    result = run(*command)
    assert result.exit_code == 2
    assert said in result.stderr
