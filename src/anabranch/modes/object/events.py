"""What happens to an ObjectWriter, and what it decides upon that."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum


class Reason(Enum):
    """Why a batch is not taken, or not kept."""

    STORE_AWAY = "store away"
    NOT_REGISTERED = "not registered"
    STOPPING = "stopping"
    UNKNOWN = "unknown"
    """It was agreed on or not: a snapshot of the table says only that the number is taken."""


# --- events --------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Arrived:
    """A producer sent a batch of that many bytes. The first effect says what becomes of it: Take or Refuse."""

    size: int


@dataclass(slots=True)
class Registered:
    """This broker, since its start, is in the table with this epoch; None: not yet. While fenced, nothing it proposes
    counts."""

    epoch: int | None
    is_fenced: bool = False


@dataclass(slots=True)
class Stored:
    """The store has that segment."""

    serial: int


@dataclass(slots=True)
class StoreFailed:
    """Whether the store has that segment is not known: it must be tried again under the same name."""

    serial: int


@dataclass(slots=True)
class StoreAnswers:
    """The store answers again, whomever: what waits for its next try need not wait."""


@dataclass(slots=True)
class NameTaken:
    """The store has something else under that name: an earlier life of the cluster has used it."""

    serial: int


@dataclass(slots=True)
class ProposalEnded:
    """It was agreed on, or nobody knows."""

    proposal: int
    is_agreed: bool


@dataclass(slots=True)
class Applied:
    """A commit with this number of the present epoch is applied here; it counts, unless the broker was fenced."""

    number: int
    counts: bool = True


@dataclass(slots=True)
class Jumped:
    """A snapshot has replaced the table: numbers up to this one are applied, and nobody knows with what result."""

    last_number: int


@dataclass(slots=True)
class Tick:
    """Time has passed."""


@dataclass(slots=True)
class Stop:
    """Nothing more is taken; what is there is stored at once. With `is_over` nothing is waited for either."""

    is_over: bool = False


Event = (
    Arrived
    | Registered
    | Stored
    | StoreFailed
    | StoreAnswers
    | NameTaken
    | ProposalEnded
    | Applied
    | Jumped
    | Tick
    | Stop
)

# --- effects -------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Take:
    """The batch goes into this segment."""

    serial: int


@dataclass(slots=True)
class Refuse:
    """The batch is not taken."""

    reason: Reason


@dataclass(slots=True)
class Store:
    """Put the segment into the store, under the number; say Stored or StoreFailed."""

    serial: int
    number: int


@dataclass(slots=True)
class Propose:
    """Have these numbers committed, in this order, each with its segment; None: void. Say ProposalEnded."""

    proposal: int
    commits: Sequence[tuple[int, int | None]]


@dataclass(slots=True)
class Answer:
    """The commit of this segment is applied: its producers learn what became of their batches."""

    serial: int


@dataclass(slots=True)
class Fail:
    """Nothing of this segment will be kept (UNKNOWN: nobody knows). Its producers are told, whatever is under way for
    it is ended, its bytes may go."""

    serial: int
    reason: Reason


Effect = Take | Refuse | Store | Propose | Answer | Fail
