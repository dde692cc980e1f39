"""OwnProducerIds: numbers for idempotent producers on a side of a split that the metadata quorum is not on.

Topics in mode branch take records on every side, also from producers that begin there. Each disk of a cluster has a
slot of its own that is never given again, and each slot a range of ids, far above those that the quorum reserves.
How much of its range is used up is in a file, synced before an id is given; if that is lost, no more are given.
"""

from collections.abc import Callable

from anabranch.broker.workers import Workers, in_heavy_worker
from anabranch.errors import StorageError
from anabranch.log.disk.checkpoint import read_checkpoint, write_checkpoint
from anabranch.log.disk.files import Files

OWN_IDS_FILE = "own-producer-ids"
BLOCK = 1000
RANGE_BITS = 42
"""So the greatest of all lies below 2**53, and is a number for everybody."""


class OwnProducerIds:
    def __init__(self, files: Files, data_dir: str, workers: Workers, slot: Callable[[], int | None]) -> None:
        self._files = files
        self._path = f"{data_dir}/{OWN_IDS_FILE}"
        self._workers = workers
        self._slot = slot

    async def block(self) -> tuple[int, int] | None:
        """The first of a block, and how many; None: this disk has no slot. Raises StorageError. One at a time."""
        slot = self._slot()
        if slot is None:
            return None
        used = await in_heavy_worker(self._workers, lambda: self._reserve(slot))
        return ((slot + 1) << RANGE_BITS) + used, BLOCK

    def _reserve(self, slot: int) -> int:
        """In a worker: how many were used up before."""
        known, reason = read_checkpoint(self._files, self._path)
        if known is None and self._files.exists(self._path):
            raise StorageError(f"{self._path} says which producer ids were given, but {reason}.")
        used = known["used"] if known is not None and known["slot"] == slot else 0
        try:
            write_checkpoint(self._files, self._path, {"slot": slot, "used": used + BLOCK})
        except OSError as error:
            raise StorageError(f"{self._path} cannot be written: {error.strerror or error}.") from error
        return int(used)
