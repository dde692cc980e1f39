"""`anabranch cluster ring recover`: let a partition continue that can no longer get a leader by its own rules."""

import click

from anabranch.cli.client import Broker, broker_options
from anabranch.cli.common import Command, Failure, format_option, show_json

UNCLEAN, LOOK = 1, 100
"""Kafka's unclean election, and our own type that only reports."""


@click.command(cls=Command)
@click.argument("topic")
@click.argument("partition", type=click.IntRange(min=0))
@click.option("--accept-loss", is_flag=True, help="Do it; without this, only show what would be lost.")
@broker_options
@format_option()
def recover(topic: str, partition: int, accept_loss: bool, broker: Broker, format: str) -> None:
    """Let a partition without a leader continue with what is left of it.

    This is for partitions of which too many replicas are gone or came back without their disk. No broker can tell
    then what was acknowledged, and the partition has no leader until you accept the loss of what no replica has. If
    the disks of missing brokers are intact, start those brokers first.
    """
    from anabranch.local_cluster.cluster_client import ClusterClient, refusal
    from anabranch.wire.api_keys import ApiKey

    broker.require_answer()
    body = {
        "election_type": UNCLEAN if accept_loss else LOOK,
        "topic_partitions": [{"topic": topic, "partitions": [partition]}],
        "timeout_ms": int(broker.seconds_max * 1000),
    }
    with ClusterClient(broker.bootstrap, broker.seconds_max) as client:
        answer = client.ask(ApiKey.ELECT_LEADERS, body)
    rows = [row for each in answer["replica_election_results"] for row in each["partition_result"]]
    row = rows[0] if rows else {"error_code": answer["error_code"], "error_message": None}
    if row["error_code"]:
        raise Failure(f"{refusal(row['error_code'], row['error_message'])}.")
    lines = (row["error_message"] or "").splitlines()
    if format == "json":
        show_json({"topic": topic, "partition": partition, "is_done": accept_loss, "found": lines})
        return
    for line in lines:
        click.echo(line)
    click.echo("Done." if accept_loss else "Nothing was changed: add --accept-loss to do it.")
