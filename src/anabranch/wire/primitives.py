"""One reader and one writer per Kafka primitive that has no fixed width.

A reader takes a memoryview that ends where the message ends, and a position, and gives the value and the next
position. It raises `Malformed` for a lie, and lets `IndexError` and `struct.error` out where the bytes simply
end: the codec catches all three (`MALFORMED`) and says which field of which message it was. Every length is
compared with the bytes that are there before anything is allocated. Writers append to a bytearray.
"""

import struct
from collections.abc import Callable
from functools import lru_cache
from typing import NoReturn
from uuid import UUID

from anabranch.errors import ProtocolError

STRING_BYTES_MAX = 32767
UVARINT_BYTES_MAX = 5
UUID_CACHE_MAX = 4096

ELEMENTS_MAX = 250_000
"""Array elements and tagged fields in one message, nested ones included. Two bytes on the wire can become a dict of
several hundred, so the size of a frame alone does not bound the memory that reading it takes; this does, to about
100 MB. It is the limit for answers and for messages between brokers; that for requests is a setting."""

NO_UUID = UUID(int=0)

_read_int16 = struct.Struct(">h").unpack_from
_read_int32 = struct.Struct(">i").unpack_from
_int16 = struct.Struct(">h").pack
_int32 = struct.Struct(">i").pack

Reader = Callable[[memoryview, int], tuple[object, int]]


class Malformed(ProtocolError):
    """Half a sentence: what is wrong, without saying where. The codec puts the field in front."""


class TooManyElements(Malformed):
    """The message is well formed so far, and longer than we are willing to read."""


MALFORMED = (Malformed, IndexError, struct.error)


# --- lengths ---------------------------------------------------------------------------------------------


def read_uvarint(view: memoryview, position: int) -> tuple[int, int]:
    byte = view[position]
    if byte < 128:
        return byte, position + 1
    value = byte & 127
    for shift in range(7, 7 * UVARINT_BYTES_MAX, 7):
        position += 1
        byte = view[position]
        value |= (byte & 127) << shift
        if byte < 128:
            return value, position + 1
    raise Malformed("is a varint that does not end")


def write_uvarint(out: bytearray, value: int) -> None:
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)


def end_of(view: memoryview, position: int, length: int) -> int:
    """Where `length` bytes from here end; refuses a length below zero or beyond the message."""
    if length < 0:
        raise Malformed("is null or has a negative length" if length == -1 else f"has length {length}")
    end = position + length
    if end > len(view):
        raise Malformed(f"claims {length} bytes where {len(view) - position} are left")
    return end


def _text(view: memoryview, position: int, length: int) -> tuple[str, int]:
    if length > STRING_BYTES_MAX:
        raise Malformed(f"is a string of {length} bytes, more than {STRING_BYTES_MAX}")
    end = position + length
    if length < 0 or end > len(view):
        end_of(view, position, length)
    try:
        return str(view[position:end], "utf-8"), end
    except UnicodeDecodeError:
        raise Malformed("is not UTF-8") from None


# --- strings ---------------------------------------------------------------------------------------------


def read_string(view: memoryview, position: int) -> tuple[str, int]:
    (length,) = _read_int16(view, position)
    return _text(view, position + 2, length)


def read_nullable_string(view: memoryview, position: int) -> tuple[str | None, int]:
    (length,) = _read_int16(view, position)
    if length == -1:
        return None, position + 2
    return _text(view, position + 2, length)


def read_compact_string(view: memoryview, position: int) -> tuple[str, int]:
    length = view[position]
    if length > 127:
        length, position = read_uvarint(view, position)
        return _text(view, position, length - 1)
    return _text(view, position + 1, length - 1)


def read_compact_nullable_string(view: memoryview, position: int) -> tuple[str | None, int]:
    length, position = read_uvarint(view, position)
    if length == 0:
        return None, position
    return _text(view, position, length - 1)


def write_string(out: bytearray, value: str) -> None:
    data = value.encode()
    out += _int16(len(data))
    out += data


def write_nullable_string(out: bytearray, value: str | None) -> None:
    if value is None:
        out += b"\xff\xff"
    else:
        write_string(out, value)


def write_compact_string(out: bytearray, value: str) -> None:
    data = value.encode()
    if len(data) > STRING_BYTES_MAX:
        raise ValueError(f"a string of {len(data)} bytes, more than {STRING_BYTES_MAX}")
    write_uvarint(out, len(data) + 1)
    out += data


def write_compact_nullable_string(out: bytearray, value: str | None) -> None:
    if value is None:
        out.append(0)
    else:
        write_compact_string(out, value)


# --- bytes and records: the same on the wire, but records stay where they are -------------------------------


def read_records(view: memoryview, position: int) -> tuple[memoryview | None, int]:
    (length,) = _read_int32(view, position)
    position += 4
    if length == -1:
        return None, position
    end = end_of(view, position, length)
    return view[position:end], end


def read_compact_records(view: memoryview, position: int) -> tuple[memoryview | None, int]:
    length, position = read_uvarint(view, position)
    if length == 0:
        return None, position
    end = end_of(view, position, length - 1)
    return view[position:end], end


