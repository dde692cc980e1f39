"""Where to begin: `--from` and `--to` as people write them.

`beginning`/`earliest`, `end`/`latest`, an offset (`42`), the last n (`-10`), a time (`2026-01-31T12:00:00Z`,
`@1769860800000` in ms), or how long ago (`90s`, `15m`, `2h`, `7d`). This module is pure: now is handed in.
"""

import re
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import NamedTuple


class Kind(Enum):
    BEGINNING = "beginning"
    END = "end"
    OFFSET = "offset"
    LAST = "last"
    TIME = "time"


class Start(NamedTuple):
    kind: Kind
    number: int = 0
    """The offset, how many, or ms since 1970, by kind."""


_WORDS = {
    "beginning": Kind.BEGINNING,
    "earliest": Kind.BEGINNING,
    "end": Kind.END,
    "latest": Kind.END,
}
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_NUMBER_MAX = 2**63 - 1


def parse_start(text: str, now_ms: int) -> Start:
    """Raises ValueError with what may be written."""
    if text in _WORDS:
        return Start(_WORDS[text])
    if match := re.fullmatch(r"([-@]?)([0-9]{1,19})", text, re.ASCII):
        kind = {"": Kind.OFFSET, "-": Kind.LAST, "@": Kind.TIME}[match[1]]
        if int(match[2]) <= _NUMBER_MAX:
            return Start(kind, int(match[2]))
    if match := re.fullmatch(r"([0-9]{1,9})([smhd])", text, re.ASCII):
        ago = timedelta(**{_UNITS[match[2]]: int(match[1])})
        return Start(Kind.TIME, max(0, now_ms - ago // timedelta(milliseconds=1)))
    return Start(Kind.TIME, _moment(text))


def _moment(text: str) -> int:
    """ms since 1970. A time without a zone is this machine's."""
    try:
        moment = datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        raise ValueError(
            f"{text} is no place to begin: write beginning, end, an offset (42), the last n (-10), "
            "a time (2026-01-31T12:00:00Z) or how long ago (15m)."
        ) from None
    return max(0, (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1))
