"""Messages as plain dicts: tables turned into code the first time a message of some version is seen.

Keys are Kafka's field names in snake case; arrays are lists, structs dicts, uuids `uuid.UUID`. A decoded
message has every field of its table, with defaults for those its version lacks; an encoded one may leave any
out. `records` are decoded as a memoryview of the caller's buffer, good while the buffer is left alone.
Malformed input raises `ProtocolError`, an API or version without a table `UnsupportedVersionError`. A message
of ours that does not fit its table raises `ValueError`: that is a defect, not something a peer did.
"""

import struct
from collections.abc import Callable
from functools import cache
from importlib import import_module
from types import TracebackType
from typing import Any, NamedTuple

from anabranch.errors import ProtocolError, TooManyElementsError, UnsupportedVersionError
from anabranch.wire.api_keys import FLEXIBLE_SINCE, ApiKey
from anabranch.wire.primitives import ELEMENTS_MAX, MALFORMED, TooManyElements
from anabranch.wire.table import Message, bounds, in_range

Body = dict[str, Any]
Buffer = bytes | bytearray | memoryview

NOT_OURS = (AssertionError, AttributeError, OverflowError, TypeError, ValueError, struct.error)
"""What generated code raises when a message does not fit its table."""


class Coder(NamedTuple):
    """One generated function, and how to find the field a failing line was about."""

    run: Callable[..., Any]
    path_at: Callable[[int], str]


def decode_request(
    api_key: int, version: int, buffer: Buffer, position: int, end: int, elements_max: int = ELEMENTS_MAX
) -> Body:
    """Bytes behind the last field are ignored, as Kafka does: librdkafka's Metadata v13 has three of them.

    Raises `TooManyElementsError` for a request with more array elements and tagged fields than `elements_max`.
    """
    view = memoryview(buffer)[:end]
    return decode_message(_message(api_key, 0), version, view, position, elements_max)[0]


def encode_response(api_key: int, version: int, body: Body) -> bytes:
    return bytes(_encode(_message(api_key, 1), version, body))


def encode_request(api_key: int, version: int, body: Body) -> bytes:
    return bytes(_encode(_message(api_key, 0), version, body))


def decode_response(api_key: int, version: int, buffer: Buffer, position: int, end: int) -> Body:
    message = _message(api_key, 1)
    body, stopped = decode_message(message, version, memoryview(buffer)[:end], position)
    if stopped != end:
        raise ProtocolError(f"{message.name} v{version}: {end - stopped} bytes are left over after its end.")
    return body


def versions_of(api_key: int) -> range:
    """Every version our table describes; what a node advertises is the handlers' business."""
    first, last = bounds(_message(api_key, 0).versions)
    return range(first, last + 1)


def decode_message(
    message: Message, version: int, view: memoryview, position: int, elements_max: int = ELEMENTS_MAX
) -> tuple[Body, int]:
    """One message at `position` of a view that ends where it must; also where it ended."""
    decode, path_at = _decoder(message, version)
    try:
        body, position = decode(view, position, elements_max)
    except TooManyElements as error:
        raise TooManyElementsError(_complaint(message, version, path_at, error)) from None
    except MALFORMED as error:
        raise ProtocolError(_complaint(message, version, path_at, error)) from None
    return body, position


def response_fields(api_key: int, version: int) -> set[str]:
    """The names of what a response says of the whole request."""
    return {field.name for field in _message(api_key, 1).fields if field.exists_in(version)}


def encode_message(message: Message, version: int, body: Body) -> bytearray:
    return _encode(message, version, body)


def _encode(message: Message, version: int, body: Body) -> bytearray:
    encode, path_at = _encoder(message, version)
    try:
        encoded: bytearray = encode(body, bytearray())
    except NOT_OURS as error:
        raise ValueError(_complaint(message, version, path_at, error)) from error
    return encoded


def _complaint(message: Message, version: int, path_at: Callable[[int], str], error: Exception) -> str:
    path = path_at(_line_in_generated_code(error.__traceback__))
    reason = "is cut short" if isinstance(error, IndexError | struct.error) else str(error)
    return f"{message.name} v{version}: field {path} {reason}."


def _line_in_generated_code(traceback: TracebackType | None) -> int:
    """The frame right below the one that called it."""
    assert traceback is not None
    assert traceback.tb_next is not None
    return traceback.tb_next.tb_lineno


# --- tables and code, made once ----------------------------------------------------------------------------


@cache
def _message(api_key: int, direction: int) -> Message:
    messages = _tables(api_key)
    if not messages:
        raise UnsupportedVersionError(f"API key {api_key} is not served here.")
    return messages[direction]


@cache
def _tables(api_key: int) -> tuple[Message, ...]:
    """Request and response; none for a key without a table, remembered too: it costs a look at the disk."""
    if api_key not in FLEXIBLE_SINCE:
        return ()
    module_name = f"anabranch.wire.schemas.{ApiKey(api_key).name.lower()}"
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name != module_name:
            raise
        return ()
    return module.REQUEST, module.RESPONSE


_decoders: dict[tuple[str, int], Coder] = {}
_encoders: dict[tuple[str, int], Coder] = {}


def _decoder(message: Message, version: int) -> Coder:
    coder = _decoders.get((message.name, version))
    if coder is None:
        from anabranch.wire.decoder import decoder

        check_version(message, version)
        source = decoder(message, version)
        coder = _decoders[message.name, version] = Coder(source.function("decode"), source.path_at)
    return coder


def _encoder(message: Message, version: int) -> Coder:
    coder = _encoders.get((message.name, version))
    if coder is None:
        from anabranch.wire.encoder import encoder

        check_version(message, version)
        source = encoder(message, version)
        coder = _encoders[message.name, version] = Coder(source.function("encode"), source.path_at)
    return coder


def check_version(message: Message, version: int) -> None:
    if not in_range(message.versions, version):
        raise UnsupportedVersionError(f"{message.name} v{version} is not served; {message.versions} are.")
