"""The one small door between "when is a record safe" and everything else.

A mode is stepped with events, in the order they happened, and answers with effects, to be carried out in list
order. It never acts itself. A mode that needs more events or effects adds them here, next to these.
"""

from dataclasses import dataclass
from typing import Protocol

from anabranch.values import BrokerId, Offset


@dataclass(slots=True)
class Appended:
    """The log now ends at `end`; the bytes are in the file, not necessarily on the disk."""

    end: Offset


@dataclass(slots=True)
class FlushFinished:
    """Everything below `end` is on the disk."""

    end: Offset


Event = Appended | FlushFinished


@dataclass(slots=True)
class Flush:
    """Put everything below `end` on the disk, and say `FlushFinished`."""

    end: Offset


@dataclass(slots=True)
class Publish:
    """Records below `end` are safe: readers may see them, producers that waited are answered."""

    end: Offset


Effect = Flush | Publish


class Mode(Protocol):
    """Five methods and no I/O. If a mode seems to need a sixth, write a decision first."""

    def step(self, event: Event, now_ms: int) -> list[Effect]: ...

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
