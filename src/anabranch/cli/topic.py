"""`anabranch topic`: create, list, describe, alter and delete topics through the admin API."""

from typing import TYPE_CHECKING, Any

import click

from anabranch.cli.branch.lines import lines_of, records_between
from anabranch.cli.client import Broker, broker_options, require_whole, settle, topic_partitions
from anabranch.cli.common import (
    Group,
    confirm,
    format_option,
    pairs_of,
    show_json,
    show_table,
    yes_option,
)

if TYPE_CHECKING:
    from confluent_kafka import KafkaError
    from confluent_kafka.admin import AdminClient, ConfigEntry


MODE_CONFIG = "anabranch.mode"
CHANGING_CONFIG = "anabranch.mode.changing"
"""There while a topic changes its mode, and says how far that has come."""
BRANCH = "branch"
BRANCHES_SHOWN = 5
TOPIC_RESOURCE = 2


@click.group(cls=Group)
def command() -> None:
    """Create, list, describe, alter and delete topics."""


config_option = click.option(
    "--config", "configs", metavar="NAME=VALUE", multiple=True, help="A topic config; may be repeated."
)


mode_option = click.option(
    "--mode",
    metavar="ring|solo|branch|object",
    help="How its records are kept safe. ring: up to three copies; solo: one; branch: both sides of a split go on; "
    "object: in the object store. The config anabranch.mode, by default ring where there are brokers for it.",
)


@command.command()
@click.argument("name")
@click.option("--partitions", type=click.IntRange(min=1), help="How many. [the broker's num.partitions]")
@click.option("--replicas", type=click.IntRange(min=1), help="Copies of each. [as the mode says]")
@mode_option
@config_option
@click.option("--if-not-exists", is_flag=True, help="Do nothing if the topic is there already.")
@broker_options
@format_option()
def create(
    name: str,
    partitions: int | None,
    replicas: int | None,
    mode: str | None,
    configs: tuple[str, ...],
    if_not_exists: bool,
    broker: Broker,
    format: str,
) -> None:
    """Create a topic."""
    wanted = _wanted(configs, mode)
    admin = broker.admin()
    from confluent_kafka import KafkaError
    from confluent_kafka.admin import NewTopic

    existed: list[str] = []

    def explain(topic: str, error: "KafkaError") -> str | None:
        if error.code() != KafkaError.TOPIC_ALREADY_EXISTS:
            return broker.explain(error)
        existed.append(topic)
        return (
            None
            if if_not_exists
            else f"There is a topic {name} already: add --if-not-exists if that is fine."
        )

    new = NewTopic(name, num_partitions=partitions or -1, replication_factor=replicas or -1, config=wanted)
    settle(admin.create_topics([new], request_timeout=broker.seconds_max), explain)
    if format == "json":
        show_json({"topic": name, "created": not existed})
    else:
        click.echo(f"Topic {name} is there already." if existed else f"Created topic {name}.")


def _wanted(configs: tuple[str, ...], mode: str | None) -> dict[str, str]:
    wanted = pairs_of(configs, "--config", "retention.ms=60000")
    if mode is None:
        return wanted
    if wanted.get(MODE_CONFIG, mode) != mode:
        raise click.UsageError(f"--mode {mode} and --config {MODE_CONFIG} say different things: give one.")
    return {**wanted, MODE_CONFIG: mode}


@command.command(name="list")
@click.option("--internal", is_flag=True, help="Show those that begin with __ too.")
@broker_options
@format_option()
def list_(internal: bool, broker: Broker, format: str) -> None:
    """List the topics."""
    admin = broker.admin()
    found = broker.partitions(admin)
    names = [name for name in found if internal or not name.startswith("__")]
    modes = _modes(broker, names)
    rows = [(name, len(found[name]), modes.get(name)) for name in names]
    if format == "json":
        show_json([{"topic": name, "partitions": count, "mode": mode} for name, count, mode in rows])
    elif rows:
        show_table(["topic", "#partitions", "mode"], rows)
    else:
        click.echo("There are no topics yet: make one with `anabranch topic create demo`.")


