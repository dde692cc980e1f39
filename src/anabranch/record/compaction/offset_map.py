"""The latest offset of every key, for one run of the cleaner, in bounded memory.

Keys are held as 16-byte digests, so that an entry costs the same whatever the key is. Two keys with one digest
would be taken for one: with 128 bits that is less likely than an undetected error of the machine.
"""

from hashlib import blake2b

BYTES_PER_KEY = 112
"""What one key takes: a digest, a number and their places in a dict."""


class OffsetMap:
    """`put` until it says that it is full; then `get`."""

    def __init__(self, entries_max: int) -> None:
        assert entries_max > 0
        self.entries_max = entries_max
        self._latest: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._latest)

    def put(self, key: bytes, offset: int) -> None:
        """Offsets come in growing order."""
        self._latest[_digest(key)] = offset

    def has_room_for(self, entries: int) -> bool:
        return len(self._latest) + entries <= self.entries_max

    def get(self, key: bytes) -> int | None:
        return self._latest.get(_digest(key))


def _digest(key: bytes) -> bytes:
    return blake2b(key, digest_size=16).digest()
