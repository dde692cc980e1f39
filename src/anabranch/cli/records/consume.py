"""`anabranch consume`: records of a topic as text, NDJSON, JSON or raw bytes.

Without `--group` nothing is committed and nobody is disturbed: partitions are assigned directly. It stops at
the end as it was when it began, unless told to follow. With `--group` it joins, begins where the group
stopped, and commits what it has written out as it goes (`consume_commits.py`). Ctrl-C, SIGTERM, SIGHUP and a reader of
its output that has gone away end it in order: what was printed is committed, and the group is left at once.
"""

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from anabranch.cli.branch.lines import lines_of, offset_before
from anabranch.cli.client import Broker, broker_options, topic_partitions
from anabranch.cli.common import Command, Failure, format_option
from anabranch.cli.records import starts
from anabranch.cli.records.consume_commits import Commits, stopped_by_signals
from anabranch.cli.records.consume_output import Writer, standard_output, writer_for
from anabranch.cli.terminal import drop_output

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message

    from anabranch.modes.branch.lines import Line

    Ends = dict[tuple[str, int], int]

IDLE_SECONDS = 0.2


@click.command(cls=Command)
@click.argument("topic")
@click.option(
    "--from",
    "start",
    default="beginning",
    show_default=True,
    metavar="WHERE",
    help="beginning, end, an offset (42), the last n of each partition (-10), a time, or how long ago (15m).",
)
@click.option("--max", "records_max", type=click.IntRange(min=1), metavar="N", help="Stop after N records.")
@click.option("--follow", "-f", is_flag=True, help="Go on when the end is reached.")
@click.option(
    "--group",
    metavar="NAME",
    help="Consume as a member of this group, and commit what is printed, each second and at the end.",
)
@click.option(
    "--partition", "wanted", type=click.IntRange(min=0), multiple=True, help="Only these partitions."
)
@click.option("--meta", is_flag=True, help="In text: partition, offset and time before each record.")
@broker_options
@format_option("text", "json", "ndjson", "raw", help_text="raw: the bytes of each value and a newline.")
def command(
    topic: str,
    start: str,
    records_max: int | None,
    follow: bool,
    group: str | None,
    wanted: tuple[int, ...],
    meta: bool,
    broker: Broker,
    format: str,
) -> None:
    """Print the records of TOPIC."""
    try:
        begin = starts.parse_start(start, time.time_ns() // 1_000_000)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    consumer = broker.consumer(_consumer_config(group, begin))
    with stopped_by_signals():
        try:
            ends = _point(broker, consumer, topic, wanted, begin, group)
            with writer_for(format, standard_output(), meta) as writer:
                commits = Commits(broker, consumer, writer, in_group=group is not None)
                if group is not None:
                    consumer.subscribe([topic], on_revoke=commits.on_revoke, on_lost=commits.on_lost)
                _pump(broker, consumer, writer, commits, None if follow else ends, records_max)
        except BrokenPipeError:
            raise  # Whoever read has gone away: click ends without a word.
        except OSError as error:
            drop_output()
            raise Failure(
                f"The records cannot be written ({error.strerror}): make room, or write them elsewhere."
            ) from error
        finally:
            consumer.close()


def _consumer_config(group: str | None, begin: starts.Start) -> dict[str, Any]:
    return {
        "group.id": group or "anabranch-cli",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "latest" if begin.kind is starts.Kind.END else "earliest",
        "check.crcs": True,
        "fetch.wait.max.ms": 100,
        "message.max.bytes": 100_000_000,
        "fetch.message.max.bytes": 4_194_304,
    }


def _point(
    broker: Broker,
    consumer: "Consumer",
    topic: str,
    wanted: tuple[int, ...],
    begin: starts.Start,
    group: str | None,
) -> "Ends":
    """Points a consumer without a group at its records; answers where each partition ends now."""
    there = [number for _, number in broker.partitions_of(consumer, topic)]
    if group is not None:
        if wanted or begin.kind not in (starts.Kind.BEGINNING, starts.Kind.END):
            raise click.UsageError(
                "A group decides partitions and offsets: move it with `anabranch group reset`."
            )
        return _offsets(broker, topic, there, "latest")
    missing = [number for number in wanted if number not in there]
    if missing:
        raise Failure(f"{topic} has no partition {missing[0]}: it has 0 to {len(there) - 1}.")
    chosen = list(dict.fromkeys(wanted)) or there
    ends = _offsets(broker, topic, chosen, "latest")
    _assign(broker, consumer, begin, topic, chosen, ends)
    return ends


def _assign(
    broker: Broker, consumer: "Consumer", begin: starts.Start, topic: str, chosen: list[int], ends: "Ends"
) -> None:
    from confluent_kafka import TopicPartition

    firsts = _offsets(broker, topic, chosen, "earliest")
    lines = lines_of(broker, ends) if begin.kind is starts.Kind.LAST else {}
    found = {pair: begin_offset(begin, firsts[pair], ends[pair], lines.get(pair)) for pair in ends}
    if begin.kind is starts.Kind.TIME:
        at_time = _offsets(broker, topic, chosen, begin.number)
        found = {pair: ends[pair] if offset < 0 else offset for pair, offset in at_time.items()}
    consumer.assign([TopicPartition(name, number, offset) for (name, number), offset in found.items()])


def begin_offset(begin: starts.Start, first: int, end: int, line: "Line | None" = None) -> int:
    """The offset where one partition begins, kept within what is there.

    Beyond the end librdkafka would reset to the first record and print everything.
    """
    match begin.kind:
        case starts.Kind.END:
            return end
        case starts.Kind.OFFSET:
            return min(max(first, begin.number), end)
        case starts.Kind.LAST:
            return max(first, offset_before(line, end, begin.number))
        case _:
            return first


def _offsets(broker: Broker, topic: str, numbers: list[int], where: str | int) -> "Ends":
    from confluent_kafka.admin import OffsetSpec

    specs = {"latest": OffsetSpec.latest, "earliest": OffsetSpec.earliest}
    spec = OffsetSpec.for_timestamp(where) if isinstance(where, int) else specs[where]()
    return broker.offsets(broker.admin(), topic_partitions([(topic, number) for number in numbers], spec))


def _pump(
    broker: Broker,
    consumer: "Consumer",
    writer: Writer,
    commits: Commits,
    ends: "Ends | None",
    records_max: int | None,
) -> None:
    """Writes records until the end, the limit, or a signal. `ends` is None when following."""
    open_ends = OpenEnds(ends)
    try:
        _write_records(broker, consumer, writer, commits, open_ends, records_max)
    except KeyboardInterrupt:
        pass  # The ordinary way to stop following; what was written is committed below.
    except OSError:
        commits.cut_off()  # What could not be written is not committed.
        raise
    except Failure:
        with suppress(Failure):  # The first one is told.
            commits.finish()
        raise
    commits.finish()


def _write_records(
    broker: Broker,
    consumer: "Consumer",
    writer: Writer,
    commits: Commits,
    open_ends: "OpenEnds",
    records_max: int | None,
) -> None:
    written = 0
    while written != records_max and not open_ends.all_reached(consumer if commits.in_group else None):
        message = consumer.poll(IDLE_SECONDS)
        if message is None:
            commits.flush()
        elif message.error() is not None:
            open_ends.on_error(broker, message)
        elif open_ends.admits(message):
            writer.write(message)
            commits.wrote(message)
            written += 1
        commits.tick()


class OpenEnds:
    """Which partitions still have records below the end they had at the start."""

    def __init__(self, ends: "Ends | None") -> None:
        self.ends = ends
        self.reached: set[tuple[str, int]] = {pair for pair, end in (ends or {}).items() if end == 0}

    def admits(self, message: "Message") -> bool:
        """Whether the record lies below the end; also notes when it is the last one."""
        pair = (message.topic(), message.partition())
        if self.ends is None:
            return True
        if message.offset() >= self.ends.get(pair, 0) - 1:
            self.reached.add(pair)
        return bool(message.offset() < self.ends.get(pair, 0))

    def on_error(self, broker: Broker, message: "Message") -> None:
        from confluent_kafka import KafkaError

        if message.error().code() != KafkaError._PARTITION_EOF:
            raise Failure(broker.explain(message.error()))
        self.reached.add((message.topic(), message.partition()))

    def all_reached(self, group_member: "Consumer | None") -> bool:
        """A member of a group waits for the partitions it was given, and first of all to be given some."""
        if self.ends is None:
            return False
        if group_member is None:
            return self.reached >= self.ends.keys()
        mine = {(tp.topic, tp.partition) for tp in group_member.assignment()}
        return bool(mine) and self.reached >= mine
