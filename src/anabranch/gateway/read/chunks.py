"""Chunk: some neighbouring records of a partition, decoded once and written as JSON once, for all who follow it.

    {"type":"records","id":"s","partition":0,"next":"17","records":[{...},{...}]}

A chunk covers the offsets from `first` to before `next`, though not every one of them has to have a record. Chunks are
never changed once made and shared by every subscriber; what they remember is only what is asked of them again and
again: the whole message for one id and filter. Made in a worker thread where it is long.
"""

import json
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import NamedTuple

from anabranch.gateway.read.header_filter import HeaderFilter, Headers
from anabranch.gateway.read.reading import JSON_BYTES_MAX, UNPACKED_BYTES_MAX, is_long, size_of
from anabranch.gateway.websocket.fields import Id
from anabranch.record.batch import checked_spans, read_header
from anabranch.record.buffers import ByteBuffer
from anabranch.record.records import Record, records_of

CHUNK_BYTES_MAX = 128 * 1024
LOAD_BYTES_MAX = 4 * 1024 * 1024
"""How much JSON is made of one answer to a fetch; the rest is asked for again, by those who get there."""
RECORD_OVERHEAD_BYTES = 200
"""What a record of a chunk takes in memory besides its text."""
HEADER_OVERHEAD_BYTES = 150
"""What each of its headers takes, which are kept for filters."""
HEAVY_BYTES = 512 * 1024
HEAVY_TESTS = 20_000
"""Chunks above one of them are cut in turn with other heavy work (`broker/requests/turns.py`)."""
REMEMBERED_SIZES_MAX = 2
"""How much longer than the chunk the messages may be, all together, that it remembers."""
_REMEMBERED_OVERHEAD_BYTES = 200

Encode = Callable[[Record], bytes]
"""A record as JSON, in UTF-8."""


class Cut(NamedTuple):
    """What of a chunk goes into one message; no text if none of its records is wanted.

    `last` is the offset of the last record in it, -1 without one; `next` is where to go on."""

    text: bytes | None
    records: int
    last: int
    next: int


class Chunk:
    __slots__ = (
        "_header_count",
        "_remembered",
        "_room_bytes",
        "first",
        "headers",
        "next",
        "offsets",
        "partition",
        "size_bytes",
        "texts",
    )

    def __init__(
        self,
        partition: int,
        first: int,
        next_offset: int,
        offsets: Sequence[int],
        headers: Sequence[Headers],
        texts: Sequence[bytes],
    ) -> None:
        assert first < next_offset, "a chunk without offsets would be waited for again and again"
        self.partition = partition
        self.first = first
        self.next = next_offset
        self.offsets = offsets
        self.headers = headers
        self.texts = texts
        self._header_count = sum(map(len, headers))
        self.size_bytes = (
            sum(map(len, texts))
            + RECORD_OVERHEAD_BYTES * (len(texts) + 1)
            + HEADER_OVERHEAD_BYTES * self._header_count
        )
        self._remembered: dict[tuple[Id, str], Cut] = {}
        self._room_bytes = REMEMBERED_SIZES_MAX * self.size_bytes

    @property
    def size_bytes_max(self) -> int:
        """With all that it may remember."""
        return (1 + REMEMBERED_SIZES_MAX) * self.size_bytes

    def is_heavy(self, wanted: HeaderFilter | None) -> bool:
        """Whether to cut it takes more than a moment: for one long record, or many headers under many conditions."""
        tests = self._header_count * wanted.conditions if wanted is not None else 0
        return self.size_bytes > HEAVY_BYTES or tests > HEAVY_TESTS

    def serves(self, offset: int) -> bool:
        """Whether it is what a fetch there would answer. Between its records it may not be: a position that no branch
        of the topic knows gets nothing, though there be records with higher offsets."""
        if offset == self.first:
            return True
        index = bisect_left(self.offsets, offset)
        return index < len(self.offsets) and self.offsets[index] == offset

    def cut(
        self, offset: int, records_max: int, bytes_max: int, subscription: Id, wanted: HeaderFilter | None
    ) -> Cut:
        """The message of the records from `offset` on; at least one goes, however long it is."""
        if offset > self.first or records_max < len(self.texts) or bytes_max < self.size_bytes:
            return self._cut(offset, records_max, bytes_max, subscription, wanted)
        key = (subscription, wanted.text if wanted is not None else "")
        cut = self._remembered.get(key)
        if cut is None:
            cut = self._cut(offset, records_max, bytes_max, subscription, wanted)
            self._remember(key, cut)
        return cut

    def _remember(self, key: tuple[Id, str], cut: Cut) -> None:
        cost_bytes = len(cut.text or b"") + len(key[1]) + _REMEMBERED_OVERHEAD_BYTES
        if cost_bytes <= self._room_bytes:
            self._room_bytes -= cost_bytes
            self._remembered[key] = cut

    def _cut(
        self, offset: int, records_max: int, bytes_max: int, subscription: Id, wanted: HeaderFilter | None
    ) -> Cut:
        taken: list[bytes] = []
        taken_bytes, last, next_offset = 0, -1, self.next
        for index in range(bisect_left(self.offsets, offset), len(self.texts)):
            if wanted is not None and not wanted.matches(self.headers[index]):
                continue
            text = self.texts[index]
            if len(taken) >= records_max or (taken and taken_bytes + len(text) > bytes_max):
                next_offset = self.offsets[index]
                break
            taken.append(text)
            taken_bytes += len(text)
            last = self.offsets[index]
        if not taken:
            return Cut(None, 0, -1, next_offset)
        return Cut(self._message(subscription, next_offset, taken), len(taken), last, next_offset)

    def progress(self, subscription: Id, next_offset: int) -> bytes:
        """For a client that hears little, because of its filter: how far it has come."""
        return self._message(subscription, next_offset, ())

    def _message(self, subscription: Id, next_offset: int, taken: Sequence[bytes]) -> bytes:
        return b'{"type":"records","id":%s,"partition":%d,"next":"%d","records":[%s]}' % (
            json.dumps(subscription).encode(),
            self.partition,
            next_offset,
            b",".join(taken),
        )


