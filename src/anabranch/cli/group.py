"""`anabranch group`: list, describe, reset and delete consumer groups through the admin API.

Lag is how many records a partition has behind what the group committed there; where nothing is committed there is no
lag to tell (null, or "-"), since where the group will begin is up to its members. A reset is refused while the group
has members, because they would commit over it.
"""

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from anabranch.cli.branch.lines import lines_of, offset_before, records_between
from anabranch.cli.client import (
    BRANCH_SIGN,
    Broker,
    broker_options,
    kafka_error,
    settle,
    topic_partitions,
)
from anabranch.cli.common import Failure, Group, confirm, format_option, show_json, show_table, yes_option
from anabranch.cli.records import starts

if TYPE_CHECKING:
    from confluent_kafka import KafkaError
    from confluent_kafka.admin import AdminClient

    from anabranch.modes.branch.lines import Line

    Offsets = dict[tuple[str, int], int]


@click.group(cls=Group)
def command() -> None:
    """List, describe, reset and delete consumer groups."""


@command.command(name="list")
@broker_options
@format_option()
def list_(broker: Broker, format: str) -> None:
    """List the groups."""
    # A client that nobody holds is closed before it has answered, and its future then says: no groups.
    admin = broker.admin()
    with broker.errors():
        answer = admin.list_consumer_groups(request_timeout=broker.seconds_max).result()
    if answer.errors:
        raise Failure(broker.explain(kafka_error(answer.errors[0])))
    groups = sorted(answer.valid, key=lambda group: group.group_id)
    rows = [(group.group_id, _word(group.state)) for group in groups]
    if format == "json":
        show_json([{"group": name, "state": state} for name, state in rows])
    elif rows:
        show_table(["group", "state"], rows)
    else:
        click.echo("There are no groups yet: make one with `anabranch consume demo --group mine`.")


def _word(state: Any) -> str:
    """A state as a word: librdkafka's enum, in our spelling."""
    return str(state.name).lower().replace("_", "-")


@command.command()
@click.argument("name")
@broker_options
@format_option()
def describe(name: str, broker: Broker, format: str) -> None:
    """Show a group's members, offsets and lag."""
    admin = broker.admin()
    group = _describe(broker, admin, name)
    committed = _committed(broker, admin, name)
    if not committed and not group.members and _word(group.state) in ("dead", "unknown"):
        raise Failure(_no_group(name))
    rows = _lag_rows(broker, admin, committed, _owners(group))
    members = [
        {"member": member.member_id, "client": member.client_id, "host": member.host}
        for member in group.members
    ]
    lags = [row["lag"] for row in rows if row["lag"] is not None]
    uncommitted = sum(row["committed"] is None for row in rows)
    if format == "json":
        shown = {
            "group": name,
            "state": _word(group.state),
            "lag": sum(lags) if lags else None,
            "uncommitted_partitions": uncommitted,
            "partitions": rows,
            "members": members,
        }
        show_json(shown)
        return
    has = "1 member" if len(members) == 1 else f"{len(members)} members"
    click.echo(
        f"Group {name} is {_word(group.state)}, has {has} and {_progress(lags, uncommitted, len(rows))}."
    )
    if rows:
        show_table(
            ["topic", "#partition", "#committed", "#end", "#lag", "member"],
            [tuple(row.values()) for row in rows],
        )


def _progress(lags: list[int], uncommitted: int, partitions: int) -> str:
    """How far a group is, after "has ... and"."""
    if uncommitted == partitions:
        return "has nothing committed"
    if not lags:
        return "has committed offsets of topics that are gone"
    total = sum(lags)
    behind = "is 1 record behind" if total == 1 else f"is {total} records behind"
    return (
        f"{behind}, with nothing committed in {uncommitted} of {partitions} partitions"
        if uncommitted
        else behind
    )


def _describe(broker: Broker, admin: "AdminClient", name: str) -> Any:
    def explain(_: str, error: "KafkaError") -> str:
        return _explain(broker, name, error)

    return settle(admin.describe_consumer_groups([name], request_timeout=broker.seconds_max), explain)[name]