@command.command()
@click.argument("name")
@click.option("--all-configs", is_flag=True, help="Show configs that are at their default too.")
@broker_options
@format_option()
def describe(name: str, all_configs: bool, broker: Broker, format: str) -> None:
    """Show a topic's partitions, offsets and configs."""
    admin = broker.admin()
    pairs = broker.partitions_of(admin, name)
    entries = _configs(broker, admin, name)
    mode = entries[MODE_CONFIG].value
    partitions = _partition_rows(broker, admin, pairs, has_branches=mode == BRANCH)
    configs = {
        entry.name: entry.value
        for entry in entries.values()
        if all_configs or not (entry.is_default or _is_from_node(entry))
    }
    if format == "json":
        show_json({"topic": name, "mode": mode, "partitions": partitions, "configs": configs})
        return
    changing = entries.get(CHANGING_CONFIG)
    click.echo(f"Mode: {mode}" + (f" (being changed: {changing.value})" if changing is not None else ""))
    columns = ["#partition", "#first offset", "#end offset", "#records"]
    if mode == BRANCH:
        columns.append("branches in its line")
    show_table(columns, [_cells(row) for row in partitions])
    silent = [str(row["partition"]) for row in partitions if row["records_max"] is None]
    if silent:
        click.echo(f"Nobody leads partition {', '.join(silent)} now: `anabranch cluster status` says more.")
    if configs:
        show_table(["config", "value"], sorted(configs.items()))
    else:
        click.echo("Every config is at its default (--all-configs shows them).")


def _partition_rows(
    broker: Broker, admin: "AdminClient", pairs: list[tuple[str, int]], *, has_branches: bool
) -> list[dict[str, Any]]:
    from confluent_kafka.admin import OffsetSpec

    starts = broker.offsets_told(admin, topic_partitions(pairs, OffsetSpec.earliest()))
    ends = broker.offsets_told(admin, topic_partitions(pairs, OffsetSpec.latest()))
    lines = lines_of(broker, ends)
    rows: list[dict[str, Any]] = [
        # An upper bound: compaction and transaction markers leave offsets without records.
        {
            "partition": pair[1],
            "start": starts.get(pair),
            "end": ends.get(pair),
            "records_max": records_between(lines.get(pair), starts[pair], ends[pair])
            if pair in starts and pair in ends
            else None,
        }
        for pair in pairs
    ]
    if has_branches:
        for pair, row in zip(pairs, rows, strict=True):
            row["branches"] = [span.lane for span in lines[pair]] if pair in lines else [0]
    return rows


def _cells(row: dict[str, Any]) -> list[object]:
    """The last branches are enough for people: `branch show` has them all."""
    cells = list(row.values())
    if "branches" in row:
        *_, branches = cells
        shown = [str(each) for each in branches[-BRANCHES_SHOWN:]]
        cells[-1] = ", ".join(["...", *shown] if len(branches) > len(shown) else shown)
    return cells


def _modes(broker: Broker, names: list[str]) -> dict[str, str]:
    """How each topic keeps its records safe; another Kafka does not say. Only this config is asked for, which
    librdkafka cannot: a cluster may have ten thousand topics."""
    if not names:
        return {}
    from anabranch.local_cluster.cluster_client import ClusterClient
    from anabranch.wire.api_keys import ApiKey

    asked = [
        {"resource_type": TOPIC_RESOURCE, "resource_name": name, "configuration_keys": [MODE_CONFIG]}
        for name in names
    ]
    with ClusterClient(broker.bootstrap, broker.seconds_max) as client:
        rows = client.ask(ApiKey.DESCRIBE_CONFIGS, {"resources": asked})["results"]
    return {row["resource_name"]: config["value"] for row in rows for config in row["configs"] or ()}


