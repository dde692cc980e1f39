"""RowSequence: the rows of one partition in the order of their offsets, most of them in a file and not in memory.

    [ span of the file | rows in memory | span of the file | rows appended since ]

`Coordinates` keeps the files: per partition one of a *version*, to which rows are only ever appended. A row that was
appended, or put in the place of others, lies in memory until the next snapshot of the metadata; what a span no longer
covers is not part of the partition. `freeze` hands out what is to be written, and from then on the sequence counts in
the file to come: until the disk has it (`Held.release`), those rows are read from where they were before.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

from anabranch.cluster.objects.entries import Key
from anabranch.errors import CorruptDataError
from anabranch.objects.layout.names import (
    ROW_BYTES,
    Row,
    max_timestamps,
    next_offsets,
    pack_rows,
    unpack_rows,
)
from anabranch.values import Offset

ROWS_PER_READ = 4096
ROWS_PER_LOOK = 64


class Coordinates(Protocol):
    """Where rows lie that are not in memory. Reading is for any thread, writing for one at a time."""

    def read(self, key: Key, version: int, first: int, count: int) -> bytes:
        """So many packed rows. Raises CorruptDataError if there are fewer, StorageError."""
        ...

    def cut(self, key: Key, version: int, count: int) -> None:
        """At a start: end the file there; more was written for a snapshot that never came to be. Raises
        CorruptDataError if there are fewer, StorageError."""
        ...

    def write(self, key: Key, version: int, first: int, data: Iterable[bytes]) -> None:
        """Packed rows from row `first` on, where the file then ends. Raises StorageError."""
        ...

    def sync(self) -> None:
        """What was written is on the disk, and the names of the files too. Raises StorageError."""
        ...

    def next_version(self) -> int:
        """One that no file has."""
        ...

    def remove_others(self, named: Iterable[tuple[Key, int]]) -> None:
        """Delete all files but those of these versions."""
        ...

    def remove(self, key: Key, version: int) -> None:
        """Delete one file, if there is such a one."""
        ...


class MemoryCoordinates:
    """Files that are byte strings, for a table that needs no disk."""

    def __init__(self) -> None:
        self.files: dict[tuple[Key, int], bytes] = {}

    def read(self, key: Key, version: int, first: int, count: int) -> bytes:
        data = self.files.get((key, version), b"")[first * ROW_BYTES : (first + count) * ROW_BYTES]
        if len(data) != count * ROW_BYTES:
            raise CorruptDataError(f"There are no {count} rows from {first} on.")
        return data

    def cut(self, key: Key, version: int, count: int) -> None:
        self.files[key, version] = self.read(key, version, 0, count)

    def write(self, key: Key, version: int, first: int, data: Iterable[bytes]) -> None:
        self.files[key, version] = self.files.get((key, version), b"")[: first * ROW_BYTES] + b"".join(data)

    def sync(self) -> None:
        """Nothing here outlives the process."""

    def next_version(self) -> int:
        return max((version for _, version in self.files), default=0) + 1

    def remove_others(self, named: Iterable[tuple[Key, int]]) -> None:
        kept = set(named)
        self.files = {name: data for name, data in self.files.items() if name in kept}

    def remove(self, key: Key, version: int) -> None:
        self.files.pop((key, version), None)


class Held:
    """What a span's rows are read from while the disk does not have them: rows from `first` on of its file."""

    __slots__ = ("first", "pieces")

    def __init__(self, first: int, pieces: "Sequence[Piece]") -> None:
        self.first = first
        self.pieces: Sequence[Piece] | None = pieces

    def release(self) -> None:
        self.pieces = None


class Span(NamedTuple):
    """Rows `first` to `first + length - 1` of a file; the last of them ends at `end`."""

    version: int
    first: int
    length: int
    end: Offset
    held: Held | None = None


Piece = Span | list[Row]


