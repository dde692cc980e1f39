"""`anabranch branch diff`: the records that are in the line of one branch and not in that of another.

What was written again when branches were joined is the same record, so the count of a branch that was joined is 0. The
rows say which offsets differ; the records themselves are read as any client would, from `topic@branch`.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from anabranch.cli.branch.facts import PartitionFacts
from anabranch.cli.client import Broker
from anabranch.cli.common import Failure, show_json
from anabranch.cli.records.lines import bytes_to_json, to_text
from anabranch.modes.branch.history import difference, records_between
from anabranch.modes.branch.lines import Line, Span
from anabranch.modes.branch.rows import Lane

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message

EVERYTHING = 2**63
SILENT_POLLS_MAX = 50
POLL_SECONDS = 0.1


class Compared(NamedTuple):
    """One partition: what only the one branch has, and what only the other."""

    facts: PartitionFacts
    only: tuple[tuple[Span, ...], tuple[Span, ...]]

    def counts(self) -> tuple[int, int]:
        one, other = self.only
        return records_between(one, 0, EVERYTHING), records_between(other, 0, EVERYTHING)


def compare(facts: PartitionFacts, one: Lane, other: Lane | None) -> Compared | None:
    """`other`: None is the line that is served. None: this partition has neither."""
    known = facts.branches.opened
    if one not in known or (other is not None and other not in known):
        return None
    line = facts.line if other is None else facts.line_of(other)
    found = difference(facts.branches, facts.line_of(one), line)
    return Compared(facts, (found.only_one, found.only_other))


def print_diff(
    broker: Broker, found: list[Compared], names: tuple[str, str], limit: int, format: str
) -> None:
    """`names`: the virtual topics that the records are read from."""
    listed = [(each, list(_records(broker, each, names, limit))) for each in found]
    if format == "json":
        show_json([_json(each, names, records) for each, records in listed])
        return
    for compared, records in listed:
        one, other = compared.counts()
        click.echo(f"{compared.facts.name}: {one} only in {names[0]}, {other} only in {names[1]}")
        for sign, message in records:
            text = to_text(message.key(), message.value())
            click.echo(f"{sign} {message.offset()}\t{text}")
        left = one + other - len(records)
        if left and len(records) < limit:
            click.echo(f"... {left} more not read: who holds them is away, or they were left out as repeats.")
        elif left:
            click.echo(f"... {left} more: --limit {one + other} lists all.")


def _json(compared: Compared, names: tuple[str, str], records: "list[tuple[str, Message]]") -> dict[str, Any]:
    one, other = compared.counts()
    return {
        "topic": compared.facts.topic,
        "partition": compared.facts.partition,
        "only": {names[0]: one, names[1]: other},
        "records": [
            {
                "in": names[0] if sign == "-" else names[1],
                "offset": str(message.offset()),
                "timestamp": message.timestamp()[1],
                "key": bytes_to_json(message.key()),
                "value": bytes_to_json(message.value()),
            }
            for sign, message in records
        ],
    }


def _records(
    broker: Broker, compared: Compared, names: tuple[str, str], limit: int
) -> "Iterator[tuple[str, Message]]":
    """Those of the one first, with a minus, then those of the other, with a plus: as diff has it."""
    for sign, name, spans in zip("-+", names, compared.only, strict=True):
        if limit <= 0 or not spans:
            continue
        consumer = broker.consumer(
            {
                "group.id": "anabranch-cli",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 100,
            }
        )
        try:
            for message in _read(broker, consumer, name, compared.facts.partition, spans):
                yield sign, message
                limit -= 1
                if limit <= 0:
                    break
        finally:
            consumer.close()


def _read(
    broker: Broker, consumer: "Consumer", topic: str, partition: int, spans: Line
) -> "Iterator[Message]":
    from confluent_kafka import KafkaError, TopicPartition

    for span in spans:
        consumer.assign([TopicPartition(topic, partition, span.start)])
        silent = 0
        while True:
            message = consumer.poll(POLL_SECONDS)
            if message is None:
                silent += 1
                if silent > SILENT_POLLS_MAX:
                    return  # Nobody who answers holds them.
                continue
            error = message.error()
            if error is not None and error.code() != KafkaError._PARTITION_EOF:
                raise Failure(broker.explain(error))
            if error is not None or message.offset() >= span.end:
                break
            yield message
            if message.offset() == span.end - 1:
                break
