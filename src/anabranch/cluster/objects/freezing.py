"""How an ObjectTable gets into a snapshot without holding up whoever applies entries.

To freeze is quick: it notes what there is at this point of the log. `write`, in a worker, brings the rows to their
files, synced, and makes the bytes that name them; only when those bytes are on the disk too does `kept` let the table
read from the new files. Until then, and if the disk refuses, it reads from where the rows were before.
"""

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from anabranch.cluster.objects.entries import Key
from anabranch.cluster.objects.rows import Coordinates, Held, Piece, Span, count_of, end_of
from anabranch.cluster.objects.state import (
    Record,
    RowFile,
    object_records,
    pack_state,
    partition_record,
    producer_records,
)
from anabranch.objects.layout.names import ObjectId

if TYPE_CHECKING:
    from anabranch.cluster.objects.table import Partition

DEAD_ROWS_MAX = 4096
"""So many rows at the start of a file may be gone, or as many as are left, before it is written anew."""


class FrozenPartition:
    """One partition at one point of the log."""

    def __init__(self, key: Key, partition: "Partition", version_new: int) -> None:
        self.key = key
        self.file: RowFile | None = None
        self._head = partition.head
        self._producers = dict(
            partition.producers.producers
        )  # A producer's entry is replaced, never changed.
        self._partition = partition
        self._sequence = partition.rows
        self._known = partition.file
        self._held: Held | None = None
        self._unwritten: Sequence[Piece] = ()
        self._freeze(version_new)

    def _freeze(self, version_new: int) -> None:
        sequence, known = self._sequence, self._known
        is_waiting = any(_is_waiting(piece) for piece in sequence.pieces)
        pieces = list(_joined(sequence.settled()))
        if not pieces:
            self.file = None
        elif _is_unchanged(pieces, known) and not is_waiting:
            self.file = _named(known, pieces[0])
        elif _is_appended(pieces, known) and not is_waiting:
            assert known is not None
            self._hold(known.version, known.length, pieces[1:], kept=pieces[:1])
            return
        else:
            self._hold(version_new, 0, pieces)
            return
        sequence.pieces = pieces

    def _hold(self, version: int, first: int, pieces: Sequence[Piece], kept: Sequence[Piece] = ()) -> None:
        """From now on these rows count as rows `first` on of that file."""
        self._unwritten = pieces
        self._held = Held(first, pieces)
        count, end = sum(count_of(piece) for piece in pieces), end_of(pieces[-1])
        self._sequence.pieces = [*kept, Span(version, first, count, end, self._held)]
        start = kept[0].first if kept and isinstance(kept[0], Span) else first
        # Its sum is known once it is written.
        self.file = RowFile(version, first + count, 0, start, end, first + count - start)

    def write(self, coordinates: Coordinates) -> bool:
        """In a worker. Whether there was anything to write."""
        if self._held is None:
            return False
        assert self.file is not None
        crc = self._known.crc if self._held.first and self._known is not None else 0
        summed = _Sum(crc, self._sequence.packed(self._unwritten))
        coordinates.write(self.key, self.file.version, self._held.first, summed)
        self.file = self.file._replace(crc=summed.crc)
        return True

    def discard(self, coordinates: Coordinates) -> None:
        """In a worker: a file of its own is nobody's; one that was appended to is named by the snapshot before."""
        if self._held is not None and self._held.first == 0:
            assert self.file is not None
            coordinates.remove(self.key, self.file.version)

    def records(self) -> Iterator[Record]:
        yield partition_record(self.key, self._head, self.file)
        yield from producer_records(self._producers)

    def kept(self) -> None:
        self._partition.file = self.file
        if self._held is not None:
            self._held.release()


class _Sum:
    """Chunks of rows, summed up on their way."""

    def __init__(self, crc: int, chunks: Iterable[bytes]) -> None:
        self.crc = crc
        self._chunks = chunks

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self._chunks:
            self.crc = zlib.crc32(chunk, self.crc)
            yield chunk


class FrozenObjects:
    """The whole table at one point of the log."""

    def __init__(
        self,
        coordinates: Coordinates,
        first: Record,
        unreferenced: Sequence[ObjectId],
        tombstones: Mapping[ObjectId, int],
        partitions: Sequence[FrozenPartition],
    ) -> None:
        self._coordinates = coordinates
        self._first = first
        self._unreferenced = unreferenced
        self._tombstones = tombstones
        self._partitions = partitions

    def write(self) -> bytes:
        """In a worker: what our own snapshot has to say; the files it names are on the disk. Raises StorageError."""
        if sum(partition.write(self._coordinates) for partition in self._partitions):
            self._coordinates.sync()
        return pack_state(self._records())

    def _records(self) -> Iterator[Record]:
        yield self._first
        yield from object_records(self._unreferenced, self._tombstones)
        for partition in self._partitions:
            yield from partition.records()

    def discard(self) -> None:
        """In a worker: `write` was refused, and nothing names its files. They would only fill the disk further."""
        for partition in self._partitions:
            partition.discard(self._coordinates)

    def kept(self) -> None:
        """The snapshot is on the disk: its files are where rows are read from now."""
        for partition in self._partitions:
            partition.kept()

    def remove_others(self) -> None:
        """In a worker, once nobody reads them: the files that this snapshot does not name."""
        self._coordinates.remove_others(
            (partition.key, partition.file.version) for partition in self._partitions if partition.file
        )


def _is_waiting(piece: Piece) -> bool:
    """Frozen for a snapshot that has not been written; it may be on the disk in part."""
    return isinstance(piece, Span) and piece.held is not None and piece.held.pieces is not None


def _joined(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """Spans that follow each other in a file as one."""
    last: Span | None = None
    for piece in pieces:
        if not isinstance(piece, Span):
            if last is not None:
                yield last
            yield piece
            last = None
        elif last is not None and (last.version, last.first + last.length) == (piece.version, piece.first):
            last = last._replace(length=last.length + piece.length, end=piece.end, held=None)
        else:
            if last is not None:
                yield last
            last = piece._replace(held=None)
    if last is not None:
        yield last


def _is_unchanged(pieces: Sequence[Piece], known: RowFile | None) -> bool:
    """All that counts is in the file already."""
    return len(pieces) == 1 and isinstance(pieces[0], Span) and known is not None


def _is_appended(pieces: Sequence[Piece], known: RowFile | None) -> bool:
    """What was in the file up to its end still counts, and more has come."""
    if known is None or len(pieces) != 2 or not isinstance(pieces[0], Span) or isinstance(pieces[1], Span):
        return False
    span, count = pieces[0], pieces[0].length + len(pieces[1])
    return span.first + span.length == known.length and span.first <= max(count, DEAD_ROWS_MAX)


def _named(known: RowFile | None, piece: Piece) -> RowFile:
    assert known is not None
    assert isinstance(piece, Span)
    assert piece.version == known.version
    return known._replace(first=piece.first, end=piece.end, rows=piece.length)
