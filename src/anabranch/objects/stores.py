"""open_store: the store behind a URL. check_store: whether it will serve, said at start.

Opening asks the store nothing, so one that is away delays nobody. `obstore` is imported here for `s3:`, `gs:` and `az:`
only.
"""

import logging
from typing import TYPE_CHECKING

from anabranch.clock import Clock
from anabranch.config.store_url import StoreUrl, parse_store_url
from anabranch.errors import StoreUnavailableError
from anabranch.objects.store import ObjectStore

if TYPE_CHECKING:
    from anabranch.objects.folder_store import StoreFiles, StoreWorkers
    from anabranch.objects.memory_store import MemoryStore

logger = logging.getLogger(__name__)

TIMEOUT_MS = 10_000

_memories: "dict[str, MemoryStore]" = {}
"""Those with a name: whoever opens one in this process finds the same."""


def open_store(
    url: str | StoreUrl,
    *,
    files: "StoreFiles",
    workers: "StoreWorkers",
    clock: Clock,
    credentials_file: str | None = None,
    timeout_ms: int = TIMEOUT_MS,
) -> ObjectStore:
    """Raises InvalidConfigError for a URL, a credentials file or an installation that cannot work."""
    place = parse_store_url(url) if isinstance(url, str) else url
    if place.scheme == "file":
        from anabranch.objects.folder_store import FolderStore

        return FolderStore(place.path, files, workers, clock, str(place))
    if place.scheme == "memory":
        return _memory(place, clock)
    from anabranch.objects.cloud_store import open_cloud_store

    return open_cloud_store(place, credentials_file, timeout_ms)


def _memory(place: StoreUrl, clock: Clock) -> "MemoryStore":
    from anabranch.objects.memory_store import MemoryStore

    if not place.path:
        return MemoryStore(clock.wall_ms)
    if place.path not in _memories:
        _memories[place.path] = MemoryStore(clock.wall_ms, str(place))
    return _memories[place.path]


async def check_store(store: ObjectStore) -> bool:
    """Ask it for its first names; a folder is made. Raises StoreRefusedError if it will not serve before somebody has
    changed something; False, and a line in the log, if it is only away: then what needs it waits, and everything else
    goes on."""
    try:
        if store.url.startswith("file:"):
            await _prepare(store)
        await _look(store)
    except StoreUnavailableError as error:
        logger.warning("the object store does not answer yet: %s", error)
        return False
    return True


async def _prepare(store: ObjectStore) -> None:
    from anabranch.objects.folder_store import FolderStore

    if isinstance(store, FolderStore):
        await store.prepare()


async def _look(store: ObjectStore) -> None:
    pages = store.list("")
    try:
        async for _ in pages:
            break
    finally:
        await pages.aclose()  # type: ignore[attr-defined]  # All of ours are generators.
