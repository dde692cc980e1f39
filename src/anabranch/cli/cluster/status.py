"""`anabranch cluster status` and `cluster ring`: show a running cluster, through any of its brokers."""

from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from anabranch.cli.client import Broker, broker_options
from anabranch.cli.common import Command, Group, format_option, show_json, show_table

if TYPE_CHECKING:
    from anabranch.cli.cluster.view import ClusterView, PartitionView, QuorumView, ReplicaView, VoterView
    from anabranch.cli.cluster.waits import Waits
    from anabranch.local_cluster.cluster_client import ClusterClient

SHOWN_MAX = 20
"""Partitions in trouble that the text names; the JSON names all."""


@click.command(cls=Command)
@broker_options
@format_option()
def status(broker: Broker, format: str) -> None:
    """Show the brokers, the metadata quorum, partitions that lack a copy, and what they wait for.

    Each broker is asked directly. If one does not answer, nobody knows whether its copies are in sync.
    """
    from anabranch.cli.cluster.view import checked, read_own_views, read_quorum, read_view
    from anabranch.local_cluster.cluster_client import ClusterClient

    broker.require_answer()
    with ClusterClient(broker.bootstrap, broker.seconds_max) as client:
        view, quorum = read_view(client), read_quorum(client)
        view = checked(view, read_own_views(client, view.live))
        waits = read_waits(client, view)
    if format == "json":
        show_json({**status_facts(view, quorum), "waits_for": waits.facts(), "electing": waits.electing})
        return
    show_table(
        ["#broker", "address", "rack", "state", "quorum", "#metadata lag", "#leads", "#keeps"],
        [tuple(row.values()) for row in _broker_rows(view, quorum)],
        f"Cluster {view.cluster_id}, metadata led by {_who(quorum.leader)} in term {quorum.epoch}",
    )
    for line in (*trouble(view), *waits.sentences(), *without_failover(view)):
        click.echo(line)


def read_waits(client: "ClusterClient", view: "ClusterView") -> "Waits":
    from anabranch.cli.cluster.view import read_replicas
    from anabranch.cli.cluster.waits import moving_to, waits_of
    from anabranch.wire.api_keys import ApiKey

    moving = moving_to(client.ask(ApiKey.LIST_PARTITION_REASSIGNMENTS, {"topics": None}))
    is_short = any(partition.is_short for partition in view.partitions)
    held = read_replicas(client, view.live) if is_short else {}
    return waits_of(view, held, moving)


def status_facts(view: "ClusterView", quorum: "QuorumView") -> dict[str, object]:
    return {
        "cluster_id": view.cluster_id,
        "controller": view.controller,
        "quorum": {
            "leader": quorum.leader,
            "epoch": quorum.epoch,
            "high_watermark": quorum.high_watermark,
            "voters": [_voter_facts(voter) for voter in quorum.voters],
            "observers": [_voter_facts(observer) for observer in quorum.observers],
        },
        "brokers": _broker_rows(view, quorum),
        "under_replicated": [_short_facts(partition) for partition in view.partitions if partition.is_short],
        "without_leader": [partition.name for partition in view.partitions if partition.leader < 0],
        "unconfirmed": [partition.name for partition in view.partitions if view.is_unconfirmed(partition)],
        "disputed": [partition.name for partition in view.partitions if partition.is_disputed],
        "without_failover": [partition.name for partition in view.partitions if partition.has_no_failover],
    }


def _voter_facts(voter: "VoterView") -> dict[str, object]:
    return {"id": voter.broker_id, "end": voter.end, "lag": voter.lag}


def _short_facts(partition: "PartitionView") -> dict[str, object]:
    return {
        "topic": partition.topic,
        "partition": partition.partition,
        "replicas": list(partition.replicas),
        "in_sync": list(partition.in_sync),
    }


def _broker_rows(view: "ClusterView", quorum: "QuorumView") -> list[dict[str, object]]:
    lags = {voter.broker_id: voter.lag for voter in (*quorum.voters, *quorum.observers)}
    return [
        {
            "id": broker_id,
            "kafka": seen.address,
            "rack": seen.rack,
            "state": seen.state,
            "role": quorum.role_of(broker_id),
            "metadata_lag": lags.get(broker_id),
            "leads": sum(partition.leader == broker_id for partition in view.partitions),
            "keeps": sum(broker_id in partition.replicas for partition in view.partitions),
        }
        for broker_id, seen in view.brokers.items()
    ]


def trouble(view: "ClusterView") -> list[str]:
    """What needs attention, or one line saying that nothing does."""
    nobody = [partition.name for partition in view.partitions if partition.leader < 0]
    short = [partition.name for partition in view.partitions if partition.is_short]
    unconfirmed = [partition.name for partition in view.partitions if view.is_unconfirmed(partition)]
    disputed = [partition.name for partition in view.partitions if partition.is_disputed]
    lines = [f"Broker {broker.broker_id} is fenced." for broker in view.brokers.values() if broker.is_fenced]
    lines += [f"Broker {broker_id} does not answer." for broker_id in view.silent]
    if nobody:
        lines.append(f"Without a leader: {_some(nobody)}.")
    if short:
        lines.append(f"Under-replicated: {_some(short)}.")
    if unconfirmed:
        lines.append(f"Reported in sync, but a replica does not answer: {_some(unconfirmed)}.")
    if disputed:
        lines.append(f"The leader reports a different state; run this again: {_some(disputed)}.")
    return lines or ["Every partition has a leader and all its copies."]


