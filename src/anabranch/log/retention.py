"""Which sealed segments may go, by age and by size: decisions over plain numbers, oldest first.

A segment goes as a whole, and only from the old end. By age: when its largest timestamp is older than
`retention_ms`; a segment whose records have no timestamps stays. By size: while what remains would still hold
`retention_bytes`. One without records goes with what follows it. Segments wholly below the start offset
(DeleteRecords) always go.
"""

from collections.abc import Sequence
from typing import NamedTuple

from anabranch.log.settings import LogConfig
from anabranch.values import Offset


class Age(NamedTuple):
    """What retention needs to know of one segment."""

    size_bytes: int
    max_timestamp: int
    next_base: Offset


def is_expired(max_timestamp: int, config: LogConfig, now_ms: int) -> bool:
    return config.deleted and config.retention_ms >= 0 and 0 <= max_timestamp < now_ms - config.retention_ms


def expired_count(
    sealed: Sequence[Age], active_bytes: int, start_offset: Offset, config: LogConfig, now_ms: int
) -> int:
    """How many of the sealed segments, from the oldest on, may go."""
    excess = sum(age.size_bytes for age in sealed) + active_bytes - config.retention_bytes
    limited = config.deleted and config.retention_bytes >= 0
    count = 0
    for number, age in enumerate(sealed):
        if not age.size_bytes:
            continue  # A log that begins with a gap must not lose the segment that says so, and keep its start.
        too_large = limited and excess >= age.size_bytes
        if not (age.next_base <= start_offset or too_large or is_expired(age.max_timestamp, config, now_ms)):
            break
        count = number + 1
        excess -= age.size_bytes
    return count
