"""FolderStore: `file:`, an object store in a folder of the machine, or in one that all brokers mount.

    ROOT/segments/...       objects, under their names
    ROOT/.aside/...         objects that are being written

An object is written aside, synced, linked to its name (which fails if there is one), and its folder is synced: after a
power cut it is there whole, or not at all, and there if `put` had returned. What a crash leaves aside is removed
an hour later by whoever writes next. Several processes may use one folder. Whatever touches the disk runs in workers.

The folder `.aside` is made once: if it is gone later, so is the disk that was mounted there, or the whole store. What
would be written then is acknowledged, and found by nobody once the disk is back.
"""

import asyncio
import contextlib
import errno
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from itertools import count, islice
from typing import Protocol, TypeVar

from anabranch.clock import Clock
from anabranch.errors import (
    ObjectExistsError,
    ObjectGoneError,
    ObjectRefusedError,
    StoreError,
    StoreRefusedError,
    StoreUnavailableError,
)
from anabranch.objects.store import Buffer, StoredObject

ASIDE = ".aside"
ASIDE_MS_MAX = 3_600_000
MAKE_FOLDER_TRIES = 10
PAGE_OBJECTS_MAX = 1000
LINKS_REFUSED = frozenset({errno.EPERM, errno.ENOTSUP, errno.EMLINK, errno.ENOSYS})

T = TypeVar("T")
Done = Callable[[T | None, BaseException | None], None]


class StoreFile(Protocol):
    """What we need of `anabranch.log.disk.files.File`."""

    def size(self) -> int: ...
    def pread(self, count: int, position: int) -> bytes: ...
    def pwritev(self, buffers: Sequence[Buffer], position: int) -> int: ...
    def sync(self) -> None: ...
    def close(self) -> None: ...


class StoreFiles(Protocol):
    """What we need of `anabranch.log.disk.files.Files`."""

    def open(self, path: str) -> StoreFile: ...
    def create(self, path: str) -> StoreFile: ...
    def exists(self, path: str) -> bool: ...
    def is_folder(self, path: str) -> bool: ...
    def size(self, path: str) -> int: ...
    def modified_ms(self, path: str) -> int: ...
    def list(self, folder: str) -> list[str]: ...
    def make_folder(self, folder: str, *, sync: bool = True) -> None: ...
    def rename(self, old: str, new: str) -> None: ...
    def link(self, old: str, new: str) -> None: ...
    def unlink(self, path: str) -> None: ...
    def sync_folder(self, folder: str) -> None: ...


class StoreWorkers(Protocol):
    """What we need of `anabranch.broker.workers.Workers`."""

    def sync(self, task: Callable[[], T], done: Done[T]) -> None: ...
    def heavy(self, task: Callable[[], T], done: Done[T]) -> None: ...