def without_failover(view: "ClusterView") -> list[str]:
    """Which partitions have two copies only, so that both brokers must be up."""
    pairs = [partition.name for partition in view.partitions if partition.has_no_failover]
    return (
        [f"No failover, because only two brokers keep them and both must be up: {_some(pairs)}."]
        if pairs
        else []
    )


def _some(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN_MAX} more" if len(names) > SHOWN_MAX else ""
    return ", ".join(names[:SHOWN_MAX]) + more


def _listed(ids: list[int]) -> str:
    return f"{', '.join(map(str, ids[:-1]))} and {ids[-1]}"


def _who(leader: int) -> str:
    return f"broker {leader}" if leader >= 0 else "nobody"


@click.group(cls=Group, invoke_without_command=True)
@click.option("--topic", help="Show only this topic.")
@click.option("--internal", is_flag=True, help="Show internal topics too.")
@broker_options
@format_option()
@click.pass_context
def ring(context: click.Context, topic: str | None, internal: bool, broker: Broker, format: str) -> None:
    """Show who leads and follows each partition, its generation, and how far each copy is behind.

    A `?` marks a broker that does not answer: what is shown of it is what the others heard last.
    """
    if context.invoked_subcommand is None:
        _show_ring(topic, internal, broker, format)
    elif any(context.get_parameter_source(name) is ParameterSource.COMMANDLINE for name in context.params):
        raise click.UsageError(f"Options belong after {context.invoked_subcommand}.")


def _show_ring(topic: str | None, internal: bool, broker: Broker, format: str) -> None:
    from anabranch.cli.cluster.view import read_replicas, read_view
    from anabranch.cli.common import Failure
    from anabranch.local_cluster.cluster_client import ClusterClient

    broker.require_answer()
    with ClusterClient(broker.bootstrap, broker.seconds_max) as client:
        view = read_view(client)
        shown = [part for part in view.partitions if _is_wanted(part, topic, internal)]
        if topic is not None and not shown:
            raise Failure(f"There is no topic called {topic}: `anabranch topic list` shows those there are.")
        replicas = read_replicas(client, view.live)
        ends = client.ends(_by_leader([part for part in shown if part.leader in replicas]))
    rows = [ring_facts(partition, ends, replicas) for partition in shown]
    if format == "json":
        show_json(rows)
    elif rows:
        show_table(
            ["topic", "#partition", "leader", "#generation", "replicas", "in sync", "#end", "lag"],
            [_ring_row(row) for row in rows],
        )
        silent = sorted({copy for part in shown for copy in (*part.replicas, part.leader)} - {-1, *replicas})
        if silent:
            who = f"Broker {silent[0]} does" if len(silent) == 1 else f"Brokers {_listed(silent)} do"
            click.echo(f"{who} not answer: values with a ? are what the others heard last.")
    else:
        click.echo("There are no topics yet: create one with `anabranch topic create demo`.")


def _is_wanted(partition: "PartitionView", topic: str | None, internal: bool) -> bool:
    return partition.topic == topic if topic is not None else internal or not partition.is_internal


def _by_leader(partitions: "list[PartitionView]") -> dict[int, list[tuple[str, int]]]:
    led: dict[int, list[tuple[str, int]]] = {}
    for partition in partitions:
        if partition.leader >= 0:
            led.setdefault(partition.leader, []).append((partition.topic, partition.partition))
    return led


def ring_facts(
    partition: "PartitionView",
    ends: dict[tuple[str, int], int],
    replicas: "dict[int, dict[tuple[str, int], ReplicaView]]",
) -> dict[str, object]:
    """The row of one partition. `replicas` has the brokers that answered; whether a copy on any other is in sync is
    unknown (None). Those may have died after the others last heard from them, and without a quorum the others agree on
    nothing newer."""
    place = (partition.topic, partition.partition)
    kept = {broker_id: replicas.get(broker_id, {}).get(place) for broker_id in partition.replicas}
    return {
        "topic": partition.topic,
        "partition": partition.partition,
        "leader": partition.leader if partition.leader >= 0 else None,
        "leader_answers": partition.leader in replicas,
        "generation": partition.generation,
        "end": ends.get(place),
        "replicas": [
            {
                "id": broker_id,
                "in_sync": _is_in_sync(partition, broker_id, answers=broker_id in replicas),
                "size_bytes": None if seen is None else seen.size_bytes,
                "lag": None if seen is None else _lag(seen.lag, is_in_sync=broker_id in partition.in_sync),
            }
            for broker_id, seen in kept.items()
        ],
    }


def _is_in_sync(partition: "PartitionView", broker_id: int, *, answers: bool) -> bool | None:
    if broker_id not in partition.in_sync:
        return False
    return True if answers else None


def _lag(told: int, *, is_in_sync: bool) -> int | None:
    """None for a copy that is not in sync but reports no lag: it has not heard yet of what it lacks."""
    return told if told or is_in_sync else None


def _ring_row(row: dict[str, object]) -> tuple[object, ...]:
    replicas = row["replicas"]
    assert isinstance(replicas, list)
    return (
        row["topic"],
        row["partition"],
        row["leader"] if row["leader"] is None or row["leader_answers"] else f"{row['leader']}?",
        row["generation"],
        " ".join(str(replica["id"]) for replica in replicas),
        " ".join(
            f"{replica['id']}{'?' if replica['in_sync'] is None else ''}"
            for replica in replicas
            if replica["in_sync"] is not False
        ),
        row["end"],
        " ".join(
            f"{replica['id']}:{'?' if replica['lag'] is None else replica['lag']}" for replica in replicas
        ),
    )
