"""Hypothesis strategies made from the tables: random bodies of any message in any version.

`populated` bodies have at least one element in every array, nothing null, and every tagged field present
with a value of its own; the others are free to be empty, null, or default.
"""

from collections.abc import Iterator
from typing import Any
from uuid import UUID

from hypothesis import strategies as st

from anabranch.errors import UnsupportedVersionError
from anabranch.wire import codec
from anabranch.wire.api_keys import OWN_SINCE, ApiKey
from anabranch.wire.error_codes import ErrorCode
from anabranch.wire.schemas.consumer_protocol import ASSIGNMENT, SUBSCRIPTION
from anabranch.wire.table import Field, Message, bounds, default_of

YEAR_9999_S = 253_402_300_799

TEXTS = st.text(max_size=6) | st.sampled_from(["", "orders", "é" * 70, "名前", "x" * 300])

PLAIN: dict[str, st.SearchStrategy[Any]] = {
    "bool": st.booleans(),
    "int8": st.integers(-(2**7), 2**7 - 1),
    "int16": st.integers(-(2**15), 2**15 - 1),
    "uint16": st.integers(0, 2**16 - 1),
    "int32": st.integers(-(2**31), 2**31 - 1),
    "int64": st.integers(-(2**63), 2**63 - 1),
    "float64": st.floats(allow_nan=False),
    "uuid": st.uuids() | st.just(UUID(int=0)),
    "string": TEXTS,
    "bytes": st.binary(max_size=40),
    "records": st.binary(max_size=200),
}

# kio makes enums, datetimes and timedeltas of these, and has no value for numbers that mean nothing there;
# its datetimes pass through a float and lose odd milliseconds.
BY_NAME: dict[str, st.SearchStrategy[Any]] = {
    "log_append_time_ms": st.just(-1) | st.integers(0, YEAR_9999_S).map(lambda seconds: seconds * 1000),
    "retention_time_ms": st.integers(-(10**12), 10**12),
}
ERROR_CODES = st.sampled_from([int(code) for code in ErrorCode])


def messages() -> Iterator[tuple[int | None, str, Message]]:
    """Every table: API key (None for embedded data), direction, message."""
    for key in ApiKey:
        try:
            codec.versions_of(key)
        except UnsupportedVersionError:
            continue
        yield int(key), "request", codec._message(key, 0)
        yield int(key), "response", codec._message(key, 1)
    yield None, "data", SUBSCRIPTION
    yield None, "data", ASSIGNMENT


def kafkas_messages() -> Iterator[tuple[int | None, str, Message]]:
    """Those that other implementations know too."""
    return (found for found in messages() if found[0] is None or found[0] < OWN_SINCE)


def versions(message: Message) -> range:
    first, last = bounds(message.versions)
    return range(first, last + 1)


def bodies(fields: tuple[Field, ...], version: int, *, populated: bool) -> st.SearchStrategy[dict[str, Any]]:
    present = [field for field in fields if field.exists_in(version)]
    return st.fixed_dictionaries({field.name: _value(field, version, populated) for field in present})


def _value(field: Field, version: int, populated: bool) -> st.SearchStrategy[Any]:
    element = _element(field, version, populated)
    value = st.lists(element, min_size=int(populated), max_size=3) if field.is_array else element
    if populated and field.tag is not None:
        default = default_of(field)
        return value.filter(lambda drawn: drawn != default)
    if not populated and field.is_nullable_in(version):
        return st.none() | value
    return value


def _element(field: Field, version: int, populated: bool) -> st.SearchStrategy[Any]:
    kind = field.element_type
    if kind == "struct":
        return bodies(field.fields, version, populated=populated)
    if kind == "int16" and field.name.endswith("error_code"):
        return ERROR_CODES
    return BY_NAME.get(field.name, PLAIN[kind])


def complete(fields: tuple[Field, ...], version: int, body: dict[str, Any]) -> dict[str, Any]:
    """What decoding gives for this body: fields its version lacks have their defaults."""
    return {field.name: _complete(field, version, body) for field in fields}


def _complete(field: Field, version: int, body: dict[str, Any]) -> Any:
    if not field.exists_in(version) or field.name not in body:
        return default_of(field)
    value = body[field.name]
    if field.element_type != "struct" or value is None:
        return value
    if field.is_array:
        return [complete(field.fields, version, element) for element in value]
    return complete(field.fields, version, value)
