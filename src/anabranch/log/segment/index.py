"""Sparse indexes of one segment, in Kafka's formats, big endian.

    .index      8-byte entries: relative offset i32 | position i32; both strictly increasing. The offset is
                that of the LAST record of a batch, the position is where that batch begins.
    .timeindex  12-byte entries: timestamp i64 | relative offset i32; both increasing. "Up to this offset no
                record is later than this": the largest timestamp so far and the last offset of the batch
                that has it.

Held as arrays of machine numbers and searched by bisection. The writer appends to those of the active segment
and writes them out when it is told to; a crash may leave a file short, garbled or missing. `load` refuses
what cannot be true, and the segment then makes the index anew from its `.log`.
"""

import threading
from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable
from itertools import islice
from operator import lt

from anabranch.errors import CorruptDataError
from anabranch.record.index_format import (
    OFFSET_ENTRY_BYTES,
    RELATIVE_OFFSET_MAX,
    TIME_ENTRY,
    TIME_ENTRY_BYTES,
    big_endian,
)


class OffsetIndex:
    """Relative offset to position."""

    entry_bytes = OFFSET_ENTRY_BYTES

    def __init__(self) -> None:
        self.offsets = array("i")
        self.positions = array("i")

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def size_bytes(self) -> int:
        return len(self.offsets) * OFFSET_ENTRY_BYTES

    def append(self, relative_offset: int, position: int) -> None:
        assert 0 <= relative_offset <= RELATIVE_OFFSET_MAX
        if self.offsets:
            assert relative_offset > self.offsets[-1]
            assert position > self.positions[-1]
        self.offsets.append(relative_offset)
        self.positions.append(position)

    def entry_at_or_before(self, relative_offset: int) -> tuple[int, int] | None:
        """The last entry whose offset is not above the one asked for."""
        found = bisect_right(self.offsets, relative_offset) - 1
        return (self.offsets[found], self.positions[found]) if found >= 0 else None

    def last_entry_within(self, first: int, last: int) -> tuple[int, int] | None:
        """The entry with the greatest position in (first, last]: a batch is known to begin there."""
        found = bisect_right(self.positions, last) - 1
        if found < 0 or self.positions[found] <= first:
            return None
        return self.offsets[found], self.positions[found]

    def cut(self, size: int) -> None:
        """Forget entries of batches that begin at `size` or later."""
        while self.positions and self.positions[-1] >= size:
            self.positions.pop()
            self.offsets.pop()

    def copy(self) -> "OffsetIndex":
        index = OffsetIndex()
        index.offsets, index.positions = self.offsets[:], self.positions[:]
        return index

    def dump(self, first_entry: int = 0) -> bytes:
        entries = array("i", bytes(OFFSET_ENTRY_BYTES * (len(self) - first_entry)))
        entries[0::2] = self.offsets[first_entry:]
        entries[1::2] = self.positions[first_entry:]
        return big_endian(entries).tobytes()

    @classmethod
    def load(cls, data: bytes, log_bytes: int, *, check_order: bool = True) -> "OffsetIndex":
        """CorruptDataError if it cannot be an index of a log of this size.

        The order of entries takes milliseconds to check. Who compares each entry it uses with the log can do
        without: searched out of order, an index answers with an entry that is too early, if a true one.
        """
        if len(data) % OFFSET_ENTRY_BYTES:
            raise CorruptDataError(f"{len(data)} bytes are no whole number of index entries")
        entries = big_endian(array("i", data))
        index = cls()
        index.offsets, index.positions = entries[0::2], entries[1::2]
        if check_order and not (_increases(index.offsets) and _increases(index.positions)):
            raise CorruptDataError("index entries do not increase")
        if index.offsets and (index.offsets[0] < 0 or index.positions[0] < 0):
            raise CorruptDataError("an index entry is negative")
        if index.positions and index.positions[-1] >= log_bytes:
            raise CorruptDataError(f"an index entry points beyond the {log_bytes} bytes of the log")
        return index


