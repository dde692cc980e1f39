"""The disk behind two small protocols, so that everything above runs the same on `RealFiles` and on a
fault-injecting disk.

Paths are plain strings. Every method may raise OSError; callers in this room turn it into `StorageError`. A
`File` may be used from any thread; it opens its descriptor on first use and may lose it again between two
calls (the budget of `RealFiles`), which no caller notices. `pin` keeps the descriptor, for as long as
somebody outside holds its number. Nothing is durable before `sync`; a name (created, renamed, removed) is not
durable before `sync_folder`.
"""

import shlex
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from anabranch.errors import AnabranchError, CorruptDataError, StorageError

Bytes = bytes | bytearray | memoryview


class FileClosedError(FileNotFoundError):
    """The file was closed for good, because its owner needs it no more: its name may mean another one, or none."""


class NotAFileError(OSError):
    """The name is that of a link, a pipe or the like, which are never opened."""


class File(Protocol):
    """One open file."""

    path: str

    def size(self) -> int: ...

    def pread(self, count: int, position: int) -> bytes:
        """Up to `count` bytes; fewer only at the end of the file."""
        ...

    def pwritev(self, buffers: Sequence[Bytes], position: int) -> int:
        """Write all buffers one after another; answers how many bytes the disk took, which may be fewer."""
        ...

    def truncate(self, size: int) -> None: ...

    def rename(self, path: str) -> None:
        """Give the file another name without losing it; what had that name is replaced."""
        ...

    def sync(self) -> None: ...

    def forget_cache(self, position: int = 0) -> None:
        """Ask the system to drop clean cached pages from `position` on, so that the next read comes from the disk
        itself."""
        ...

    def stamp(self) -> int | None:
        """What changes whenever anybody changes the file; None where that cannot be told, or not yet, because the last
        change was a moment ago and another would not show."""
        ...

    def fileno(self) -> int | None:
        """The descriptor for sendfile, or None where there is none. Valid while pinned."""
        ...

    def pin(self) -> None: ...

    def unpin(self) -> None: ...

    def close(self) -> None:
        """No more use by path: who holds a pin goes on reading this very file, others get FileClosedError."""
        ...


class FolderLock(Protocol):
    def release(self) -> None: ...


class Stray(NamedTuple):
    """A name in a folder that is neither a file's nor a folder's, and what it is instead."""

    path: str
    kind: str


SYMBOLIC_LINK = "a symbolic link"


class Files(Protocol):
    """A disk."""

    def open(self, path: str) -> File:
        """An existing file; touched only when first used."""
        ...

    def create(self, path: str) -> File:
        """A new, empty file; FileExistsError if there is one."""
        ...

    def exists(self, path: str) -> bool: ...

    def is_folder(self, path: str) -> bool: ...

    def find_stray(self, folder: str) -> Stray | None:
        """What is neither a file nor a folder, at any depth of a folder; None: there is none such."""
        ...

    def size(self, path: str) -> int: ...

    def read(self, path: str) -> bytes:
        """A whole small file."""
        ...

    def write(self, path: str, data: Bytes, position: int = 0, *, sync: bool = False) -> None:
        """Write `data` at `position` and end the file there; the file is made if there is none."""
        ...

    def list(self, folder: str) -> list[str]:
        """The names in a folder, sorted."""
        ...

    def make_folder(self, folder: str, *, sync: bool = True) -> None:
        """Make a folder with its parents; no error if it is there. Durable, unless the caller syncs the parent
        itself."""
        ...

    def remove_folder(self, folder: str) -> None:
        """Remove an empty folder."""
        ...

    def rename(self, old: str, new: str) -> None: ...

    def link(self, old: str, new: str) -> None:
        """Give a file a second name; FileExistsError if something has it."""
        ...

    def unlink(self, path: str) -> None: ...

    def modified_ms(self, path: str) -> int:
        """When the file was last written to, by the time of day."""
        ...

    def sync_folder(self, folder: str) -> None: ...

    def free_bytes(self, folder: str) -> int: ...

    def total_bytes(self, folder: str) -> int: ...

    def lock(self, path: str) -> FolderLock:
        """Hold a file exclusively, until released or the process ends; DataFolderInUseError if another holds
        it, StorageError if it is a symbolic link."""
        ...


def folder_of(path: str) -> str:
    return path.rpartition("/")[0] or "."


def require_no_strays(files: Files, folder: str) -> None:
    """Refuse a folder with links in it, which would lead to what is not of this node, or with what is no file at all.
    It may be a link itself."""
    stray = files.find_stray(folder)
    if stray is not None:
        raise stray_refusal(stray)


def stray_refusal(stray: Stray) -> StorageError:
    path, kind = stray
    if kind != SYMBOLIC_LINK:
        return StorageError(
            f"{path} is {kind}, and in a data folder are files and folders only: remove it (rm {shlex.quote(path)})."
        )
    return StorageError(
        f"{path} is a symbolic link, and what is in a data folder must be there itself: put what it points to in its "
        f"place, or remove the link (rm {shlex.quote(path)})."
    )


def read_refusal(path: str, error: OSError) -> AnabranchError:
    """Why a file cannot be read. One that somebody has removed behind our back is damage: trying again is no help."""
    if isinstance(error, FileNotFoundError) and not isinstance(error, FileClosedError):
        return CorruptDataError(f"{error.filename or path} is missing: somebody has removed it.")
    return StorageError(f"{path} cannot be read: {error.strerror or error}.")


def write_fully(file: File, buffers: Sequence[Bytes], position: int) -> int:
    """Write all of `buffers` or raise OSError; a disk that took fewer bytes is asked once more for its
    reason."""
    total = sum(len(buffer) for buffer in buffers)
    taken = file.pwritev(buffers, position)
    if taken < total:
        rest = b"".join(buffers)[taken:]
        again = file.pwritev([rest], position + taken)
        if again < len(rest):
            raise OSError(f"{file.path}: the disk took {taken + again} of {total} bytes")
    return total