class RowSequence:
    __slots__ = ("_coordinates", "_key", "count", "pieces")

    def __init__(self, coordinates: Coordinates, key: Key, pieces: Iterable[Piece] = ()) -> None:
        self._coordinates = coordinates
        self._key = key
        self.pieces = list(pieces)
        self.count = sum(count_of(piece) for piece in self.pieces)

    # --- reading

    def find(self, offset: Offset) -> int:
        """The place of the first row that ends behind `offset`."""
        place = 0
        for piece in self.pieces:
            if end_of(piece) > offset:
                return place + self._find_in(piece, offset)
            place += count_of(piece)
        return place

    def _find_in(self, piece: Piece, offset: Offset) -> int:
        if not isinstance(piece, Span):
            return bisect_right(piece, offset, key=lambda row: row.next_offset)
        low, high = 0, piece.length
        while high - low > ROWS_PER_LOOK:
            middle = (low + high) // 2
            if self._end_of_row(piece, middle) > offset:
                high = middle
            else:
                low = middle + 1
        return low + bisect_right(next_offsets(self._packed(piece, low, high - low)), offset)

    def _end_of_row(self, span: Span, place: int) -> Offset:
        (next_offset,) = next_offsets(self._packed(span, place, 1))
        return Offset(next_offset)

    def newest_time(self) -> int | None:
        return max((max(max_timestamps(packed)) for packed in self.packed()), default=None)

    def find_time(self, timestamp_ms: int) -> int | None:
        """The place of the first row with a record of this time or later."""
        place = 0
        for packed in self.packed():
            for number, max_timestamp in enumerate(max_timestamps(packed)):
                if max_timestamp >= timestamp_ms:
                    return place + number
            place += len(packed) // ROW_BYTES
        return None

    def read(self, place: int, count: int) -> list[Row]:
        """Fewer at the end."""
        return self._read(self.pieces, place, count)

    def _read(self, pieces: Iterable[Piece], place: int, count: int) -> list[Row]:
        rows: list[Row] = []
        for piece, first, taken in _cover(pieces, place, count):
            rows += self._rows(piece, first, taken)
        return rows

    def _rows(self, piece: Piece, place: int, count: int) -> Iterable[Row]:
        if not isinstance(piece, Span):
            return piece[place : place + count]
        if piece.held is not None and piece.held.pieces is not None:
            return self._read(piece.held.pieces, piece.first - piece.held.first + place, count)
        return unpack_rows(self._coordinates.read(self._key, piece.version, piece.first + place, count))

    def packed(self, pieces: Iterable[Piece] | None = None) -> Iterator[bytes]:
        """All rows, or those of these pieces, some at a time."""
        for piece in self.pieces if pieces is None else pieces:
            for place in range(0, count_of(piece), ROWS_PER_READ):
                yield self._packed(piece, place, min(ROWS_PER_READ, count_of(piece) - place))

    def _packed(self, piece: Piece, place: int, count: int) -> bytes:
        if not isinstance(piece, Span) or (piece.held is not None and piece.held.pieces is not None):
            return pack_rows(list(self._rows(piece, place, count)))
        return self._coordinates.read(self._key, piece.version, piece.first + place, count)

    def chunks(self) -> Iterator[list[Row]]:
        """All rows, some at a time."""
        for first in range(0, self.count, ROWS_PER_READ):
            yield self.read(first, ROWS_PER_READ)

    # --- changing

    def append(self, row: Row) -> None:
        if not self.pieces or isinstance(self.pieces[-1], Span):
            self.pieces.append([])
        tail = self.pieces[-1]
        assert isinstance(tail, list)
        tail.append(row)
        self.count += 1

    def splice(self, place: int, count: int, rows: Sequence[Row]) -> None:
        """Put `rows` in the place of `count` others."""
        before = self.slice(0, place)
        behind = self.slice(place + count, self.count - place - count)
        self.pieces = [*before, *([list(rows)] if rows else []), *behind]
        self.count += len(rows) - count

    def settled(self) -> Iterator[Piece]:
        """The pieces, those that wait for the disk as they were before."""
        for piece in self.pieces:
            if isinstance(piece, Span) and piece.held is not None and piece.held.pieces is not None:
                yield from self.slice(piece.first - piece.held.first, piece.length, piece.held.pieces)
            else:
                yield piece

    def slice(self, place: int, count: int, pieces: Sequence[Piece] | None = None) -> list[Piece]:
        """So many rows of all, or of these pieces."""
        return [
            self._part(*cover) for cover in _cover(self.pieces if pieces is None else pieces, place, count)
        ]

    def _part(self, piece: Piece, place: int, count: int) -> Piece:
        if count == count_of(piece):
            return piece
        if isinstance(piece, Span):
            end = self._end_of_row(piece, place + count - 1)
            return piece._replace(first=piece.first + place, length=count, end=end)
        return piece[place : place + count]


def _cover(pieces: Iterable[Piece], place: int, count: int) -> Iterator[tuple[Piece, int, int]]:
    """Which rows of which pieces these are: piece, first row, count."""
    for piece in pieces:
        size = count_of(piece)
        if count <= 0:
            return
        if place < size:
            taken = min(count, size - place)
            yield piece, place, taken
            count -= taken
        place = max(0, place - size)


def count_of(piece: Piece) -> int:
    return piece.length if isinstance(piece, Span) else len(piece)


def end_of(piece: Piece) -> Offset:
    return piece.end if isinstance(piece, Span) else piece[-1].next_offset
