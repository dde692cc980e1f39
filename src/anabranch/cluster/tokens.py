"""The ring: who keeps a partition. Murmur3 tokens, brokers evenly spaced, a leader and the two after it.

The circle of 2**32 tokens is divided evenly among the brokers in the order of their ids, and among the partitions of a
topic. A partition's token is the beginning of its share, turned by the hash of the topic's name, so that the first
partitions of many topics do not meet at one broker. The broker in whose share that token lies leads by default (B1);
the next on the ring are its followers (B2, B3).
"""

from collections.abc import Sequence
from functools import lru_cache

from anabranch.values import BrokerId

TOKENS = 2**32
REPLICAS = 3
_MASK = TOKENS - 1


def murmur3(data: bytes, seed: int = 0) -> int:
    """The 32-bit hash of the x86 variant."""
    value = seed
    whole = len(data) & ~3
    for position in range(0, whole, 4):
        value ^= _mixed(int.from_bytes(data[position : position + 4], "little"))
        value = (_rotated(value, 13) * 5 + 0xE6546B64) & _MASK
    if whole < len(data):
        value ^= _mixed(int.from_bytes(data[whole:], "little"))
    return _finished(value ^ len(data))


def _mixed(block: int) -> int:
    return _rotated(block * 0xCC9E2D51 & _MASK, 15) * 0x1B873593 & _MASK


def _rotated(value: int, bits: int) -> int:
    return (value << bits | value >> (32 - bits)) & _MASK


def _finished(value: int) -> int:
    value = (value ^ value >> 16) * 0x85EBCA6B & _MASK
    value = (value ^ value >> 13) * 0xC2B2AE35 & _MASK
    return value ^ value >> 16


def token_of_key(key: bytes) -> int:
    """Where a record of the `murmur3` partitioner belongs."""
    return murmur3(key)


def partition_of(token: int, partition_count: int) -> int:
    """Partition i of n owns the i-th n-th of the circle."""
    return token * partition_count // TOKENS


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
