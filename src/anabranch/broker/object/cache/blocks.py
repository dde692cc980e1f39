"""Blocks: the pieces in which the bytes of stored objects come and are kept.

A block is one GET. What a broker has gathered is one block; larger objects are cut.
"""

from enum import Enum
from typing import NamedTuple

from anabranch.log.segment.ranges import Ranges
from anabranch.objects.layout.names import ObjectId, ObjectKind

BLOCK_BYTES = 4 * 2**20
BLOCK_BYTES_GATHERED = 8 * 2**20
"""Of what brokers gather: 4 MiB and a batch more, unless told otherwise, so that it comes with one GET."""
BLOCK_OVERHEAD_BYTES = 500


class BlockKey(NamedTuple):
    object_id: ObjectId
    number: int

    @property
    def start(self) -> int:
        return self.number * block_bytes(self.object_id)

    @property
    def end(self) -> int:
        """At most: an object may end before."""
        return (self.number + 1) * block_bytes(self.object_id)


def block_bytes(object_id: ObjectId) -> int:
    return BLOCK_BYTES if object_id.kind is ObjectKind.MERGED else BLOCK_BYTES_GATHERED


def keys_of(object_id: ObjectId, start: int, end: int) -> list[BlockKey]:
    """The blocks in which the bytes from `start` and before `end` lie."""
    size = block_bytes(object_id)
    first = start // size
    if end <= (first + 1) * size:
        return [BlockKey(object_id, first)]
    return [BlockKey(object_id, number) for number in range(first, (end - 1) // size + 1)]


class Origin(Enum):
    KEPT = "kept"
    """By the broker that wrote it: what producers sent was checked when it came."""
    DISK = "disk"
    STORE = "store"


class Block:
    """Bytes of an object, and which of them belong to batches whose CRC holds."""

    __slots__ = (
        "bad_ms",
        "cost",
        "data",
        "end",
        "is_ahead",
        "is_fresh",
        "key",
        "origin",
        "start",
        "verified",
    )

    def __init__(self, key: BlockKey, data: bytes, origin: Origin, *, is_fresh: bool = False) -> None:
        self.key = key
        self.data = data
        self.start = key.start
        self.end = self.start + len(data)
        self.cost = len(data) + BLOCK_OVERHEAD_BYTES
        self.origin = origin
        self.is_fresh = is_fresh
        """It was asked for because what came before it was damaged."""
        self.is_ahead = False
        """Nobody has asked for it yet."""
        self.bad_ms: int | None = None
        self.verified = Ranges()

    def is_good(self, start: int, end: int) -> bool:
        """Whether what it has of these bytes of its object belongs to batches that were checked."""
        if self.origin is Origin.KEPT:
            return True
        return self.verified.covers(max(start, self.start), min(end, self.end))