def chunks_of(data: ByteBuffer, partition: int, start: int, encode: Encode) -> list[Chunk]:
    """Whole batches as chunks that follow each other, from `start` on; none if nothing lies there.

    Raises CorruptDataError, InvalidRecordError and BatchTooLargeError.
    """
    maker = _Maker(partition, start, encode)
    view = memoryview(data)
    for begin, end in checked_spans(view):
        batch = view[begin:end]
        header = read_header(batch)
        if header.last_offset < start:
            continue
        if not header.is_control:
            for record in records_of(batch, first=start):
                if record.offset >= start and not maker.take(record):
                    return maker.chunks
        maker.covers(header.next_offset)
    maker.close()
    return maker.chunks


class _Maker:
    """Gathers records into chunks."""

    def __init__(self, partition: int, start: int, encode: Encode) -> None:
        self.chunks: list[Chunk] = []
        self._partition = partition
        self._encode = encode
        self._made_bytes = 0
        self._unpacked_bytes = 0
        self._first = self._next = start
        self._begin()

    def _begin(self) -> None:
        self._offsets: list[int] = []
        self._headers: list[Headers] = []
        self._texts: list[bytes] = []
        self._bytes = 0

    def take(self, record: Record) -> bool:
        """False: enough, and everything taken is in a chunk."""
        size = size_of(record)
        text = self._text(record, size)
        self._offsets.append(record.offset)
        self._headers.append(record.headers)
        self._texts.append(text)
        self._bytes += len(text) + RECORD_OVERHEAD_BYTES + HEADER_OVERHEAD_BYTES * len(record.headers)
        self._next = record.offset + 1
        self._unpacked_bytes += size
        is_much = self._unpacked_bytes > UNPACKED_BYTES_MAX
        if is_much or self._bytes >= CHUNK_BYTES_MAX:
            self.close()
        return not is_much and self._made_bytes < LOAD_BYTES_MAX

    def _text(self, record: Record, size: int) -> bytes:
        """A long one is told of, and left to those who read it by HTTP."""
        if not is_long(record, size):
            text = self._encode(record)
            if len(text) <= JSON_BYTES_MAX:
                return text
        fields = record.offset, record.timestamp, size
        return b'{"offset":"%d","timestamp":%d,"omitted_bytes":%d}' % fields

    def covers(self, next_offset: int) -> None:
        """Nothing lies between what was taken and this offset."""
        self._next = max(self._next, next_offset)

    def close(self) -> None:
        if self._next == self._first:
            return
        self.chunks.append(
            Chunk(self._partition, self._first, self._next, self._offsets, self._headers, self._texts)
        )
        self._made_bytes += self._bytes
        self._first = self._next
        self._begin()
