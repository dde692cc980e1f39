"""How commands ask for offsets while partitions change hands."""

from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException, TopicPartition

from anabranch.cli import client
from anabranch.cli.client import Broker
from anabranch.cli.common import Failure
from anabranch.cli.main import main

PLACES = [TopicPartition("t", 0), TopicPartition("t", 1)]


class Admin:
    """Answers what is written down for each partition, one after the other; the last one stays."""

    def __init__(self, *answers: list[int]) -> None:
        self._answers = dict(zip(PLACES, answers, strict=True))
        self.asked: list[list[TopicPartition]] = []

    def list_offsets(self, where: dict[TopicPartition, Any], request_timeout: float) -> dict[Any, Any]:
        self.asked.append(list(where))
        return {place: self._answer(self._answers[place]) for place in where}

    def _answer(self, answers: list[int]) -> "Future[Any]":
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        future: Future[Any] = Future()
        if answer in (
            KafkaError.LEADER_NOT_AVAILABLE,
            KafkaError.NOT_LEADER_FOR_PARTITION,
            KafkaError._NOENT,
        ):
            future.set_exception(KafkaException(KafkaError(answer)))
        elif answer < 0:
            future.set_exception(KafkaException(KafkaError(KafkaError.INVALID_REQUEST, "what is this")))
        else:
            future.set_result(SimpleNamespace(offset=answer))
        return future


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "ASK_AGAIN_SECONDS", 0.0)
    monkeypatch.setattr(client, "TELLING_SECONDS_MAX", 0.0)


def ask(admin: Any, seconds_max: float = 30.0) -> dict[tuple[str, int], int]:
    return Broker("127.0.0.1:1", seconds_max).offsets(admin, dict.fromkeys(PLACES))


def test_a_partition_that_changes_hands_is_asked_again_and_the_others_are_not() -> None:
    admin = Admin([KafkaError._NOENT, KafkaError.NOT_LEADER_FOR_PARTITION, 70], [80])
    assert ask(admin) == {("t", 0): 70, ("t", 1): 80}
    assert [len(places) for places in admin.asked] == [2, 1, 1]


def test_one_that_nobody_ever_leads_is_said_or_left_out() -> None:
    admin: Any = Admin([KafkaError.LEADER_NOT_AVAILABLE], [80])
    with pytest.raises(Failure, match="LEADER_NOT_AVAILABLE"):
        ask(admin, seconds_max=0.0)
    told = Broker("127.0.0.1:1", 30.0).offsets_told(admin, dict.fromkeys(PLACES))
    assert told == {("t", 1): 80}


def test_what_does_not_pass_is_said_at_once() -> None:
    with pytest.raises(Failure, match="what is this"):
        ask(Admin([-1000], [80]))


def test_a_partition_that_librdkafka_did_not_ask_about_has_no_offset() -> None:
    """It answers so, and with no error, where it cannot connect to the leader."""
    admin: Any = Unasked()
    with pytest.raises(Failure, match="did not answer in time"):
        ask(admin, seconds_max=0.0)
    assert Broker("127.0.0.1:1", 30.0).offsets_told(admin, dict.fromkeys(PLACES)) == {}


class Unasked:
    def list_offsets(self, where: dict[TopicPartition, Any], request_timeout: float) -> dict[Any, Any]:
        future: Future[Any] = Future()
        future.set_result(SimpleNamespace(offset=OFFSET_INVALID))
        return dict.fromkeys(where, future)


@pytest.mark.parametrize("kind", [lambda error: error, KafkaException], ids=["listed", "raised"])
def test_a_broker_of_a_minority_that_lists_no_groups_is_said_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch, kind: Callable[[KafkaError], Any]
) -> None:
    """confluent-kafka lists errors of single brokers as they are, and raises others in an exception."""
    future: Future[Any] = Future()
    future.set_result(SimpleNamespace(valid=[], errors=[kind(KafkaError(KafkaError._TIMED_OUT))]))
    admin = SimpleNamespace(list_consumer_groups=lambda request_timeout: future)
    monkeypatch.setattr(Broker, "admin", lambda self: admin)
    answer = CliRunner().invoke(main, ["group", "list", "--bootstrap", "127.0.0.1:1"])
    assert answer.exit_code == 1
    assert isinstance(answer.exception, SystemExit)
    assert answer.stderr.count("\n") == 1
    assert "did not answer in time: see with `anabranch cluster status`" in answer.stderr


@pytest.mark.parametrize("code", [KafkaError.LEADER_NOT_AVAILABLE, KafkaError.COORDINATOR_NOT_AVAILABLE])
def test_what_nobody_leads_is_said_with_a_next_step(code: int) -> None:
    said = Broker("127.0.0.1:1", 1.0).explain(KafkaError(code))
    assert KafkaError(code).name() in said
    assert "anabranch cluster status" in said
