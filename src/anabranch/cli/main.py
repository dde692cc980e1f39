"""The entry point: a table of commands, each imported when it is asked for.

Exit codes are the same everywhere: 0 done, 1 it could not be done (one sentence on stderr says why and what
next), 2 the command line itself is wrong.
"""

import importlib
import os
import sys
from typing import NoReturn

import click

import anabranch
from anabranch.cli.common import Commands

COMMANDS = {
    "up": "anabranch.cli.node.up",
    "cluster": "anabranch.cli.cluster.cluster",
    "topic": "anabranch.cli.topic",
    "produce": "anabranch.cli.records.produce",
    "consume": "anabranch.cli.records.consume",
    "group": "anabranch.cli.group",
    "branch": "anabranch.cli.branch.branch",
    "pipeline": "anabranch.cli.pipeline.pipeline",
    "log": "anabranch.cli.log.log",
    "doctor": "anabranch.cli.doctor.doctor",
    "version": "anabranch.cli.version",
}


class LazyGroup(Commands):
    """A group that imports a command's module only when that command, or the help, is wanted."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(COMMANDS[cmd_name]).command
        return command


@click.group(
    cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}
)
@click.version_option(anabranch.__version__, prog_name="anabranch", message="%(prog)s %(version)s")
def main() -> None:
    """A streaming log that speaks Kafka's protocol. Start a node with `anabranch up`."""


def program() -> NoReturn:
    """What `anabranch` runs. Where obstore was used, its threads may want the interpreter after that has ended, which
    then aborts: so the process ends before."""
    try:
        main(prog_name="anabranch")
    except SystemExit as end:
        if "obstore" in sys.modules and "pyspark" not in sys.modules:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(end.code if isinstance(end.code, int) else int(end.code is not None))
        raise
    raise AssertionError("click ends with an exit")
