"""Print, flush, commit: nothing is committed that may not have been printed."""

import os
import signal
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from anabranch.cli.client import Broker
from anabranch.cli.common import Failure
from anabranch.cli.records.consume_commits import COMMIT_SECONDS, Commits, stopped_by_signals

T = "orders"


class World:
    """A writer and a consumer that write down what they are asked, and a clock."""

    def __init__(self, *, in_group: bool = True) -> None:
        self.said: list[Any] = []
        self.now_seconds = 0.0
        self.flush_error: OSError | None = None
        self.commit_error: KafkaError | None = None
        writer: Any = SimpleNamespace(flush=self._flush)
        consumer: Any = SimpleNamespace(commit=self._commit)
        self.commits = Commits(
            Broker("b:1", 1), consumer, writer, in_group=in_group, now_seconds=lambda: self.now_seconds
        )

    def _flush(self) -> None:
        if self.flush_error is not None:
            raise self.flush_error
        self.said.append("flush")

    def _commit(self, offsets: list[Any], asynchronous: bool) -> list[Any]:
        assert not asynchronous
        if self.commit_error is not None:
            raise KafkaException(self.commit_error)
        self.said.append({place.partition: place.offset for place in offsets})
        return offsets

    def write(self, partition: int, offset: int) -> None:
        message: Any = SimpleNamespace(topic=lambda: T, partition=lambda: partition, offset=lambda: offset)
        self.commits.wrote(message)


def test_commit_follows_the_flush_each_second() -> None:
    world = World()
    world.write(0, 7)
    world.write(1, 2)
    world.commits.tick()
    assert world.said == []
    world.now_seconds = COMMIT_SECONDS
    world.commits.tick()
    world.commits.tick()
    assert world.said == ["flush", {0: 8, 1: 3}]


def test_nothing_is_committed_twice_and_the_rest_at_the_end() -> None:
    world = World()
    world.write(0, 7)
    world.commits.finish()
    world.write(1, 0)
    world.commits.finish()
    world.commits.finish()
    assert world.said == ["flush", {0: 8}, "flush", {1: 1}, "flush"]


def test_what_nobody_read_is_not_committed() -> None:
    world = World()
    world.write(0, 7)
    world.commits.flush()
    world.write(0, 8)
    world.flush_error = BrokenPipeError()
    with pytest.raises(BrokenPipeError):
        world.commits.flush()
    world.commits.commit_flushed()
    world.commits.on_revoke(None, [])  # type: ignore[arg-type] # as `close` calls it
    assert world.said == ["flush", {0: 8}]


def test_partitions_that_go_to_another_member_are_committed_first() -> None:
    world = World()
    world.write(0, 7)
    world.commits.on_revoke(None, [SimpleNamespace(topic=T, partition=0)])  # type: ignore[arg-type]
    assert world.said == ["flush", {0: 8}]


def test_partitions_that_are_lost_are_not_committed_any_more() -> None:
    world = World()
    world.write(0, 7)
    world.commits.on_lost(None, [SimpleNamespace(topic=T, partition=0)])  # type: ignore[arg-type]
    world.commits.finish()
    assert world.said == ["flush", "flush"]


def test_commit_that_fails_for_a_moment_is_repeated() -> None:
    world = World()
    world.write(0, 7)
    world.commit_error = KafkaError(KafkaError.REBALANCE_IN_PROGRESS)
    world.now_seconds = COMMIT_SECONDS
    world.commits.tick()
    world.commit_error = None
    world.now_seconds *= 2
    world.commits.tick()
    assert world.said == ["flush", "flush", {0: 8}]


def test_commit_that_fails_at_the_end_is_said() -> None:
    world = World()
    world.write(0, 7)
    world.commit_error = KafkaError(KafkaError._TRANSPORT)
    with pytest.raises(Failure, match=r"What was printed is not committed\. The connection to b:1 broke"):
        world.commits.finish()


def test_without_a_group_nothing_is_committed() -> None:
    world = World(in_group=False)
    world.write(0, 7)
    world.now_seconds = COMMIT_SECONDS
    world.commits.tick()
    world.commits.finish()
    assert world.said == ["flush"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_stop_as_ctrl_c_does(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt), stopped_by_signals():
        os.kill(os.getpid(), number)
    assert signal.getsignal(number) is before


def test_ignored_signal_stays_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    before: Callable[..., Any] | int | None = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stopped_by_signals():
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)
