"""What `consume --group` has printed, and commits: at least once, in the order print, flush, commit.

A record's offset is committed only after its bytes have left this process: every second while records come, before
partitions go to another member, and at the end, however that comes. So a consumer that follows and is killed prints
again what it printed in its last second, and nothing is passed over.
"""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from anabranch.cli.client import Broker
from anabranch.cli.common import Failure
from anabranch.cli.records.consume_output import Writer

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Message

COMMIT_SECONDS = 1.0
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Commits:
    """Without a group (`in_group`) it only flushes."""

    def __init__(
        self,
        broker: Broker,
        consumer: "Consumer",
        writer: Writer,
        *,
        in_group: bool,
        now_seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self._broker = broker
        self._consumer = consumer
        self._writer = writer
        self.in_group = in_group
        self._now_seconds = now_seconds
        self._next_seconds = now_seconds() + COMMIT_SECONDS
        self._is_cut_off = False
        self._written: dict[tuple[str, int], int] = {}
        """The offset after the last record handed to the writer, by partition, since the last flush."""
        self._flushed: dict[tuple[str, int], int] = {}
        """The same of records whose bytes are out, and that are not committed yet."""

    def wrote(self, message: "Message") -> None:
        self._written[message.topic(), message.partition()] = message.offset() + 1

    def flush(self) -> None:
        """Raises the writer's OSError once, if nobody reads on: nothing is written after that."""
        if self._is_cut_off:
            return
        try:
            self._writer.flush()
        except OSError:
            self._is_cut_off = True
            raise
        self._flushed.update(self._written)
        self._written.clear()

    def tick(self) -> None:
        """Commit if a second has passed. What cannot be committed just now is tried again a second later."""
        now_seconds = self._now_seconds()
        if self.in_group and now_seconds >= self._next_seconds:
            self._next_seconds = now_seconds + COMMIT_SECONDS
            self.flush()
            error = self._commit()
            if error is not None and not error.retriable() and not _is_of_a_rebalance(error):
                raise Failure(self._broker.explain(error))

    def on_revoke(self, _: "Consumer", partitions: list[Any]) -> None:
        """Partitions go to another member, which begins where we commit. Called in `poll` and `close`."""
        self.flush()
        self._commit()
        self._forget(partitions)

    def on_lost(self, _: "Consumer", partitions: list[Any]) -> None:
        """Another member has them already, and has begun where we committed last."""
        self.flush()
        self._forget(partitions)

    def _forget(self, partitions: list[Any]) -> None:
        for place in partitions:
            self._flushed.pop((place.topic, place.partition), None)

    def finish(self) -> None:
        """Everything printed is flushed and committed."""
        self.flush()
        self.commit_flushed()

    def cut_off(self) -> None:
        """Nobody takes what is written any more: nothing is flushed after this, and what was flushed is committed."""
        self._is_cut_off = True
        self.commit_flushed()

    def commit_flushed(self) -> None:
        """Raises Failure if it cannot be."""
        error = self._commit() if self.in_group else None
        if error is not None:
            raise Failure(f"What was printed is not committed. {self._broker.explain(error)}")

    def _commit(self) -> "KafkaError | None":
        from confluent_kafka import KafkaException, TopicPartition

        if not self._flushed:
            return None
        places = [TopicPartition(topic, number, offset) for (topic, number), offset in self._flushed.items()]
        try:
            answered = self._consumer.commit(offsets=places, asynchronous=False)
        except KafkaException as problem:
            error: KafkaError = problem.args[0]
            return error
        for place in answered or ():
            if place.error is None:
                self._flushed.pop((place.topic, place.partition), None)
        return next((place.error for place in answered or () if place.error is not None), None)


def _is_of_a_rebalance(error: "KafkaError") -> bool:
    """The group is being divided anew: `poll` takes part in it, and tells what we keep."""
    from confluent_kafka import KafkaError

    return error.code() in (
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError._TIMED_OUT,
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._WAIT_COORD,
    )


@contextmanager
def stopped_by_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP become a KeyboardInterrupt, as Ctrl-C does. The second signal ends the process at once.

    A signal that is ignored, as SIGHUP is under nohup, stays so.
    """

    def on_signal(number: int, _: object) -> None:
        signal.signal(number, signal.SIG_DFL)
        raise KeyboardInterrupt

    before = {
        number: signal.signal(number, on_signal)
        for number in STOPPING
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
