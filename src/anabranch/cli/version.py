"""`anabranch version`: which version this is, and which form of the hot loops runs.

It imports next to nothing, so that it answers at once.
"""

import platform

import click

import anabranch
from anabranch.cli.common import Command, format_option, show_json
from anabranch.record import backend as form


@click.command(cls=Command)
@format_option()
def command(format: str) -> None:
    """Say which version this is, and whether its hot loops are compiled."""
    python = platform.python_version()
    if format == "json":
        show_json({"version": anabranch.__version__, "python": python, "form": form.NAME})
    else:
        click.echo(f"anabranch {anabranch.__version__} (Python {python}, {form.NAME})")
