"""`anabranch version`: which version this is. It imports next to nothing, so that it answers at once."""

import platform

import click

import anabranch
from anabranch.cli.common import Command, format_option, show_json


@click.command(cls=Command)
@format_option()
def command(format: str) -> None:
    """Say which version this is."""
    if format == "json":
        show_json({"version": anabranch.__version__, "python": platform.python_version()})
    else:
        click.echo(f"anabranch {anabranch.__version__} (Python {platform.python_version()})")
