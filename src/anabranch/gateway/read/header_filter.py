"""A subscriber's filter on header values: JSON in, one function from a record's headers to yes or no out. Pure.

    {"header": "kind", "equals": "order"}            the header has this value; null asks for a header without one
    {"header": "kind", "one_of": ["order", "bill"]}
    {"header": "kind", "prefix": "ord"}
    {"header": "kind", "exists": true}               or false: the record has no such header
    {"and": [...]}  {"or": [...]}  {"not": {...}}

Text is compared as UTF-8; a name of other bytes is {"base64": ...}, as where records are shown. A header that a record
has several times matches if one of its values does. Filters come from strangers, run once per record and are kept as
long as their subscription, so they are bounded: in depth, in conditions, in values over all conditions, and in bytes
(`gateway.filter.bytes.max`).
"""

import base64
import contextlib
import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from anabranch.errors import InvalidRequestError
from anabranch.gateway.http.texts import is_text

DEPTH_MAX = 8
CONDITIONS_MAX = 64
VALUES_MAX = 1000
"""Of all conditions together."""
BYTES_MAX = 16 * 1024
CONDITION_BYTES = 1024
VALUE_BYTES = 128
"""What each takes in memory besides its text, at most: measured, and rounded up."""
_JOINS = ("and", "or", "not")
_TESTS = ("equals", "one_of", "prefix", "exists")

Headers = tuple[tuple[str, bytes | None], ...]
Predicate = Callable[[Headers], bool]


class HeaderFilter(NamedTuple):
    """`text` is the same for equal filters: what one of them has found out serves the others."""

    text: str
    matches: Predicate
    size_bytes: int
    """What it takes in memory, at most."""
    conditions: int = 1


def header_filter(given: object, bytes_max: int = BYTES_MAX) -> HeaderFilter:
    """Raises InvalidRequestError, which names the place in the filter, or the limit."""
    reader = _Reader()
    predicate = reader.read(given, "filter", 1)
    text = json.dumps(given, sort_keys=True)
    if len(text) > bytes_max:
        raise InvalidRequestError(
            f"filter has {len(text)} characters as JSON, and at most {bytes_max} are taken (gateway.filter.bytes.max): "
            "ask for fewer values, or use several subscriptions."
        )
    return HeaderFilter(text, predicate, 2 * len(text) + reader.overhead_bytes, reader.conditions)


class _Reader:
    def __init__(self) -> None:
        self.conditions = 0
        self._values = 0

    @property
    def overhead_bytes(self) -> int:
        return self.conditions * CONDITION_BYTES + self._values * VALUE_BYTES

    def read(self, given: object, place: str, depth: int) -> Predicate:
        if depth > DEPTH_MAX:
            raise InvalidRequestError(f"{place} is nested deeper than {DEPTH_MAX} levels.")
        self.conditions += 1
        if self.conditions > CONDITIONS_MAX:
            raise InvalidRequestError(f"filter has more than {CONDITIONS_MAX} conditions.")
        if not isinstance(given, dict):
            raise InvalidRequestError(f"{place} is not an object, such as {_EXAMPLE}.")
        if "header" in given:
            return self._condition(given, place)
        if len(given) != 1 or next(iter(given)) not in _JOINS:
            raise InvalidRequestError(f'{place} needs "header" with a test, or one of and, or, not.')
        ((join, inner),) = given.items()
        if join == "not":
            return _none(self.read(inner, f"{place}.not", depth + 1))
        return self._joined(join, inner, place, depth)

    def _joined(self, join: str, inner: object, place: str, depth: int) -> Predicate:
        if not isinstance(inner, list) or not inner:
            raise InvalidRequestError(f"{place}.{join} is not a list of at least one condition.")
        parts = [self.read(each, f"{place}.{join}[{index}]", depth + 1) for index, each in enumerate(inner)]
        if join == "and":
            return lambda headers: all(part(headers) for part in parts)
        return lambda headers: any(part(headers) for part in parts)

    def _condition(self, given: Mapping[str, Any], place: str) -> Predicate:
        name = _name(given["header"], f"{place}.header")
        tests = [key for key in given if key != "header"]
        if len(tests) != 1 or tests[0] not in _TESTS:
            raise InvalidRequestError(f"{place} needs exactly one test: {', '.join(_TESTS)}.")
        test, operand = tests[0], given[tests[0]]
        match test:
            case "exists":
                return _exists(name, operand, place)
            case "prefix":
                return _prefix(name, operand, place)
            case "equals":
                return _among(name, frozenset([_value(operand, f"{place}.equals")]))
            case _:
                return _among(name, self._one_of(operand, place))

    def _one_of(self, operand: object, place: str) -> frozenset[bytes | None]:
        if not isinstance(operand, list) or not operand:
            raise InvalidRequestError(f"{place}.one_of is not a list of 1 to {VALUES_MAX} texts.")
        self._values += len(operand)
        if self._values > VALUES_MAX:
            raise InvalidRequestError(
                f"{place}.one_of is too long: all lists of a filter may hold {VALUES_MAX} values together."
            )
        return frozenset(_value(each, f"{place}.one_of[{index}]") for index, each in enumerate(operand))


_EXAMPLE = '{"header": "kind", "equals": "order"}'


def _none(predicate: Predicate) -> Predicate:
    return lambda headers: not predicate(headers)


def _exists(name: str, operand: object, place: str) -> Predicate:
    if not isinstance(operand, bool):
        raise InvalidRequestError(f"{place}.exists is neither true nor false.")
    if operand:
        return lambda headers: any(key == name for key, _ in headers)
    return lambda headers: all(key != name for key, _ in headers)


def _prefix(name: str, operand: object, place: str) -> Predicate:
    prefix = _value(operand, f"{place}.prefix")
    if prefix is None:
        raise InvalidRequestError(f"{place}.prefix is not a text.")

    def matches(headers: Headers) -> bool:
        return any(key == name and value is not None and value.startswith(prefix) for key, value in headers)

    return matches


def _among(name: str, wanted: frozenset[bytes | None]) -> Predicate:
    return lambda headers: any(key == name and value in wanted for key, value in headers)


def _name(given: object, place: str) -> str:
    """As it is in records, where bytes that are no UTF-8 are halves of characters."""
    if is_text(given):
        return given
    if isinstance(given, dict) and list(given) == ["base64"] and isinstance(given["base64"], str):
        with contextlib.suppress(ValueError):
            return base64.b64decode(given["base64"], validate=True).decode("utf-8", "surrogateescape")
    raise InvalidRequestError(f'{place} is not the name of a header: write text, or {{"base64": "..."}}.')


def _value(operand: object, place: str) -> bytes | None:
    if operand is None:
        return None
    if not isinstance(operand, str):
        raise InvalidRequestError(f"{place} is neither a text nor null.")
    try:
        return operand.encode()
    except UnicodeEncodeError:
        raise InvalidRequestError(f"{place} holds half a character: no UTF-8 says that.") from None
