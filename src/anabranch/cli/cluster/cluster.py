"""`anabranch cluster`: start a local cluster, and watch and change a running one."""

import click

from anabranch.cli.cluster import change as cluster_change
from anabranch.cli.cluster import recover as cluster_recover
from anabranch.cli.cluster import restore as cluster_restore
from anabranch.cli.cluster import segments as cluster_segments
from anabranch.cli.cluster import status as cluster_status
from anabranch.cli.cluster import up as cluster_up
from anabranch.cli.common import Group


@click.group(cls=Group)
def command() -> None:
    """Start a local cluster; inspect, change or restore one."""


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
