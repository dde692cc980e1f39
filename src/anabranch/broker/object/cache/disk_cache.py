"""DiskCache: blocks of stored objects on the local disk, those that memory had no room for and that came by a GET.

    <data>/object-cache/<kind>-<incarnation>-<epoch>-<number>-<block>
        magic u32 | CRC-32C of the data, xor that of the name, u32 | length u64 | data

Nothing here is needed: every file may be deleted at any time, and one that is missing, cut off or damaged is a block
that has to be fetched again. So nothing is synced. It survives a restart, because reading it back costs less than the
store; a power cut leaves files whose sum does not hold, and those go when they are asked for. At a full disk, or one
with less than `FREE_BYTES_MIN` left, nothing is written for a while.

Files are read and written in workers; the table of what there is belongs to the loop's thread.
"""

import logging
from collections import OrderedDict
from struct import Struct

from anabranch.broker.object.cache.blocks import Block, BlockKey
from anabranch.broker.workers import Workers, in_heavy_worker
from anabranch.clock import Clock
from anabranch.log.disk.files import Files
from anabranch.record.crc32c import crc32c

FILES_MAX = 4096
WRITES_MAX = 4
"""Blocks that wait to be written; one more is let go."""
FREE_BYTES_MIN = 256 * 2**20
"""Of the disk: logs need it more."""
REFUSED_MS = 60_000
MAGIC = 0x616E6263
_HEAD = Struct(">IIQ")

logger = logging.getLogger(__name__)


class DiskCache:
    def __init__(self, files: Files, folder: str, clock: Clock, workers: Workers, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes_held = 0
        self._files = files
        self._folder = folder
        self._clock = clock
        self._workers = workers
        self._sizes: OrderedDict[str, int] = OrderedDict()
        self._writing: set[str] = set()
        self._refused_ms: int | None = None

    def open(self) -> None:
        """Find what an earlier process has left. A folder that cannot be read is an empty one."""
        try:
            self._files.make_folder(self._folder, sync=False)
            for name in self._files.list(self._folder):
                self._note(name, self._files.size(self._path(name)))
        except OSError as error:
            logger.warning("the object cache in %s cannot be read: %s", self._folder, error)
        self._make_room()

    # --- reading ---------------------------------------------------------------------------------------------

    async def get(self, key: BlockKey) -> bytes | None:
        """The block, if it is here and whole."""
        name = _name(key)
        if name not in self._sizes:
            return None
        self._sizes.move_to_end(name)
        data = await in_heavy_worker(self._workers, lambda: self._read(name))
        if data is None and name not in self._writing:
            self._forget(name)
        return data

    def _read(self, name: str) -> bytes | None:
        try:
            found = self._files.read(self._path(name))
        except OSError:
            return None
        return _checked(name, found)

    # --- writing ---------------------------------------------------------------------------------------------

    def put(self, block: Block) -> None:
        """Keep a block, if there is nothing better to do."""
        name = _name(block.key)
        size = _HEAD.size + len(block.data)
        if (
            name in self._sizes
            or size > self.bytes_max
            or len(self._writing) >= WRITES_MAX
            or self._is_refused()
        ):
            return
        data = block.data
        self._writing.add(name)
        self._note(name, size)
        self._make_room()

        def done(error: OSError | None, defect: BaseException | None) -> None:
            self._writing.discard(name)
            if defect is not None:
                logger.error("the object cache could not be written: this is a defect", exc_info=defect)
                self._forget(name)
            elif error is not None:
                self._refuse(name, error)

        self._workers.heavy(lambda: self._write(name, data), done)

    def _write(self, name: str, data: bytes) -> OSError | None:
        try:
            if self._files.free_bytes(self._folder) < FREE_BYTES_MIN + len(data):
                return OSError(f"less than {FREE_BYTES_MIN} bytes are free on its disk")
            self._files.write(self._path(name), _packed(name, data))
        except FileNotFoundError:
            return self._write_anew(name, data)
        except OSError as error:
            return error
        return None

    def _write_anew(self, name: str, data: bytes) -> OSError | None:
        """Somebody has deleted the folder, which is allowed."""
        try:
            self._files.make_folder(self._folder, sync=False)
            self._files.write(self._path(name), _packed(name, data))
        except OSError as error:
            return error
        return None

    def _is_refused(self) -> bool:
        return self._refused_ms is not None and self._clock.monotonic_ms() - self._refused_ms < REFUSED_MS

    def _refuse(self, name: str, error: OSError) -> None:
        if self._refused_ms is None:
            logger.warning("the object cache in %s takes nothing for now: %s", self._folder, error)
        self._refused_ms = self._clock.monotonic_ms()
        self._forget(name)

    # --- what there is -----------------------------------------------------------------------------------------

    def drop(self, key: BlockKey) -> None:
        name = _name(key)
        if name in self._sizes:
            self._forget(name)

    def _note(self, name: str, size: int) -> None:
        self._sizes[name] = size
        self.bytes_held += size

    def _forget(self, name: str) -> None:
        """One that is being read or written meanwhile is missed, and fetched again."""
        size = self._sizes.pop(name, None)
        if size is None:
            return
        self.bytes_held -= size
        path = self._path(name)
        self._workers.heavy(lambda: self._unlink(path), lambda _, error: None)

    def _unlink(self, path: str) -> None:
        try:
            self._files.unlink(path)
        except FileNotFoundError:
            pass  # Deleted by somebody else, or never written.
        except OSError as error:
            logger.warning("%s cannot be deleted: %s", path, error)

    def _make_room(self) -> None:
        while self.bytes_held > self.bytes_max or len(self._sizes) > FILES_MAX:
            name = next((each for each in self._sizes if each not in self._writing), None)
            if name is None:
                return
            self._forget(name)

    def _path(self, name: str) -> str:
        return f"{self._folder}/{name}"


def _name(key: BlockKey) -> str:
    kind, (incarnation, epoch, number, _) = key.object_id.kind.name.lower(), key.object_id
    return f"{kind}-{incarnation:016x}-{epoch}-{number}-{key.number}"


def _packed(name: str, data: bytes) -> bytes:
    return _HEAD.pack(MAGIC, crc32c(data) ^ crc32c(name.encode()), len(data)) + data


def _checked(name: str, found: bytes) -> bytes | None:
    if len(found) < _HEAD.size:
        return None
    magic, crc, length = _HEAD.unpack_from(found)
    data = found[_HEAD.size :]
    is_whole = magic == MAGIC and length == len(data) and crc == crc32c(data) ^ crc32c(name.encode())
    return data if is_whole else None
