"""What the replicas of a ring partition say to each other; every message names the generation it belongs to."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from anabranch.modes.generations import Generations
from anabranch.values import BrokerId, Generation, Offset

NOTHING = Offset(0)
NO_MOVE = -1

ReturnId = str
"""Made up by a replica that comes back and cannot be trusted: by it others show that they know of its return."""


@dataclass(slots=True)
class Propose:
    """I want to lead this generation."""

    sender: BrokerId
    generation: Generation


@dataclass(slots=True)
class Promise:
    """I follow nobody lower from now on; this is what I have, on my disk. Refused: `promised` is higher already."""

    sender: BrokerId
    generation: Generation
    is_given: bool
    promised: Generation
    end: Offset = NOTHING
    table: Generations = field(default_factory=Generations)


@dataclass(slots=True)
class Enter:
    """I lead this generation, and this is my table, whose last row it is. Where my log ends by now it does not say: a
    message that comes late must not cut what a later one brought."""

    sender: BrokerId
    generation: Generation
    table: Generations
    returns: Mapping[BrokerId, ReturnId]
    """Of whom I knew, before I proposed it, that they had come back."""


@dataclass(slots=True)
class Pull:
    """Send me what you have from here on."""

    sender: BrokerId
    generation: Generation
    start: Offset


@dataclass(slots=True)
class Push:
    """Records [start, end), all written under `written_in`; the sender publishes what lies below `safe`."""

    sender: BrokerId
    generation: Generation
    start: Offset
    end: Offset
    written_in: Generation
    safe: Offset
    records: object = None
    """Filled in from the log when it is sent."""


@dataclass(slots=True)
class Equal:
    """My log equals yours below `end`, on my disk. `has_entered`: my table has your generation too."""

    sender: BrokerId
    generation: Generation
    end: Offset
    has_entered: bool
    is_trusted: bool
    move: int = NO_MOVE
    """Which move the sender knows of: what it copied for an earlier one it may have thrown away."""


@dataclass(slots=True)
class Beat:
    """I lead, and publish what lies below `safe`; my log begins at `log_start`."""

    sender: BrokerId
    generation: Generation
    safe: Offset
    log_start: Offset = NOTHING
    """Filled in when it is sent."""


@dataclass(slots=True)
class Outdated:
    """You lead no longer: I have promised more."""

    sender: BrokerId
    generation: Generation


@dataclass(slots=True)
class Returned:
    """I am back, and what I have cannot be trusted until a generation that knows of it has copied me everything. With
    an empty `return_id`: I have all I had, but my disk takes nothing now, so let somebody else lead."""

    sender: BrokerId
    generation: Generation
    return_id: ReturnId


@dataclass(slots=True)
class Missing:
    """I have not heard anybody lead for a while; the last generation that I promised."""

    sender: BrokerId
    generation: Generation


@dataclass(slots=True)
class Seal:
    """I lead, and shall be the last in this view: promise that no generation after mine begins in it."""

    sender: BrokerId
    generation: Generation


@dataclass(slots=True)
class Sealed:
    """None will, as far as it is up to me."""

    sender: BrokerId
    generation: Generation


Message = (
    Propose | Promise | Enter | Pull | Push | Equal | Beat | Outdated | Returned | Missing | Seal | Sealed
)
