"""A segment's `.seal` file as bytes: what it promises about the `.log` beside it.

    "ABSL" | version u16 | flags u16 | next base offset i64 | log bytes i64 | largest timestamp i64 |
    region count u32
    regions: start u32 | end u32 | crc-32c u32 over the first 17 bytes of every batch in [start, end)
    crc-32c u32 over all of the above

This module knows the bytes, `log.segment.seal` how the sums come about. A seal that is not final was written at a
clean stop: more batches may follow those it speaks of.
"""

from array import array
from struct import Struct
from typing import NamedTuple

from anabranch.errors import CorruptDataError
from anabranch.record.crc32c import crc32c
from anabranch.record.index_format import big_endian
from anabranch.values import Offset

SEAL_HEADER = Struct(">4sHHqqqI")
SEAL_MAGIC = b"ABSL"
SEAL_VERSION = 2
FINAL = 1
REGION_ENTRY_BYTES = 12
CRC = Struct(">I")


class SealedRegion(NamedTuple):
    """A stretch of whole batches and the sum over their heads."""

    start: int
    end: int
    crc: int


class SealFields(NamedTuple):
    """Everything a seal says; the regions as numbers: start, end, sum, start, end, sum ..."""

    final: bool
    next_base: Offset
    log_bytes: int
    max_timestamp: int
    region_numbers: "array[int]"

    def regions(self) -> list[SealedRegion]:
        numbers = self.region_numbers
        return list(map(SealedRegion, numbers[0::3], numbers[1::3], numbers[2::3]))


def pack_seal(fields: SealFields) -> bytes:
    flags = FINAL if fields.final else 0
    count = len(fields.region_numbers) // 3
    head = SEAL_HEADER.pack(
        SEAL_MAGIC, SEAL_VERSION, flags, fields.next_base, fields.log_bytes, fields.max_timestamp, count
    )
    body = head + big_endian(array("I", fields.region_numbers)).tobytes()
    return body + CRC.pack(crc32c(body))


def unpack_seal(data: bytes) -> SealFields:
    """CorruptDataError if the file does not hold."""
    if (
        len(data) < SEAL_HEADER.size + CRC.size
        or crc32c(data[: -CRC.size]) != CRC.unpack(data[-CRC.size :])[0]
    ):
        raise CorruptDataError("its checksum does not hold")
    magic, version, flags, next_base, log_bytes, max_timestamp, count = SEAL_HEADER.unpack_from(data)
    body = data[SEAL_HEADER.size : -CRC.size]
    if magic != SEAL_MAGIC or version != SEAL_VERSION or len(body) != count * REGION_ENTRY_BYTES:
        raise CorruptDataError("it is not a seal of this version")
    numbers = big_endian(array("I", body))
    return SealFields(bool(flags & FINAL), Offset(next_base), log_bytes, max_timestamp, numbers)
