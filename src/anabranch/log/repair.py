"""Finds the regions of a segment that have rotted, and puts back what another copy of the log still has.

A region is replaced as a whole, by batches of the very same length in bytes and with offsets that fit, whose checksums
hold, and whose heads have the sum that was kept of them. Everything here is for a worker; `rotten` and `put_back` only
touch the file, below what was published when the `Suspect` was made.
"""

from collections.abc import Sequence
from typing import NamedTuple

from anabranch.errors import CorruptDataError, StorageError
from anabranch.log.disk.files import File, write_fully
from anabranch.log.segment.scan import Scan
from anabranch.log.segment.seal import Region
from anabranch.log.segment.segment import Segment
from anabranch.log.segment.slice import verify_region
from anabranch.record.batch import HEADER_BYTES, read_header
from anabranch.values import Offset


class Suspect(NamedTuple):
    """A segment that may have rotted; plain values."""

    file: File
    offsets: range
    size_bytes: int
    end_offset: Offset
    regions: Sequence[Region]


class Rotten(NamedTuple):
    """A region to be replaced, and the offsets of its records: from `start` on and below `end`."""

    region: Region
    start: Offset
    end: Offset

    @property
    def size_bytes(self) -> int:
        return self.region.end - self.region.start


def suspect(segment: Segment) -> Suspect:
    """The writer's thread."""
    size = segment.published_bytes
    regions = segment.smallest_regions() if size else []
    return Suspect(segment.file, segment.offsets, size, segment.published_offset, regions)


def rotten(found: Suspect) -> list[Rotten]:
    """What does not hold. Raises StorageError; CorruptDataError if what surrounds a region cannot be read either."""
    at, bad = Offset(found.offsets.start), []
    try:
        for region in found.regions:
            try:
                verify_region(found.file, region)
            except CorruptDataError:
                end = _offset_at(found, region.end)
                bad.append(Rotten(region, at, end))
                at = end
            else:
                at = _end_of(found, region, at)
    except OSError as error:
        raise StorageError(f"{found.file.path} cannot be repaired: {error.strerror or error}.") from error
    return bad


def _end_of(found: Suspect, region: Region, start: Offset) -> Offset:
    scan = Scan(found.file, region.start, region.end, range(start, found.offsets.stop), check_crc=False)
    for _ in scan:
        pass
    return Offset(scan.next_offset)


def _offset_at(found: Suspect, position: int) -> Offset:
    if position >= found.size_bytes:
        return found.end_offset
    base = read_header(found.file.pread(HEADER_BYTES, position)).base_offset
    if base not in found.offsets:
        raise CorruptDataError(f"{found.file.path} is damaged on both sides of position {position}.")
    return base


def put_back(file: File, bad: Rotten, data: bytes) -> None:
    """Replace the region, durably. Raises CorruptDataError if it does not hold then either; StorageError."""
    if len(data) != bad.size_bytes:
        raise CorruptDataError(f"{len(data)} bytes do not fit into the {bad.size_bytes} of {file.path}.")
    region = bad.region
    try:
        before = file.pread(len(data), region.start)
        write_fully(file, [data], region.start)
        try:
            verify_region(file, region)
        except CorruptDataError:
            write_fully(file, [before], region.start)
            raise
        file.sync()
    except OSError as error:
        raise StorageError(f"{file.path} cannot be repaired: {error.strerror or error}.") from error
