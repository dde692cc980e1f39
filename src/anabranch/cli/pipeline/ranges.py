"""A stretch of a topic as jobs take it: `--from` and `--until`, made into offsets by asking the broker.

Asked once, before Spark starts: a topic that is not there, or a time that nobody can read, costs no JVM, and a job
knows from the beginning what it will read.
"""

import json
import time

import click

from anabranch.cli.branch.lines import lines_of
from anabranch.cli.client import Broker, topic_partitions
from anabranch.cli.common import Function, WrongCommandLine
from anabranch.cli.records.consume import begin_offset
from anabranch.cli.records.starts import Kind, Start, parse_start

Offsets = dict[int, int]
"""Partition to offset."""

WHERE = "beginning, end, an offset (42), the last n of each partition (-10), a time, or how long ago (15m)."


def from_option(function: Function) -> Function:
    return click.option(
        "--from", "start", default="beginning", show_default=True, metavar="WHERE", callback=_parsed,
        help=f"Where to begin: {WHERE}",
    )(function)  # fmt: skip


def range_options(function: Function) -> Function:
    until = click.option(
        "--until", "until", default="end", show_default=True, metavar="WHERE", callback=_parsed,
        help="Where to stop, in the same words; records from there on are left out.",
    )  # fmt: skip
    return from_option(until(function))


def _parsed(_: click.Context, parameter: click.Parameter, text: str) -> Start:
    try:
        return parse_start(text, time.time_ns() // 1_000_000)
    except ValueError as error:
        raise click.BadParameter(str(error), param=parameter) from None


def offsets_at(broker: Broker, topic: str, where: Start) -> Offsets:
    """The offset this place means in each partition. Failure if there is no such topic."""
    from confluent_kafka.admin import OffsetSpec

    admin = broker.admin()
    pairs = broker.partitions_of(admin, topic)
    ends = broker.offsets(admin, topic_partitions(pairs, OffsetSpec.latest()))
    if where.kind is Kind.TIME:
        at_time = broker.offsets(admin, topic_partitions(pairs, OffsetSpec.for_timestamp(where.number)))
        return {pair[1]: ends[pair] if offset < 0 else offset for pair, offset in at_time.items()}
    firsts = broker.offsets(admin, topic_partitions(pairs, OffsetSpec.earliest()))
    lines = lines_of(broker, ends) if where.kind is Kind.LAST else {}
    return {pair[1]: begin_offset(where, firsts[pair], ends[pair], lines.get(pair)) for pair in pairs}


def range_of(broker: Broker, topic: str, start: Start, until: Start) -> tuple[Offsets, Offsets]:
    """First offsets and ends; WrongCommandLine if the range runs backwards."""
    begins, ends = offsets_at(broker, topic, start), offsets_at(broker, topic, until)
    for partition, begin in begins.items():
        if begin > ends[partition]:
            raise WrongCommandLine(
                f"--until lies before --from: {topic}-{partition} would be read from {begin} to {ends[partition]}."
            )
    return begins, ends


def as_json(topic: str, offsets: Offsets) -> str:
    """As the data source takes them."""
    return json.dumps({topic: {str(partition): offset for partition, offset in sorted(offsets.items())}})
