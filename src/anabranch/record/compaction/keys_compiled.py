"""Keys of a batch's records by the compiled decoder of columns; see `keys.py`."""

from itertools import pairwise

from anabranch.record._fast import ColumnDecoder
from anabranch.record.batch import payload_of, read_header
from anabranch.record.buffers import ByteBuffer
from anabranch.record.compaction.keys_pure import KeyedRecord, keyed_records_pure
from anabranch.record.records import RECORDS_BYTES_MAX

_NAMES = ("key",)  # Offsets, and which values are null, come with any choice.
_OFFSET_MAX = 2**63 - 1


def keyed_records_compiled(batch: ByteBuffer, bytes_max: int = RECORDS_BYTES_MAX) -> list[KeyedRecord]:
    header = read_header(batch)
    payload = payload_of(batch, bytes_max, header)
    decoder = ColumnDecoder(_NAMES, 0, _OFFSET_MAX, False, True, bytes_max, len(payload))
    if header.record_count <= 0 or not decoder.add(header, payload):
        return keyed_records_pure(batch, bytes_max)  # Which says what is wrong with it.
    count, _, memory = decoder.take()
    offsets = memoryview(memory["offset"]).cast("q").tolist()
    key_bits, key_ends, keys = memory["key"]
    ends = memoryview(key_ends).cast("i").tolist()
    joined = bytes(keys) if keys is not None else b""
    found: list[bytes | None] = [joined[start:end] for start, end in pairwise(ends)]
    for place in _nulls(key_bits, count):
        found[place] = None
    tombstones = [False] * count
    for place in _nulls(memory["value"][0], count):
        tombstones[place] = True
    return list(zip(offsets, found, tombstones, strict=True))


def _nulls(bits: ByteBuffer | None, count: int) -> list[int]:
    """Where a bit is not set; None: nowhere."""
    if bits is None:
        return []
    known = bytes(bits)
    return [place for place in range(count) if not known[place >> 3] >> (place & 7) & 1]
