"""Request and response headers: who asks for what in which version, and which answer belongs to it.

A request header says its own layout: the API key and version come first and tell whether it is version 1 or
the flexible version 2. Version 0 was ControlledShutdown v0 alone and is gone from Kafka.
"""

import struct
from typing import NamedTuple

from anabranch.errors import ProtocolError, UnsupportedVersionError
from anabranch.wire.api_keys import FLEXIBLE_SINCE, ApiKey
from anabranch.wire.primitives import MALFORMED, Malformed, read_nullable_string, skip_tags

HEADER_TAGS_MAX = 100
"""Tagged fields in a header; Kafka has defined none so far."""

_START = struct.Struct(">hhi")
_CORRELATION_ID = struct.Struct(">i")
_FLEXIBLE_ANSWER = struct.Struct(">ix")


class RequestHeader(NamedTuple):
    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None


def is_flexible(api_key: int, version: int) -> bool:
    """Compact lengths and tagged fields; holds for versions to come too, which keep to the same rule."""
    return version >= FLEXIBLE_SINCE[api_key]


def parse_request_header(
    buffer: bytes | bytearray | memoryview, position: int, end: int
) -> tuple[RequestHeader, int]:
    """The header and where the body starts.

    Raises `UnsupportedVersionError` for an API key nobody has given out: its body starts who knows where.
    """
    view = memoryview(buffer)[:end]
    try:
        api_key, version, correlation_id = _START.unpack_from(view, position)
        if api_key not in FLEXIBLE_SINCE:
            raise UnsupportedVersionError(f"There is no API with key {api_key}.")
        client_id, position = read_nullable_string(view, position + _START.size)
        if is_flexible(api_key, version):
            position, _ = skip_tags(view, position, HEADER_TAGS_MAX)
    except MALFORMED as error:
        reason = str(error) if isinstance(error, Malformed) else "is cut short"
        raise ProtocolError(f"The request header {reason}.") from None
    return RequestHeader(api_key, version, correlation_id, client_id), position


def request_header(api_key: int, version: int, correlation_id: int, client_id: str | None) -> bytes:
    """What a client puts in front of its body."""
    name = None if client_id is None else client_id.encode()
    start = _START.pack(api_key, version, correlation_id)
    start += struct.pack(">h", -1) if name is None else struct.pack(">h", len(name)) + name
    return start + b"\0" if is_flexible(api_key, version) else start


def has_flexible_answer(api_key: int, version: int) -> bool:
    """ApiVersions always answers with header version 0: the client does not know yet what we speak."""
    return api_key != ApiKey.API_VERSIONS and is_flexible(api_key, version)


def response_header(api_key: int, version: int, correlation_id: int) -> bytes:
    layout = _FLEXIBLE_ANSWER if has_flexible_answer(api_key, version) else _CORRELATION_ID
    return layout.pack(correlation_id)


def parse_response_header(
    buffer: bytes | bytearray | memoryview, position: int, end: int, api_key: int, version: int
) -> tuple[int, int]:
    """The correlation id and where the body starts."""
    view = memoryview(buffer)[:end]
    try:
        (correlation_id,) = _CORRELATION_ID.unpack_from(view, position)
        position += _CORRELATION_ID.size
        if has_flexible_answer(api_key, version):
            position, _ = skip_tags(view, position, HEADER_TAGS_MAX)
    except MALFORMED as error:
        reason = str(error) if isinstance(error, Malformed) else "is cut short"
        raise ProtocolError(f"The response header {reason}.") from None
    return correlation_id, position
