"""What a replica of a ring keeps on its disk, and what it wants to be done, besides `Publish`.

Effects are carried out in the order of their list, each before the next: what is remembered is on the disk before
anybody is told.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from anabranch.modes.generations import Generations, Row
from anabranch.modes.mode import Publish
from anabranch.modes.ring.messages import Message, Push, ReturnId
from anabranch.values import BrokerId, Generation, Offset

NOT_PROMISED = Generation(0)


@dataclass(frozen=True)
class Kept:
    """What survives a crash."""

    promised: Generation = NOT_PROMISED
    table: Generations = field(default_factory=Generations)
    return_id: ReturnId | None = None
    """Not None: this replica came back and is not trusted yet."""
    view: int = 0
    """Among which replicas all this was promised."""
    sealed: Generation | None = None
    """The last generation of this view: nobody gets a promise of a later one."""
    replicas: tuple[BrokerId, ...] = ()
    """Of this view: a restart may find a table that does not know of the view yet. Empty: the table's."""

    @property
    def is_trusted(self) -> bool:
        return self.return_id is None

    def as_state(self) -> dict[str, Any]:
        """For a state file."""
        rows = [list(row) for row in self.table.rows]
        return {
            "promised": self.promised,
            "generations": rows,
            "return_id": self.return_id,
            "view": self.view,
            "sealed": self.sealed,
            "replicas": list(self.replicas),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "Kept":
        rows = [Row(Generation(generation), Offset(start)) for generation, start in state["generations"]]
        promised, sealed = Generation(state["promised"]), state["sealed"]
        replicas = tuple(BrokerId(broker) for broker in state.get("replicas", ()))
        return cls(promised, Generations(rows), state["return_id"], state["view"], sealed, replicas)


@dataclass(slots=True)
class Remember:
    kept: Kept


@dataclass(slots=True)
class Tell:
    to: BrokerId
    message: Message


@dataclass(slots=True)
class CutBack:
    """Forget the records from here on."""

    end: Offset


@dataclass(slots=True)
class Take:
    """Append these records as they are."""

    push: Push


@dataclass(slots=True)
class Sync:
    """Put everything below `end` on the disk, and say `synced` with the same numbers. `cuts` counts how often the log
    was cut: a sync that began before a cut says nothing of what was written after it."""

    end: Offset
    cuts: int


@dataclass(slots=True)
class EndView:
    """The records below `end` are on a majority of these `replicas`, and no generation after this one begins in this
    view: the next view, theirs, may begin there, unless another move has been agreed on. Said again until it does."""

    end: Offset
    generation: Generation
    replicas: tuple[BrokerId, ...]
    move: int


@dataclass(slots=True)
class Unseal:
    """This view was sealed, and whoever wanted to end it is not heard any more: let a new view of the same replicas
    begin, unless another has begun already. Said again until one does."""

    generation: Generation


@dataclass(slots=True)
class AskForDisk:
    """This replica has been given everything, on a disk that the agreed table does not name for it: let the table name
    it. Said again until it does; nobody counts on the replica before."""


Effect = Remember | Tell | CutBack | Take | Sync | Publish | EndView | Unseal | AskForDisk
