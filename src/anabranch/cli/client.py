"""The Kafka client behind the commands: confluent-kafka, imported on first use, quiet, with readable errors.

`Broker` holds the address and the waiting time of one command. Its port is tried with a plain connection
first, because librdkafka goes on trying a dead address until its time is up. Librdkafka's own log lines go
nowhere: whatever matters comes back as an error and is said once.
"""

import logging
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from anabranch.cli.common import DEFAULT_BOOTSTRAP, Failure, Function, WrongCommandLine
from anabranch.cli.terminal import escaped_cell
from anabranch.config import host_and_port

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
    from confluent_kafka.admin import AdminClient

    from anabranch.pipeline.writer.key_partitions import KeyPartitions

CONNECT_SECONDS_MAX = 3.0
ASK_AGAIN_SECONDS = 0.1
TELLING_SECONDS_MAX = 3.0
"""How long a partition may have nobody to ask, before it is shown without its offsets."""
BRANCH_SIGN = "@"
"""In the name of a topic that is one branch of another: `orders@5`."""
Result = TypeVar("Result")


def broker_options(function: Function) -> Function:
    """`--bootstrap` and `--timeout`, which arrive as one `broker` argument."""

    def collect(ctx: click.Context, _: click.Parameter, address: str) -> "Broker":
        return Broker(address, ctx.params.pop("timeout"))

    waiting = click.option(
        "--timeout", type=click.FloatRange(min=0.1), default=15.0, show_default=True, is_eager=True,
        help="Seconds to wait for the broker.",
    )  # fmt: skip
    address = click.option(
        "--bootstrap", "broker", metavar="HOST:PORT", envvar="ANABRANCH_BOOTSTRAP",
        default=DEFAULT_BOOTSTRAP, show_default=True, callback=collect, help="The broker to talk to.",
    )  # fmt: skip
    return waiting(address(function))


