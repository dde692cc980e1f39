"""FaultyFiles: the machine's disk, except that a write or a sync fails when a fault of `Faults` waits for it.

Everything else goes through untouched, descriptors for sendfile included. It takes the place of `RealFiles` in an
embedded broker; for a disk that loses power there is `FakeDisk`.
"""

from collections.abc import Sequence

from anabranch.log.disk.files import Bytes, File, Files, FolderLock, Stray
from anabranch.testing.faults import Faults


class FaultyFile:
    """One open file; see `anabranch.log.disk.files.File`."""

    def __init__(self, file: File, faults: Faults) -> None:
        self._file = file
        self._faults = faults

    @property
    def path(self) -> str:
        return self._file.path

    @path.setter
    def path(self, path: str) -> None:
        self._file.path = path

    def size(self) -> int:
        return self._file.size()

    def pread(self, count: int, position: int) -> bytes:
        return self._file.pread(count, position)

    def pwritev(self, buffers: Sequence[Bytes], position: int) -> int:
        self._faults.check_disk("write", self.path)
        return self._file.pwritev(buffers, position)

    def truncate(self, size: int) -> None:
        self._file.truncate(size)

    def rename(self, path: str) -> None:
        self._file.rename(path)

    def sync(self) -> None:
        self._faults.check_disk("sync", self.path)
        self._file.sync()

    def forget_cache(self, position: int = 0) -> None:
        self._file.forget_cache(position)

    def stamp(self) -> int | None:
        return self._file.stamp()

    def fileno(self) -> int | None:
        return self._file.fileno()

    def pin(self) -> None:
        self._file.pin()

    def unpin(self) -> None:
        self._file.unpin()

    def close(self) -> None:
        self._file.close()


class FaultyFiles:
    """A disk with faults; see `anabranch.log.disk.files.Files`."""

    def __init__(self, files: Files, faults: Faults) -> None:
        self._files = files
        self._faults = faults

    def open(self, path: str) -> FaultyFile:
        return FaultyFile(self._files.open(path), self._faults)

    def create(self, path: str) -> FaultyFile:
        return FaultyFile(self._files.create(path), self._faults)

    def exists(self, path: str) -> bool:
        return self._files.exists(path)

    def is_folder(self, path: str) -> bool:
        return self._files.is_folder(path)

    def find_stray(self, folder: str) -> Stray | None:
        return self._files.find_stray(folder)

    def size(self, path: str) -> int:
        return self._files.size(path)

    def read(self, path: str) -> bytes:
        return self._files.read(path)

    def write(self, path: str, data: Bytes, position: int = 0, *, sync: bool = False) -> None:
        self._files.write(path, data, position, sync=sync)

    def list(self, folder: str) -> list[str]:
        return self._files.list(folder)

    def make_folder(self, folder: str, *, sync: bool = True) -> None:
        self._files.make_folder(folder, sync=sync)

    def remove_folder(self, folder: str) -> None:
        self._files.remove_folder(folder)

    def rename(self, old: str, new: str) -> None:
        self._files.rename(old, new)

    def link(self, old: str, new: str) -> None:
        self._files.link(old, new)

    def unlink(self, path: str) -> None:
        self._files.unlink(path)

    def modified_ms(self, path: str) -> int:
        return self._files.modified_ms(path)

    def sync_folder(self, folder: str) -> None:
        self._files.sync_folder(folder)

    def free_bytes(self, folder: str) -> int:
        return self._files.free_bytes(folder)

    def total_bytes(self, folder: str) -> int:
        return self._files.total_bytes(folder)

    def lock(self, path: str) -> FolderLock:
        return self._files.lock(path)
