"""Sealed segment files read directly: no load on the broker, and no network.

The planner lists a partition's folder as the broker names it, if it can be read here and belongs to the same cluster.
All files but the newest are sealed: they are only ever replaced as a whole (the cleaner) or removed (retention). A
task opens a file, makes sure by inode, size and time that it is the one that was planned with, and reads on from the
open file whatever happens to its name. If it is another one, or gone, `SegmentChangedError`: the records then come by
the protocol. So do those of transactions, for only the broker knows which were aborted, and what does not hold: every
batch is checked, and the batch heads, which their CRCs leave out, by the sums of the segment's seal. The broker then
knows of the damage too, and may have another copy.

While the cleaner swaps several files for one, a listing may miss some of them. A reader therefore never concludes from
a file that there is nothing between its last batch and the next file: what it did not reach is asked of the broker.
"""

import json
import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from anabranch.errors import CorruptDataError, SegmentChangedError
from anabranch.pipeline.source.chunks import CHUNK_BYTES, Chunk, survey
from anabranch.pipeline.source.plan import SegmentFile
from anabranch.record.batch import HEADER_BYTES, MAGIC, read_header
from anabranch.record.batch_sums import sound_batches
from anabranch.record.index_format import OFFSET_ENTRY, OFFSET_ENTRY_BYTES
from anabranch.record.seal_format import SealedRegion, unpack_seal

LOG = ".log"
INDEX = ".index"
SEAL = ".seal"
NODE = "node"
NAME_DIGITS = 20


# --- planning -----------------------------------------------------------------------------------------------------


def why_unreachable(data_folder: str, folder: str, cluster_id: str | None) -> str | None:
    """Why the files of a partition cannot be read here; None if they can."""
    try:
        text = (Path(data_folder) / NODE).read_text()
        known = json.loads(text.partition("\n")[2])["cluster_id"]
        os.listdir(Path(data_folder) / folder)
    except OSError as error:
        return f"{data_folder} cannot be read here: {error.strerror or error}"
    except (ValueError, KeyError):
        return f"{data_folder}/{NODE} does not say whose folder it is"
    if known != cluster_id:
        return f"{data_folder} belongs to another cluster, {known}"
    return None


def sealed_files(data_folder: str, folder: str) -> list[SegmentFile]:
    """The sealed segments of one partition, by base offset; those that go away meanwhile are left out."""
    path = Path(data_folder) / folder
    try:
        names = sorted(name for name in os.listdir(path) if _is_log(name))
    except FileNotFoundError:
        return []  # Its topic was deleted this very moment.
    files = []
    for name, following in pairwise(names):
        try:
            status = os.stat(path / name)
        except FileNotFoundError:
            continue
        base, end = int(name[:NAME_DIGITS]), int(following[:NAME_DIGITS])
        identity = (status.st_ino, status.st_size, status.st_mtime_ns)
        files.append(SegmentFile(str(path / name), base, end, *identity))
    return files


def _is_log(name: str) -> bool:
    return name.endswith(LOG) and len(name) == NAME_DIGITS + len(LOG) and name[:NAME_DIGITS].isdigit()


# --- reading ------------------------------------------------------------------------------------------------------


