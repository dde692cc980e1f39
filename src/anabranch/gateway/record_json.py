"""Records as JSON, and back.

    {"offset": "12", "timestamp": 1767225600000, "key": "k", "value": {"a": 1}, "headers": [["name", "text"]]}

What is written: text becomes its UTF-8 bytes, null none, anything else its JSON text; bytes that are no text come as
`key_base64` and `value_base64`, in a header, for its name or its value, as {"base64": ...}. What is read: bytes that
are a JSON object or list are shown as that, other UTF-8 as text, the rest in base64; so what was read can be written
back and gives the same bytes, but for how JSON was spelled.
Offsets are text, because beyond 2^53 JavaScript's numbers are not exact. A mistake is told with the place it is at.
"""

import base64
import binascii
import json
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from anabranch.errors import GatewayError
from anabranch.gateway.http.json_reading import read_json
from anabranch.gateway.read.reading import OmittedRecord
from anabranch.record.records import Record

FIELDS = ("key", "key_base64", "value", "value_base64", "headers", "timestamp", "partition")
HEADERS_MAX = 1000
NAME_SHOWN_MAX = 40
LONG_MAX = 2**63 - 1
INT_MAX = 2**31 - 1
_SURROGATES = ("\\ud", "\\uD")
_ESCAPES = re.compile(
    r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)"
)
"""Each escape of a JSON text in turn; the group is half a character without its other half."""

_quoted: Callable[[Any], str] = json.JSONEncoder(ensure_ascii=False).encode
_compact: Callable[[Any], str] = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, separators=(",", ":")
).encode


class NewRecord(NamedTuple):
    """What somebody wants to write."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp: int | None = None
    partition: int | None = None


# --- from JSON -------------------------------------------------------------------------------------------------


def parse_json(data: bytes, where: str) -> Any:
    """What JSON says. Raises GatewayError with where it goes wrong; `where` names the text, as "The body"."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise GatewayError(
            f"{where} is not UTF-8: byte {error.start} is 0x{data[error.start]:02x}. Send text as UTF-8, and other "
            "bytes as value_base64.",
            "WRONG_UTF8",
        ) from None
    try:
        return read_json(text)
    except json.JSONDecodeError as error:
        raise GatewayError(
            f"{where} is not JSON: {error.msg} at line {error.lineno}, character {error.colno}.",
            "MALFORMED_JSON",
        ) from None
    except RecursionError:
        raise GatewayError(f"{where} is nested too deeply: send it as text.", "MALFORMED_JSON") from None
    except ValueError as error:
        raise GatewayError(f"{where} is not JSON: {error}.", "MALFORMED_JSON") from None


def new_record(given: Any, where: str) -> NewRecord:
    """The record that a JSON object describes. Raises GatewayError that names the field; `where` is "records[3]"."""
    if not isinstance(given, dict):
        raise _wrong(where, 'is no record: write {"key": ..., "value": ...}.')
    unknown = next((name for name in given if name not in FIELDS), None)
    if unknown is not None:
        raise _wrong(
            _inside(where, unknown[:NAME_SHOWN_MAX]),
            f"is no field of a record: there are {', '.join(FIELDS)}.",
        )
    return NewRecord(
        _bytes_of(given, "key", where),
        _bytes_of(given, "value", where),
        headers_of(given.get("headers"), _inside(where, "headers")),
        _whole(given, "timestamp", where, LONG_MAX),
        _whole(given, "partition", where, INT_MAX),
    )


def _bytes_of(given: dict[str, Any], name: str, where: str) -> bytes | None:
    encoded = given.get(f"{name}_base64")
    if encoded is None:
        return bytes_of_json(given.get(name), _inside(where, name))
    if given.get(name) is not None:
        raise _wrong(_inside(where, name), f"is there twice: leave out {name} or {name}_base64.")
    return from_base64(encoded, _inside(where, f"{name}_base64"))


def bytes_of_json(given: Any, where: str) -> bytes | None:
    """Text as UTF-8, null as none, anything else as JSON."""
    if given is None:
        return None
    try:
        return (given if isinstance(given, str) else _compact(given)).encode()
    except UnicodeEncodeError as error:
        raise GatewayError(
            f"{where} holds half a character (a lone surrogate) at {error.start}: send whole ones, or base64.",
            "WRONG_UTF8",
        ) from None
    except ValueError:
        raise _wrong(where, "holds a number that JSON has no form for: send it as text.") from None


