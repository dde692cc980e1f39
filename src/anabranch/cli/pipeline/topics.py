"""Making sure that the topic a job writes to is there, or can be made, before Spark starts."""

from collections.abc import Mapping

import click

from anabranch.cli.client import Broker, settle
from anabranch.cli.common import Failure

config_option = click.option(
    "--config", "configs", metavar="NAME=VALUE", multiple=True,
    help="A config of the topic, if it has to be made; may be repeated.",
)  # fmt: skip


def require_topic(
    broker: Broker,
    topic: str,
    partitions: int | None,
    configs: Mapping[str, str],
    *,
    only_check: bool = False,
) -> None:
    """Make the topic if it is not there; Failure if it is there with another number of partitions than was said.

    `only_check`: have the broker say whether it could be made, and make nothing yet.
    """
    admin = broker.admin()
    there = broker.partitions(admin)
    if topic not in there:
        from confluent_kafka.admin import NewTopic

        new = NewTopic(topic, num_partitions=partitions or -1, replication_factor=-1, config=dict(configs))
        futures = admin.create_topics([new], request_timeout=broker.seconds_max, validate_only=only_check)
        settle(futures, lambda _, error: broker.explain(error))
    elif partitions is not None and len(there[topic]) != partitions:
        raise Failure(
            f"{topic} is there with {len(there[topic])} partitions, not {partitions}: leave --partitions away, or see "
            "`anabranch topic alter`."
        )
