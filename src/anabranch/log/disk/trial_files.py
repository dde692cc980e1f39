"""A disk on which nothing happens: reads show another disk, and changes stay in memory.

`TrialFiles` is a `Files`. Whoever wants to know what some work would do to a folder lets it do that work here, and then
looks at the result with the same means as at a real disk; prediction and deed cannot differ, because they are the same
code. A file that is only cut, renamed or removed costs no memory; one that is written to is held as a whole. For one
thread, while nobody else changes the disk.
"""

import errno
import os
from collections.abc import Sequence
from typing import NamedTuple, NoReturn

from anabranch.log.disk.files import Bytes, File, Files, Stray, folder_of


class _Shown(NamedTuple):
    """The first `size_bytes` of a file of the disk below."""

    file: File
    size_bytes: int


_Content = _Shown | bytearray


class TrialFile:
    """One open file of `TrialFiles`; see `anabranch.log.disk.files.File`."""

    def __init__(self, files: "TrialFiles", path: str) -> None:
        self.path = path
        self._files = files

    def size(self) -> int:
        return self._files.size(self.path)

    def pread(self, count: int, position: int) -> bytes:
        content = self._files.content(self.path)
        if isinstance(content, _Shown):
            return content.file.pread(max(0, min(count, content.size_bytes - position)), position)
        return bytes(content[position : position + count])

    def pwritev(self, buffers: Sequence[Bytes], position: int) -> int:
        data = b"".join(buffers)
        content = self._files.held_content(self.path)
        content.extend(bytes(max(0, position - len(content))))
        content[position : position + len(data)] = data
        return len(data)

    def truncate(self, size: int) -> None:
        self._files.truncate(self.path, size)

    def rename(self, path: str) -> None:
        self._files.rename(self.path, path)
        self.path = path

    def sync(self) -> None:
        self._files.content(self.path)

    def forget_cache(self, position: int = 0) -> None:
        content = self._files.content(self.path)
        if isinstance(content, _Shown):
            content.file.forget_cache(position)

    def stamp(self) -> int | None:
        return None

    def fileno(self) -> int | None:
        content = self._files.content(self.path)
        return content.file.fileno() if isinstance(content, _Shown) else None

    def pin(self) -> None:
        content = self._files.content(self.path)
        if isinstance(content, _Shown):
            content.file.pin()

    def unpin(self) -> None:
        content = self._files.content(self.path)
        if isinstance(content, _Shown):
            content.file.unpin()

    def close(self) -> None:
        """Nothing: the files below are closed with the trial."""


class TrialFiles:
    """A disk that shows `below`, and keeps what is changed to itself; see the top of this module."""

    def __init__(self, below: Files) -> None:
        self._below = below
        self._contents: dict[str, _Content | None] = {}
        """Of what was opened or changed so far; None: it is gone."""
        self._opened: list[File] = []
        self._folders: dict[str, bool] = {}
        """Those that were made or removed here, and whether they are there."""

    def __enter__(self) -> "TrialFiles":
        return self

    def __exit__(self, *exception: object) -> None:
        for file in self._opened:
            file.close()

    # --- used by TrialFile ----------------------------------------------------------------------------------

    def content(self, path: str) -> _Content:
        if path not in self._contents:
            size_bytes = self._below.size(path)
            file = self._below.open(path)
            self._opened.append(file)
            self._contents[path] = _Shown(file, size_bytes)
        content = self._contents[path]
        return _missing(path) if content is None else content

    def held_content(self, path: str) -> bytearray:
        """The content in memory, where it can be written to."""
        content = self.content(path)
        if isinstance(content, _Shown):
            content = bytearray(content.file.pread(content.size_bytes, 0))
            self._contents[path] = content
        return content

    def truncate(self, path: str, size: int) -> None:
        content = self.content(path)
        if isinstance(content, _Shown) and size <= content.size_bytes:
            self._contents[path] = content._replace(size_bytes=size)
        else:
            held = self.held_content(path)
            held[size:] = bytes(max(0, size - len(held)))

    # --- Files ----------------------------------------------------------------------------------------------

    def open(self, path: str) -> TrialFile:
        return TrialFile(self, path)

    def create(self, path: str) -> TrialFile:
        if self.exists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        if not self.is_folder(folder_of(path)):
            _missing(path)
        self._contents[path] = bytearray()
        return TrialFile(self, path)

    def exists(self, path: str) -> bool:
        if path in self._contents:
            return self._contents[path] is not None
        return self._folders.get(path, self._below.exists(path))

    def is_folder(self, path: str) -> bool:
        return self._folders.get(path, self._below.is_folder(path))

    def find_stray(self, folder: str) -> Stray | None:
        return self._below.find_stray(folder)

    def size(self, path: str) -> int:
        if path not in self._contents:
            return self._below.size(path)
        content = self.content(path)
        return content.size_bytes if isinstance(content, _Shown) else len(content)

    def read(self, path: str) -> bytes:
        return self._below.read(path) if path not in self._contents else self.open(path).pread(2**62, 0)

    def write(self, path: str, data: Bytes, position: int = 0, *, sync: bool = False) -> None:
        file = self.open(path) if self.exists(path) else self.create(path)
        file.truncate(position)
        file.pwritev([data], position)

    def list(self, folder: str) -> list[str]:
        if not self.is_folder(folder):
            _missing(folder)
        names = set(self._below.list(folder)) if self._below.is_folder(folder) else set()
        for path, is_there in [
            *((path, content is not None) for path, content in self._contents.items()),
            *self._folders.items(),
        ]:
            if folder_of(path) == folder:
                name = path.rpartition("/")[2]
                names.add(name) if is_there else names.discard(name)
        return sorted(names)

    def make_folder(self, folder: str, *, sync: bool = True) -> None:
        while not self.is_folder(folder):
            self._folders[folder] = True
            folder = folder_of(folder)

    def remove_folder(self, folder: str) -> None:
        if self.list(folder):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), folder)
        self._folders[folder] = False

    def rename(self, old: str, new: str) -> None:
        """Files only."""
        if not self.is_folder(folder_of(new)):
            _missing(new)
        self._contents[new] = self.content(old)
        if new != old:
            self._contents[old] = None

    def link(self, old: str, new: str) -> None:
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP), new)

    def unlink(self, path: str) -> None:
        if not self.exists(path):
            _missing(path)
        self._contents[path] = None

    def modified_ms(self, path: str) -> int:
        return self._below.modified_ms(path)

    def sync_folder(self, folder: str) -> None:
        """Nothing: nothing here survives."""

    def free_bytes(self, folder: str) -> int:
        return self._below.free_bytes(folder)

    def total_bytes(self, folder: str) -> int:
        return self._below.total_bytes(folder)

    def lock(self, path: str) -> NoReturn:
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP), path)


def _missing(path: str) -> NoReturn:
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
