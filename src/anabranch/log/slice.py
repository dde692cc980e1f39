"""A stretch of whole batches in one segment's file, as a fetch hands it to the socket: no bytes are read yet.

Made on the writer's thread. `verify` may run in a worker: it reads the regions around the stretch, checks
every CRC, and raises CorruptDataError; `mark_verified`, back on the writer's thread, remembers that they were
good. Until then the bytes must not leave. `pin` while the descriptor is in use by sendfile.
"""

from collections.abc import Callable, Sequence

from anabranch.errors import CorruptDataError, StorageError
from anabranch.log.files import File
from anabranch.log.scan import Batch, Scan
from anabranch.log.seal import Region
from anabranch.record.crc32c import crc32c


class Slice:
    __slots__ = ("_mark", "count", "file", "position", "regions", "verified")

    is_cut: bool | None = None
    """Whether more follows that could be read; None: the log knows."""

    def __init__(
        self,
        file: File,
        position: int,
        count: int,
        regions: Sequence[Region] = (),
        mark: Callable[[int, int], None] | None = None,
    ) -> None:
        self.file = file
        self.position = position
        self.count = count
        self.regions = regions
        self.verified = not regions
        self._mark = mark

    def read(self) -> bytes:
        """The bytes as they are on disk; check `verified` first."""
        if not self.count:
            return b""
        try:
            data = self.file.pread(self.count, self.position)
        except OSError as error:
            raise StorageError(f"{self.file.path} cannot be read: {error.strerror or error}.") from error
        if len(data) != self.count:
            raise CorruptDataError(f"{self.file.path} ends at {self.position + len(data)}, within a slice.")
        return data

    def verify(self) -> None:
        """Any thread. Raises CorruptDataError unless every batch of the slice, and of the regions it lies in,
        is whole."""
        for region in self.regions:
            verify_region(self.file, region)

    def distrust(self) -> bool:
        """`verify` found damage. Whether other bytes come in the place of these."""
        return False

    def mark_verified(self) -> None:
        """The writer's thread, after `verify` has returned."""
        if self._mark is not None:
            for region in self.regions:
                self._mark(region.start, region.end)
        self.verified = True

    def fileno(self) -> int | None:
        return self.file.fileno()

    def pin(self) -> None:
        """StorageError if retention or the cleaner has removed the file meanwhile."""
        try:
            self.file.pin()
        except OSError as error:
            raise StorageError(f"{self.file.path} is gone: {error.strerror or error}.") from error

    def unpin(self) -> None:
        self.file.unpin()


def verify_region(file: File, region: Region) -> None:
    """Read the region and check each batch; CorruptDataError names where it is bad."""
    scan = Scan(file, region.start, region.end, range(2**63), check_crc=True)
    heads: list[Batch] = []
    try:
        for batches in scan:
            heads += batches
    except OSError as error:
        # Not damage: retention or the cleaner may have removed the file, or the disk refuses to read.
        raise StorageError(f"{file.path} cannot be read: {error.strerror or error}.") from error
    if scan.reason or scan.position != region.end:
        raise CorruptDataError(f"{file.path} is damaged at position {scan.position}: {scan.reason}.")
    if region.crc is not None and crc32c(b"".join([batch[3] for batch in heads])) != region.crc:
        where = f"between positions {region.start} and {region.end}"
        raise CorruptDataError(f"{file.path} is damaged {where}: a batch header was changed.")
