"""File names in a partition's folder: twenty digits of base offset, then what the file is.

.log  .index  .timeindex    Kafka's own formats
.seal                       ours: what a sealed segment promised about itself (`seal.py`)
.clean  .swap               a compaction in progress (`swap.py`)
.deleted                    on its way out; whoever finds one removes it
"""

import re

from anabranch.values import Offset

LOG = ".log"
INDEX = ".index"
TIME_INDEX = ".timeindex"
SEAL = ".seal"
SIDECARS = (INDEX, TIME_INDEX, SEAL)
SUFFIXES = (LOG, *SIDECARS)
CLEAN = ".clean"
SWAP = ".swap"
DELETED = ".deleted"

_DIGITS = re.compile(r"\d{20}")


def segment_path(folder: str, base_offset: Offset, suffix: str) -> str:
    return f"{folder}/{base_offset:020d}{suffix}"


def base_offset_of(name: str) -> Offset | None:
    """The offset in a segment file's name, or None if it is not such a name."""
    digits = name[:20]
    return Offset(int(digits)) if _DIGITS.fullmatch(digits) and name[20:21] == "." else None
