"""What others named or sent cannot drive the terminal."""

import io
import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
from click.testing import CliRunner

import anabranch.cli
from anabranch.cli import terminal
from anabranch.cli.common import Commands, Failure, show_json, show_table
from anabranch.cli.records.consume_output import RawWriter
from anabranch.cli.records.lines import decode, encode
from anabranch.cli.terminal import EscapingStream, escaped, escaped_cell

EVIL = "a\x1b]0;owned\x07\x9b31m\r\u202e\x7fz"
DRIVING = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]")
SOURCES = Path(anabranch.cli.__file__).parent


@click.group(cls=Commands)
def group() -> None: ...


@group.command()
def sentence() -> None:
    click.echo(f"Group {EVIL} is stable.")
    click.echo(EVIL, err=True)


@group.command()
def table() -> None:
    show_table(["group"], [(f"{EVIL}\nforged",)], title=None)


@group.command()
def as_json() -> None:
    show_json({"group": EVIL})


@group.command()
def failure() -> None:
    raise Failure(f"{EVIL} could not be done.")


@group.command()
def usage() -> None:
    raise click.UsageError(f"{EVIL} is not HOST:PORT.")


@pytest.mark.parametrize("command", sorted(group.commands))
def test_every_way_to_print_escapes_control_characters(command: str) -> None:
    done = CliRunner().invoke(group, [command])
    assert not DRIVING.search(done.output), done.output
    assert "\\u001b]0;owned\\u0007\\u009b31m" in done.output or json.loads(done.output)["group"] == EVIL


def test_json_is_the_same_after_escaping() -> None:
    done = CliRunner().invoke(group, ["as-json"])
    assert json.loads(done.output) == {"group": EVIL}


def test_cell_of_a_table_is_one_line() -> None:
    assert escaped_cell("a\nb\tc") == "a\\u000ab\\u0009c"
    assert escaped("a\nb\tc\u00e9\U0001f600") == "a\nb\tc\u00e9\U0001f600"


def test_half_a_surrogate_pair_can_be_printed() -> None:
    assert escaped("caf\udce9").encode() == b"caf\\udce9"


def test_streams_are_put_back_after_the_command() -> None:
    before = sys.stdout
    with terminal.escaping_output():
        assert isinstance(sys.stdout, EscapingStream)
        with terminal.escaping_output():
            assert not isinstance(sys.stdout.behind, EscapingStream)
    assert sys.stdout is before


def test_ndjson_keeps_every_byte_of_a_record() -> None:
    fields = {"topic": "t", "key": EVIL.encode(), "value": b"\xff\x1b", "headers": [(EVIL, EVIL.encode())]}
    line = encode(fields)
    assert not DRIVING.search(line)
    record = decode(line.encode())
    assert (record.key, record.value, record.headers) == (
        EVIL.encode(),
        b"\xff\x1b",
        ((EVIL, EVIL.encode()),),
    )


class Out(io.BytesIO):
    def __init__(self, is_terminal: bool) -> None:
        super().__init__()
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal


@pytest.mark.parametrize(("is_terminal", "wanted"), [(False, b"\x1b[2J\xff\n"), (True, b"\\u001b[2J\\xff\n")])
def test_raw_bytes_stay_as_they_are_unless_somebody_looks(is_terminal: bool, wanted: bytes) -> None:
    out = Out(is_terminal)
    message: Any = SimpleNamespace(value=lambda: b"\x1b[2J\xff")
    RawWriter(out).write(message)
    assert out.getvalue() == wanted


def test_no_command_goes_past_the_way_out() -> None:
    """Colours, bars and consoles of rich are made in terminal.py, where what is not ours is known to be escaped."""
    past = re.compile(
        r"\bConsole\(|\bprint\(|click\.(style|secho)\(|sys\.(stdout|stderr)\.write|__stdout__|__stderr__"
    )
    found = [
        f"{path.name}: {line.strip()}"
        for path in sorted(SOURCES.rglob("*.py"))
        if path.name != "terminal.py"
        for line in path.read_text().splitlines()
        if past.search(line) and ".print(table)" not in line
    ]
    assert found == []


@pytest.mark.parametrize(
    "words", [["version"], ["version", "--format", "json"], ["--help"], ["topic", "--help"]]
)
def test_full_disk_is_told_in_a_sentence(words: list[str]) -> None:
    with open("/dev/full", "w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "anabranch", *words], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert ended.returncode == 1
    assert ended.stderr == "Error: A write failed (No space left on device): make room on that disk.\n"