def _explain(broker: Broker, name: str, error: "KafkaError") -> str:
    from confluent_kafka import KafkaError

    if error.code() == KafkaError.GROUP_ID_NOT_FOUND:
        return _no_group(name)
    if error.code() == KafkaError.NON_EMPTY_GROUP:
        return f"Group {name} has members: stop its consumers first."
    return broker.explain(error)


def _no_group(name: str) -> str:
    return f"There is no group called {name}: `anabranch group list` shows those there are."


def _committed(broker: Broker, admin: "AdminClient", name: str) -> "Offsets":
    from confluent_kafka import ConsumerGroupTopicPartitions

    request = [ConsumerGroupTopicPartitions(name)]
    futures = admin.list_consumer_group_offsets(request, request_timeout=broker.seconds_max)
    answer = settle(futures, lambda _, error: _explain(broker, name, error))[name]
    pairs = sorted(answer.topic_partitions, key=lambda tp: (tp.topic, tp.partition))
    return {(tp.topic, tp.partition): tp.offset for tp in pairs if tp.offset >= 0}


def _owners(group: Any) -> dict[tuple[str, int], str]:
    return {
        (tp.topic, tp.partition): member.member_id
        for member in group.members
        for tp in (member.assignment.topic_partitions if member.assignment else ())
    }


def _lag_rows(
    broker: Broker, admin: "AdminClient", committed: "Offsets", owners: dict[tuple[str, int], str]
) -> list[dict[str, Any]]:
    pairs = sorted(committed.keys() | owners.keys())
    there = broker.partitions(admin)
    for topic in {topic for topic, _ in pairs if BRANCH_SIGN in topic}:
        with suppress(Failure):  # A branch is in no list; one that is gone has no end.
            there[topic] = [number for _, number in broker.partitions_of(admin, topic)]
    alive = [(topic, number) for topic, number in pairs if number in there.get(topic, [])]
    ends = _ask(broker, admin, alive, starts.Start(starts.Kind.END))
    lines = lines_of(broker, ends)
    return [
        _lag_row(pair, committed.get(pair), ends.get(pair), owners.get(pair), lines.get(pair))
        for pair in pairs
    ]


def _lag_row(
    pair: tuple[str, int], committed: int | None, end: int | None, owner: str | None, line: "Line | None"
) -> dict[str, Any]:
    lag = None if committed is None or end is None else records_between(line, committed, end)
    return {
        "topic": pair[0],
        "partition": pair[1],
        "committed": committed,
        "end": end,
        "lag": lag,
        "member": owner,
    }


def _ask(
    broker: Broker, admin: "AdminClient", pairs: list[tuple[str, int]], where: starts.Start
) -> "Offsets":
    """ListOffsets for the beginning, the end or a time."""
    from confluent_kafka.admin import OffsetSpec

    spec = {
        starts.Kind.BEGINNING: OffsetSpec.earliest,
        starts.Kind.END: OffsetSpec.latest,
        starts.Kind.TIME: lambda: OffsetSpec.for_timestamp(where.number),
    }[where.kind]()
    return broker.offsets(admin, topic_partitions(pairs, spec))


# --- reset -------------------------------------------------------------------------------------------------


class Move(NamedTuple):
    topic: str
    partition: int
    before: int | None
    after: int


