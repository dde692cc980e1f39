"""Records as lines: NDJSON that gives every byte back, and text for people.

One NDJSON object per record: `topic partition offset timestamp key value headers`. Bytes are a JSON string
when they are UTF-8, null when they are null, and `{"base64": "..."}` otherwise; headers are `[name, bytes]`
pairs in order, whose names are written as bytes are, or null where they could not be read.
`decode(encode(record))` is the same record, but that a name has to be UTF-8. This module is pure.
"""

import base64
import binascii
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from anabranch.cli.terminal import escaped

Bytes = bytes | None
Headers = tuple[tuple[str, Bytes], ...]


class LineRecord(NamedTuple):
    """A record on its way to a broker. None for partition or timestamp: the client chooses."""

    key: Bytes
    value: Bytes
    headers: Headers = ()
    partition: int | None = None
    timestamp_ms: int | None = None


class BadLineError(ValueError):
    """A line that is no record; the message says what is wrong with it."""


# --- bytes <-> JSON ---------------------------------------------------------------------------------------


def bytes_to_json(data: Bytes) -> object:
    if data is None:
        return None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode("ascii")}


def bytes_from_json(field: str, given: object) -> Bytes:
    match given:
        case None:
            return None
        case str():
            try:
                return given.encode("utf-8")
            except UnicodeEncodeError:
                raise BadLineError(f"{field} holds half a surrogate pair, which is no UTF-8") from None
        case {"base64": str(text), **rest} if not rest:
            try:
                return base64.b64decode(text, validate=True)
            except (binascii.Error, ValueError):
                raise BadLineError(f"{field} is not base64") from None
        case _:
            raise BadLineError(f'{field} is neither text, null nor {{"base64": "..."}}')


def _name_to_json(name: str) -> object:
    """A name as records are read: halves of surrogate pairs stand for bytes that are no UTF-8."""
    return name if name.isascii() else bytes_to_json(name.encode("utf-8", "surrogateescape"))


def _name_from_json(given: object) -> str:
    name = bytes_from_json("the name of a header", given)
    assert name is not None
    try:
        return name.decode()
    except UnicodeDecodeError:
        raise BadLineError("the name of a header is not UTF-8, and this client sends no other") from None


# --- one record <-> one line -------------------------------------------------------------------------------


def encode(fields: Mapping[str, Any]) -> str:
    """A line from `topic partition offset timestamp key value headers`; key, value and headers are bytes."""
    line = dict(fields)
    line["key"] = bytes_to_json(fields["key"])
    line["value"] = bytes_to_json(fields["value"])
    headers = fields["headers"]
    if headers is not None:
        line["headers"] = [[_name_to_json(name), bytes_to_json(value)] for name, value in headers]
    return escaped(json.dumps(line, ensure_ascii=False))


def decode(line: bytes) -> LineRecord:
    """The record of one NDJSON line. Fields that only a broker decides (topic, offset) are passed over."""
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        raise BadLineError("is not JSON") from None
    if not isinstance(fields, dict):
        raise BadLineError("is not a JSON object")
    return LineRecord(
        bytes_from_json("key", fields.get("key")),
        bytes_from_json("value", fields.get("value")),
        _headers(fields.get("headers")),
        _whole("partition", fields.get("partition"), 2**31 - 1),
        _whole("timestamp", fields.get("timestamp"), 2**63 - 1),
    )


def _headers(given: object) -> Headers:
    if given is None:
        return ()
    pairs = list(given.items()) if isinstance(given, dict) else given
    if not isinstance(pairs, list) or not all(
        len(pair) == 2 and isinstance(pair[0], str | dict) for pair in _lists(pairs)
    ):
        raise BadLineError("headers are not [name, value] pairs")
    named = [(_name_from_json(name), value) for name, value in pairs]
    return tuple((name, bytes_from_json(f"header {name}", value)) for name, value in named)


def _lists(pairs: list[Any]) -> list[Any]:
    return [pair if isinstance(pair, list | tuple) else () for pair in pairs]


def _whole(field: str, given: object, high: int) -> int | None:
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, int) or not 0 <= given <= high:
        raise BadLineError(f"{field} is not a whole number from 0 to {high}")
    return given


# --- text --------------------------------------------------------------------------------------------------


def from_text(line: bytes, key_separator: bytes | None) -> LineRecord:
    """The record of one line of text: all of it the value, or key and value around the separator."""
    if key_separator is None:
        return LineRecord(None, line)
    key, found, value = line.partition(key_separator)
    if not found:
        raise BadLineError(f"has no separator {key_separator.decode('utf-8', 'replace')!r}")
    return LineRecord(key, value)


def to_text(key: Bytes, value: Bytes) -> str:
    """A line for people. Control characters are escaped: a record must not be able to drive the terminal."""
    shown = "null" if value is None else _printable(value)
    return shown if key is None else f"{_printable(key)}\t{shown}"


def _printable(data: bytes) -> str:
    decoded = data.decode("utf-8", "backslashreplace")
    if decoded.isprintable():
        return decoded
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in decoded)