def _copied(read: Callable[[memoryview, int], tuple[memoryview | None, int]], *, nullable: bool) -> Reader:
    def reader(view: memoryview, position: int) -> tuple[bytes | None, int]:
        value, position = read(view, position)
        if value is not None:
            return bytes(value), position
        if not nullable:
            raise Malformed("is null")
        return None, position

    return reader


read_bytes = _copied(read_records, nullable=False)
read_nullable_bytes = _copied(read_records, nullable=True)
read_compact_bytes = _copied(read_compact_records, nullable=False)
read_compact_nullable_bytes = _copied(read_compact_records, nullable=True)


def write_bytes(out: bytearray, value: bytes) -> None:
    out += _int32(len(value))
    out += value


def write_nullable_bytes(out: bytearray, value: bytes | None) -> None:
    if value is None:
        out += b"\xff\xff\xff\xff"
    else:
        write_bytes(out, value)


def write_compact_bytes(out: bytearray, value: bytes) -> None:
    write_uvarint(out, len(value) + 1)
    out += value


def write_compact_nullable_bytes(out: bytearray, value: bytes | None) -> None:
    if value is None:
        out.append(0)
    else:
        write_compact_bytes(out, value)


# --- arrays ----------------------------------------------------------------------------------------------


def _checked(view: memoryview, position: int, count: int, element_bytes_min: int) -> tuple[int, int]:
    if count < 0:
        raise Malformed("is null" if count == -1 else f"has {count} elements")
    if count * element_bytes_min > len(view) - position:
        raise Malformed(f"claims {count} elements where {len(view) - position} bytes are left")
    return count, position


def too_many_elements() -> NoReturn:
    raise TooManyElements("takes the message beyond its limit of array elements and tagged fields")


def read_count(view: memoryview, position: int, element_bytes_min: int) -> tuple[int, int]:
    (count,) = _read_int32(view, position)
    return _checked(view, position + 4, count, element_bytes_min)


def read_nullable_count(view: memoryview, position: int, element_bytes_min: int) -> tuple[int, int]:
    """-1 is null."""
    (count,) = _read_int32(view, position)
    if count == -1:
        return -1, position + 4
    return _checked(view, position + 4, count, element_bytes_min)


def read_compact_count(view: memoryview, position: int, element_bytes_min: int) -> tuple[int, int]:
    count, position = read_uvarint(view, position)
    return _checked(view, position, count - 1, element_bytes_min)


def read_compact_nullable_count(view: memoryview, position: int, element_bytes_min: int) -> tuple[int, int]:
    count, position = read_uvarint(view, position)
    if count == 0:
        return -1, position
    return _checked(view, position, count - 1, element_bytes_min)


def read_numbers(view: memoryview, position: int, count: int, letter: str) -> tuple[list[int], int]:
    numbers = struct.Struct(f">{count}{letter}")
    return list(numbers.unpack_from(view, position)), position + numbers.size


def write_count(out: bytearray, count: int) -> None:
    out += _int32(count)


def write_compact_count(out: bytearray, count: int) -> None:
    write_uvarint(out, count + 1)


def write_numbers(out: bytearray, numbers: list[int], letter: str) -> None:
    out += struct.pack(f">{len(numbers)}{letter}", *numbers)


# --- uuids -----------------------------------------------------------------------------------------------


@lru_cache(maxsize=UUID_CACHE_MAX)
def uuid_of(data: bytes) -> UUID:
    """Clients repeat the same few topic ids, and building a UUID costs ten times a look-up."""
    return UUID(bytes=data)


def read_uuid(view: memoryview, position: int) -> tuple[UUID, int]:
    end = end_of(view, position, 16)
    return uuid_of(bytes(view[position:end])), end


# --- structs and tagged fields ---------------------------------------------------------------------------


def read_presence(view: memoryview, position: int) -> tuple[bool, int]:
    """A nullable struct begins with 1, a null one is -1 alone."""
    byte = view[position]
    if byte not in (1, 255):
        raise Malformed(f"is neither null nor there: {byte}")
    return byte == 1, position + 1


def read_tag(view: memoryview, position: int) -> tuple[int, int, int]:
    """Tag, where its value starts, where it ends."""
    tag, position = read_uvarint(view, position)
    size, position = read_uvarint(view, position)
    return tag, position, end_of(view, position, size)


def skip_tags(view: memoryview, position: int, left: int) -> tuple[int, int]:
    """Past a tagged section in which we know nothing; also how many of `left` elements may still follow."""
    count, position = read_uvarint(view, position)
    left -= count
    if left < 0:
        too_many_elements()
    for _ in range(count):
        _, _, position = read_tag(view, position)
    return position, left


def check_tag_end(position: int, end: int) -> None:
    if position != end:
        raise Malformed("does not fill its tag")


def write_tag(out: bytearray, tag: int, value: bytearray) -> None:
    write_uvarint(out, tag)
    write_uvarint(out, len(value))
    out += value
