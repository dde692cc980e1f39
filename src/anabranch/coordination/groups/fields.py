"""Kafka's primitives as the `__consumer_offsets` records use them: fixed-length for old versions, compact for
new.

A `FieldReader` raises CorruptDataError as soon as a length points behind the end, before anything is taken.
"""

import struct
from collections.abc import Callable
from typing import TypeVar

from anabranch.errors import CorruptDataError, InvalidRecordError

_INT16, _INT32, _INT64 = struct.Struct(">h"), struct.Struct(">i"), struct.Struct(">q")
_STRING_BYTES_MAX = 2**15 - 1
T = TypeVar("T")


class FieldReader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0
        self.compact = False

    def int16(self) -> int:
        return int(_INT16.unpack(self._take(2))[0])

    def int32(self) -> int:
        return int(_INT32.unpack(self._take(4))[0])

    def int64(self) -> int:
        return int(_INT64.unpack(self._take(8))[0])

    def string(self) -> str:
        return self._text(self._filled(self.nullable_raw(self._string_length)))

    def nullable_string(self) -> str | None:
        raw = self.nullable_raw(self._string_length)
        return None if raw is None else self._text(raw)

    def data(self) -> bytes:
        return self._filled(self.nullable_raw(self._bytes_length))

    def array(self, read_one: Callable[["FieldReader"], T]) -> list[T]:
        count = self._bytes_length()
        if count > len(self._data) - self._position:
            raise CorruptDataError(f"A list of {count} does not fit into what is left of the record.")
        return [read_one(self) for _ in range(max(count, 0))]

    def tags(self) -> None:
        """Skip the tagged fields that end a compact struct; nothing we keep is in them."""
        if self.compact:
            for _ in range(self._uvarint()):
                self._uvarint()
                self._take(self._uvarint())

    def nullable_raw(self, length_of: Callable[[], int]) -> bytes | None:
        length = length_of()
        return None if length < 0 else self._take(length)

    def _string_length(self) -> int:
        return self._uvarint() - 1 if self.compact else self.int16()

    def _bytes_length(self) -> int:
        return self._uvarint() - 1 if self.compact else self.int32()

    def _uvarint(self) -> int:
        value = 0
        for shift in range(0, 35, 7):
            byte = self._take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise CorruptDataError("A length of a group record is longer than five bytes.")

    def _take(self, count: int) -> bytes:
        end = self._position + count
        if end > len(self._data):
            raise CorruptDataError(
                f"A group record ends after {len(self._data)} bytes, {end} were announced."
            )
        taken = self._data[self._position : end]
        self._position = end
        return taken

    @staticmethod
    def _filled(raw: bytes | None) -> bytes:
        if raw is None:
            raise CorruptDataError("A group record has null where a value is required.")
        return raw

    @staticmethod
    def _text(raw: bytes) -> str:
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise CorruptDataError(f"A group record has text that is not UTF-8: {error}.") from error


def int16(value: int) -> bytes:
    return _INT16.pack(value)


def int32(value: int) -> bytes:
    return _INT32.pack(value)


def int64(value: int) -> bytes:
    return _INT64.pack(value)


def string(value: str) -> bytes:
    raw = value.encode()
    if len(raw) > _STRING_BYTES_MAX:
        raise InvalidRecordError(
            f"Text of {len(raw)} bytes is longer than the {_STRING_BYTES_MAX} a record can hold."
        )
    return int16(len(raw)) + raw


def nullable_string(value: str | None) -> bytes:
    return int16(-1) if value is None else string(value)


def data(value: bytes) -> bytes:
    return int32(len(value)) + value