def _configs(broker: Broker, admin: "AdminClient", name: str) -> "dict[str, ConfigEntry]":
    from confluent_kafka.admin import ConfigResource

    resource = ConfigResource(ConfigResource.Type.TOPIC, name)
    with broker.errors():
        answers = admin.describe_configs([resource], request_timeout=broker.seconds_max)
        found: dict[str, ConfigEntry] = answers[resource].result()
    return found


def _is_from_node(entry: "ConfigEntry") -> bool:
    from confluent_kafka.admin import ConfigSource

    return int(entry.source) != int(ConfigSource.DYNAMIC_TOPIC_CONFIG.value)


@command.command()
@click.argument("name")
@config_option
@click.option(
    "--delete-config", "resets", metavar="NAME", multiple=True, help="Back to the broker's default."
)
@click.option("--partitions", type=click.IntRange(min=1), help="Grow to this many in all.")
@mode_option
@broker_options
@format_option()
def alter(
    name: str,
    configs: tuple[str, ...],
    resets: tuple[str, ...],
    partitions: int | None,
    mode: str | None,
    broker: Broker,
    format: str,
) -> None:
    """Change a topic's configs or its mode, or give it more partitions."""
    wanted = _wanted(configs, mode)
    if not (wanted or resets or partitions):
        raise click.UsageError("Nothing to change: give --config, --delete-config, --mode or --partitions.")
    require_whole(name)
    admin = broker.admin()
    broker.partitions_of(admin, name)
    has_configs = bool(wanted or resets)
    if partitions and has_configs:
        _alter_configs(broker, admin, name, wanted, resets, only_validate=True)
    if partitions:  # First: a topic that changes its mode gets none.
        _grow(broker, admin, name, partitions)
    if has_configs:
        _alter_configs(broker, admin, name, wanted, resets)
    if format == "json":
        show_json({"topic": name, "set": wanted, "reset": list(resets), "partitions": partitions})
    elif mode is None:
        click.echo(f"Changed topic {name}.")
    else:
        click.echo(
            f"Topic {name} goes over to mode {mode}: `anabranch topic describe {name}` shows how far it is."
        )


def _alter_configs(
    broker: Broker,
    admin: "AdminClient",
    name: str,
    wanted: dict[str, str],
    resets: tuple[str, ...],
    *,
    only_validate: bool = False,
) -> None:
    from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource

    entries: list[Any] = [
        ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET) for key, value in wanted.items()
    ]
    entries += [ConfigEntry(key, None, incremental_operation=AlterConfigOpType.DELETE) for key in resets]
    resource = ConfigResource(ConfigResource.Type.TOPIC, name, incremental_configs=entries)
    with broker.errors():
        answers = admin.incremental_alter_configs(
            [resource], validate_only=only_validate, request_timeout=broker.seconds_max
        )
        answers[resource].result()


def _grow(broker: Broker, admin: "AdminClient", name: str, partitions: int) -> None:
    from confluent_kafka.admin import NewPartitions

    futures = admin.create_partitions([NewPartitions(name, partitions)], request_timeout=broker.seconds_max)
    settle(futures, lambda _, error: broker.explain(error))


@command.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@yes_option
@broker_options
@format_option()
def delete(names: tuple[str, ...], yes: bool, broker: Broker, format: str) -> None:
    """Delete topics and every record in them."""
    require_whole(*names)
    admin = broker.admin()
    broker.partitions_of(admin, *names)
    confirm(f"Delete {', '.join(names)} with all records?", yes)
    futures = admin.delete_topics(list(names), request_timeout=broker.seconds_max)
    settle(futures, lambda name, error: f"{name} was not deleted. {broker.explain(error)}")
    if format == "json":
        show_json({"deleted": list(names)})
    else:
        click.echo(f"Deleted {', '.join(names)}.")