class FolderStore:
    def __init__(
        self, root: str, files: StoreFiles, workers: StoreWorkers, clock: Clock, url: str = ""
    ) -> None:
        self.url = url or f"file://{root}"
        self._root = root
        self._files = files
        self._workers = workers
        self._clock = clock
        self._durable_folders: set[str] = set()
        self._is_tidied = False
        self._has_aside = False

    def __repr__(self) -> str:
        return f"FolderStore({self.url!r})"

    # --- ObjectStore -----------------------------------------------------------------------------------------

    async def put(self, name: str, pieces: Sequence[Buffer]) -> None:
        # Among the syncs, where nothing is slow: somebody waits for this to be acknowledged.
        await _answer(self._workers.sync, lambda: self._told(self._put, name, pieces))

    async def get(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        return await _answer(self._workers.heavy, lambda: self._told(self._get, name, start, end))

    async def get_end(self, name: str, size: int) -> bytes:
        return await _answer(self._workers.heavy, lambda: self._told(self._get_end, name, size))

    async def delete(self, names: Sequence[str]) -> None:
        await _answer(self._workers.heavy, lambda: self._told(self._delete, names))

    async def list(self, prefix: str, after: str = "") -> AsyncIterator[Sequence[StoredObject]]:
        objects = self._walk("", prefix, after)
        while page := await _answer(
            self._workers.heavy, lambda: self._told(lambda: list(islice(objects, PAGE_OBJECTS_MAX)))
        ):
            yield page

    async def close(self) -> None:
        """Nothing is kept open."""

    async def prepare(self) -> None:
        """Make the folder, and see whether it can be written to: a listing of one that is not there is only empty."""
        await _answer(self._workers.heavy, lambda: self._told(self._prepare))

    # --- in a worker -----------------------------------------------------------------------------------------

    def _told(self, task: Callable[..., T], *arguments: object) -> T:
        try:
            return task(*arguments)
        except OSError as error:
            if error.errno == errno.ENOENT:  # Somebody has removed a folder of ours.
                self._durable_folders.clear()
            raise self._explained(error) from error

    def _explained(self, error: OSError) -> StoreError:
        why = f"{self.url}: {error.strerror or error}"
        match error.errno:
            case errno.ELOOP | errno.EISDIR | errno.ENXIO:
                return ObjectRefusedError(
                    f"{why}: {error.filename}. Put the object's own file there, or remove what is there."
                )
            case errno.ENOSPC | errno.EDQUOT:
                return StoreUnavailableError(f"{why}: make room on its disk.")
            case errno.EACCES | errno.EPERM | errno.EROFS | errno.ENOTDIR | errno.EEXIST | errno.ENAMETOOLONG:
                where = f" ({error.filename})" if error.filename else ""
                return StoreRefusedError(
                    f"{why}{where}: check that it is a folder which this user may write to."
                )
            case _:
                return StoreUnavailableError(f"{why}.")

    def _prepare(self) -> None:
        self._ensure_aside()
        self._remove(self._write_aside("prepare", []))

    def _put(self, name: str, pieces: Sequence[Buffer]) -> None:
        path = self._path(name)
        folder, _, base = path.rpartition("/")
        self._ensure_aside()
        self._ensure_folder(folder)
        self._tidy()
        aside = self._write_aside(base, pieces)
        try:
            self._give_name(aside, path)
        except FileExistsError:
            # By an earlier try, which may have ended before this.
            self._files.sync_folder(folder)
            raise ObjectExistsError(f"{self.url}: there is an object {name} already.") from None
        finally:
            self._remove(aside)
        self._files.sync_folder(folder)

    def _write_aside(self, base: str, pieces: Sequence[Buffer]) -> str:
        file, path = self._create_aside(base)
        try:
            _write_fully(file, pieces, path)
            file.sync()
        except OSError:
            self._remove(path)
            raise
        finally:
            file.close()
        return path

    def _create_aside(self, base: str) -> tuple[StoreFile, str]:
        for number in count():
            path = f"{self._root}/{ASIDE}/{base}.{number}"
            try:
                return self._files.create(path), path
            except FileExistsError:
                continue  # Another try's, under way or left by a crash.
        raise AssertionError("there is no last number")

    def _give_name(self, aside: str, path: str) -> None:
        try:
            self._files.link(aside, path)
        except OSError as error:
            if error.errno not in LINKS_REFUSED:
                raise
            # A file system without links. Between these two nobody else takes the name: it is one writer's.
            if self._files.exists(path):
                raise FileExistsError(errno.EEXIST, "exists", path) from None
            self._files.rename(aside, path)

    def _remove(self, path: str) -> None:
        try:
            self._files.unlink(path)
        except FileNotFoundError:
            return  # Renamed, or tidied away by another process.

    def _ensure_aside(self) -> None:
        folder = f"{self._root}/{ASIDE}"
        if not self._has_aside:
            self._ensure_folder(folder)
            self._has_aside = True
        elif not self._files.is_folder(folder):
            raise StoreUnavailableError(
                f"{self.url}: its folder {ASIDE} is gone, which was there before: mount the disk again that held the "
                "store, or bring its folder back. If nothing is missing but that folder, make it."
            )

    def _ensure_folder(self, folder: str) -> None:
        """Make a folder durably. One that is there may have been made a moment ago by another process, and not be
        synced yet: what we put into it would be lost with it."""
        if folder in self._durable_folders:
            return
        self._make_folder(folder)
        parent = folder
        while parent != self._root:
            parent = parent.rpartition("/")[0]
            self._files.sync_folder(parent)
        with contextlib.suppress(PermissionError):  # Not ours, so it was there before.
            self._files.sync_folder(parent.rpartition("/")[0] or "/")
        self._durable_folders.add(folder)

    def _make_folder(self, folder: str) -> None:
        for tries_left in reversed(range(MAKE_FOLDER_TRIES)):
            try:
                self._files.make_folder(folder)
                return
            except FileExistsError:  # Another process has made it, or one above it, in the same moment.
                if not tries_left:
                    raise

    def _tidy(self) -> None:
        """Once: remove what crashes have left aside."""
        if self._is_tidied:
            return
        self._is_tidied = True
        folder = f"{self._root}/{ASIDE}"
        for name in self._files.list(folder):
            path = f"{folder}/{name}"
            try:
                age_ms = self._clock.wall_ms() - self._files.modified_ms(path)
            except FileNotFoundError:
                continue  # Another process is done with it.
            if age_ms > ASIDE_MS_MAX:
                self._remove(path)

    def _get(self, name: str, start: int, end: int | None) -> bytes:
        file = self._files.open(self._path(name))
        try:
            stop = file.size() if end is None else end
            return file.pread(stop - start, start) if stop > start else b""
        except FileNotFoundError:
            raise self._gone(name) from None
        finally:
            file.close()

    def _get_end(self, name: str, size: int) -> bytes:
        file = self._files.open(self._path(name))
        try:
            whole = file.size()
            return file.pread(min(size, whole), whole - min(size, whole))
        except FileNotFoundError:
            raise self._gone(name) from None
        finally:
            file.close()

    def _gone(self, name: str) -> ObjectGoneError:
        return ObjectGoneError(f"{self.url}: there is no object {name}.")

    def _delete(self, names: Sequence[str]) -> None:
        changed = set()
        for name in names:
            path = self._path(name)
            try:
                self._files.unlink(path)
            except FileNotFoundError:
                continue
            changed.add(path.rpartition("/")[0])
        for folder in sorted(changed):
            self._files.sync_folder(folder)

    def _walk(self, folder: str, prefix: str, after: str) -> Iterator[StoredObject]:
        """In the order of whole names, as a bucket lists them: `a-b` before `a/b` before `a0`."""
        for entry in self._entries(folder):
            name = folder + entry
            if entry.endswith("/"):
                if name.startswith(prefix) or prefix.startswith(name):
                    yield from self._walk(name, prefix, after)
            elif name > after and name.startswith(prefix):
                yield from self._line(name)

    def _entries(self, folder: str) -> Sequence[str]:
        path = f"{self._root}/{folder}".rstrip("/")
        try:
            names = self._files.list(path)
        except FileNotFoundError:
            return []  # Nothing was ever put.
        return sorted(
            f"{name}/" if self._files.is_folder(f"{path}/{name}") else name for name in names if name != ASIDE
        )

    def _line(self, name: str) -> Iterator[StoredObject]:
        path = self._path(name)
        try:
            yield StoredObject(name, self._files.size(path), self._files.modified_ms(path))
        except FileNotFoundError:
            return  # Deleted since.

    def _path(self, name: str) -> str:
        parts = name.split("/")
        assert all(part and not part.startswith(".") for part in parts), f"{name!r} is no name of an object"
        return f"{self._root}/{name}"


async def _answer(pool: Callable[..., None], task: Callable[[], T]) -> T:
    future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    def done(result: T | None, error: BaseException | None) -> None:
        if future.done():
            return  # Nobody waits any more.
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]  # None only where T is None.

    pool(task, done)
    return await future


def _write_fully(file: StoreFile, pieces: Sequence[Buffer], path: str) -> None:
    """A disk that took fewer bytes is asked for the rest, and then says why."""
    total = sum(len(piece) for piece in pieces)
    taken = file.pwritev(pieces, 0) if total else 0
    while taken < total:
        rest = memoryview(b"".join(pieces))[taken:]
        more = file.pwritev([rest], taken)
        if not more:
            raise OSError(errno.ENOSPC, f"the disk took {taken} of {total} bytes", path)
        taken += more
