"""`anabranch pipeline`: jobs over records in bulk, each in a file of its own and imported when it is asked for.

Every option is checked before anything of Spark is imported: a wrong one costs no JVM. What the jobs do is in
`anabranch.pipeline`; these files read options, show progress and print the outcome.
"""

import importlib

import click

COMMANDS = {
    "run": "anabranch.cli.pipeline.run:run",
    "status": "anabranch.cli.pipeline.status:status",
    "backfill": "anabranch.cli.pipeline.backfill:backfill",
    "replay-dlq": "anabranch.cli.pipeline.dlq:replay_dlq",
    "load": "anabranch.cli.pipeline.load:load",
    "replay": "anabranch.cli.pipeline.replay:replay",
    "compact": "anabranch.cli.pipeline.compact:compact",
    "merge": "anabranch.cli.pipeline.merge:merge",
    "audit": "anabranch.cli.pipeline.audit:audit",
    "maintain": "anabranch.cli.pipeline.maintain:maintain",
}


class LazyJobs(click.Group):
    """A group that imports a job's module only when that job, or the help, is wanted."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name].partition(":")
        found: click.Command = getattr(importlib.import_module(module), name)
        return found


@click.group(cls=LazyJobs)
def command() -> None:
    """Move topics into tables, and records in bulk, with Spark."""
