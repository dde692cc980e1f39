"""The five codecs of a batch's records section, by Kafka's numbers; each library is imported on first use.

What comes in is hostile: 8 kB can unpack to gigabytes. So `decompress` always works against a cap, as a
stream that stops just beyond it, and never trusts a size that the data announces about itself. What is cut
short, or is followed by something that is no frame, is `CorruptDataError`.

Where batches are read that lie in a log, frames that follow one another are one text. Of a producer (`fresh`) they are
taken as zstd only, which every client reads so. Of several gzip members librdkafka reads the first, and it aborts its
process if that is empty; a second LZ4 frame or stream of snappy is an error for it that it never gets past, and Java's
client reads one LZ4 frame, whose blocks do not lean on one another.

Snappy is written as Java's clients write it: the header of xerial's framing, then chunks with their length.
Bare snappy, as some C clients write it, is accepted.
"""

import sys
import zlib
from collections.abc import Callable
from enum import IntEnum
from struct import Struct

from anabranch.errors import (
    BatchTooLargeError,
    CorruptDataError,
    InvalidRecordError,
    UnsupportedCompressionError,
)
from anabranch.record.buffers import ByteBuffer


class Codec(IntEnum):
    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


FRAMES_MAX = 1024
"""In one records section. A frame costs a copy of what follows it, so that many tiny ones cost its square."""

_GZIP_WBITS = 31  # 15 bits of window, and 16 for "with a gzip header".
_STEP_BYTES = 2**20
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + Struct(">ii").pack(1, 1)
_XERIAL_CHUNK_BYTES = 32 * 1024
_LENGTH = Struct(">i")
_LZ4_MAGIC = b"\x04\x22\x4d\x18"
_LZ4_FLAGS_POSITION = 4
_LZ4_INDEPENDENT = 0x20

# Unpacks the frame at the front of the data: at most `room + 1` bytes of it, and what follows the frame.
_UnpackFrame = Callable[[ByteBuffer, int], tuple[bytes, ByteBuffer]]


def compress(codec: int, data: ByteBuffer, level: int | None = None) -> bytes:
    """`level` is the codec's own (gzip -1 to 9, LZ4 0 to 16, zstd up to 22); None is its default."""
    if codec == Codec.NONE:
        return bytes(data)
    if codec not in _COMPRESSORS:
        raise UnsupportedCompressionError(f"Compression codec {codec} is unknown.")
    return _COMPRESSORS[Codec(codec)](data, level)


def decompress(codec: int, data: ByteBuffer, bytes_max: int, *, fresh: bool = False) -> bytes:
    """What `data` unpacks to; `BatchTooLargeError` as soon as that is more than `bytes_max`. `fresh`: it comes from a
    producer, and `InvalidRecordError` says that some clients could not read it."""
    if codec not in _DECOMPRESSORS:
        raise UnsupportedCompressionError(f"Compression codec {codec} is unknown.")
    return _DECOMPRESSORS[Codec(codec)](data, bytes_max, fresh)


def _too_large(bytes_max: int) -> BatchTooLargeError:
    return BatchTooLargeError(f"A batch unpacks to more than the {bytes_max} bytes allowed.")


def _cut_short() -> CorruptDataError:
    return CorruptDataError("The compressed records of a batch are cut short.")


def _not_one_frame() -> InvalidRecordError:
    return InvalidRecordError(
        "Behind the first compressed frame of a batch comes something else: send one frame, for clients read no more."
    )


def _unpack_frames(unpack_frame: _UnpackFrame, data: ByteBuffer, bytes_max: int, *, one_only: bool) -> bytes:
    parts: list[bytes] = []
    room, rest = bytes_max, data
    for _ in range(FRAMES_MAX):
        part, rest = unpack_frame(rest, room)
        room -= len(part)
        if room < 0:
            raise _too_large(bytes_max)
        parts.append(part)
        if not rest:
            return parts[0] if len(parts) == 1 else b"".join(parts)
        if one_only:
            raise _not_one_frame()
    raise CorruptDataError(f"More than {FRAMES_MAX} compressed frames in one batch.")


# --- none ------------------------------------------------------------------------------------------------


def _copy(data: ByteBuffer, bytes_max: int, fresh: bool) -> bytes:
    if len(data) > bytes_max:
        raise _too_large(bytes_max)
    return bytes(data)


# --- gzip ------------------------------------------------------------------------------------------------


def _gzip(data: ByteBuffer, level: int | None) -> bytes:
    packer = zlib.compressobj(-1 if level is None else level, zlib.DEFLATED, _GZIP_WBITS)
    return packer.compress(data) + packer.flush()


def _gunzip(data: ByteBuffer, bytes_max: int, fresh: bool) -> bytes:
    return _unpack_frames(_gunzip_member, data, bytes_max, one_only=fresh)


def _gunzip_member(data: ByteBuffer, room: int) -> tuple[bytes, ByteBuffer]:
    unpacker = zlib.decompressobj(_GZIP_WBITS)
    try:
        part = unpacker.decompress(data, room + 1)
    except zlib.error as error:
        raise CorruptDataError(f"The records of a batch are not gzip: {error}.") from error
    if not unpacker.eof and len(part) <= room:
        raise _cut_short()
    return part, unpacker.unused_data


# --- snappy ----------------------------------------------------------------------------------------------


