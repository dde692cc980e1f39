"""`anabranch cluster`: start a local cluster, and watch and change a running one."""

import click

from anabranch.cli import cluster_up
from anabranch.cli.common import Group


@click.group(cls=Group)
def command() -> None:
    """Start a local cluster; see and change who keeps what in a running one."""


command.add_command(cluster_up.command)
