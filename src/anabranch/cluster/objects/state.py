"""An ObjectTable as bytes: for this broker's own snapshot, which names its coordinate files, and for everybody else's,
which carries the rows themselves.

    state:   blocks, each a length (4 bytes) and so many bytes of zstd
    block:   records, each the length of its head and of its body (4 bytes each), the head as JSON, the body

A record says one thing, and names it: `table` the numbers, `unreferenced` and `tombstones` some objects, `partition`
one partition with its `file` if its rows lie in one, then for the same partition `producers`, and in its body `rows`.
None is long, so that whoever makes the bytes in a worker lets the loop have its turns.
"""

import json
import uuid
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from struct import Struct
from typing import Any, NamedTuple

from anabranch.cluster.objects.entries import Key
from anabranch.cluster.objects.rows import ROWS_PER_READ, Coordinates
from anabranch.errors import CorruptDataError
from anabranch.objects.layout.names import ROW_BYTES, ObjectId, object_id_of
from anabranch.record.compression import Codec, compress, decompress
from anabranch.record.producer_table import Producer, WrittenBatch
from anabranch.values import Offset

BLOCK_BYTES = 2**20
BLOCK_BYTES_MAX = 64 * 2**20
"""No block that we write comes near it."""
OBJECTS_PER_RECORD = 1000
PRODUCERS_PER_RECORD = 1000
_BLOCK = Struct(">I")
_RECORD = Struct(">II")


class Record(NamedTuple):
    head: Mapping[str, Any]
    body: bytes = b""


class RowFile(NamedTuple):
    """A coordinate file as a snapshot names it: so many rows of this sum, of which those from `first` on count."""

    version: int
    length: int
    crc: int
    first: int
    end: Offset
    """Of the last row that counts."""
    rows: int


# --- blocks ---------------------------------------------------------------------------------------------------------


def pack_state(records: Iterable[Record]) -> bytes:
    out, block = bytearray(), bytearray()
    for head, body in records:
        packed = json.dumps(head, separators=(",", ":")).encode()
        block += _RECORD.pack(len(packed), len(body)) + packed + body
        if len(block) >= BLOCK_BYTES:
            _add_block(out, block)
            block = bytearray()
    if block:
        _add_block(out, block)
    return bytes(out)


def _add_block(out: bytearray, block: bytearray) -> None:
    packed = compress(Codec.ZSTD, block)
    out += _BLOCK.pack(len(packed)) + packed


def unpack_state(data: bytes) -> Iterator[Record]:
    """Raises CorruptDataError."""
    position, view = 0, memoryview(data)
    while position < len(view):
        if len(view) - position < _BLOCK.size:
            raise CorruptDataError("What was agreed on about objects is cut short.")
        (length,) = _BLOCK.unpack_from(view, position)
        position += _BLOCK.size
        yield from _records_of(
            decompress(Codec.ZSTD, bytes(view[position : position + length]), BLOCK_BYTES_MAX)
        )
        position += length


def _records_of(block: bytes) -> Iterator[Record]:
    position = 0
    while position < len(block):
        if len(block) - position < _RECORD.size:
            raise CorruptDataError("What was agreed on about objects is cut short.")
        head_bytes, body_bytes = _RECORD.unpack_from(block, position)
        position += _RECORD.size
        head, body = block[position : position + head_bytes], block[position + head_bytes :][:body_bytes]
        if len(head) + len(body) < head_bytes + body_bytes:
            raise CorruptDataError("What was agreed on about objects is cut short.")
        position += head_bytes + body_bytes
        yield Record(json.loads(head), body)


# --- what records say -----------------------------------------------------------------------------------------------


def object_records(unreferenced: Sequence[ObjectId], tombstones: Mapping[ObjectId, int]) -> Iterator[Record]:
    for start in range(0, len(unreferenced), OBJECTS_PER_RECORD):
        names = [object_id.name for object_id in unreferenced[start : start + OBJECTS_PER_RECORD]]
        yield Record({"unreferenced": names})
    times = list(tombstones.items())
    for start in range(0, len(times), OBJECTS_PER_RECORD):
        some = times[start : start + OBJECTS_PER_RECORD]
        yield Record({"tombstones": [[object_id.name, time_ms] for object_id, time_ms in some]})


def object_of(name: str) -> ObjectId:
    object_id = object_id_of(name)
    if object_id is None:
        raise CorruptDataError(f"{name!r} is no object's name.")
    return object_id


def partition_record(key: Key, head: Sequence[int], file: RowFile | None) -> Record:
    return Record({"partition": [key[0].hex, key[1]], "head": list(head), "file": file and list(file)})


def key_of(head: Mapping[str, Any]) -> Key:
    topic_id, partition = head["partition"]
    return uuid.UUID(hex=topic_id), partition


def producer_records(producers: Mapping[int, Producer]) -> Iterator[Record]:
    known = list(producers.items())
    for start in range(0, len(known), PRODUCERS_PER_RECORD):
        some = known[start : start + PRODUCERS_PER_RECORD]
        yield Record({"producers": [[number, *_producer_row(producer)] for number, producer in some]})


def _producer_row(producer: Producer) -> list[Any]:
    return [producer.epoch, producer.timestamp_ms_last, [list(batch) for batch in producer.batches]]


def producers_of(rows: Iterable[Sequence[Any]]) -> Iterator[tuple[int, Producer]]:
    for number, epoch, timestamp_ms_last, batches in rows:
        yield number, Producer(epoch, timestamp_ms_last, tuple(WrittenBatch(*batch) for batch in batches))


def row_records(chunks: Iterable[bytes]) -> Iterator[Record]:
    for chunk in chunks:
        yield Record({"rows": len(chunk) // ROW_BYTES}, chunk)


# --- from our own form to everybody's ---------------------------------------------------------------------------


def carried(data: bytes, coordinates: Coordinates) -> bytes:
    """The state of our own snapshot with the rows that its files hold. Raises CorruptDataError, StorageError."""
    return pack_state(_carried(unpack_state(data), coordinates))


def _carried(records: Iterable[Record], coordinates: Coordinates) -> Iterator[Record]:
    for record in records:
        if record.head.get("file") is None:
            yield record
            continue
        key, file = key_of(record.head), RowFile(*record.head["file"])
        yield Record({**record.head, "file": None})
        yield from row_records(chunks_of(coordinates, key, file))


def chunks_of(coordinates: Coordinates, key: Key, file: RowFile) -> Iterator[bytes]:
    """The rows of a file that count."""
    for first in range(file.first, file.first + file.rows, ROWS_PER_READ):
        count = min(ROWS_PER_READ, file.first + file.rows - first)
        yield coordinates.read(key, file.version, first, count)


def check_file(coordinates: Coordinates, key: Key, file: RowFile) -> Iterator[bytes]:
    """Cut a file to what the snapshot names and sum it up; the rows that count, some at a time. Raises
    CorruptDataError."""
    coordinates.cut(key, file.version, file.length)
    crc = 0
    for first in range(0, file.length, ROWS_PER_READ):
        rows = coordinates.read(key, file.version, first, min(ROWS_PER_READ, file.length - first))
        crc = zlib.crc32(rows, crc)
        from_, to = max(0, file.first - first), max(0, file.first + file.rows - first)
        yield rows[from_ * ROW_BYTES : to * ROW_BYTES]
    if crc != file.crc:
        raise CorruptDataError(
            f"The coordinates of partition {key[1]} of topic {key[0]} are not those that the metadata snapshot names: "
            "restore metadata-snapshot and the folder objects from the same backup, or let the broker join its "
            "cluster again with an empty data folder."
        )
