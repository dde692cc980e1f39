"""The one small door between "when is a record safe" and everything else.

A mode is stepped with events, in the order they happened, and answers with effects, to be carried out in list
order. It never acts itself. A mode that needs more events or effects adds them here, next to these.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

from anabranch.replication.ring_messages import Message
from anabranch.values import BrokerId, Generation, Offset

if TYPE_CHECKING:
    from anabranch.replication.ring_effects import Effect as RingEffect


@dataclass(slots=True)
class Appended:
    """The log now ends at `end`; the bytes are in the file, not necessarily on the disk."""

    end: Offset


@dataclass(slots=True)
class FlushFinished:
    """Everything below `end` is on the disk."""

    end: Offset


@dataclass(slots=True)
class Heard:
    """Another replica says something."""

    message: Message


@dataclass(slots=True)
class Tick:
    """Time passes."""


@dataclass(slots=True)
class PeerUp:
    """There is a new link to this broker: what went over the old one may be lost."""

    broker: BrokerId


@dataclass(slots=True)
class NotTaken:
    """The records of the last `Take` were spoiled, or the disk refused them (`is_refused`): the log still ends at
    `end`, and the effects behind that one are left undone. `published` is what readers see."""

    end: Offset
    published: Offset
    is_refused: bool


@dataclass(slots=True)
class NotSent:
    """A push that begins at `start`, and all that came after it, did not leave: there was no room."""

    to: BrokerId
    start: Offset


@dataclass(slots=True)
class Refused:
    """The disk took none of what producers sent, or the broker stops: others shall lead."""


@dataclass(slots=True)
class Placed:
    """It was agreed on who keeps the partition: in this view, after this generation, and who shall keep it next."""

    view: int
    replicas: tuple[BrokerId, ...]
    generation: Generation
    target: tuple[BrokerId, ...] | None
    move: int


@dataclass(slots=True)
class Retake:
    """Somebody wants the first replica to lead, without waiting any longer."""


@dataclass(slots=True)
class Resign:
    """The broker is about to stop: another replica should lead."""


Event = (
    Appended | FlushFinished | Heard | Tick | PeerUp | NotTaken | NotSent | Refused | Placed | Retake | Resign
)


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
