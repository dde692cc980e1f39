"""A disk in memory that forgets what was not synced, fills up, and fails when told to.

`FakeDisk` is an `anabranch.log.disk.files.Files`. It keeps two truths: what a running process sees, and what would
survive a power cut. A write joins the second at `sync` of its file, a name (created, renamed, removed) at
`sync_folder`.

    disk = FakeDisk()
    disk.fail_next("write", errno.ENOSPC)       # the next write fails and takes nothing
    disk.short_next(10)                         # the next write takes ten bytes
    disk.fail_next("sync")                      # EIO; what was to be synced is lost, though reads show it
    disk.capacity_bytes = 4096                  # a full disk
    disk.wait_before("sync", event.wait)        # a slow disk
    disk.crash_at = disk.operations + 17        # the 17th change from now raises PowerLoss ...
    disk.crash(Random(7))                       # ... and this decides what of the unsynced changes survived

A crash keeps any subset of the unsynced sectors of 512 bytes (the rest reads as before, or as zeros where the
file grew), tears the last write within a sector, and keeps any subset of the unsynced names. Files opened
before it are dead.
"""

import errno
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from random import Random
from typing import Literal

from anabranch.errors import DataFolderInUseError
from anabranch.log.disk.files import Bytes, FileClosedError, folder_of
from anabranch.testing.fakes.inode import Inode, Truncate, Write, copied, lose_power

Operation = Literal["write", "truncate", "sync", "sync_folder", "create", "rename", "link", "unlink", "read"]


class PowerLoss(Exception):
    """The machine went dark at this operation; call `crash` and open everything anew."""


@dataclass
class _Name:
    """One unsynced change of a folder: `path` now means `inode` (None: nothing), and `freed` nothing."""

    path: str
    inode: Inode | None
    freed: str | None = None

    def apply(self, names: dict[str, Inode]) -> None:
        if self.freed is not None:
            names.pop(self.freed, None)
        if self.inode is None:
            names.pop(self.path, None)
        else:
            names[self.path] = self.inode


@dataclass
class _Fault:
    operation: Operation
    error: int
    path_contains: str
    times: int


class FakeFile:
    """One open file of a `FakeDisk`; it has no descriptor."""

    def __init__(self, disk: "FakeDisk", path: str) -> None:
        self.path = path
        self._disk = disk
        self._life = disk.life
        self._inode: Inode | None = None
        self._closed = False
        self.pins = 0

    def size(self) -> int:
        return len(self._opened().visible)

    def pread(self, count: int, position: int) -> bytes:
        inode = self._opened()
        self._disk.check("read", self.path)
        return bytes(inode.visible[position : position + count])

    def pwritev(self, buffers: Sequence[Bytes], position: int) -> int:
        return self._disk.write_inode(self._opened(), self.path, b"".join(buffers), position)

    def truncate(self, size: int) -> None:
        inode = self._opened()
        with self._disk.change("truncate", self.path):
            inode.change(Truncate(size))

    def rename(self, path: str) -> None:
        self._disk.rename(self.path, path)
        self.path = path

    def sync(self) -> None:
        self._disk.sync_inode(self._opened(), self.path)

    def forget_cache(self, position: int = 0) -> None:
        self._opened().reload()

    def stamp(self) -> int | None:
        return None  # Tests change its bytes behind its back.

    def fileno(self) -> int | None:
        return None

    def pin(self) -> None:
        self._opened()
        self.pins += 1

    def unpin(self) -> None:
        self.pins -= 1
        assert self.pins >= 0

    def close(self) -> None:
        self._closed = True

    def _opened(self) -> Inode:
        if self._life != self._disk.life:
            raise OSError(errno.EBADF, "opened before the power loss", self.path)
        if self._closed and not self.pins:
            raise FileClosedError(errno.ENOENT, "was closed", self.path)
        if self._inode is None:
            self._inode = self._disk.inode(self.path)
        return self._inode


