"""Partitioners: which partition of a topic a key belongs to, by the topic's config `anabranch.partitioner`.

Every writer of ours asks `partition_for`: the gateway, the command line, the Spark writer, the broker for tests. So a
key has one partition whoever writes it, which order by key, compaction and upserts rest on.

    murmur2   Java's clients, and librdkafka with `partitioner=murmur2_random`
    crc32     librdkafka with `partitioner=consistent`; as it comes (`consistent_random`) it differs in empty keys
    murmur3   an even share of the circle of tokens for each partition, as brokers divide it; no stock client has it

An empty key is a key: it is hashed as any other, and has one partition. librdkafka does the same with `consistent`,
`murmur2` and `murmur2_random`, and so do Java's clients. Only its `consistent_random` takes an empty key for none and
spreads its records, which is why no producer of ours leaves the choice to it.
"""

from collections.abc import Callable, Mapping
from struct import Struct
from zlib import crc32

DEFAULT_PARTITIONER = "murmur2"
LIBRDKAFKA_PARTITIONER = "murmur2_random"
"""What our own librdkafka producers are set to: it chooses as `murmur2` does, and spreads records without key."""
TOKENS = 2**32

_WORD = Struct("<I")
_MURMUR2_SEED = 0x9747B28C
_MURMUR2_MULTIPLIER = 0x5BD1E995
_MASK = TOKENS - 1
_POSITIVE = 0x7FFF_FFFF


def partition_for(key: bytes | None, partition_count: int, partitioner: str) -> int | None:
    """The partition of a key; None for a record without a key: the writer chooses.

    `partitioner` is the topic's config `anabranch.partitioner`.
    """
    if key is None:
        return None
    return PARTITIONERS[partitioner](key, partition_count)


def _by_murmur2(key: bytes, partition_count: int) -> int:
    return (murmur2(key) & _POSITIVE) % partition_count


def _by_murmur3(key: bytes, partition_count: int) -> int:
    return partition_of(murmur3(key), partition_count)


def _by_crc32(key: bytes, partition_count: int) -> int:
    return crc32(key) % partition_count


PARTITIONERS: Mapping[str, Callable[[bytes, int], int]] = {
    "murmur2": _by_murmur2,
    "murmur3": _by_murmur3,
    "crc32": _by_crc32,
}


# --- hashes -------------------------------------------------------------------------------------------------------


def murmur2(data: bytes) -> int:
    """The 32-bit hash of Kafka's clients, without a sign."""
    length = len(data)
    value = _MURMUR2_SEED ^ length
    whole = length & ~3
    for (word,) in _WORD.iter_unpack(data[:whole]):
        block = word * _MURMUR2_MULTIPLIER & _MASK
        value = (value * _MURMUR2_MULTIPLIER & _MASK) ^ ((block ^ block >> 24) * _MURMUR2_MULTIPLIER & _MASK)
    if whole < length:
        value = (value ^ int.from_bytes(data[whole:], "little")) * _MURMUR2_MULTIPLIER & _MASK
    value = (value ^ value >> 13) * _MURMUR2_MULTIPLIER & _MASK
    return value ^ value >> 15


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


def partition_of(token: int, partition_count: int) -> int:
    """Partition i of n owns the i-th n-th of the circle."""
    return token * partition_count // TOKENS
