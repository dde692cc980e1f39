"""JSON that strangers send, read with the standard library, but for what would take it long or is no JSON.

A number of thousands of digits is read and written in time that grows with its square: a megabyte of them would hold up
everybody for a fifth of a second. Whether there may be one is seen in a moment; only then is every number looked at.
While a long text is read, Python does not look for cycles among what it makes: there are none in JSON, and half a
million nested lists were looked through again and again, which took three times as long as to read them.
"""

import gc
import json
from typing import Any, NoReturn

DIGITS_MAX = 640
"""Of a whole number: enough for 2,000 bits."""
LONG_LENGTH = 64 * 1024
_DIGITS = bytes(ord("0") if chr(code).isdigit() and code < 128 else ord(" ") for code in range(256))
_TOO_MANY = b"0" * (DIGITS_MAX + 1)


def read_json(text: str) -> Any:
    """What it says. Raises ValueError, among them JSONDecodeError, and RecursionError where it is nested too deeply."""
    decoder = _CAREFUL if _has_many_digits(text) else _PLAIN
    if len(text) <= LONG_LENGTH or not gc.isenabled():
        return decoder.decode(text)
    gc.disable()
    try:
        return decoder.decode(text)
    finally:
        gc.enable()


def _has_many_digits(text: str) -> bool:
    """In a row, be it in a number or in a text."""
    if len(text) <= DIGITS_MAX:
        return False
    return _TOO_MANY in text.encode("utf-8", "surrogatepass").translate(_DIGITS)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def _whole(digits: str) -> int:
    if len(digits) > DIGITS_MAX:
        raise ValueError(f"a number of {len(digits)} digits is too long, send it as text")
    return int(digits)


_PLAIN = json.JSONDecoder(parse_constant=_no_constant)
_CAREFUL = json.JSONDecoder(parse_constant=_no_constant, parse_int=_whole)
