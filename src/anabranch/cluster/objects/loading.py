"""From the records of a snapshot to what an ObjectTable holds.

Files that a snapshot names are cut to what it says, summed up, and the objects that their rows name are counted. Rows
that came with a snapshot of another broker go to files of a new version, synced.
"""

import zlib
from collections.abc import Iterable, Mapping
from typing import Any

from anabranch.cluster.objects.entries import Key
from anabranch.cluster.objects.items import START, Partition
from anabranch.cluster.objects.rows import Coordinates, RowSequence, Span
from anabranch.cluster.objects.state import Record, RowFile, check_file, key_of, object_of, producers_of
from anabranch.errors import CorruptDataError
from anabranch.objects.layout.names import ROW_BYTES, ObjectId, next_offsets, object_counts
from anabranch.values import BrokerId, Offset


def load(records: Iterable[Record], coordinates: Coordinates) -> "Loaded":
    """Raises CorruptDataError, StorageError."""
    loaded = Loaded(coordinates)
    for record in records:
        loaded.take(record)
    if loaded.has_written:
        coordinates.sync()
    return loaded


class Loaded:
    """What has been read so far."""

    def __init__(self, coordinates: Coordinates) -> None:
        self.incarnation: int | None = None
        self.past: tuple[int, ...] = ()
        self.successor: int | None = None
        self.numbers: dict[BrokerId, tuple[int, int]] = {}
        self.merged_floors: dict[int, int] = {}
        self.forgotten_last = -1
        self.partitions: dict[Key, Partition] = {}
        self.references: dict[ObjectId, int] = {}
        self.unreferenced: dict[ObjectId, None] = {}
        self.tombstones: dict[ObjectId, int] = {}
        self.has_written = False
        self._coordinates = coordinates
        self._version = coordinates.next_version()
        self._key: Key | None = None
        """The partition that rows and producers are of."""

    def take(self, record: Record) -> None:
        match record.head:
            case {"partition": _}:
                self._take_partition(record.head)
            case {"rows": _}:
                self._take_rows(record.body)
            case {"producers": producers}:
                _, partition = self._current()
                partition.producers.producers.update(producers_of(producers))
            case {"table": table}:
                self._take_table(table)
            case {"unreferenced": names}:
                self.unreferenced.update(dict.fromkeys(map(object_of, names)))
            case {"tombstones": known}:
                self.tombstones.update((object_of(name), time_ms) for name, time_ms in known)
            case unknown:
                raise CorruptDataError(
                    f"A snapshot tells of {', '.join(unknown)} of objects: was it written by a newer version?"
                )

    def _take_table(self, table: Mapping[str, Any]) -> None:
        self.incarnation, self.past = table["incarnation"], tuple(table["past"])
        self.successor = table["successor"]
        self.numbers = {BrokerId(broker): (epoch, last) for broker, epoch, last in table["numbers"]}
        self.merged_floors = dict(table["merged_floors"])
        self.forgotten_last = table["forgotten_last"]

    def _take_partition(self, head: Mapping[str, Any]) -> None:
        key = self._key = key_of(head)
        partition = self.partitions[key] = Partition(RowSequence(self._coordinates, key))
        partition.start, partition.end, partition.size_bytes = head["head"]
        if head["file"] is not None:
            file = partition.file = RowFile(*head["file"])
            for packed in check_file(self._coordinates, key, file):
                self._count(packed)
            span = Span(file.version, file.first, file.rows, file.end)
            partition.rows = RowSequence(self._coordinates, key, [span])

    def _take_rows(self, packed: bytes) -> None:
        key, partition = self._current()
        if not packed or len(packed) % ROW_BYTES:
            raise CorruptDataError(f"A snapshot has {len(packed)} bytes of coordinate rows.")
        known = partition.file or RowFile(self._version, 0, 0, 0, START, 0)
        self._coordinates.write(key, known.version, known.length, [packed])
        self.has_written = True
        length, end = known.length + len(packed) // ROW_BYTES, Offset(next_offsets(packed)[-1])
        partition.file = RowFile(known.version, length, zlib.crc32(packed, known.crc), 0, end, length)
        partition.rows = RowSequence(self._coordinates, key, [Span(known.version, 0, length, end)])
        self._count(packed)

    def _current(self) -> tuple[Key, Partition]:
        if self._key is None:
            raise CorruptDataError("A snapshot tells of rows or producers of no partition.")
        return self._key, self.partitions[self._key]

    def _count(self, packed: bytes) -> None:
        for object_id, count in object_counts(packed):
            self.references[object_id] = self.references.get(object_id, 0) + count
