"""Texts that clients send in JSON, which can spell halves of letters: those cannot be sent on as UTF-8."""

import json
import re
from typing import TypeGuard

_HALF_LETTER = re.compile("[\ud800-\udfff]")


def is_text(value: object) -> TypeGuard[str]:
    """Whether it is a text of whole letters."""
    return isinstance(value, str) and not any("\ud800" <= letter <= "\udfff" for letter in value)


def json_text(value: object) -> bytes:
    """As compact JSON in UTF-8. Half a letter that a client has spelled, and is told of, is shown to it as six letters
    (\\ud800), for strict readers of JSON take no halves."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    try:
        return text.encode()
    except UnicodeEncodeError:
        return _HALF_LETTER.sub(lambda found: f"\\\\u{ord(found[0]):04x}", text).encode()