class SegmentReader:
    """The batches of one sealed file from `start` on. `next_offset` says how far it came, whyever it stopped."""

    def __init__(self, file: SegmentFile, start: int, end: int, *, verify: bool = True) -> None:
        self._file = file
        self._end = end
        self._verify = verify
        self.next_offset = start

    def chunks(self) -> Iterator[Chunk]:
        descriptor = self._open()
        try:
            yield from self._read(descriptor)
        finally:
            os.close(descriptor)

    def _open(self) -> int:
        file = self._file
        try:
            descriptor = os.open(file.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError as error:
            raise SegmentChangedError(f"{file.path} cannot be opened: {error.strerror}.") from error
        status = os.fstat(descriptor)
        if (status.st_ino, status.st_size, status.st_mtime_ns) == (
            file.inode,
            file.size_bytes,
            file.modified_ns,
        ):
            return descriptor
        os.close(descriptor)
        raise SegmentChangedError(f"{file.path} is not the file it was when this read was planned.")

    def _read(self, descriptor: int) -> Iterator[Chunk]:
        position = self._first_position(descriptor)
        regions = self._regions() if self._verify else []
        number = bisect_right(regions, position, key=lambda region: region.end)
        if number < len(regions):
            position = regions[number].start  # Only the heads of a whole region can be checked.
        size = min(CHUNK_BYTES, self._file.size_bytes)
        while position < self._file.size_bytes and self.next_offset < self._end:
            summed = _first_of(regions, number, CHUNK_BYTES)
            number += len(summed)
            buffer = bytearray(summed[-1].end - position if summed else size)
            data = memoryview(buffer)[: os.preadv(descriptor, [buffer], position)]
            if self._verify:
                self._check(data, position, summed)
            found = survey(data, stop_at_transactions=True)
            if found.whole_bytes:
                position += found.whole_bytes
                start, self.next_offset = self.next_offset, max(self.next_offset, found.next_offset)
                yield Chunk(data[: found.whole_bytes], start, self._end)
            elif not found.is_transactional:
                size = self._larger(len(data), found.bytes_missing, position)
            if found.is_transactional:
                return

    def _regions(self) -> list[SealedRegion]:
        """The sums over batch heads, from the beginning of the file to its end; none if no seal speaks of all of it."""
        try:
            seal = unpack_seal(Path(self._file.path).with_suffix(SEAL).read_bytes())
        except (OSError, CorruptDataError):
            return []
        regions = seal.regions()
        is_whole = all(one.end == next_.start for one, next_ in pairwise(regions))
        is_whole = is_whole and bool(regions) and regions[0].start == 0
        return regions if is_whole and regions[-1].end == self._file.size_bytes == seal.log_bytes else []

    def _check(self, data: memoryview, position: int, regions: Sequence[SealedRegion]) -> None:
        """Raises SegmentChangedError if a batch does not hold, but for one that is cut off at the end."""
        for region in regions:
            start, end = region.start - position, region.end - position
            if sound_batches(data, start, min(end, len(data)), 0)[0::2] != (end, region.crc):
                raise self._damaged(region.start)
        if not regions:
            end = sound_batches(data, 0, len(data), 0)[0]
            try:
                is_damaged = survey(data[end:]).whole_bytes > 0
            except CorruptDataError:
                is_damaged = True
            if is_damaged:
                raise self._damaged(position + end)

    def _damaged(self, position: int) -> SegmentChangedError:
        return SegmentChangedError(f"{self._file.path} is damaged at position {position} or soon after.")

    def _larger(self, had: int, missing: int, position: int) -> int:
        """How much to read for a batch that did not fit; a sealed file does not end in the middle of one."""
        if not missing or position + had + missing > self._file.size_bytes:
            raise CorruptDataError(
                f"{self._file.path} ends in the middle of a batch, at position {position}."
            )
        return had + missing

    # --- where to begin

    def _first_position(self, descriptor: int) -> int:
        """Of a batch at or before the first that is wanted. An index that is missing or wrong costs time only."""
        if self.next_offset <= self._file.base_offset:
            return 0
        try:
            index = Path(self._file.path).with_suffix(INDEX).read_bytes()
        except OSError:
            return 0
        entry = _entry_before(index, self.next_offset - self._file.base_offset)
        return entry[1] if entry is not None and self._agrees(descriptor, *entry) else 0

    def _agrees(self, descriptor: int, relative_offset: int, position: int) -> bool:
        """Whether the batch at this position ends with this offset: the index may be another file's by now."""
        if not 0 <= position <= self._file.size_bytes - HEADER_BYTES:
            return False
        data = os.pread(descriptor, HEADER_BYTES, position)
        header = read_header(data)
        return header.magic == MAGIC and header.last_offset == self._file.base_offset + relative_offset


def _first_of(regions: Sequence[SealedRegion], number: int, bytes_max: int) -> list[SealedRegion]:
    """From this one on, at least one if there is one, and no more than so many bytes."""
    found = list(regions[number : number + 1])
    for region in regions[number + 1 :]:
        if region.end - found[0].start > bytes_max:
            break
        found.append(region)
    return found


def _entry_before(index: bytes, relative_offset: int) -> tuple[int, int] | None:
    """The last entry whose batch ends before this offset; its batch and those before it need not be read."""
    count = len(index) // OFFSET_ENTRY_BYTES

    def offset_at(number: int) -> int:
        offset: int = OFFSET_ENTRY.unpack_from(index, number * OFFSET_ENTRY_BYTES)[0]
        return offset

    number = bisect_right(range(count), relative_offset - 1, key=offset_at) - 1
    if number < 0:
        return None
    offset, position = OFFSET_ENTRY.unpack_from(index, number * OFFSET_ENTRY_BYTES)
    return offset, position