@command.command()
@click.argument("name")
@click.option("--to", "target", required=True, metavar="WHERE", help="earliest, latest, an offset or a time.")
@click.option("--topic", "topics", multiple=True, help="Only these topics. [all the group has committed]")
@click.option("--dry-run", is_flag=True, help="Show what would change and change nothing.")
@yes_option
@broker_options
@format_option()
def reset(
    name: str, target: str, topics: tuple[str, ...], dry_run: bool, yes: bool, broker: Broker, format: str
) -> None:
    """Move a group's committed offsets. The group must have no members."""
    try:
        where = starts.parse_start(target, time.time_ns() // 1_000_000)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    admin = broker.admin()
    moves = _plan(broker, admin, name, where, topics)
    _require_empty(broker, admin, name)
    if not dry_run:
        if not yes and format == "text":
            _show_moves(name, moves, "would change", format)
        confirm(f"Move group {name}?", yes)
        _carry_out(broker, admin, name, moves)
    if dry_run or yes or format == "json":
        _show_moves(name, moves, "would change" if dry_run else "changed", format)
    else:
        click.echo(f"Moved group {name}.")


def _plan(
    broker: Broker, admin: "AdminClient", name: str, where: starts.Start, topics: tuple[str, ...]
) -> list[Move]:
    committed = _committed(broker, admin, name)
    wanted = topics or tuple(dict.fromkeys(topic for topic, _ in committed))
    if not wanted:
        raise Failure(f"Group {name} has committed nothing: name a topic with --topic.")
    pairs = broker.partitions_of(admin, *wanted)
    targets = _targets(broker, admin, pairs, where)
    return [Move(*pair, committed.get(pair), targets[pair]) for pair in pairs]


def _targets(
    broker: Broker, admin: "AdminClient", pairs: list[tuple[str, int]], where: starts.Start
) -> "Offsets":
    """Where each partition goes, kept within what is there. After the last record of a time: the end."""
    firsts = _ask(broker, admin, pairs, starts.Start(starts.Kind.BEGINNING))
    ends = _ask(broker, admin, pairs, starts.Start(starts.Kind.END))
    match where.kind:
        case starts.Kind.BEGINNING:
            return firsts
        case starts.Kind.END:
            return ends
        case starts.Kind.TIME:
            found = _ask(broker, admin, pairs, where)
            return {pair: ends[pair] if found[pair] < 0 else found[pair] for pair in pairs}
        case starts.Kind.LAST:
            lines = lines_of(broker, ends)
            last = {pair: offset_before(lines.get(pair), ends[pair], where.number) for pair in pairs}
            return {pair: max(firsts[pair], last[pair]) for pair in pairs}
        case _:
            return {pair: min(max(firsts[pair], where.number), ends[pair]) for pair in pairs}


def _require_empty(broker: Broker, admin: "AdminClient", name: str) -> None:
    members = _describe(broker, admin, name).members
    if members:
        raise Failure(
            f"Group {name} has {len(members)} members, who would commit over it: stop its consumers first."
        )


def _carry_out(broker: Broker, admin: "AdminClient", name: str, moves: list[Move]) -> None:
    from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

    places = [TopicPartition(move.topic, move.partition, move.after) for move in moves]
    request = [ConsumerGroupTopicPartitions(name, places)]
    futures = admin.alter_consumer_group_offsets(request, request_timeout=broker.seconds_max)
    answer = settle(futures, lambda _, error: _explain(broker, name, error))[name]
    refused = [tp for tp in answer.topic_partitions if tp.error is not None]
    if refused:
        raise Failure(
            f"{refused[0].topic}-{refused[0].partition} was not moved. {broker.explain(refused[0].error)}"
        )


def _show_moves(name: str, moves: list[Move], word: str, format: str) -> None:
    if format == "json":
        show_json(
            {"group": name, "dry_run": word == "would change", "moves": [move._asdict() for move in moves]}
        )
        return
    click.echo(f"Group {name} {word}:")
    show_table(["topic", "#partition", "#from", "#to"], moves)


@command.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@yes_option
@broker_options
@format_option()
def delete(names: tuple[str, ...], yes: bool, broker: Broker, format: str) -> None:
    """Delete groups and their offsets."""
    admin = broker.admin()
    confirm(f"Delete {', '.join(names)} with all committed offsets?", yes)
    futures = admin.delete_consumer_groups(list(names), request_timeout=broker.seconds_max)
    settle(futures, lambda name, error: _explain(broker, name, error))
    if format == "json":
        show_json({"deleted": list(names)})
    else:
        click.echo(f"Deleted {', '.join(names)}.")