class Broker:
    """Where a command's clients connect and how long they wait."""

    def __init__(self, bootstrap: str, seconds_max: float) -> None:
        self.bootstrap = bootstrap
        self.seconds_max = seconds_max

    def admin(self) -> "AdminClient":
        self.require_answer()
        from confluent_kafka.admin import AdminClient

        return AdminClient(self._config({}), logger=_silent_logger())

    def producer(self, config: Mapping[str, Any]) -> "Producer":
        self.require_answer()
        from confluent_kafka import Producer

        return Producer(self._config(config), logger=_silent_logger())

    def key_partitions(self, producer: "Producer") -> "KeyPartitions":
        """Where the producer's keys belong, by the config of their topics."""
        from anabranch.pipeline.writer.key_partitions import KeyPartitions

        return KeyPartitions(producer, self._config({}), answer_seconds_max=self.seconds_max)

    def consumer(self, config: Mapping[str, Any]) -> "Consumer":
        self.require_answer()
        from confluent_kafka import Consumer

        return Consumer(self._config(config), logger=_silent_logger())

    def require_answer(self) -> None:
        if not any(answers(address) for address in self.bootstrap.split(",")):
            raise Failure(f"No broker answers at {self.bootstrap}: start one with `anabranch up`.")

    def partitions(self, admin: "AdminClient | Consumer") -> dict[str, list[int]]:
        """Every topic and its partitions. All are asked for: naming one could create it."""
        with self.errors():
            topics = admin.list_topics(timeout=self.seconds_max).topics
        return {name: sorted(topic.partitions) for name, topic in sorted(topics.items())}

    def partitions_of(self, admin: "AdminClient | Consumer", *topics: str) -> list[tuple[str, int]]:
        """Every partition of these topics. Raises Failure if one of them is not there."""
        there = self.partitions(admin)
        for topic in topics:
            if BRANCH_SIGN in topic:
                there[topic] = self._partitions_of_branch(admin, topic)
            if topic not in there:
                raise Failure(
                    f"There is no topic called {topic}: `anabranch topic list` shows those there are."
                )
        return [(topic, number) for topic in topics for number in there[topic]]

    def _partitions_of_branch(self, admin: "AdminClient | Consumer", topic: str) -> list[int]:
        """A branch as a topic of its own is in no list, and naming it creates nothing."""
        with self.errors():
            found = admin.list_topics(topic, timeout=self.seconds_max).topics[topic]
        if found.error is not None:
            name = topic.partition(BRANCH_SIGN)[0]
            if name not in self.partitions(admin):
                raise Failure(
                    f"There is no topic called {name}: `anabranch topic list` shows those there are."
                )
            raise Failure(
                f"There is no branch {topic}: `anabranch branch show {name}` draws those there are, if it is in mode "
                "branch."
            )
        return sorted(found.partitions)

    def offsets(
        self, admin: "AdminClient", where: "Mapping[TopicPartition, Any]"
    ) -> dict[tuple[str, int], int]:
        """What ListOffsets answers for each (topic, partition): -1 if there is no such record. Whoever is led by
        nobody for a moment, as partitions that move or change their mode, is asked again."""
        found, error = self._ask_offsets(admin, where, self.seconds_max)
        if error is not None:
            raise Failure(self.explain(error))
        return found

    def offsets_told(
        self, admin: "AdminClient", where: "Mapping[TopicPartition, Any]"
    ) -> dict[tuple[str, int], int]:
        """The same, without those that nobody tells within a few seconds."""
        return self._ask_offsets(admin, where, min(TELLING_SECONDS_MAX, self.seconds_max))[0]

    def _ask_offsets(
        self, admin: "AdminClient", where: "Mapping[TopicPartition, Any]", seconds_max: float
    ) -> "tuple[dict[tuple[str, int], int], KafkaError | None]":
        """What was told in this time, and why not everything was."""
        from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException

        end = time.monotonic() + seconds_max
        left, found = dict(where), {}
        error: KafkaError | None = None
        while left:
            with self.errors():
                futures = admin.list_offsets(left, request_timeout=seconds_max)
            for place, future in futures.items():
                try:
                    offset = future.result().offset
                except KafkaException as problem:
                    error = kafka_error(problem)
                    if not _passes(error):
                        raise Failure(self.explain(error)) from problem
                    continue
                if offset == OFFSET_INVALID:  # Not asked: librdkafka could not connect to whoever leads it.
                    error = KafkaError(KafkaError._TIMED_OUT)
                    continue
                found[place.topic, place.partition] = offset
                del left[place]
            if left and time.monotonic() >= end:
                return found, error
            if left:
                time.sleep(ASK_AGAIN_SECONDS)
        return found, None

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Turns what confluent-kafka raises into one sentence and the next step."""
        from confluent_kafka import KafkaException

        try:
            yield
        except KafkaException as error:
            raise Failure(self.explain(kafka_error(error))) from error

    def explain(self, error: "KafkaError") -> str:
        from confluent_kafka import KafkaError

        match error.code():
            case KafkaError._TRANSPORT | KafkaError._ALL_BROKERS_DOWN | KafkaError._RESOLVE:
                return f"The connection to {self.bootstrap} broke: check that the broker still runs."
            case KafkaError._TIMED_OUT | KafkaError._TIMED_OUT_QUEUE | KafkaError._MSG_TIMED_OUT:
                return (
                    f"{self.bootstrap} did not answer in time: see with `anabranch cluster status` whether it reaches "
                    "the other brokers, or wait longer with --timeout."
                )
            case KafkaError._UNKNOWN_TOPIC | KafkaError.UNKNOWN_TOPIC_OR_PART:
                return "There is no such topic: `anabranch topic list` shows those there are."
            case (
                KafkaError.LEADER_NOT_AVAILABLE
                | KafkaError.COORDINATOR_NOT_AVAILABLE
                | KafkaError.NOT_COORDINATOR
                | KafkaError._NOENT
            ):
                return (
                    f"Nobody whom {self.bootstrap} reaches leads this now ({error.name()}): see `anabranch cluster "
                    "status`, or try again."
                )
            case KafkaError._UNKNOWN_PARTITION:
                return "There is no such partition: `anabranch topic describe` shows those there are."
            case _:
                return f"{self.bootstrap} refused: {escaped_cell(error.str().strip()).rstrip('.')} ({error.name()})."

    def _config(self, more: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "bootstrap.servers": self.bootstrap,
            "client.id": "anabranch-cli",
            "log_level": 0,
            "socket.connection.setup.timeout.ms": 5000,
            "error_cb": lambda error: None,
            **more,
        }


def _silent_logger() -> logging.Logger:
    logger = logging.getLogger("anabranch.cli.librdkafka")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
    return logger


def answers(address: str) -> bool:
    """Whether something accepts connections there."""
    try:
        with socket.create_connection(host_and_port_of(address), timeout=CONNECT_SECONDS_MAX):
            return True
    except OSError:
        return False


def host_and_port_of(address: str) -> tuple[str, int]:
    """One of the addresses of --bootstrap."""
    try:
        return host_and_port(address.strip())
    except ValueError as error:
        raise click.UsageError(f"--bootstrap {address.strip()} {error}") from None


def _passes(error: "KafkaError | None") -> bool:
    """Whether nobody leads a partition just now, or somebody else does."""
    from confluent_kafka import KafkaError

    return error is not None and error.code() in (
        KafkaError._NOENT,  # librdkafka's own, if nobody leads any.
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
    )


def kafka_error(problem: "KafkaException | KafkaError") -> "KafkaError":
    """What went wrong, where confluent-kafka raises it and where it lists it."""
    from confluent_kafka import KafkaError

    if isinstance(problem, KafkaError):
        return problem
    error: KafkaError = problem.args[0]
    return error


def settle(
    futures: "Mapping[str, Future[Result]]", explain: "Callable[[str, KafkaError], str | None]"
) -> dict[str, Result]:
    """Waits for every future. `explain` may say a sentence, or None for an error that is none here."""
    from confluent_kafka import KafkaException

    results, problems = {}, []
    for name, future in futures.items():
        try:
            results[name] = future.result()
        except KafkaException as error:
            problems.append(explain(name, kafka_error(error)))
    said = [problem for problem in problems if problem]
    if said:
        raise Failure(" ".join(said))
    return results


def require_whole(*topics: str) -> None:
    """A branch is only for reading: WrongCommandLine, where librdkafka would not pass on what the broker says."""
    for topic in topics:
        name, sign, _ = topic.partition(BRANCH_SIGN)
        if sign:
            raise WrongCommandLine(f"{topic} is a branch of topic {name}, and only for reading: name {name}.")


def topic_partitions(pairs: Iterable[tuple[str, int]], spec: object) -> "dict[TopicPartition, Any]":
    from confluent_kafka import TopicPartition

    return {TopicPartition(topic, partition): spec for topic, partition in pairs}
