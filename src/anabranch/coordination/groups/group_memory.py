"""How many bytes the groups of this broker take: their members (`GroupMemory`), and their commits (`OffsetMemory`).

A member brings metadata of any size and says itself how long it may be silent before it counts as gone, so without a
limit anybody could fill the memory for half an hour. One host gets half at most: it cannot keep all others out.
Members read back from the log count, and are never refused.

A commit needs no member, only the name of a group, and stays for days. Where room is short, partitions that have an
offset already can still be committed: groups at work are not affected by names that others invent.
"""

from collections import Counter

from anabranch.errors import GroupFullError, OffsetsFullError

MEMBER_BYTES = 1024
"""A member besides its metadata and its assignment, and its part of the group."""
PROTOCOL_BYTES = 150
"""What it takes to keep the name and the metadata of a protocol, however short: a request may name thousands."""


class GroupMemory:
    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._by_host: Counter[str] = Counter()
        self.bytes_taken = 0

    def check(self, host: str, count: int) -> None:
        """Raises GroupFullError if a host may not take `count` bytes more."""
        if self._by_host[host] + count > self._bytes_max // 2 or self.bytes_taken + count > self._bytes_max:
            raise GroupFullError(
                f"Members of groups take {self.bytes_taken} bytes here, {self._by_host[host]} of them from {host}, and "
                f"this one asks for {count} more: {self._bytes_max} are allowed, half of it for one host "
                "(group.memory.bytes.max)."
            )

    def add(self, host: str, count: int) -> None:
        """`count` bytes more, or less if it is negative."""
        self.bytes_taken += count
        self._by_host[host] += count
        assert self._by_host[host] >= 0, "more bytes given back than were taken"
        if not self._by_host[host]:
            del self._by_host[host]


OFFSET_BYTES = 400
"""A committed offset besides its metadata."""
OFFSETS_OF_GROUP_BYTES = 2048
"""A group that has committed offsets, besides them and its name."""


class OffsetMemory:
    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self.bytes_taken = 0

    def check(self, count: int) -> None:
        """Raises OffsetsFullError if there is no room for `count` bytes more."""
        if self.bytes_taken + count > self._bytes_max:
            raise OffsetsFullError(
                f"The committed offsets of all groups take {self.bytes_taken} of {self._bytes_max} bytes here: delete "
                "groups that nobody uses, or raise offsets.memory.bytes.max."
            )
