"""Texts that clients send in JSON, which can spell halves of letters: those cannot be sent on as UTF-8."""

from typing import TypeGuard


def is_text(value: object) -> TypeGuard[str]:
    """Whether it is a text of whole letters."""
    return isinstance(value, str) and not any("\ud800" <= letter <= "\udfff" for letter in value)