def from_base64(encoded: Any, where: str) -> bytes:
    try:
        if not isinstance(encoded, str):
            raise TypeError
        return base64.b64decode(encoded, validate=True)
    except (TypeError, ValueError, binascii.Error):
        raise _wrong(where, "is not base64: write text of A-Z a-z 0-9 + / with = at its end.") from None


def headers_of(given: Any, where: str) -> tuple[tuple[str, bytes | None], ...]:
    """An object, or a list of pairs where names may appear twice."""
    if given is None:
        return ()
    if isinstance(given, dict):
        pairs: list[Any] = [list(pair) for pair in given.items()]
    elif isinstance(given, list):
        pairs = given
    else:
        raise _wrong(where, 'is neither {"name": "value"} nor [["name", "value"]].')
    if len(pairs) > HEADERS_MAX:
        raise _wrong(where, f"has {len(pairs)} headers: at most {HEADERS_MAX} are taken.")
    return tuple(_header(pair, f"{where}[{number}]") for number, pair in enumerate(pairs))


def _header(pair: Any, where: str) -> tuple[str, bytes | None]:
    if not (isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str | dict)):
        raise _wrong(where, 'is no header: write ["name", "value"].')
    name, held = (_header_bytes(each, where) for each in pair)
    assert name is not None
    return name.decode("utf-8", "surrogateescape"), held  # As records are read: its bytes come back.


def _header_bytes(given: Any, where: str) -> bytes | None:
    if not isinstance(given, dict):
        return bytes_of_json(given, where)
    if list(given) != ["base64"]:
        raise _wrong(where, 'has an object for a name or a value: write text, or {"base64": "..."}.')
    return from_base64(given["base64"], where)


def _whole(given: dict[str, Any], name: str, where: str, highest: int) -> int | None:
    value = given.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= highest:
        raise _wrong(_inside(where, name), f"is not a whole number from 0 to {highest}.")
    return value


def _inside(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def _wrong(where: str, what: str) -> GatewayError:
    return GatewayError(f"{where or 'The record'} {what}", "INVALID_RECORD")


# --- to JSON ---------------------------------------------------------------------------------------------------

AUTO, TEXT, BASE64 = "auto", "string", "base64"
FORMS = (AUTO, TEXT, BASE64)
"""How keys and values are shown: as they look, as text without a look at JSON, or always in base64."""


def record_json(record: Record, partition: int | None = None, form: str = AUTO) -> bytes:
    """One line without its end; with the partition where several are told of together."""
    parts = [f'{{"offset":"{record.offset}","timestamp":{record.timestamp}'.encode()]
    if partition is not None:
        parts.append(b'"partition":%d' % partition)
    if isinstance(record, OmittedRecord):
        parts.append(b'"omitted_bytes":%d' % record.size_bytes)
        return b",".join(parts) + b"}"
    parts.append(field_json("key", record.key, form))
    parts.append(field_json("value", record.value, form))
    parts.append(b'"headers":' + headers_json(record.headers))
    return b",".join(parts) + b"}"


def field_json(name: str, data: bytes | None, form: str = AUTO) -> bytes:
    """`"value":...`, or `"value_base64":...`"""
    if data is None:
        return b'"%s":null' % name.encode()
    if form != BASE64:
        try:
            text = data.decode()
        except UnicodeDecodeError:
            pass
        else:
            if form == AUTO and data[:1] in (b"{", b"[") and is_json(text):
                # As it is, so that numbers and the order of fields stay; line ends in it lie between tokens.
                return b'"%s":%s' % (name.encode(), data.replace(b"\n", b" ").replace(b"\r", b" "))
            return b'"%s":%s' % (name.encode(), _quoted(text).encode())
    return b'"%s_base64":"%s"' % (name.encode(), base64.b64encode(data))


def is_json(text: str) -> bool:
    """Whether every reader of JSON takes it: strict ones want no halves of characters in it."""
    try:
        read_json(text)
    except (ValueError, RecursionError):
        return False
    may_hold_halves = any(each in text for each in _SURROGATES)
    return not (may_hold_halves and any(found[1] for found in _ESCAPES.finditer(text)))


def headers_json(headers: tuple[tuple[str, bytes | None], ...]) -> bytes:
    if not headers:
        return b"[]"
    return json.dumps([[_header_name(name), _header_value(held)] for name, held in headers]).encode()


def _header_name(name: str) -> Any:
    """Halves of characters stand for bytes that are no UTF-8, and strict readers of JSON take none."""
    return name if name.isascii() else _header_value(name.encode("utf-8", "surrogateescape"))


def _header_value(held: bytes | None) -> Any:
    if held is None:
        return None
    try:
        return held.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(held).decode()}
