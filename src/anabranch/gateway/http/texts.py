"""Texts that clients send in JSON, which can spell halves of letters: those cannot be sent on as UTF-8."""

import json
from typing import TypeGuard


def is_text(value: object) -> TypeGuard[str]:
    """Whether it is a text of whole letters."""
    return isinstance(value, str) and not any("\ud800" <= letter <= "\udfff" for letter in value)


def json_text(value: object) -> bytes:
    """As compact JSON. Half a letter that a client has spelled, and is told of, is spelled to it as it came."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "backslashreplace")
