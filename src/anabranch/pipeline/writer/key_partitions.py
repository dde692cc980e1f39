"""Partitions of keys for librdkafka's producers, by each topic's config `anabranch.partitioner`.

A producer that is set to `LIBRDKAFKA_PARTITIONER` chooses right by itself for topics of the default partitioner, for
topics that do not exist yet, and for topics of brokers that do not know this config. For any other topic
`KeyPartitions` names the partition of each key. What it knows of a topic it asks again after a minute, so that added
partitions and a changed config are noticed. A topic that was made a moment ago may have no partitions yet: then it asks
again for a while, since librdkafka would place the keys elsewhere.
"""

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from anabranch.errors import PipelineError
from anabranch.record.partitioner import DEFAULT_PARTITIONER, PARTITIONERS, partition_for

if TYPE_CHECKING:
    from confluent_kafka import KafkaException, Producer

CONFIG = "anabranch.partitioner"
ASK_AGAIN_SECONDS = 60.0
ANSWER_SECONDS_MAX = 60.0
PAUSE_SECONDS = 0.25
"""Before a topic without partitions is asked for again."""


class _Known(NamedTuple):
    partitioner: str
    partition_count: int
    """Of a topic whose keys librdkafka cannot place; else 0."""
    until_seconds: float


class KeyPartitions:
    """`config` is the producer's own, as far as connections go: the address, credentials."""

    def __init__(
        self,
        producer: "Producer",
        config: Mapping[str, Any],
        *,
        answer_seconds_max: float = ANSWER_SECONDS_MAX,
        now_seconds: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._producer = producer
        self._config = dict(config)
        self._answer_seconds_max = answer_seconds_max
        self._now_seconds = now_seconds
        self._sleep = sleep
        self._topics: dict[str, _Known] = {}

    def partition_for(self, topic: str, key: bytes | str | None) -> int | None:
        """The partition to produce to; None: librdkafka chooses. Raises PipelineError if the broker does not tell."""
        if key is None:
            return None
        known = self._topics.get(topic)
        if known is None or self._now_seconds() >= known.until_seconds:
            known = self._topics[topic] = self._ask(topic)
        if not known.partition_count:
            return None
        return partition_for(
            key.encode() if isinstance(key, str) else key, known.partition_count, known.partitioner
        )

    def _ask(self, topic: str) -> _Known:
        from confluent_kafka import KafkaException

        until_seconds = self._now_seconds() + ASK_AGAIN_SECONDS
        try:
            partitioner = self._partitioner(topic)
            if partitioner == DEFAULT_PARTITIONER:
                return _Known(partitioner, 0, until_seconds)
            return _Known(partitioner, self._partition_count(topic), until_seconds)
        except KafkaException as error:
            raise PipelineError(
                f"Where keys of topic {topic} belong could not be asked ({_reason(error)}): check the broker, and that "
                "this client may describe the configs of topics."
            ) from error

    def _partition_count(self, topic: str) -> int:
        """Asked of the producer itself, so that it takes no partition for unknown that we name."""
        from confluent_kafka import KafkaException

        give_up_seconds = self._now_seconds() + self._answer_seconds_max
        while True:
            found = self._producer.list_topics(topic, timeout=self._answer_seconds_max).topics[topic]
            if found.error is None and found.partitions:
                return len(found.partitions)
            if self._now_seconds() >= give_up_seconds:
                break
            self._sleep(PAUSE_SECONDS)
        if found.error is not None:
            raise KafkaException(found.error)
        raise PipelineError(
            f"Topic {topic} has no partitions yet: try again once its brokers have made them."
        )

    def _partitioner(self, topic: str) -> str:
        from confluent_kafka import KafkaError, KafkaException
        from confluent_kafka.admin import AdminClient, ConfigResource

        admin = AdminClient({"log_level": 0, **self._config})
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
        futures = admin.describe_configs([resource], request_timeout=self._answer_seconds_max)
        try:
            configs = futures[resource].result()
        except KafkaException as error:
            if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                return DEFAULT_PARTITIONER
            raise
        name = configs[CONFIG].value if CONFIG in configs else DEFAULT_PARTITIONER
        if name not in PARTITIONERS:
            raise PipelineError(
                f"Topic {topic} has the partitioner {name}, which this version does not know: install a newer one."
            )
        return str(name)


def _reason(error: "KafkaException") -> str:
    return str(error.args[0].str()).strip().rstrip(".")
