"""Which partition a key belongs to: `murmur2` exactly as Java's clients and librdkafka's murmur2 partitioners have it,
so that a key meets the same partition whoever writes it; `murmur3` as the ring divides its circle of tokens."""

from struct import Struct

from anabranch.cluster.tokens import partition_of, token_of_key

_WORD = Struct("<I")
_SEED = 0x9747B28C
_MULTIPLIER = 0x5BD1E995
_MASK = 0xFFFF_FFFF
_POSITIVE = 0x7FFF_FFFF


def murmur2(data: bytes) -> int:
    """The 32-bit hash of Kafka's clients, without a sign."""
    length = len(data)
    value = _SEED ^ length
    whole = length & ~3
    for (word,) in _WORD.iter_unpack(data[:whole]):
        block = word * _MULTIPLIER & _MASK
        value = (value * _MULTIPLIER & _MASK) ^ ((block ^ block >> 24) * _MULTIPLIER & _MASK)
    if whole < length:
        value = (value ^ int.from_bytes(data[whole:], "little")) * _MULTIPLIER & _MASK
    value = (value ^ value >> 13) * _MULTIPLIER & _MASK
    return value ^ value >> 15


def partition_for(key: bytes, partition_count: int, partitioner: str) -> int:
    """`partitioner`: the topic's config `anabranch.partitioner`."""
    if partitioner == "murmur3":
        return partition_of(token_of_key(key), partition_count)
    return (murmur2(key) & _POSITIVE) % partition_count