class FakeDisk:
    """A disk in memory; see the top of this module."""

    def __init__(self) -> None:
        self.capacity_bytes: int | None = None
        self.wall_ms: Callable[[], int] = lambda: 0
        """The time of day, for `modified_ms`: that of the test's clock, if it looks there."""
        self.operations = 0
        self.crash_at: int | None = None
        self.life = 0
        self._names: dict[str, Inode] = {}
        self._durable_names: dict[str, Inode] = {}
        self._pending_names: list[_Name] = []
        self._folders: set[str] = {".", ""}
        self._faults: list[_Fault] = []
        self._short_bytes: int | None = None
        self._waits: list[tuple[Operation, Callable[[], object]]] = []
        self._locked: set[str] = set()
        self._lock = threading.RLock()

    # --- faults on demand -----------------------------------------------------------------------------------

    def fail_next(
        self, operation: Operation, error: int = errno.EIO, *, path_contains: str = "", times: int = 1
    ) -> None:
        """Let the next operation of this kind (on a path with `path_contains` in it) fail with `error`."""
        self._faults.append(_Fault(operation, error, path_contains, times))

    def short_next(self, taken_bytes: int) -> None:
        """Let the next write take only the first bytes, as a disk does that fills up within a write."""
        self._short_bytes = taken_bytes

    def wait_before(self, operation: Operation, wait: Callable[[], object]) -> None:
        """Call `wait` before the next operation of this kind: a slow disk, without a sleep in the test."""
        self._waits.append((operation, wait))

    def crash(self, rng: Random) -> None:
        """Cut the power: every file and name falls back to what was synced plus any subset of the rest."""
        with self._lock:
            survivors = dict(self._durable_names)
            keep_names = rng.choice((0.0, 0.5, 1.0))
            for name in self._pending_names:
                if rng.random() < keep_names:
                    name.apply(survivors)
            for inode in {id(inode): inode for inode in survivors.values()}.values():
                lose_power(inode, rng)
            self._names = survivors
            for path in survivors:
                self.make_folder(folder_of(path))  # The removal of its folder went with that of the file.
            self._settle()

    def kill(self) -> None:
        """End the process but not the machine: nothing is lost, files opened before are dead."""
        with self._lock:
            self.life += 1
            self.crash_at = None
            self._locked.clear()

    def copy(self) -> "FakeDisk":
        """The same disk once more, so that one moment can be tried with many ends."""
        with self._lock:
            inodes: dict[int, Inode] = {}
            other = FakeDisk()
            other.wall_ms = self.wall_ms
            other.capacity_bytes, other.operations, other.life = (
                self.capacity_bytes,
                self.operations,
                self.life,
            )
            other._names = {path: copied(inode, inodes) for path, inode in self._names.items()}
            other._durable_names = {p: copied(inode, inodes) for p, inode in self._durable_names.items()}
            for name in self._pending_names:
                inode = copied(name.inode, inodes) if name.inode is not None else None
                other._pending_names.append(_Name(name.path, inode, name.freed))
            other._folders = set(self._folders)
            return other

    def forget_faults(self) -> None:
        """Let nothing more fail that was told to."""
        with self._lock:
            self._faults.clear()
            self._waits.clear()
            self._short_bytes = None

    @property
    def is_dark(self) -> bool:
        """The power went at `crash_at`; nothing changes any more before `crash` or `kill`."""
        return self.crash_at is not None and self.operations >= self.crash_at

    def flip_bit(self, path: str, position: int, bit: int = 0) -> None:
        """Rot: one bit changes on the disk itself, in bytes that got there."""
        inode = self.inode(path)
        inode.sync()
        for content in (inode.visible, inode.durable):
            if position < len(content):
                content[position] ^= 1 << bit

    def _settle(self) -> None:
        self._durable_names = dict(self._names)
        self._pending_names.clear()
        self.forget_faults()
        self.kill()

    # --- Files ----------------------------------------------------------------------------------------------

    def open(self, path: str) -> FakeFile:
        return FakeFile(self, path)

    def create(self, path: str) -> FakeFile:
        with self.change("create", path):
            if path in self._names:
                raise FileExistsError(errno.EEXIST, "exists", path)
            if folder_of(path) not in self._folders:
                raise FileNotFoundError(errno.ENOENT, "no such folder", path)
            self._rename_entry(_Name(path, Inode(modified_ms=self.wall_ms())))
        return FakeFile(self, path)

    def exists(self, path: str) -> bool:
        return path in self._names or path in self._folders

    def find_stray(self, folder: str) -> None:
        return None  # This disk has files and folders only.

    def is_folder(self, path: str) -> bool:
        return path in self._folders

    def size(self, path: str) -> int:
        return len(self.inode(path).visible)

    def read(self, path: str) -> bytes:
        inode = self.inode(path)
        self.check("read", path)
        return bytes(inode.visible)

    def write(self, path: str, data: Bytes, position: int = 0, *, sync: bool = False) -> None:
        if path not in self._names:
            self.create(path)
        inode = self.inode(path)
        taken = self.write_inode(inode, path, bytes(data), position)
        if taken < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        if len(inode.visible) != position + len(data):
            with self.change("truncate", path):
                inode.change(Truncate(position + len(data)))
        if sync:
            self.sync_inode(inode, path)

    def list(self, folder: str) -> list[str]:
        if folder not in self._folders:
            raise FileNotFoundError(errno.ENOENT, "no such folder", folder)
        paths = [*self._names, *self._folders]
        return sorted(
            path.rpartition("/")[2] for path in paths if path != folder and folder_of(path) == folder
        )

    def make_folder(self, folder: str, *, sync: bool = True) -> None:
        while folder not in self._folders:
            self._folders.add(folder)
            folder = folder_of(folder)

    def remove_folder(self, folder: str) -> None:
        if self.list(folder):
            raise OSError(errno.ENOTEMPTY, "not empty", folder)
        self._folders.discard(folder)

    def rename(self, old: str, new: str) -> None:
        with self.change("rename", new):
            if folder_of(new) not in self._folders:
                raise FileNotFoundError(errno.ENOENT, "no such folder", new)
            if old in self._folders:
                self._rename_folder(old, new)
            else:
                self._rename_entry(_Name(new, self.inode(old), freed=old))

    def link(self, old: str, new: str) -> None:
        with self.change("link", new):
            if folder_of(new) not in self._folders:
                raise FileNotFoundError(errno.ENOENT, "no such folder", new)
            if self.exists(new):
                raise FileExistsError(errno.EEXIST, "exists", new)
            self._rename_entry(_Name(new, self.inode(old)))

    def unlink(self, path: str) -> None:
        with self.change("unlink", path):
            self.inode(path)
            self._rename_entry(_Name(path, None))

    def modified_ms(self, path: str) -> int:
        return self.inode(path).modified_ms

    def sync_folder(self, folder: str) -> None:
        with self.change("sync_folder", folder):
            waiting: list[_Name] = []
            for name in self._pending_names:
                if folder in (folder_of(name.path), folder_of(name.freed or name.path)):
                    name.apply(self._durable_names)
                    # An older change of the same name must not come true after the newer one.
                    waiting = [older for older in waiting if older.path not in (name.path, name.freed)]
                else:
                    waiting.append(name)
            self._pending_names = waiting

    def free_bytes(self, folder: str) -> int:
        return self.total_bytes(folder) - self._used_bytes()

    def total_bytes(self, folder: str) -> int:
        return self.capacity_bytes or 2**40

    def lock(self, path: str) -> "FakeLock":
        if path in self._locked:
            raise DataFolderInUseError(f"The data folder {folder_of(path)} is in use by another process.")
        self._locked.add(path)
        return FakeLock(self._locked, path)

    # --- used by FakeFile -----------------------------------------------------------------------------------

    def inode(self, path: str) -> Inode:
        inode = self._names.get(path)
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return inode

    def change(self, operation: Operation, path: str) -> AbstractContextManager[bool]:
        """Count one change and let its fault strike; answers the lock to make the change under."""
        with self._lock:
            self.operations += 1
            if self.crash_at is not None and self.operations >= self.crash_at:
                raise PowerLoss(f"{operation} {path}")
        self.check(operation, path)
        return self._lock

    def check(self, operation: Operation, path: str) -> None:
        for wait in [wait for wait in self._waits if wait[0] == operation]:
            self._waits.remove(wait)
            wait[1]()
        for fault in self._faults:
            if fault.operation == operation and fault.path_contains in path:
                fault.times -= 1
                if fault.times <= 0:
                    self._faults.remove(fault)
                raise OSError(fault.error, os.strerror(fault.error), path)

    def write_inode(self, inode: Inode, path: str, data: bytes, position: int) -> int:
        with self.change("write", path):
            taken = self._taken_bytes(inode, path, data, position)
            inode.change(Write(position, data[:taken]))
            inode.modified_ms = self.wall_ms()
            return taken

    def sync_inode(self, inode: Inode, path: str) -> None:
        try:
            lock = self.change("sync", path)
        except OSError:
            # As on Linux: the pages that could not be written count as clean afterwards. Reads still show
            # them, a second sync succeeds, and the disk never gets them.
            inode.pending.clear()
            raise
        with lock:
            inode.sync()

    def _taken_bytes(self, inode: Inode, path: str, data: bytes, position: int) -> int:
        taken = len(data)
        if self._short_bytes is not None:
            taken, self._short_bytes = min(taken, self._short_bytes), None
        if self.capacity_bytes is not None:
            growth = max(0, position + taken - len(inode.visible))
            missing = self._used_bytes() + growth - self.capacity_bytes
            taken = max(0, taken - max(0, missing))
        if data and not taken:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        return taken

    def _used_bytes(self) -> int:
        inodes = {id(inode): inode for inode in self._names.values()}
        return sum(len(inode.visible) for inode in inodes.values())

    def _rename_entry(self, name: _Name) -> None:
        name.apply(self._names)
        self._pending_names.append(name)

    def _rename_folder(self, old: str, new: str) -> None:
        """Durable at once, as folders are when they are made; what is in it keeps what it had."""

        def moved(path: str) -> str:
            return new + path[len(old) :] if path == old or path.startswith(f"{old}/") else path

        if new in self._folders:
            raise OSError(errno.ENOTEMPTY, "exists", new)
        self._folders = {moved(folder) for folder in self._folders}
        self._names = {moved(path): inode for path, inode in self._names.items()}
        self._durable_names = {moved(path): inode for path, inode in self._durable_names.items()}
        for name in self._pending_names:
            name.path = moved(name.path)
            name.freed = moved(name.freed) if name.freed is not None else None


class FakeLock:
    def __init__(self, locked: set[str], path: str) -> None:
        self._locked = locked
        self._path = path

    def release(self) -> None:
        self._locked.discard(self._path)
