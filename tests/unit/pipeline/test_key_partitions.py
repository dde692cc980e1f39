"""Keys of a topic with a partitioner of its own: nothing is placed by what a topic without partitions yet says."""

from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError

from anabranch.errors import PipelineError
from anabranch.pipeline.writer.key_partitions import KeyPartitions
from anabranch.record.partitioner import partition_for

NO_LEADER = SimpleNamespace(error=KafkaError(KafkaError.LEADER_NOT_AVAILABLE), partitions={})
EMPTY = SimpleNamespace(error=None, partitions={})
WHOLE = SimpleNamespace(error=None, partitions=dict.fromkeys(range(7)))


class Producer:
    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)

    def list_topics(self, topic: str, timeout: float) -> Any:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return SimpleNamespace(topics={topic: answer})


class Time:
    seconds = 0.0

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds


@pytest.fixture(autouse=True)
def crc32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KeyPartitions, "_partitioner", lambda self, topic: "crc32")


def asking(producer: Any, time: Time) -> KeyPartitions:
    return KeyPartitions(
        producer, {}, answer_seconds_max=5, now_seconds=lambda: time.seconds, sleep=time.sleep
    )


@pytest.mark.parametrize("not_yet", [NO_LEADER, EMPTY])
def test_a_topic_without_partitions_is_asked_for_again(not_yet: Any) -> None:
    keys = asking(Producer(not_yet, not_yet, WHOLE), Time())
    assert keys.partition_for("t", b"key") == partition_for(b"key", 7, "crc32")


@pytest.mark.parametrize("never", [NO_LEADER, EMPTY])
def test_a_topic_that_gets_no_partitions_is_an_error_and_is_not_remembered(never: Any) -> None:
    producer = Producer(never)
    keys = asking(producer, Time())
    with pytest.raises(PipelineError, match=r"(?i)topic t "):
        keys.partition_for("t", b"key")
    producer.answers = [WHOLE]
    assert keys.partition_for("t", b"key") == partition_for(b"key", 7, "crc32")
