"""The machine's disk, with a budget of open files: 5,000 partitions must not need 5,000 descriptors.

A `RealFile` opens its descriptor when it is used and may lose it afterwards. The budget gives a second
chance: the hand goes round, a file used since its last visit is passed over once, a pinned one always. A file
with unsynced writes goes only if no other is found near, and is synced before it is closed, because a
writeback error that strikes after the last descriptor is gone would never be reported; the error of such a
sync is raised by the next `sync`. That makes a write wait for the disk, so it is said aloud, once. If all are
pinned, the budget is exceeded rather than a request refused: `open_files_max` leaves room for that.

Symbolic links are not followed: a file that is one is refused, and a deletion removes the link. So is what is no file,
such as a named pipe, for which an open or a read would wait. Whoever opens a folder first asks `find_stray`, because a
link further up in a path cannot be told from a folder later. Folders are made for their owner alone (0700), and so are
files (0600).
"""

import contextlib
import errno
import fcntl
import logging
import os
import stat
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence

from anabranch.errors import DataFolderInUseError
from anabranch.log.disk.files import (
    SYMBOLIC_LINK,
    Bytes,
    FileClosedError,
    NotAFileError,
    Stray,
    folder_of,
    stray_refusal,
)

logger = logging.getLogger(__name__)

IOV_MAX = 1024
FILE_MODE, FOLDER_MODE = 0o600, 0o700
LOOKS_MAX = 64
"""How many files are looked at for one that needs no sync before one that does is closed."""

STAMP_SETTLES_NS = 50_000_000
"""Longer than a tick of any system's clock, by which times of change are taken."""


class RealFile:
    """One file of the budget; see `anabranch.log.disk.files.File`."""

    def __init__(self, budget: "RealFiles", path: str) -> None:
        self.path = path
        self._budget = budget
        self.descriptor = -1
        self.pins = 0
        self.recently_used = False
        self.unsynced = False
        self.lost_error: OSError | None = None
        self.closed = False

    def size(self) -> int:
        with self._held() as descriptor:
            return os.fstat(descriptor).st_size

    def pread(self, count: int, position: int) -> bytes:
        descriptor = self._budget.acquire(self)  # Not `_held`: this is the hot path.
        try:
            data = os.pread(descriptor, count, position)
            if len(data) == count or not data:
                return data
            return data + _pread_rest(descriptor, count - len(data), position + len(data))
        finally:
            self._budget.release(self)

    def pwritev(self, buffers: Sequence[Bytes], position: int) -> int:
        budget = self._budget
        descriptor = budget.acquire(self)  # Not `_held`: this is the hot path.
        try:
            self.unsynced = True
            if len(buffers) <= IOV_MAX:
                return os.pwritev(descriptor, buffers, position)
            return _pwritev_in_turns(descriptor, buffers, position)
        finally:
            budget.release(self)

    def truncate(self, size: int) -> None:
        with self._held() as descriptor:
            self.unsynced = True
            os.ftruncate(descriptor, size)

    def rename(self, path: str) -> None:
        self._budget.rename_open(self, path)

    def sync(self) -> None:
        descriptor = self._budget.acquire(self)  # Not `_held`: this is the hot path.
        try:
            self._sync(descriptor)
        finally:
            self._budget.release(self)

    def _sync(self, descriptor: int) -> None:
        if self.lost_error is not None:
            raise self.lost_error
        # Cleared before the sync: a write that lands meanwhile sets it again and is not covered by this one.
        self.unsynced = False
        try:
            os.fdatasync(descriptor)
        except OSError as error:
            # The kernel reports a writeback error once; whoever asks again must hear it too.
            self.lost_error = error
            raise
        if not os.fstat(descriptor).st_nlink:
            # The system syncs a removed file gladly, and forgets it with its last descriptor.
            raise FileNotFoundError(errno.ENOENT, "somebody has removed the file", self.path)

    def forget_cache(self, position: int = 0) -> None:
        with self._held() as descriptor:
            os.posix_fadvise(descriptor, position, 0, os.POSIX_FADV_DONTNEED)

    def stamp(self) -> int | None:
        """The time of the last change of the inode, which every write moves and nobody can set. Two changes within one
        tick of the system's clock may have the same, so a young one does not count yet."""
        descriptor = self._budget.acquire(self)
        try:
            changed_ns = os.fstat(descriptor).st_ctime_ns
        finally:
            self._budget.release(self)
        return changed_ns if changed_ns + STAMP_SETTLES_NS < time.time_ns() else None

    def fileno(self) -> int | None:
        return self.descriptor if self.descriptor >= 0 else None

    def pin(self) -> None:
        self._budget.acquire(self)

    def unpin(self) -> None:
        self._budget.release(self)

    def close(self) -> None:
        self._budget.forget(self)

    @contextlib.contextmanager
    def _held(self) -> Iterator[int]:
        descriptor = self._budget.acquire(self)
        try:
            yield descriptor
        finally:
            self._budget.release(self)


