"""Is there such a partition? Asked of the agreed table: whichever broker keeps it, groups may have offsets in it."""

from typing import TYPE_CHECKING

from anabranch.errors import UnknownTopicOrPartitionError
from anabranch.values import TopicPartition

if TYPE_CHECKING:
    from anabranch.broker.topics.topics import TopicKey, Topics


def known_partition(topics: "Topics", key: "TopicKey", index: int) -> TopicPartition:
    """Raises UnknownTopicOrPartitionError or UnknownTopicIdError."""
    topic = topics.readable(key).topic
    if not 0 <= index < topic.partition_count:
        raise UnknownTopicOrPartitionError(f"There is no partition {index} of topic {topic.name}.")
    return TopicPartition(topic.name, index)
