"""`ring`: up to three brokers keep a partition; a record is safe when the leader and one follower have it synced.

What it survives: any one of three. What it gives up: writes without a majority. `RingReplica` has the rules; this is
the mode around it. Where records count as synced when they are written (`sync_first` is false), `Sync` is answered at
once by whoever carries the effects out.
"""

from collections.abc import Iterable

from anabranch.modes.generations import Generations
from anabranch.modes.mode import Appended, Event, FlushFinished
from anabranch.modes.ring.effects import NOT_PROMISED, Effect, Kept, Sync, Tell
from anabranch.modes.ring.events import (
    Heard,
    NotSent,
    NotTaken,
    PeerUp,
    Placed,
    Refused,
    Resign,
    Retake,
    Stored,
    Tick,
)
from anabranch.modes.ring.messages import Returned
from anabranch.modes.ring.replica import BEAT_MS, RingReplica
from anabranch.modes.ring.state import AT_ONCE_MS, Fits
from anabranch.values import BrokerId, Generation, Offset

COPIES = 2
"""On how many disks a record is when it is acknowledged."""


class RingMode:
    def __init__(
        self,
        me: BrokerId,
        replicas: tuple[BrokerId, ...],
        kept: Kept,
        end: Offset,
        now_ms: int,
        *,
        fits: Fits,
        sync_first: bool,
        safe: Offset = Offset(0),  # noqa: B008 - a number with a name, not a call that matters
    ) -> None:
        """`safe`: readers have seen everything below."""
        self.replica = RingReplica(me, replicas, kept, end, now_ms, fits=fits)
        self.replica.safe = safe
        self.sync_first = sync_first
        self.is_remembering = False
        """What was decided is not on the disk yet: nobody may act on it. Set by whoever carries effects out."""
        self.is_fenced = False
        self._is_short = False

    def step(self, event: Event, now_ms: int) -> list[Effect]:
        if self.is_fenced:
            return [] if not isinstance(event, Tick) else self._tell_unfit(now_ms)
        self.replica.at(now_ms)
        return list(self._step(event, now_ms))

    def _step(self, event: Event, now_ms: int) -> Iterable[Effect]:
        replica = self.replica
        # The frequent ones first, and cheaply.
        if isinstance(event, Heard):
            return replica.heard(event.message)
        if isinstance(event, FlushFinished):
            return replica.synced(event.end, replica.cuts)
        if isinstance(event, Appended):
            return self._appended(event.end)
        match event:
            case Tick():
                return self._tick(now_ms)
            case Placed():
                return self._place(event, now_ms)
            case _:
                return self._step_rarely(event)

    def _appended(self, end: Offset) -> Iterable[Effect]:
        effects = list(self.replica.appended(end))
        if not self.sync_first and effects and isinstance(effects[-1], Sync):
            effects.pop()  # Written is as good as synced: nobody need be asked.
            effects += self.replica.synced(end, self.replica.cuts)
        return effects

    def _step_rarely(self, event: Event) -> Iterable[Effect]:
        replica = self.replica
        match event:
            case PeerUp(broker):
                return replica.peer_up(broker)
            case NotTaken(end, published, is_refused):
                return replica.not_taken(end, published, is_refused)
            case NotSent(to, start):
                self._is_short = True
                replica.not_sent(to, start)
            case Refused():
                return replica.refused()
            case Stored(end):
                return replica.stored(end)
            case Retake():
                return replica.retake()
            case Resign():
                return replica.resign()
        return ()

    def _place(self, placed: Placed, now_ms: int) -> Iterable[Effect]:
        replica = self.replica
        yield from replica.enter_view(
            placed.view, placed.replicas, placed.generation, now_ms, is_forced=placed.is_forced
        )
        yield from replica.find_disk(placed.strange)
        if replica.kept.view == placed.view:  # Else we know more than the table here does yet.
            yield from replica.aim(placed.target, placed.move)

    def _tick(self, now_ms: int) -> Iterable[Effect]:
        yield from self.replica.tick(now_ms)
        if self._is_short:
            self._is_short = False
            yield from self.replica.push_on()

    def _tell_unfit(self, now_ms: int) -> list[Effect]:
        """Let others lead: that we are still heard must not keep them from it."""
        self.replica.due_ms = now_ms + BEAT_MS
        return [Tell(broker, self.unfit) for broker in self.replica.others]

    @property
    def unfit(self) -> Returned:
        """What a replica says whose disk takes nothing."""
        return Returned(self.replica.me, NOT_PROMISED, "")

    def is_due(self, now_ms: int) -> bool:
        """Whether a tick has anything to do."""
        return self._is_short or now_ms >= self.replica.due_ms

    def fence(self) -> None:
        """The disk cannot be believed any more: promise, follow and lead nothing until a restart has read it again."""
        self.is_fenced = True
        self.replica.leader = self.replica.candidate = None
        self.replica.due_ms = AT_ONCE_MS

    @property
    def leads(self) -> bool:
        return self.replica.leader is not None and not self.is_remembering

    @property
    def may_write(self) -> bool:
        return not self.is_remembering and self.replica.may_write

    @property
    def is_settled(self) -> bool:
        """Rule 3: what readers see has reached the start of the present leadership."""
        leader = self.replica.leader
        return leader is not None and self.replica.safe >= leader.start

    @property
    def copies(self) -> int:
        """On how many brokers a record is when it is safe."""
        return min(COPIES, len(self.replica.replicas))

    @property
    def view(self) -> int:
        return self.replica.kept.view

    @property
    def generation(self) -> Generation:
        return self.replica.generation

    @property
    def generations(self) -> Generations:
        return self.replica.kept.table

    def leader(self) -> BrokerId | None:
        """Who leads, as far as is known here."""
        return None if self.is_fenced else self.replica.leader_id

    def writer(self) -> BrokerId | None:
        leader = self.leader()
        if leader == self.replica.me:
            return leader if self.may_write else None
        return leader

    def reader(self, start: Offset) -> BrokerId:
        leader = self.leader()
        return leader if leader is not None else self.replica.replicas[0]

    def safe_offset(self) -> Offset:
        return self.replica.safe

    def describe(self) -> dict[str, object]:
        replica = self.replica
        followers = replica.leader.followers if replica.leader is not None else {}
        return {
            "mode": "ring",
            "replicas": replica.replicas,
            "leader": self.leader(),
            "generation": replica.generation,
            "safe_offset": replica.safe,
            "end_offset": replica.end,
            "is_trusted": replica.kept.is_trusted,
            "sync_first": self.sync_first,
            "has_failover": len(replica.replicas) > 2,
            "lag": {broker: replica.end - one.equal_end for broker, one in followers.items()},
        }
