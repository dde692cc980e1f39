"""ObjectStore: what we need of an object store, so that a bucket, a folder, memory and one that fails on demand look
the same.

An object is written whole or not at all, once, under a name that nobody has used before, and never changes. A store may
be slow, refuse, or do what it was asked without saying so; it may not forget what it has acknowledged.
"""

from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple, Protocol

Buffer = bytes | bytearray | memoryview


class StoredObject(NamedTuple):
    """One line of a listing."""

    name: str
    size: int
    modified_ms: int
    """By the store's clock."""


class ObjectStore(Protocol):
    """Names are relative to the URL. Everything may raise StoreUnavailableError (refused, overloaded, timed out: try
    again, and the last try may have done it) and StoreRefusedError (credentials, no such bucket: trying again does not
    help before somebody has changed something)."""

    url: str
    """For people: without credentials."""

    async def put(self, name: str, pieces: Sequence[Buffer]) -> None:
        """Durable when this returns. Raises ObjectExistsError if there is one of that name: since a name is used for
        one object only, an earlier try has done it."""
        ...

    async def get(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        """The bytes from `start` and before `end`, or to the object's end. Raises ObjectGoneError."""
        ...

    async def get_end(self, name: str, size: int) -> bytes:
        """The last `size` bytes, or all if there are fewer. Raises ObjectGoneError."""
        ...

    async def delete(self, names: Sequence[str]) -> None:
        """One that is gone already is no error."""
        ...

    def list(self, prefix: str, after: str = "") -> AsyncIterator[Sequence[StoredObject]]:
        """Pages of the objects whose names begin so, in the order of names, those behind `after`."""
        ...

    async def close(self) -> None: ...
