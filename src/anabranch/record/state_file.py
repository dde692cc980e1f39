"""A small state file as bytes: one line that says what it is and sums it up, then JSON.

    anabranch 1 <crc-32 of the rest, 8 hex digits>\\n
    JSON

The broker keeps its checkpoints so (`log.disk.checkpoint`), and jobs hand it what they offer in the same form. One
that is torn, garbled or of another version holds nothing, for a reason that is told.
"""

import json
import zlib
from typing import Any

VERSION = 1
_MAGIC = b"anabranch"


def dump_state(value: Any) -> bytes:
    """Of anything JSON can carry."""
    body = json.dumps(value, separators=(",", ":"), sort_keys=True).encode()
    return _header(body) + body


def load_state(data: bytes) -> tuple[Any, str | None]:
    """What the bytes hold, and None; or None, and why they hold nothing."""
    header, _, body = data.partition(b"\n")
    words = header.split(b" ")
    if len(words) != 3 or words[0] != _MAGIC:
        return None, "it does not begin like a state file of anabranch"
    if words[1] != str(VERSION).encode():
        return None, f"it is of version {words[1].decode('ascii', 'replace')}, this is {VERSION}"
    if header + b"\n" != _header(body):
        return None, "its checksum does not hold"
    try:
        return json.loads(body), None
    except (ValueError, RecursionError):
        return None, "what it holds is not JSON"


def _header(body: bytes) -> bytes:
    return b"%s %d %08x\n" % (_MAGIC, VERSION, zlib.crc32(body))
