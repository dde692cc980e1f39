"""What is left of a ring that its own rules cannot give a leader any more, and with whose log it would go on.

Rule 7 lets nobody promise who may lack what was safe. If too many are gone or came back so, nobody ever leads again,
unless somebody accepts that what nobody has is lost. Then the best log of those that are left goes on, alone at first:
a replica that has less must not be able to lead in its place before it was given everything.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from anabranch.modes.generations import Generations
from anabranch.values import BrokerId, Generation, Offset


@dataclass(frozen=True, slots=True)
class Seen:
    """What a replica says of itself."""

    view: int
    promised: Generation
    table: Generations
    start: Offset
    end: Offset
    safe: Offset
    """Readers have seen everything below."""
    is_trusted: bool
    is_led: bool
    """It leads, or hears from whoever does."""


Everybody = Mapping[BrokerId, Seen]


def can_lead_again(replicas: tuple[BrokerId, ...], seen: Everybody) -> bool:
    """Whether those who answered get a leader by themselves, or have one."""
    if any(one.is_led for one in seen.values()):
        return True
    trusted = [broker for broker in replicas if broker in seen and seen[broker].is_trusted]
    if not any(broker in trusted for broker in replicas[:2]):
        return False  # The third never leads.
    if len(replicas) == 2:
        return len(seen) == 2
    return len(trusted) * 2 > len(replicas)


def best_of(replicas: tuple[BrokerId, ...], seen: Everybody) -> BrokerId:
    """Whose log goes on: what a candidate would adopt."""

    def worth(broker: BrokerId) -> tuple[int, int, bool, int]:
        one = seen[broker]
        return one.table.last, one.end, one.is_trusted, -replicas.index(broker)

    return max(seen, key=worth)


def last_generation(seen: Iterable[Seen]) -> Generation:
    """No later one is known to anybody who answered."""
    return Generation(max(max(one.promised, one.table.last) for one in seen))


def given_up(best: Seen, other: Seen) -> tuple[Offset, Offset] | None:
    """Which records of another replica do not go on; None: the best has all of them."""
    common = other.table.common_end(other.end, best.table, best.end)
    begin = max(common, other.start)
    return (begin, other.end) if begin < other.end else None


def gone_for_good(best: Seen, everybody: Iterable[Seen]) -> tuple[Offset, Offset] | None:
    """Records that readers have seen and that do not go on, as far as anybody knows."""
    safe = max(one.safe for one in everybody)
    return (best.end, safe) if safe > best.end else None
