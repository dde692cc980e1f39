"""MemoryStore: `memory:`, an object store that is gone with its process. For tests, and the base of the simulator's.

Any loop of the process may use it; nothing in it waits. Objects are kept whole, as they were put.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import AsyncIterator, Callable, Sequence

from anabranch.errors import ObjectExistsError, ObjectGoneError
from anabranch.objects.store import Buffer, StoredObject

PAGE_OBJECTS_MAX = 1000


class MemoryStore:
    def __init__(self, wall_ms: Callable[[], int], url: str = "memory:") -> None:
        self.url = url
        self._wall_ms = wall_ms
        self._objects: dict[str, tuple[bytes, int]] = {}
        self._names: list[str] = []
        """In order."""

    def __repr__(self) -> str:
        return f"MemoryStore({self.url!r}, {len(self._names)} objects)"

    async def put(self, name: str, pieces: Sequence[Buffer]) -> None:
        self.put_now(name, pieces)

    async def get(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        return self.content(name)[start:end]

    async def get_end(self, name: str, size: int) -> bytes:
        content = self.content(name)
        return content[max(0, len(content) - size) :]

    async def delete(self, names: Sequence[str]) -> None:
        self.delete_now(names)

    async def list(self, prefix: str, after: str = "") -> AsyncIterator[Sequence[StoredObject]]:
        while page := self.page(prefix, after):
            yield page
            after = page[-1].name

    async def close(self) -> None:
        """What was put stays: another may have opened the same memory."""

    # --- the same without waiting ----------------------------------------------------------------------------

    def put_now(self, name: str, pieces: Sequence[Buffer]) -> None:
        if name in self._objects:
            raise ObjectExistsError(f"{self.url}: there is an object {name} already.")
        self._objects[name] = b"".join(pieces), self._wall_ms()
        insort(self._names, name)

    def delete_now(self, names: Sequence[str]) -> None:
        for name in names:
            if self._objects.pop(name, None) is not None:
                del self._names[bisect_left(self._names, name)]

    def page(self, prefix: str, after: str) -> Sequence[StoredObject]:
        first = bisect_left(self._names, prefix) if after < prefix else bisect_right(self._names, after)
        page = []
        for name in self._names[first : first + PAGE_OBJECTS_MAX]:
            if not name.startswith(prefix):
                break
            content, modified_ms = self._objects[name]
            page.append(StoredObject(name, len(content), modified_ms))
        return page

    @property
    def names(self) -> Sequence[str]:
        return self._names

    def content(self, name: str) -> bytes:
        try:
            return self._objects[name][0]
        except KeyError:
            raise ObjectGoneError(f"{self.url}: there is no object {name}.") from None