class RealFiles:
    """The machine's disk; see `anabranch.log.disk.files.Files`."""

    def __init__(self, open_files_max: int = 512) -> None:
        assert open_files_max > 0
        self.open_files_max = open_files_max
        self._open: OrderedDict[int, RealFile] = OrderedDict()
        self._lock = threading.Lock()
        self._said_too_few = False

    @property
    def open_files(self) -> int:
        return len(self._open)

    def open(self, path: str) -> RealFile:
        return RealFile(self, path)

    def create(self, path: str) -> RealFile:
        os.close(_open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL))
        return RealFile(self, path)

    def exists(self, path: str) -> bool:
        return os.path.lexists(path)

    def is_folder(self, path: str) -> bool:
        return os.path.isdir(path) and not os.path.islink(path)

    def find_stray(self, folder: str) -> Stray | None:
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    if entry.is_file(follow_symlinks=False):
                        continue
                    is_folder = entry.is_dir(follow_symlinks=False)
                    found = self.find_stray(entry.path) if is_folder else _stray_at(entry.path)
                    if found is not None:
                        return found
        except PermissionError:
            pass  # Not ours, as `lost+found` of a disk: nothing of it is ever used.
        return None

    def size(self, path: str) -> int:
        return _status(path).st_size

    def read(self, path: str) -> bytes:
        with open(_open(path, os.O_RDONLY), "rb") as stream:
            return stream.read()

    def write(self, path: str, data: Bytes, position: int = 0, *, sync: bool = False) -> None:
        descriptor = _open(path, os.O_WRONLY | os.O_CREAT)
        try:
            _pwrite_fully(descriptor, memoryview(data), position)
            os.ftruncate(descriptor, position + len(data))
            if sync:
                os.fdatasync(descriptor)
        finally:
            os.close(descriptor)

    def list(self, folder: str) -> list[str]:
        return sorted(os.listdir(folder))

    def make_folder(self, folder: str, *, sync: bool = True) -> None:
        if not os.path.isdir(folder):
            parent = folder_of(folder)
            if parent != folder:
                self.make_folder(parent)
            os.mkdir(folder, FOLDER_MODE)
            if sync:
                self.sync_folder(parent)

    def remove_folder(self, folder: str) -> None:
        os.rmdir(folder)

    def rename(self, old: str, new: str) -> None:
        os.rename(old, new)

    def link(self, old: str, new: str) -> None:
        os.link(old, new, follow_symlinks=False)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def modified_ms(self, path: str) -> int:
        return _status(path).st_mtime_ns // 1_000_000

    def sync_folder(self, folder: str) -> None:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def free_bytes(self, folder: str) -> int:
        stats = os.statvfs(folder)
        return stats.f_bavail * stats.f_frsize

    def total_bytes(self, folder: str) -> int:
        status = os.statvfs(folder)
        return status.f_blocks * status.f_frsize

    def lock(self, path: str) -> "RealLock":
        return RealLock(path)

    # --- the budget: called by RealFile, from any thread ---------------------------------------------------

    def acquire(self, file: RealFile) -> int:
        with self._lock:
            file.pins += 1
            file.recently_used = True
            if file.descriptor >= 0:
                return file.descriptor
            try:
                if file.closed:
                    raise FileClosedError(errno.ENOENT, "it was closed", file.path)
                self._make_room()
                file.descriptor = _open(file.path, os.O_RDWR)
            except OSError:
                file.pins -= 1
                raise
            self._open[id(file)] = file
            return file.descriptor

    def release(self, file: RealFile) -> None:
        with self._lock:
            file.pins -= 1
            assert file.pins >= 0
            if file.closed and not file.pins:
                self._close(file)

    def rename_open(self, file: RealFile, path: str) -> None:
        """Under the lock: nobody may open the file between its old name and its new one."""
        with self._lock:
            os.rename(file.path, path)
            file.path = path

    def forget(self, file: RealFile) -> None:
        """Close for good: now, or when the last pin goes."""
        with self._lock:
            file.closed = True
            if not file.pins:
                self._close(file)

    def _make_room(self) -> None:
        while len(self._open) >= self.open_files_max:
            victim = self._victim()
            if victim is None:
                return
            if victim.unsynced and victim.lost_error is None:
                self._say_too_few()
                try:
                    os.fdatasync(victim.descriptor)
                    victim.unsynced = False
                except OSError as error:
                    victim.lost_error = error
            self._close(victim)

    def _say_too_few(self) -> None:
        if not self._said_too_few:
            self._said_too_few = True
            logger.warning(
                "more files are written to than may be open at once (%d): writes wait for the disk; raise the "
                "limit of open files (ulimit -Hn) or log.open.files.max",
                self.open_files_max,
            )

    def _victim(self) -> RealFile | None:
        dirty = None
        for looks in range(2 * len(self._open)):
            if dirty is not None and looks >= LOOKS_MAX:
                break
            key, file = next(iter(self._open.items()))
            self._open.move_to_end(key)
            if file.pins:
                continue
            if file.recently_used:
                file.recently_used = False
            elif not file.unsynced:
                return file
            else:
                dirty = dirty or file
        return dirty

    def _close(self, file: RealFile) -> None:
        if file.descriptor >= 0:
            del self._open[id(file)]
            os.close(file.descriptor)
            file.descriptor = -1


