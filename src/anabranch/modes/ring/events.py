"""What happens to a replica of a ring, besides `Appended` and `FlushFinished`."""

from dataclasses import dataclass

from anabranch.modes.ring.messages import Message, ReturnId
from anabranch.values import BrokerId, Generation, Offset


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
    is_forced: bool = False
    """The view before could not end by its own rules: what these replicas have is all there is."""
    strange: ReturnId | None = None
    """Not None: the replica was given to another disk than this one, and has come back by this name."""


@dataclass(slots=True)
class Stored:
    """The object store, to which the partition goes over, has everything below `end`."""

    end: Offset


@dataclass(slots=True)
class Retake:
    """Somebody wants the first replica to lead, without waiting any longer."""


@dataclass(slots=True)
class Resign:
    """The broker is about to stop: another replica should lead."""


RingEvent = Heard | Tick | PeerUp | NotTaken | NotSent | Refused | Placed | Stored | Retake | Resign