class TimeIndex:
    """Largest timestamp so far to relative offset."""

    entry_bytes = TIME_ENTRY_BYTES

    def __init__(self) -> None:
        self.timestamps = array("q")
        self.offsets = array("i")

    def __len__(self) -> int:
        return len(self.timestamps)

    @property
    def size_bytes(self) -> int:
        return len(self.timestamps) * TIME_ENTRY_BYTES

    def append_if_later(self, timestamp: int, relative_offset: int) -> None:
        """Kafka's rule: an entry only where the largest timestamp grew."""
        if timestamp > (self.timestamps[-1] if self.timestamps else -1):
            self.timestamps.append(timestamp)
            self.offsets.append(relative_offset)

    def offset_before(self, timestamp: int) -> int:
        """A relative offset below which every record is earlier than `timestamp`."""
        found = bisect_right(self.timestamps, timestamp - 1) - 1
        return self.offsets[found] + 1 if found >= 0 else 0

    def cut(self, relative_offset: int) -> None:
        """Forget entries at this offset or later."""
        while self.offsets and self.offsets[-1] >= relative_offset:
            self.offsets.pop()
            self.timestamps.pop()

    def copy(self) -> "TimeIndex":
        index = TimeIndex()
        index.timestamps, index.offsets = self.timestamps[:], self.offsets[:]
        return index

    def dump(self, first_entry: int = 0) -> bytes:
        pack = TIME_ENTRY.pack
        return b"".join(map(pack, self.timestamps[first_entry:], self.offsets[first_entry:]))

    @classmethod
    def load(cls, data: bytes) -> "TimeIndex":
        if len(data) % TIME_ENTRY_BYTES:
            raise CorruptDataError(f"{len(data)} bytes are no whole number of time index entries")
        index = cls()
        for timestamp, offset in TIME_ENTRY.iter_unpack(data):
            index.timestamps.append(timestamp)
            index.offsets.append(offset)
        if not (_increases(index.timestamps) and _increases(index.offsets)):
            raise CorruptDataError("time index entries do not increase")
        if index.offsets and (index.offsets[0] < 0 or index.timestamps[0] < 0):
            raise CorruptDataError("a time index entry is negative")
        return index


class IndexCache:
    """Indexes of sealed segments that were read lately, for all logs of a node, bounded in bytes.

    Any thread may use it: logs are opened and closed in several at once.
    """

    def __init__(self, bytes_max: int = 32 * 2**20) -> None:
        self.bytes_max = bytes_max
        self.size_bytes = 0
        self._loaded: OrderedDict[str, tuple[OffsetIndex, TimeIndex]] = OrderedDict()
        self._lock = threading.RLock()

    def get(
        self, key: str, load: Callable[[], tuple[OffsetIndex, TimeIndex]]
    ) -> tuple[OffsetIndex, TimeIndex]:
        with self._lock:
            pair = self._loaded.get(key)
            if pair is not None:
                self._loaded.move_to_end(key)
                return pair
        pair = load()
        self.put(key, pair)
        return pair

    def put(self, key: str, pair: tuple[OffsetIndex, TimeIndex]) -> None:
        with self._lock:
            self.discard(key)
            self._loaded[key] = pair
            self.size_bytes += _pair_bytes(pair)
            while self.size_bytes > self.bytes_max and len(self._loaded) > 1:
                _, oldest = self._loaded.popitem(last=False)
                self.size_bytes -= _pair_bytes(oldest)

    def discard(self, key: str) -> None:
        with self._lock:
            pair = self._loaded.pop(key, None)
            if pair is not None:
                self.size_bytes -= _pair_bytes(pair)


def _pair_bytes(pair: tuple[OffsetIndex, TimeIndex]) -> int:
    return pair[0].size_bytes + pair[1].size_bytes


def _increases(numbers: "array[int]") -> bool:
    return all(map(lt, numbers, islice(numbers, 1, None)))
