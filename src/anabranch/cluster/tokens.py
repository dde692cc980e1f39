"""The ring: who keeps a partition. Murmur3 tokens, brokers evenly spaced, a leader and the two after it.

The circle of 2**32 tokens is divided evenly among the brokers in the order of their ids, and among the partitions of a
topic. A partition's token is the beginning of its share, turned by the hash of the topic's name, so that the first
partitions of many topics do not meet at one broker. The broker in whose share that token lies leads by default (B1);
the next on the ring are its followers (B2, B3).
"""

from collections.abc import Sequence
from functools import lru_cache

from anabranch.record.partitioner import TOKENS, murmur3
from anabranch.values import BrokerId

REPLICAS = 3


def partition_token(topic: str, partition: int, partition_count: int) -> int:
    """Where on the ring of brokers a partition sits."""
    return (_topic_token(topic) + partition * TOKENS // partition_count) % TOKENS


@lru_cache(maxsize=64)
def _topic_token(topic: str) -> int:
    """Remembered, because a topic is placed with all its partitions at once."""
    return murmur3(topic.encode())


def ring_order(token: int, brokers: Sequence[BrokerId]) -> list[BrokerId]:
    """All brokers, beginning with the one whose share holds the token. `brokers` are those that may keep partitions."""
    ring = sorted(brokers)
    first = token * len(ring) // TOKENS
    return ring[first:] + ring[:first]


def replicas_of(token: int, brokers: Sequence[BrokerId], count: int = REPLICAS) -> list[BrokerId]:
    """B1, B2, B3, as far as there are so many."""
    return ring_order(token, brokers)[:count]
