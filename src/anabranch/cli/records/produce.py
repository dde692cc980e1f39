"""`anabranch produce`: lines of text or NDJSON, from files or stdin, into a topic.

Every record's delivery is awaited; the command succeeds only if all were acknowledged. A bad line stops the
reading, but what was read before it is still delivered. Memory is bounded by librdkafka's queue: a full one
makes the reading wait. A key goes to the partition that the topic's config `anabranch.partitioner` gives it; records
without key are spread. A record stamped 0 ms gets the present time, because librdkafka takes 0 for unset.
"""

import sys
from collections.abc import Callable, Iterable, Iterator
from typing import IO, TYPE_CHECKING

import click

from anabranch.cli.client import Broker, broker_options, require_whole
from anabranch.cli.common import Command, Failure, format_option, show_json
from anabranch.cli.records.lines import BadLineError, LineRecord, decode, from_text
from anabranch.cli.terminal import console
from anabranch.record.partitioner import LIBRDKAFKA_PARTITIONER

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Producer

    from anabranch.pipeline.writer.key_partitions import KeyPartitions

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@click.command(cls=Command)
@click.argument("topic")
@click.argument("files", nargs=-1, type=click.File("rb"), metavar="[FILE]...")
@click.option("--input", "input_format", type=click.Choice(["text", "ndjson"]), help="What the lines are.")
@click.option("--key-separator", metavar="SIGN", help="Split each line of text into key and value there.")
@click.option("--partition", type=click.IntRange(min=0), help="Send everything to this partition.")
@click.option(
    "--repartition", is_flag=True, help="Pass over the partition of NDJSON records: the key decides."
)
@click.option("--acks", type=click.Choice(["0", "1", "all"]), default="all", show_default=True)
@click.option("--codec", type=click.Choice(CODECS), default="none", show_default=True, help="Compression.")
@broker_options
@format_option("text", "ndjson", "json", help_text="ndjson: read NDJSON. json, ndjson: report in JSON.")
def command(
    topic: str,
    files: tuple[IO[bytes], ...],
    input_format: str | None,
    key_separator: str | None,
    partition: int | None,
    repartition: bool,
    acks: str,
    codec: str,
    broker: Broker,
    format: str,
) -> None:
    """Send records to TOPIC, one per line of the files or of stdin.

    NDJSON is what `consume --format ndjson` writes: key, value, headers, partition and timestamp come back
    byte for byte.
    """
    is_ndjson = (input_format or format) == "ndjson"
    if is_ndjson and key_separator is not None:
        raise click.UsageError("--key-separator is for text: NDJSON has a field for the key.")
    require_whole(topic)
    separator = key_separator.encode() if key_separator else None
    parse = decode if is_ndjson else lambda line: from_text(line, separator)
    producer = broker.producer(_producer_config(acks, codec, broker))
    delivery = Delivery(producer, topic, partition, repartition, broker.key_partitions(producer))
    problem = _send_all(delivery, _with_progress(_numbered_lines(files or (sys.stdin.buffer,)), files), parse)
    delivery.finish(broker)
    _report(delivery, broker, topic, format, problem)


def _producer_config(acks: str, codec: str, broker: Broker) -> dict[str, object]:
    return {
        "acks": acks,
        "enable.idempotence": acks == "all",
        "partitioner": LIBRDKAFKA_PARTITIONER,
        "compression.type": codec,
        "linger.ms": 5,
        "message.timeout.ms": int(broker.seconds_max * 1000),
        "message.max.bytes": 100_000_000,
        "topic.metadata.propagation.max.ms": 5000,
    }


class Delivery:
    """Hands records to the producer and counts what became of them."""

    def __init__(
        self,
        producer: "Producer",
        topic: str,
        partition: int | None,
        repartition: bool,
        key_partitions: "KeyPartitions",
    ) -> None:
        self.producer = producer
        self.topic = topic
        self.partition = partition
        self.repartition = repartition
        self.key_partitions = key_partitions
        self.delivered = 0
        self.failed = 0
        self.first_error: KafkaError | None = None

    def send(self, record: LineRecord) -> None:
        options: dict[str, object] = {"on_delivery": self._on_delivery}
        number = self.partition if self.repartition or self.partition is not None else record.partition
        if number is None:
            number = self.key_partitions.partition_for(self.topic, record.key)
        if number is not None:
            options["partition"] = number
        if record.timestamp_ms is not None:
            options["timestamp"] = record.timestamp_ms
        if record.headers:
            options["headers"] = list(record.headers)
        while True:
            try:
                self.producer.produce(self.topic, record.value, record.key, **options)
            except BufferError:
                self.producer.poll(0.1)
            else:
                self.producer.poll(0)
                return

    def _on_delivery(self, error: "KafkaError | None", _message: object) -> None:
        if error is None:
            self.delivered += 1
        else:
            self.failed += 1
            self.first_error = self.first_error or error

    def finish(self, broker: Broker) -> None:
        """Waits for every answer; librdkafka itself gives up on a record after message.timeout.ms."""
        self.producer.flush(broker.seconds_max + 5)


def _numbered_lines(files: Iterable[IO[bytes]]) -> Iterator[tuple[str, bytes]]:
    for file in files:
        name = getattr(file, "name", "stdin")
        for number, line in enumerate(file, start=1):
            yield f"{name}:{number}", line.removesuffix(b"\n")


def _with_progress(
    lines: Iterator[tuple[str, bytes]], files: tuple[IO[bytes], ...]
) -> Iterator[tuple[str, bytes]]:
    """A bar over the bytes of the files, if somebody is looking."""
    sizes = [_size_of(file) for file in files]
    if not files or not sys.stderr.isatty() or None in sizes:
        yield from lines
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console(stderr=True)) as progress:
        task = progress.add_task("", total=sum(size or 0 for size in sizes))
        for name, line in lines:
            yield name, line
            progress.advance(task, len(line) + 1)


def _size_of(file: IO[bytes]) -> int | None:
    """None for what has no size, such as a pipe."""
    import os
    import stat

    status = os.fstat(file.fileno())
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def _send_all(
    delivery: Delivery, lines: Iterable[tuple[str, bytes]], parse: Callable[[bytes], LineRecord]
) -> str | None:
    """Sends until the lines end, one is bad, or the broker refused a record. Says what stopped it."""
    from confluent_kafka import KafkaException

    for where, line in lines:
        try:
            delivery.send(parse(line))
        except BadLineError as error:
            return f"{where} {error}: correct that line and send the rest again."
        except KafkaException as error:
            return (
                f"{where} cannot be sent ({error.args[0].str()}): correct that line and send the rest again."
            )
        if delivery.failed:
            break
    return None


def _report(delivery: Delivery, broker: Broker, topic: str, format: str, problem: str | None) -> None:
    unanswered = len(delivery.producer)
    if delivery.first_error is not None:
        problem = broker.explain(delivery.first_error)
    elif unanswered:
        were = "1 record was" if unanswered == 1 else f"{unanswered} records were"
        problem = (
            f"{were} never answered: see with `anabranch cluster status` whether the broker reaches the others, and "
            "look whether they arrived."
        )
    if format == "text":
        records = "record" if delivery.delivered == 1 else "records"
        click.echo(f"Produced {delivery.delivered} {records} to {topic}.", err=True)
    else:
        show_json({"topic": topic, "produced": delivery.delivered, "failed": delivery.failed + unanswered})
    if problem:
        raise Failure(problem)
