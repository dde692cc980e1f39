"""What every command shares: `--format`, one way to fail, one way to show a table.

A command that cannot do its work raises `Failure` (or any `AnabranchError`, which `Command` turns into one):
one sentence and the next step on stderr, as JSON when `--format json` was asked for, and exit code 1. What is wrong
with the command line alone, or with a file of settings it names, is a `WrongCommandLine` (or `click.UsageError`): exit
code 2.
"""

import errno
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import IO, Any, TypeVar

import click

from anabranch.cli.terminal import console, drop_output, escaped_cell, escaping_output
from anabranch.errors import AnabranchError, InvalidConfigError, OptionError

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
"""Where `anabranch up` listens unless told otherwise, and where the other commands look for it."""
SENTENCE_MAX = 200
"""Of a command, as the help of its group says it."""
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

Function = TypeVar("Function", bound=Callable[..., Any])


class Failure(click.ClickException):
    """It could not be done; the message is one sentence and the next step."""

    exit_code = 1

    def __init__(self, message: str) -> None:
        super().__init__(message)
        context = click.get_current_context(silent=True)
        self.as_json = context is not None and wants_json(context)

    def show(self, file: IO[Any] | None = None) -> None:
        line = json.dumps({"error": self.message}) if self.as_json else f"Error: {self.message}"
        click.echo(line, file=file, err=file is None)


class WrongCommandLine(Failure):
    """What was typed, or a file of settings it names, cannot be meant, whatever the broker or the disk is like."""

    exit_code = 2


def failure_of(error: AnabranchError) -> Failure:
    kind = WrongCommandLine if isinstance(error, InvalidConfigError | OptionError) else Failure
    return kind(str(error))


def wants_json(context: click.Context) -> bool:
    return context.params.get("format") in ("json", "ndjson")


class Command(click.Command):
    """A command whose expected errors never become a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except AnabranchError as error:
            raise failure_of(error) from error


class Commands(click.Group):
    """A command whose help says the first sentence of each subcommand to its end. What it prints, and what its
    subcommands print, cannot drive the terminal."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        with escaping_output():
            try:
                return super().main(*args, **kwargs)
            except OSError as error:
                if error.errno not in DISK_FULL:
                    raise
                drop_output()
                # It may have been the output, or a file that the command writes.
                click.echo(f"Error: A write failed ({error.strerror}): make room on that disk.", err=True)
                sys.exit(Failure.exit_code)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        found = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, each.get_short_help_str(SENTENCE_MAX)) for name, each in found if each is not None]
            )


class Group(Commands):
    """A command with subcommands, all of them `Command`."""

    command_class = Command

    def invoke(self, ctx: click.Context) -> Any:
        """Some groups do something themselves when no subcommand is named."""
        try:
            return super().invoke(ctx)
        except AnabranchError as error:
            raise failure_of(error) from error


def format_option(
    *formats: str, default: str = "text", help_text: str = "How to answer."
) -> Callable[[Function], Function]:
    choices = formats or ("text", "json")
    return click.option(
        "--format", type=click.Choice(choices), default=default, show_default=True, help=help_text
    )


def yes_option(function: Function) -> Function:
    return click.option("--yes", "-y", is_flag=True, help="Do it without asking.")(function)


def confirm(question: str, yes: bool) -> None:
    """Go on only if the user agrees; a script that cannot answer must say --yes."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError("Nobody is here to ask: say --yes to go ahead.")
    click.confirm(question, abort=True, err=True)


def show_json(data: object) -> None:
    click.echo(json.dumps(data, ensure_ascii=False))


def show_table(columns: Sequence[str], rows: Iterable[Sequence[object]], title: str | None = None) -> None:
    """A table on a terminal, the same in full width into a pipe. A column headed '#...' is aligned right."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False)
    for column in columns:
        is_number = column.startswith("#")
        table.add_column(column.lstrip("#"), justify="right" if is_number else "left", overflow="fold")
    for row in rows:
        table.add_row(*("-" if cell is None else escaped_cell(str(cell)) for cell in row))
    # A pipe has no width: without one given, rich would fold everything at 80 columns.
    console(width=None if sys.stdout.isatty() else 10_000).print(table)


def pairs_of(options: Iterable[str], flag: str, example: str) -> dict[str, str]:
    """`name=value` options as a dict. `example` is one that would be taken."""
    found: dict[str, str] = {}
    for option in options:
        name, equals, value = option.partition("=")
        if not equals or not name.strip():
            raise click.UsageError(f"{flag} {option} is not name=value: write for example {flag} {example}.")
        found[name.strip()] = value
    return found