def _snappy(data: ByteBuffer, level: int | None) -> bytes:
    from cramjam import snappy

    view = memoryview(data)
    out = bytearray(_XERIAL_HEADER)
    for start in range(0, len(view), _XERIAL_CHUNK_BYTES):
        chunk = bytes(snappy.compress_raw(bytes(view[start : start + _XERIAL_CHUNK_BYTES])))
        out += _LENGTH.pack(len(chunk)) + chunk
    return bytes(out)


def _unsnappy(data: ByteBuffer, bytes_max: int, fresh: bool) -> bytes:
    view = memoryview(data)
    if view[: len(_XERIAL_MAGIC)] != _XERIAL_MAGIC:
        return _unsnappy_chunk(bytes(view), bytes_max, bytes_max)
    out = bytearray()
    position = 0
    while position < len(view):
        if view[position : position + len(_XERIAL_MAGIC)] == _XERIAL_MAGIC:
            # Streams may follow one another; a length cannot look like this, for it would be negative.
            if fresh and position:
                raise _not_one_frame()
            position += len(_XERIAL_HEADER)
            if position > len(view):
                raise _cut_short()
            continue
        chunk, position = _xerial_chunk(view, position)
        out += _unsnappy_chunk(chunk, bytes_max - len(out), bytes_max)
    return bytes(out)


def _xerial_chunk(view: memoryview, position: int) -> tuple[bytes, int]:
    start = position + _LENGTH.size
    if start > len(view):
        raise _cut_short()
    (length,) = _LENGTH.unpack_from(view, position)
    if length < 0 or start + length > len(view):
        raise _cut_short()
    return bytes(view[start : start + length]), start + length


def _unsnappy_chunk(chunk: bytes, room: int, bytes_max: int) -> bytes:
    import cramjam

    try:
        # The library takes the announced size as the size of its buffer, so that must be looked at first.
        if cramjam.snappy.decompress_raw_len(chunk) > room:
            raise _too_large(bytes_max)
        return bytes(cramjam.snappy.decompress_raw(chunk))
    except cramjam.DecompressionError as error:
        raise CorruptDataError(f"The records of a batch are not snappy: {error}.") from error


# --- LZ4 -------------------------------------------------------------------------------------------------


def _lz4(data: ByteBuffer, level: int | None) -> bytes:
    import lz4.frame

    # Java's reader refuses blocks that lean on one another.
    packed: bytes = lz4.frame.compress(
        data, compression_level=0 if level is None else level, block_linked=False, store_size=False
    )
    return packed


def _unlz4(data: ByteBuffer, bytes_max: int, fresh: bool) -> bytes:
    if fresh:
        _check_lz4_head(data)
    return _unpack_frames(_unlz4_frame, data, bytes_max, one_only=fresh)


def _check_lz4_head(data: ByteBuffer) -> None:
    """Java's client wants a frame of records at once, and blocks that can be unpacked one by one."""
    if len(data) <= _LZ4_FLAGS_POSITION or bytes(data[:_LZ4_FLAGS_POSITION]) != _LZ4_MAGIC:
        raise CorruptDataError("The records of a batch are not an LZ4 frame.")
    if not data[_LZ4_FLAGS_POSITION] & _LZ4_INDEPENDENT:
        raise InvalidRecordError(
            "The blocks of an LZ4 frame must be independent of one another: Java's clients read no others."
        )


def _unlz4_frame(data: ByteBuffer, room: int) -> tuple[bytes, ByteBuffer]:
    import lz4.frame

    unpacker = lz4.frame.LZ4FrameDecompressor()
    parts: list[bytes] = []
    size, pending = 0, data
    try:
        while not unpacker.eof and size <= room:
            # In steps, for the library takes memory for the whole of `max_length` before it begins.
            part = unpacker.decompress(pending, max_length=_STEP_BYTES)
            pending = b""
            parts.append(part)
            size += len(part)
            if not part and not unpacker.eof:
                raise _cut_short()
    except RuntimeError as error:
        raise CorruptDataError(f"The records of a batch are not LZ4 frames: {error}.") from error
    # Most fit in one step, and a copy of a megabyte costs more than to unpack it.
    return parts[0] if len(parts) == 1 else b"".join(parts), unpacker.unused_data or b""


# --- zstd ------------------------------------------------------------------------------------------------


def _zstd(data: ByteBuffer, level: int | None) -> bytes:
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
    return zstd.compress(data, level)


def _unzstd(data: ByteBuffer, bytes_max: int, fresh: bool) -> bytes:
    return _unpack_frames(_unzstd_frame, data, bytes_max, one_only=False)


def _unzstd_frame(data: ByteBuffer, room: int) -> tuple[bytes, ByteBuffer]:
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
    unpacker = zstd.ZstdDecompressor()
    try:
        part = unpacker.decompress(data, room + 1)
    except zstd.ZstdError as error:
        raise CorruptDataError(f"The records of a batch are not zstd: {error}.") from error
    if not unpacker.eof and len(part) <= room:
        raise _cut_short()
    return part, unpacker.unused_data


_COMPRESSORS: dict[Codec, Callable[[ByteBuffer, int | None], bytes]] = {
    Codec.GZIP: _gzip,
    Codec.SNAPPY: _snappy,
    Codec.LZ4: _lz4,
    Codec.ZSTD: _zstd,
}

_DECOMPRESSORS: dict[Codec, Callable[[ByteBuffer, int, bool], bytes]] = {
    Codec.NONE: _copy,
    Codec.GZIP: _gunzip,
    Codec.SNAPPY: _unsnappy,
    Codec.LZ4: _unlz4,
    Codec.ZSTD: _unzstd,
}
