"""The one small door between "when is a record safe" and everything else.

A mode is stepped with events, in the order they happened, and answers with effects, to be carried out in list
order. It never acts itself. What one mode alone needs besides these has files of its own: ring/events.py and
ring/effects.py, which a node without others never reads.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

from anabranch.values import BrokerId, Offset

if TYPE_CHECKING:
    from anabranch.modes.ring.effects import Effect as RingEffect
    from anabranch.modes.ring.events import RingEvent


@dataclass(slots=True)
class Appended:
    """The log now ends at `end`; the bytes are in the file, not necessarily on the disk."""

    end: Offset


@dataclass(slots=True)
class FlushFinished:
    """Everything below `end` is on the disk."""

    end: Offset


Event: TypeAlias = "Appended | FlushFinished | RingEvent"


@dataclass(slots=True)
class Flush:
    """Put everything below `end` on the disk, and say `FlushFinished`."""

    end: Offset


@dataclass(slots=True)
class Publish:
    """Records below `end` are safe: readers may see them, producers that waited are answered."""

    end: Offset


Effect: TypeAlias = "Flush | Publish | RingEffect"


class Mode(Protocol):
    """Five methods and no I/O. If a mode seems to need a sixth, write a decision first."""

    def step(self, event: Event, now_ms: int) -> Sequence[Effect]: ...

    def writer(self) -> BrokerId | None:
        """Who appends now; None: nobody may."""
        ...

    def reader(self, start: Offset) -> BrokerId:
        """Who serves this offset."""
        ...

    def safe_offset(self) -> Offset:
        """Readers see records below this."""
        ...

    def describe(self) -> dict[str, object]:
        """For console and command line."""
        ...
