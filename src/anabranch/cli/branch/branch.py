"""`anabranch branch`: the branches of topics in mode branch: which there are, how they came to be, what they differ in.

Every broker that can be reached is asked, since the sides of a split know different things. In JSON offsets are
strings: they are larger than what many readers of JSON take for a number.
"""

from typing import TYPE_CHECKING, Any

import click

from anabranch.cli.client import Broker, broker_options
from anabranch.cli.common import Failure, Group, format_option, show_json, show_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from anabranch.cli.branch.facts import BranchFacts, PartitionFacts

TREE_ROWS_MAX = 60


@click.group(cls=Group)
def command() -> None:
    """Look at the branches of topics in mode branch."""


# --- list -----------------------------------------------------------------------------------------------------------


@command.command(name="list")
@click.argument("topic", required=False)
@broker_options
@format_option()
def list_(topic: str | None, broker: Broker, format: str) -> None:
    """List the branches that nothing has joined yet: one for each partition, unless there is a split, or was one."""
    from anabranch.cli.branch.facts import read_facts

    facts = read_facts(broker, topic)
    rows = [row for each in facts.partitions for row in _open_branches(each)]
    if format == "json":
        show_json(
            {
                "branches": rows,
                "without_answer": facts.silent,
                "silent": [each._asdict() for each in facts.silences],
            }
        )
        return
    if not rows:
        click.echo("No topic is in mode branch: make one with `anabranch topic create demo --mode branch`.")
    else:
        show_table(
            [
                "topic",
                "#partition",
                "#branch",
                "state",
                "#broker",
                "since",
                "#own",
                "#records",
                "#end",
                "copies",
            ],
            [_list_row(row) for row in rows],
        )
    _say_missing(facts)


def _open_branches(facts: "PartitionFacts") -> list[dict[str, Any]]:
    from anabranch.cli.branch.tree import moment
    from anabranch.modes.branch.history import records_between

    found = []
    for lane, end in facts.open_tips():
        line, writer = facts.line_of(lane), facts.writer_of(lane)
        own = [span for span in line if span.lane == lane]
        found.append(
            {
                "topic": facts.topic,
                "partition": facts.partition,
                "branch": lane,
                "state": "written" if writer is not None else _word(facts, lane),
                "broker": facts.broker_of(lane) if writer is None else writer,
                "since": moment(facts.branches.opened[lane].time_ms),
                "records_own": records_between(tuple(own), 0, end),
                "records": records_between(line, 0, end),
                "end": str(end),
                "copies": sorted(facts.holders.get(lane, ())),
            }
        )
    return found


def _word(facts: "PartitionFacts", lane: int) -> str:
    return "sealed" if lane in facts.branches.sealed else "open"


def _list_row(row: dict[str, Any]) -> tuple[object, ...]:
    copies = ", ".join(map(str, row["copies"])) or None
    return (*list(row.values())[:-1], copies)


def _say_missing(facts: "BranchFacts") -> None:
    for text in facts.silent.values():
        click.echo(f"Not everybody was asked: {text}", err=True)
    for broker_id, by, silent_ms in facts.silences:
        long = "" if silent_ms < 0 else f" for {silent_ms / 1000:.1f} s"
        names = "broker " if len(by) == 1 else "brokers "
        click.echo(
            f"Split: broker {broker_id} is not heard by {names}{', '.join(map(str, by))}{long}; each side may write "
            "branches of its own until it is.",
            err=True,
        )


# --- show -----------------------------------------------------------------------------------------------------------


@command.command()
@click.argument("topic", metavar="TOPIC[-PARTITION]")
@click.option("--all", "whole", is_flag=True, help=f"All branches, not only the {TREE_ROWS_MAX} newest rows.")
@broker_options
@format_option()
def show(topic: str, whole: bool, broker: Broker, format: str) -> None:
    """Draw the tree of a topic's branches, the newest first.

    \b
    *  is in the line that is served now
    o  lies beside it: records that were written again, or wait to be; `anabranch consume TOPIC@BRANCH` reads them
    """
    from anabranch.cli.branch.show import facts_as_json, print_tree

    facts = _read(broker, topic)
    if format == "json":
        show_json([facts_as_json(each) for each in facts.partitions])
        return
    for number, each in enumerate(facts.partitions):
        if number:
            click.echo()
        print_tree(each, None if whole else TREE_ROWS_MAX)
    _say_missing(facts)


def _read(broker: Broker, wanted: str) -> "BranchFacts":
    """Of a topic, or of one partition of it: a name may end like `-0` itself."""
    from anabranch.cli.branch.facts import read_facts

    name, _, number = wanted.rpartition("-")
    there = broker.partitions(broker.admin())
    if wanted in there:
        return read_facts(broker, wanted)
    if name in there and number.isdecimal():
        if int(number) not in there[name]:
            raise Failure(f"{name} has no partition {number}: it has 0 to {len(there[name]) - 1}.")
        return read_facts(broker, name, int(number))
    raise Failure(f"There is no topic called {wanted}: `anabranch topic list` shows those there are.")


# --- diff -----------------------------------------------------------------------------------------------------------


@command.command()
@click.argument("topic", metavar="TOPIC[-PARTITION]")
@click.argument("one", type=click.IntRange(min=0), metavar="BRANCH")
@click.argument("other", type=click.IntRange(min=0), metavar="[BRANCH]", required=False)
@click.option(
    "--limit", type=click.IntRange(min=0), default=20, show_default=True, help="List so many records."
)
@broker_options
@format_option()
def diff(topic: str, one: int, other: int | None, limit: int, broker: Broker, format: str) -> None:
    """Count and list the records that are in one branch and not in the other.

    Without a second branch: not in the line that is served now. A record that was written again when branches were
    joined counts as the same.
    """
    from anabranch.cli.branch.diff import compare, print_diff
    from anabranch.modes.branch.rows import Lane

    facts = _read(broker, topic)
    second = None if other is None else Lane(other)
    found = [compare(each, Lane(one), second) for each in facts.partitions]
    there = [each for each in found if each is not None]
    if not there:
        raise Failure(_no_branches(facts.partitions, topic, one, other))
    name = there[0].facts.topic
    print_diff(broker, there, (f"{name}@{one}", name if other is None else f"{name}@{other}"), limit, format)
    _say_missing(facts)


def _no_branches(partitions: "Sequence[PartitionFacts]", topic: str, one: int, other: int | None) -> str:
    wanted = [lane for lane in (one, other) if lane is not None]
    missing = [lane for lane in wanted if not any(lane in each.branches.opened for each in partitions)]
    if missing:
        return f"{topic} has no branch {missing[0]}: `anabranch branch show {topic}` draws those there are."
    return f"No partition of {topic} has both {one} and {other}: each partition has branches of its own."
