"""A stretch of whole batches in one segment's file, as a fetch hands it to the socket: no bytes are read yet.

Made on the writer's thread. There are two ways for its bytes to leave, and neither lets one out that was not checked:

- `checked` (or `read`, a copy) reads the regions around the stretch, checks every CRC and the sums of the heads, and
  answers those very bytes from memory. If something is damaged it answers the sound batches before the damage, or
  raises CorruptDataError if the first one asked for is damaged itself.
- sendfile, only if `verified`: the same bytes were checked before and the file was not changed since (`File.stamp`).

`verify` checks without keeping the bytes, for a worker; `mark_verified`, back on the writer's thread, remembers what
held. `is_warm` says that this process wrote the bytes or read them lately, so that reading them waits for no disk.
`pin` while the descriptor is in use by sendfile.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from anabranch.errors import CorruptDataError
from anabranch.log.disk.files import File, read_refusal
from anabranch.log.segment.scan import Batch, Scan
from anabranch.log.segment.seal import Region
from anabranch.log.segment.soundness import ALL_OFFSETS, SoundBatch, region_holds, survey_each
from anabranch.record.crc32c import crc32c

OFFSET_MAX = 2**63 - 1
STAMPED_BYTES_MIN = 16 * 1024
"""Less is never sent by sendfile, so nobody needs to know whether it was checked before."""

VERIFIED_AT_ONCE_BYTES_MAX = 4 * 2**20
AGAIN_BYTES_MAX = 2**20
"""So much of a slice whose file was changed is read and held at once, however slow its reader is."""


class Bounds(NamedTuple):
    """What is known of a segment as a whole: the offset it begins with, and what follows its last byte."""

    base_offset: int | None
    end_bytes: int
    end_offset: int | None


NO_BOUNDS = Bounds(None, 0, None)


class Slice:
    __slots__ = (
        "_around",
        "_behind",
        "_bounds",
        "_mark",
        "_next_offset",
        "_offsets",
        "_regions_later",
        "_stamp",
        "_wider",
        "count",
        "damage",
        "file",
        "is_doubtful",
        "is_warm",
        "position",
        "regions",
        "start",
        "upto",
        "verified",
    )

    is_cut: bool | None = None
    """Whether more follows that could be read; None: the log knows."""

    def __init__(
        self,
        file: File,
        position: int,
        count: int,
        regions: Sequence[Region] = (),
        mark: Callable[[int, int, int | None, int | None], None] | None = None,
        *,
        start: int = 0,
        upto: int = OFFSET_MAX,
        is_warm: bool = False,
        is_doubtful: bool = False,
        stamp: int | None = None,
        regions_later: Callable[[], Sequence[Region]] | None = None,
        wider: Sequence[Sequence[Region]] = (),
        offsets: range = ALL_OFFSETS,
        behind: Sequence[SoundBatch] = (),
        around: Sequence[Region] = (),
        bounds: Bounds = NO_BOUNDS,
    ) -> None:
        self.file = file
        self.position = position
        self.count = count
        self.regions = regions
        self.verified = not regions
        self.start = start
        self.upto = upto
        self.is_warm = is_warm
        self.is_doubtful = is_doubtful
        """The way to the batch that holds `start` is damaged: `checked` finds it, or says that it cannot be read."""
        self.damage: CorruptDataError | None = None
        """What `checked` found in these regions, also if it could answer something."""
        self._mark = mark
        self._next_offset: int | None = None
        """What comes behind the regions, once they were checked."""
        self._stamp = stamp
        """Of the file, when the bytes were checked."""
        self._regions_later = regions_later
        self._wider = wider
        """What to read instead of `regions` while the batch that holds `start` is not found behind the damage."""
        self._offsets = offsets
        """Those that batches here may have, as far as others around them tell."""
        self._behind = behind
        self._around = around
        """The same regions and their neighbours, whose heads help to tell which are sound, once something is not."""
        self._bounds = bounds

    def read(self) -> bytes:
        """Any thread. What `checked` answers, as bytes of their own."""
        view = self.checked()
        return view.obj if isinstance(view.obj, bytes) and len(view.obj) == len(view) else bytes(view)

    def checked(self) -> memoryview:
        """Any thread. The bytes, checked unless `verified`; `count` is what is left of them then. Raises
        CorruptDataError if the batch that holds `start` is damaged, StorageError if the disk refuses."""
        if not self.count:
            return memoryview(b"")
        if self.verified:
            data = self._pread(self.count, self.position)
            if len(data) != self.count:
                raise CorruptDataError(
                    f"{self.file.path} ends at {self.position + len(data)}, within a slice."
                )
            return memoryview(data)
        self._take_stamp()
        first = self.regions[0].start
        view = memoryview(self._pread(self.regions[-1].end - first, first))
        if self.is_doubtful or not self._holds(view, first):
            return self._sound_part(view, first)
        return view[self.position - first : self.position - first + self.count]

    def is_unchanged(self) -> bool:
        """Whether bytes that were verified when this was made still are, for whoever sends them later. Raises
        OSError."""
        return self._stamp is None or self.file.stamp() == self._stamp

    def checked_again(self, position: int) -> memoryview:
        """The writer's thread. The next bytes from `position` on of a slice that was verified, since somebody has
        written to its file; not all of them at once. Raises CorruptDataError, StorageError."""
        assert self._regions_later is not None, "only of verified slices"
        regions = [region for region in self._regions_later() if region.end > position]
        start, limit = regions[0].start, regions[0].start + AGAIN_BYTES_MAX
        regions = [region for number, region in enumerate(regions) if not number or region.end <= limit]
        end = min(regions[-1].end, self.position + self.count)
        again = Slice(self.file, start, regions[-1].end - start, regions)
        data = again.checked()
        if again.damage is not None:
            raise again.damage
        return data[position - start : end - start]

    def _pread(self, count: int, position: int) -> bytes:
        try:
            return self.file.pread(count, position)
        except OSError as error:
            raise read_refusal(self.file.path, error) from error

    def _take_stamp(self) -> None:
        """Before the bytes are read: a change meanwhile must show."""
        if self.count >= STAMPED_BYTES_MIN:
            try:
                self._stamp = self.file.stamp()
            except OSError as error:
                raise read_refusal(self.file.path, error) from error

    def _holds(self, view: memoryview, first: int) -> bool:
        next_offset = self._offsets.start
        for region in self.regions:
            data = view[region.start - first : region.end - first]
            if (following := region_holds(data, region, next_offset)) is None:
                return False
            next_offset = following
        self._next_offset = next_offset
        return self._offsets is ALL_OFFSETS or next_offset <= self._end_of_offsets

    @property
    def _end_of_offsets(self) -> int:
        """What the batch behind these regions says, and those that have no sum cannot contradict."""
        has_sum = not self.regions or self.regions[-1].crc is not None
        return self._offsets.stop if has_sum or not self._behind else self._behind[0].base_offset

    def _sound_part(self, view: memoryview, first: int) -> memoryview:
        """Something here is damaged: the batches that hold from the one with `start` on, up to the first that does
        not."""
        self._mark = None
        self.damage = self._damaged()
        if self._around:
            self.regions, self._around = self._around, ()
            first = self.regions[0].start
            view = memoryview(self._pread(self.regions[-1].end - first, first))
        surveyed = survey_each(
            self.regions,
            lambda region: view[region.start - first : region.end - first],
            self._offsets,
            self._behind,
            next_offset=self._bounds.base_offset if not first else None,
            end_offset=self._bounds.end_offset if self.regions[-1].end == self._bounds.end_bytes else None,
        )
        sound = [batch for found in surveyed for batch in found]
        number = next((n for n, batch in enumerate(sound) if batch.last_offset >= self.start), None)
        if number is None:
            if not self._wider:
                raise self.damage
            self.regions, *self._wider = self._wider
            self._behind = ()
            return self.checked()
        begin = sound[number]
        before = sound[number - 1].end if number else first
        if begin.base_offset > self.start and before != begin.position:
            raise self.damage
        end = begin.position
        for batch in sound[number:]:
            is_too_much = batch.end - begin.position > self.count and end > begin.position
            if batch.position != end or is_too_much or batch.last_offset >= self.upto:
                break
            end = batch.end
        if end == begin.position:
            raise self.damage  # A reader that was promised bytes must not take it for the end.
        self.position, self.count = begin.position, end - begin.position
        return view[begin.position - first : end - first]

    def _damaged(self) -> CorruptDataError:
        try:
            self.verify()
        except CorruptDataError as error:
            return error
        return CorruptDataError(f"{self.file.path} was damaged at position {self.position} a moment ago.")

    def verify(self) -> None:
        """Any thread. Raises CorruptDataError unless every batch of the slice, and of the regions it lies in,
        is whole."""
        self._take_stamp()
        next_offset = self._offsets.start
        for region in self.regions:
            next_offset = verify_region(self.file, region, next_offset)
        self._next_offset = next_offset
        if next_offset > self._end_of_offsets:
            where = f"before position {self.regions[-1].end}"
            raise CorruptDataError(
                f"{self.file.path} is damaged {where}: offset {next_offset - 1} is too large."
            )

    def distrust(self) -> bool:
        """`verify` found damage. Whether other bytes come in the place of these: `checked` finds those that hold."""
        self.is_warm = True
        if self._mark is not None:
            self._mark(self.regions[0].start, self.regions[-1].end, None, None)
        return True

    def mark_verified(self) -> None:
        """The writer's thread, after `verify` or `checked` has returned."""
        if self._mark is not None:
            is_summed = self.regions[-1].crc is not None
            self._mark(
                self.regions[0].start,
                self.regions[-1].end,
                self._stamp,
                self._next_offset if is_summed else None,
            )

    def fileno(self) -> int | None:
        return self.file.fileno()

    def pin(self) -> None:
        """StorageError if retention or the cleaner has removed the file meanwhile, CorruptDataError if others have."""
        try:
            self.file.pin()
        except OSError as error:
            raise read_refusal(self.file.path, error) from error

    def unpin(self) -> None:
        self.file.unpin()


def verify_region(file: File, region: Region, next_offset: int = 0) -> int:
    """Read the region and check each batch; CorruptDataError names where it is bad. Answers which offset follows."""
    size = region.end - region.start
    heads: list[Batch] = []
    try:
        if size <= VERIFIED_AT_ONCE_BYTES_MAX:
            data = memoryview(file.pread(size, region.start))
            if (following := region_holds(data, region, next_offset)) is not None:
                return following
        scan = Scan(file, region.start, region.end, range(next_offset, 2**63), check_crc=True)
        for batches in scan:
            heads += batches
    except OSError as error:
        # No damage, unless somebody else has removed the file than retention or the cleaner.
        raise read_refusal(file.path, error) from error
    if scan.reason or scan.position != region.end:
        raise CorruptDataError(f"{file.path} is damaged at position {scan.position}: {scan.reason}.")
    if region.crc is not None and crc32c(b"".join([batch[3] for batch in heads])) != region.crc:
        where = f"between positions {region.start} and {region.end}"
        raise CorruptDataError(f"{file.path} is damaged {where}: a batch header was changed.")
    return scan.next_offset
