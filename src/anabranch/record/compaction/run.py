"""One compaction over the batches of one partition: what the LogCleaner and the job on Spark do alike.

`map_latest` reads the batches that are new since the last run and remembers the latest offset of each key, as far as
its memory reaches; `CompactionRun.stays` then says of every batch what is left of it (`compaction.py` decides about
one batch); `grouped` says which neighbouring segments become one. Both sides do this in the same order with the same
limits, which is why the broker can check what the job offers it (`check.py`).

Transactional batches stay as they are and replace nothing: which of them were committed is not known here, and a
record of an aborted transaction must not push out the last committed value of its key.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from anabranch.record.batch import BatchHeader, read_header
from anabranch.record.buffers import ByteBuffer
from anabranch.record.compaction.batches import Batch, compacted, keep_latest
from anabranch.record.compaction.keys import keyed_records
from anabranch.record.compaction.offset_map import OffsetMap
from anabranch.record.index_format import RELATIVE_OFFSET_MAX
from anabranch.record.records import RECORDS_BYTES_MAX
from anabranch.values import Offset


class SealedSegment(Protocol):
    """What `grouped` asks of a segment: the broker has its own, the job has files."""

    @property
    def base_offset(self) -> Offset: ...

    @property
    def published_offset(self) -> Offset:
        """Where the next one begins."""
        ...

    @property
    def published_bytes(self) -> int: ...


S = TypeVar("S", bound=SealedSegment)


def grouped(segments: Sequence[S], segment_bytes: int) -> list[list[S]]:
    """Neighbours that fit into one segment together, even if nothing of them goes."""
    groups: list[list[S]] = []
    size = 0
    for segment in segments:
        fits = (
            bool(groups)
            and size + segment.published_bytes <= segment_bytes
            and segment.published_offset - groups[-1][0].base_offset <= RELATIVE_OFFSET_MAX
        )
        if not fits:
            groups.append([])
            size = 0
        groups[-1].append(segment)
        size += segment.published_bytes
    return groups


def map_latest(
    batches: Iterable[ByteBuffer],
    latest: OffsetMap,
    first_dirty: Offset,
    end: Offset,
    bytes_max: int = RECORDS_BYTES_MAX,
) -> Offset:
    """Remember the latest offset of every key from `first_dirty` on; the offset up to which that went.

    That is `end`, or where the map had no room for one more batch. It takes one in any case, so that there is
    progress.
    """
    for batch in batches:
        header = read_header(batch)
        if header.last_offset < first_dirty:
            continue
        if header.base_offset >= end:
            break
        if not latest.has_room_for(header.record_count) and header.base_offset > first_dirty and len(latest):
            return header.base_offset
        if header.is_control or header.is_transactional:
            continue
        for offset, key, _ in keyed_records(batch, bytes_max):
            if key is not None:
                latest.put(key, offset)
    return end


@dataclass(frozen=True)
class CompactionRun:
    """What one run has decided before it looks at the batches one by one."""

    latest: OffsetMap
    upto: Offset
    """The map knows the keys below this."""
    last_offsets: Mapping[int, int]
    """The last offset of each producer that must still be recognised."""
    now_ms: int
    delete_retention_ms: int
    bytes_max: int = RECORDS_BYTES_MAX

    def is_left_alone(self, header: BatchHeader) -> bool:
        return header.is_control or header.is_transactional or header.base_offset >= self.upto

    def is_last_of_producer(self, header: BatchHeader) -> bool:
        return self.last_offsets.get(header.producer_id) == header.last_offset

    def stays(self, batch: Batch) -> Batch | bytearray | None:
        """What is left of one whole batch; None: nothing."""
        header = read_header(batch)
        if self.is_left_alone(header):
            return batch
        return compacted(
            batch,
            keep_latest(self.latest.get, self.upto),
            now_ms=self.now_ms,
            delete_retention_ms=self.delete_retention_ms,
            last_of_producer=self.is_last_of_producer(header),
            bytes_max=self.bytes_max,
        )
