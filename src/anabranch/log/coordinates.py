"""FileCoordinates: rows of coordinates as of the last metadata snapshot, one file per partition.

    objects/<topic id>-<partition>.<version>.rows    packed rows, nothing else

The metadata snapshot names version, number of rows and their sum, and counts only once the rows are synced. To a file
that a snapshot names, rows are only appended; where others have changed, a file of a new version takes its place. What
a snapshot does not name was written for one that never came to be, and means nothing.
"""

import logging
import re
import uuid
from collections.abc import Iterable

from anabranch.errors import CorruptDataError, StorageError
from anabranch.log.disk.files import File, Files
from anabranch.objects.layout.names import ROW_BYTES

logger = logging.getLogger(__name__)

Key = tuple[uuid.UUID, int]
FOLDER = "objects"
_NAME = re.compile(r"([0-9a-f]{32})-([0-9]+)\.([0-9]+)\.rows")
_ADVICE = (
    "restore metadata-snapshot and the folder objects from the same backup, or let the broker join its cluster again "
    "with an empty data folder"
)


class FileCoordinates:
    """Any thread reads; one at a time writes, and removes nothing that another may still read."""

    def __init__(self, files: Files, data_dir: str) -> None:
        self._files = files
        self._folder = f"{data_dir}/{FOLDER}"
        self._open: dict[tuple[Key, int], File] = {}
        self._unsynced: dict[str, None] = {}

    def read(self, key: Key, version: int, first: int, count: int) -> bytes:
        file = self._open.get((key, version))
        if file is None:
            file = self._open[key, version] = self._files.open(self._path(key, version))
        try:
            data = file.pread(count * ROW_BYTES, first * ROW_BYTES)
        except OSError as error:
            self._open.pop((key, version), None)
            raise StorageError(f"{file.path} cannot be read: {error.strerror or error}.") from error
        if len(data) != count * ROW_BYTES:
            raise CorruptDataError(f"{file.path} has no {count} rows from {first} on: {_ADVICE}.")
        return data

    def cut(self, key: Key, version: int, count: int) -> None:
        path, size = self._path(key, version), count * ROW_BYTES
        try:
            present = self._files.size(path)
            if present < size:
                raise CorruptDataError(
                    f"{path} has {present} bytes where the metadata snapshot names {size}: {_ADVICE}."
                )
            if present > size:
                logger.info("%s: %d bytes behind the metadata snapshot are cut off", path, present - size)
                self._files.open(path).truncate(size)
        except FileNotFoundError as error:
            raise CorruptDataError(
                f"{path} is missing, but the metadata snapshot names it: {_ADVICE}."
            ) from error
        except OSError as error:
            raise StorageError(f"{path} cannot be read: {error.strerror or error}.") from error

    def write(self, key: Key, version: int, first: int, data: Iterable[bytes]) -> None:
        path, position = self._path(key, version), first * ROW_BYTES
        try:
            self._files.make_folder(self._folder)
            for chunk in data:
                self._files.write(path, chunk, position)
                position += len(chunk)
            self._unsynced[path] = None
        except OSError as error:
            raise StorageError(f"{path} cannot be written: {error.strerror or error}.") from error

    def sync(self) -> None:
        """All at once, so that the disk may put them together."""
        paths, self._unsynced = self._unsynced, {}
        try:
            for path in paths:
                self._files.open(path).sync()
            self._files.sync_folder(self._folder)
        except OSError as error:
            raise StorageError(f"{self._folder} cannot be synced: {error.strerror or error}.") from error

    def next_version(self) -> int:
        return max((version for _, version in self._present()), default=0) + 1

    def remove_others(self, named: Iterable[tuple[Key, int]]) -> None:
        kept = set(named)
        for key, version in self._present():
            if (key, version) not in kept:
                self.remove(key, version)

    def remove(self, key: Key, version: int) -> None:
        file = self._open.pop((key, version), None)
        if file is not None:
            file.close()
        path = self._path(key, version)
        self._unsynced.pop(path, None)
        try:
            self._files.unlink(path)
        except FileNotFoundError:
            return
        except OSError as error:
            logger.warning("%s is not needed any more, but cannot be deleted: %s", path, error)

    def _present(self) -> list[tuple[Key, int]]:
        try:
            names = self._files.list(self._folder)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise StorageError(f"{self._folder} cannot be read: {error.strerror or error}.") from error
        found = [_NAME.fullmatch(name) for name in names]
        return [((uuid.UUID(hex=each[1]), int(each[2])), int(each[3])) for each in found if each is not None]

    def _path(self, key: Key, version: int) -> str:
        return f"{self._folder}/{key[0].hex}-{key[1]}.{version}.rows"
