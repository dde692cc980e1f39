"""`anabranch cluster`: start a local cluster, and watch and change a running one."""

import click

from anabranch.cli import (
    cluster_change,
    cluster_recover,
    cluster_restore,
    cluster_segments,
    cluster_status,
    cluster_up,
)
from anabranch.cli.common import Group


@click.group(cls=Group)
def command() -> None:
    """Start a local cluster; see and change who keeps what in a running one; bring one back."""


for subcommand in (
    cluster_up.command,
    cluster_status.status,
    cluster_status.ring,
    cluster_segments.segments,
    cluster_change.add,
    cluster_change.drain,
    cluster_change.remove,
    cluster_restore.restore,
):
    command.add_command(subcommand)
cluster_status.ring.add_command(cluster_recover.recover)