class RealLock:
    """flock on a small file that also names the process, for the message of whoever comes second."""

    def __init__(self, path: str) -> None:
        try:
            self._descriptor = _open(path, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            stray = _stray_at(path)
            raise (stray_refusal(stray) if stray is not None else error) from None
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(self._descriptor, 32, 0).decode("ascii", "replace").strip()
            os.close(self._descriptor)
            by = f"process {holder}" if holder else "another process"
            raise DataFolderInUseError(
                f"The data folder {folder_of(path)} is in use by {by}; stop it or choose another folder."
            ) from error
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def boot_id() -> str:
    """Names this boot of the machine: while it lasts, a killed process loses nothing of the page cache."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as stream:
            return stream.read().strip()
    except OSError:
        return ""


def _open(path: str, flags: int) -> int:
    """A file's descriptor; OSError if it is none. Without O_NONBLOCK the open of a named pipe waits for its other
    end."""
    try:
        descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, FILE_MODE)
    except OSError as error:
        stray = _stray_at(path) if error.errno in (errno.ELOOP, errno.ENXIO) else None
        raise (_refused(stray) if stray is not None else error) from None
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        raise _refused(Stray(path, _kind_of(mode)))
    return descriptor


def _status(path: str) -> os.stat_result:
    status = os.stat(path, follow_symlinks=False)
    if not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode):
        raise _refused(Stray(path, _kind_of(status.st_mode)))
    return status


def _stray_at(path: str) -> Stray | None:
    try:
        mode = os.stat(path, follow_symlinks=False).st_mode
    except OSError:
        return None
    return None if stat.S_ISREG(mode) or stat.S_ISDIR(mode) else Stray(path, _kind_of(mode))


def _kind_of(mode: int) -> str:
    if stat.S_ISLNK(mode):
        return SYMBOLIC_LINK
    if stat.S_ISFIFO(mode):
        return "a named pipe"
    return "a socket" if stat.S_ISSOCK(mode) else "a device"


def _refused(stray: Stray) -> OSError:
    if stray.kind == SYMBOLIC_LINK:
        return NotAFileError(errno.ELOOP, "it is a symbolic link, and links are not followed", stray.path)
    return NotAFileError(errno.ENXIO, f"it is {stray.kind} and no file", stray.path)


def _pread_rest(descriptor: int, count: int, position: int) -> bytes:
    """A read may stop early (a signal, 2 GiB): ask on until the end of the file."""
    parts = []
    while count and (data := os.pread(descriptor, count, position)):
        parts.append(data)
        count -= len(data)
        position += len(data)
    return b"".join(parts)


def _pwritev_in_turns(descriptor: int, buffers: Sequence[Bytes], position: int) -> int:
    written = 0
    for first in range(0, len(buffers), IOV_MAX):
        part = buffers[first : first + IOV_MAX]
        taken = os.pwritev(descriptor, part, position + written)
        written += taken
        if taken < sum(len(buffer) for buffer in part):
            break
    return written


def _pwrite_fully(descriptor: int, data: memoryview, position: int) -> None:
    while data:
        taken = os.pwrite(descriptor, data, position)
        data = data[taken:]
        position += taken
