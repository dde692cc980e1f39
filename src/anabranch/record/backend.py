"""Which form of the hot loops runs: the compiled one (`_fast.pyx`), or the pure one that each of them has as well.

The compiled form runs where it was built, unless the environment says ANABRANCH_PURE=1. Decided once, at the first
import. This is the one place of a pure room that looks at the environment: tests, and whoever suspects the compiled
module, need a switch that works from outside, and nothing but speed depends on it.
"""

from os import environ


def _is_built() -> bool:
    """One that is there but cannot be imported is an error: it was built from other sources than these."""
    try:
        import anabranch.record._fast  # noqa: F401 - that it can be is all we ask
    except ModuleNotFoundError:
        return False
    return True


PURE_WANTED = environ.get("ANABRANCH_PURE", "") not in ("", "0")
COMPILED = not PURE_WANTED and _is_built()
NAME = "compiled" if COMPILED else "pure"
