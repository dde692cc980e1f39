"""The way out to the terminal: control characters in what others named or sent are escaped, for every command.

While a command runs, `sys.stdout` and `sys.stderr` are `EscapingStream`s: whatever is written to them as text, by us,
by click or by a log handler, leaves without escape sequences, so that no group id, topic, host or error message can
drive the terminal or hide itself. Our own colours and bars bypass that by `console` and `echo_styled`, whose callers
escape what is not theirs. Bytes (`sys.stdout.buffer`) are the caller's own affair: a record's go to a pipe as they are.

An escape is `\\u` and four digits: within JSON that is the same character still.
"""

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any, TextIO

import click

if TYPE_CHECKING:
    from rich.console import Console

_DRIVING = r"\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff"
"""Control characters but newline and tab; marks that turn the direction of text; halves of surrogate pairs."""
_IN_TEXT = re.compile(f"[{_DRIVING}]")
_IN_CELL = re.compile(f"[{_DRIVING}\t\n]")


def escaped(text: str) -> str:
    """For text of several lines."""
    return _IN_TEXT.sub(_escape, text)


def escaped_cell(text: str) -> str:
    """For a name or value within a line: newlines and tabs are escaped too."""
    return _IN_CELL.sub(_escape, text)


def _escape(found: "re.Match[str]") -> str:
    return f"\\u{ord(found[0]):04x}"


class EscapingStream:
    """A text stream that escapes; in everything else it is the stream behind it."""

    def __init__(self, behind: TextIO) -> None:
        self.behind = behind

    def write(self, text: str) -> int:
        self.behind.write(escaped(text))
        return len(text)

    def writelines(self, lines: "list[str]") -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.behind, name)


def drop_output() -> None:
    """Discard what could not be written: it is still in the buffer, and Python would try again at exit and complain."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


@contextmanager
def escaping_output() -> Iterator[None]:
    """Put both streams behind one that escapes, for as long as a command runs."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (_escaping(stream) for stream in before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def _escaping(stream: Any) -> Any:
    return stream if stream is None or isinstance(stream, EscapingStream) else EscapingStream(stream)


# --- our own colours ----------------------------------------------------------------------------------------------


def trusted(stream: Any) -> IO[str]:
    """The stream behind the one that escapes: for text whose foreign parts are escaped already."""
    behind: IO[str] = stream.behind if isinstance(stream, EscapingStream) else stream
    return behind


def console(*, stderr: bool = False, width: int | None = None) -> "Console":
    """rich's way to the terminal. What is shown with it must be escaped where it is not ours."""
    from rich.console import Console

    file = trusted(sys.stderr if stderr else sys.stdout)
    return Console(file=file, markup=False, highlight=False, width=width)


def styled(text: str, colour: str) -> str:
    """For `echo_styled`."""
    return click.style(escaped_cell(text), fg=colour)


def echo_styled(line: str) -> None:
    """A line with colours of ours; without them where no terminal is."""
    click.echo(line, file=trusted(sys.stdout))
