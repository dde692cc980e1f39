"""What a segment that is written to keeps in memory: its indexes, its newest batches, its largest timestamp.

The same bookkeeping serves the append path (batches just written), recovery and index rebuilds (batches just
scanned) and the cleaner (batches rewritten), so that an index on disk is the same whoever made it. Nothing
here touches the disk.
"""

from array import array
from bisect import bisect_left
from collections.abc import Sequence

from anabranch.log.segment.index import OffsetIndex, TimeIndex
from anabranch.log.segment.scan import NO_TIMESTAMP, Batch
from anabranch.log.segment.seal import HeadSums
from anabranch.values import Offset

RECENT_BATCHES_MAX = 1024


class Tail:
    """`end_bytes` and `next_offset` follow the batches noted; positions and offsets of the newest are kept
    for readers."""

    def __init__(self, base_offset: Offset, index_interval_bytes: int) -> None:
        self.base_offset = base_offset
        self.index_interval_bytes = index_interval_bytes
        self.index = OffsetIndex()
        self.time_index = TimeIndex()
        self.sums = HeadSums()
        self.next_offset: Offset = base_offset
        self.end_bytes = 0
        self.max_timestamp = NO_TIMESTAMP
        self.max_timestamp_offset: Offset = base_offset
        self.first_timestamp: int | None = None
        self._unindexed_bytes = 0
        self._recent_from: int = base_offset
        self._recent_lasts = array("q")
        self._recent_positions = array("q")

    def note(self, batches: Sequence[Batch]) -> None:
        """Batches that follow the last ones in the file.

        Kafka's rule for the index: an entry for the batch before which more than the interval has gathered.
        """
        position, unindexed, interval = self.end_bytes, self._unindexed_bytes, self.index_interval_bytes
        if not position and batches:
            first = batches[0][2]
            self.first_timestamp = first if first >= 0 else None
        self.sums.note(position, batches)
        largest, lasts, positions = self.max_timestamp, self._recent_lasts, self._recent_positions
        last = self.next_offset - 1
        for size, last, max_timestamp, _ in batches:
            if max_timestamp > largest:
                self.max_timestamp = largest = max_timestamp
                self.max_timestamp_offset = Offset(last)
            if unindexed > interval:
                self._index(last, position)
                unindexed = 0
            lasts.append(last)
            positions.append(position)
            position += size
            unindexed += size
        self.end_bytes, self._unindexed_bytes = position, unindexed
        self.next_offset = Offset(last + 1)
        if len(lasts) > 2 * RECENT_BATCHES_MAX:
            self._forget_older()

    def resume(
        self, index: OffsetIndex, time_index: TimeIndex, sums: HeadSums, first_timestamp: int | None
    ) -> int:
        """Take over indexes that were read from disk; answers the position from which batches have yet to be
        noted."""
        self.index, self.time_index, self.sums, self.first_timestamp = (
            index,
            time_index,
            sums,
            first_timestamp,
        )
        if time_index:
            self.max_timestamp = time_index.timestamps[-1]
            self.max_timestamp_offset = Offset(self.base_offset + time_index.offsets[-1])
        if not index:
            return 0
        # The indexed batch itself is noted again; its entry is there already, so nothing may be added before
        # it.
        self.end_bytes = index.positions[-1]
        self._recent_from = self.base_offset + index.offsets[-1]
        return self.end_bytes

    def skip_to(self, position: int, next_offset: Offset) -> None:
        """Leave out bytes that do not hold. Readers find their way there by the index, and meet the damage; the next
        batch gets an entry, so that they find the way behind it too."""
        self.end_bytes, self.next_offset = position, next_offset
        self._unindexed_bytes = self.index_interval_bytes + 1
        self._recent_from = next_offset
        del self._recent_lasts[:], self._recent_positions[:]

    def position_of(self, offset: Offset) -> int | None:
        """Where the first batch begins whose last offset is not below `offset`; None if it is not one of the
        newest."""
        if offset < self._recent_from:
            return None
        found = bisect_left(self._recent_lasts, offset)
        return self._recent_positions[found] if found < len(self._recent_lasts) else self.end_bytes

    def batch_end(self, position: int) -> int | None:
        """Where the batch ends that begins at `position`, if it is one of the newest."""
        found = bisect_left(self._recent_positions, position)
        if found == len(self._recent_positions) or self._recent_positions[found] != position:
            return None
        return (
            self._recent_positions[found + 1] if found + 1 < len(self._recent_positions) else self.end_bytes
        )

    def boundary_within(self, position: int, limit: int) -> int | None:
        """The greatest batch boundary in (position, limit], if it is one of the newest."""
        if limit >= self.end_bytes:
            return self.end_bytes
        found = bisect_left(self._recent_positions, limit + 1) - 1
        return (
            self._recent_positions[found] if found >= 0 and self._recent_positions[found] > position else None
        )

    def finish(self) -> None:
        """The last time entry: without it the largest timestamp of the segment would be lost."""
        if self.max_timestamp >= 0:
            self.time_index.append_if_later(self.max_timestamp, self.max_timestamp_offset - self.base_offset)

    def _index(self, last_offset: int, position: int) -> None:
        self.index.append(last_offset - self.base_offset, position)
        if self.max_timestamp >= 0:
            self.time_index.append_if_later(self.max_timestamp, self.max_timestamp_offset - self.base_offset)

    def _forget_older(self) -> None:
        """Keep where the newest batches are; `_recent_from` is the first offset of which this is known."""
        self._recent_from = self._recent_lasts[-RECENT_BATCHES_MAX - 1] + 1
        self._recent_lasts = self._recent_lasts[-RECENT_BATCHES_MAX:]
        self._recent_positions = self._recent_positions[-RECENT_BATCHES_MAX:]
