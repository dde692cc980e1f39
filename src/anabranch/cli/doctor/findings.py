"""What `anabranch doctor` finds: one `Finding` per check."""

from typing import NamedTuple


class Finding(NamedTuple):
    check: str
    verdict: str
    """ok, warn (a node runs, but not as well as it could) or fail (something is broken)."""
    detail: str
    next_step: str = ""
