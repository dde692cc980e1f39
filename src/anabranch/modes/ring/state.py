"""RingState: what a replica of a ring knows of itself and of the others, and what every part of it does with that."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache

from anabranch.modes.ring.effects import NOT_PROMISED, Effect, Kept, Remember, Tell
from anabranch.modes.ring.messages import NO_MOVE, Enter, Message, ReturnId
from anabranch.modes.ring.roles import Candidate, Copying, Leader
from anabranch.values import BrokerId, Generation, Offset

SILENCE_MS = 1500
REFUSED_MS = 10_000
"""How long a replica whose disk took nothing leaves it to others to lead."""
AT_ONCE_MS = -1
NOTHING_STORED = Offset(-1)

Fits = Callable[[Offset, Offset], Offset]
"""Where a piece of a log ends that begins at the first offset and reaches the second at most: it has whole batches, at
least one of them, and not too many bytes."""


class RingState:
    def __init__(
        self,
        me: BrokerId,
        replicas: tuple[BrokerId, ...],
        kept: Kept,
        end: Offset,
        now_ms: int = 0,
        *,
        fits: Fits,
    ) -> None:
        """`replicas` in the order of the ring; `end` of the log, all of it synced, as recovery found it. Who is not
        among the replicas is to become one, and only copies."""
        self._fits = fits
        self.me, self.replicas, self.kept = me, replicas, kept
        self.target: tuple[BrokerId, ...] | None = None
        self.move = NO_MOVE
        self.stored_end = NOTHING_STORED
        """Of a partition that this replica leads, and that goes over to the object store: how far that has it."""
        self.end = self.synced_end = end
        self.safe = self._heard_safe = Offset(0)
        self.cuts = 0
        self.leader: Leader | None = None
        self.candidate: Candidate | None = None
        self.copying: Copying | None = None
        self._following: tuple[BrokerId, Generation] | None = None
        self._returns: dict[BrokerId, ReturnId] = {}
        self._returned_ms: dict[BrokerId, int] = {}
        self._heard_leader_ms = self._entered_ms = now_ms
        self._knows_of_us: Generation | None = None
        self._missing_ms: dict[BrokerId, int] = {}
        self._said_ms = 0
        self._settled_ms = now_ms
        self._now_ms = now_ms
        self._asked: tuple[Offset, int] | None = None
        self._told_return_ms: int | None = None
        self._refused_ms: int | None = None
        self._resigned_ms: int | None = None
        self._is_strange = False
        """The agreed table names another disk for this replica."""
        self._asked_for_disk_ms: int | None = None
        self._is_new = kept.promised == NOT_PROMISED
        """Nobody can have led this view yet."""
        self.due_ms = AT_ONCE_MS
        """A tick before this has nothing to do."""

    @property
    def others(self) -> tuple[BrokerId, ...]:
        return _but(self.me, self.replicas)

    @property
    def leader_id(self) -> BrokerId | None:
        """Who leads, as far as is known here. One that has fallen silent may not, and clients would ask it for ever."""
        if self.leader is not None:
            return self.me
        return self._following[0] if self._following is not None and self._was_led_lately else None

    @property
    def is_led(self) -> bool:
        """We lead, or have heard from whoever does lately."""
        return self.leader is not None or (self._following is not None and self._was_led_lately)

    @property
    def generation(self) -> Generation:
        """Of whoever leads; the last one promised if nobody does."""
        return self.leader.generation if self.leader is not None else self.kept.promised

    @property
    def lag(self) -> int:
        """How much is missing here of what is safe, as far as we have heard."""
        return 0 if self.leader is not None else max(0, self._heard_safe - self.end)

    @property
    def in_sync(self) -> tuple[BrokerId, ...]:
        """Those who have everything that is safe or were close to it at the last beat, if we lead."""
        if self.leader is None:
            return ()
        followers = self.leader.followers
        return tuple([one for one in self.replicas if one == self.me or followers[one].is_close])

    @property
    def may_write(self) -> bool:
        """Is there a generation of ours that a follower has entered?"""
        leader = self.leader
        return (
            leader is not None
            and leader.closing_ms is None
            and self._resigned_ms is None
            and (not self.others or any(follower.counts for follower in leader.followers.values()))
        )

    @property
    def _place(self) -> int | None:
        """On the ring; None: we only copy."""
        return self.replicas.index(self.me) if self.me in self.replicas else None

    @property
    def peers(self) -> tuple[BrokerId, ...]:
        """Everybody else who keeps the partition or shall."""
        return self._copiers

    @property
    def _copiers(self) -> tuple[BrokerId, ...]:
        """Everybody that a leader sends its records to."""
        return _but(self.me, (*self.replicas, *self.target) if self.target else self.replicas)

    @property
    def is_refused(self) -> bool:
        """The disk has lately taken nothing."""
        return self._refused_ms is not None and self._now_ms - self._refused_ms < REFUSED_MS

    @property
    def _is_unfit(self) -> bool:
        """It must not lead, whatever it knows."""
        return self.is_refused or self._resigned_ms is not None

    def _is_time(self, last_ms: int | None, every_ms: int) -> bool:
        return last_ms is None or self._now_ms - last_ms >= every_ms

    @property
    def _was_led_lately(self) -> bool:
        return self._now_ms - self._heard_leader_ms < SILENCE_MS

    # --- what every part of it does ---------------------------------------------------------------------------------

    def at(self, now_ms: int) -> None:
        """What comes next happens now."""
        self._now_ms = now_ms

    def begin_at_once(self) -> None:
        """Nobody can have led this view yet, so whoever is first need not wait for silence."""
        self._is_new = True

    def _stop(self) -> None:
        self.leader = self.candidate = self.copying = self._following = self._asked = None
        self.stored_end = NOTHING_STORED
        self._is_new = False
        self.due_ms = AT_ONCE_MS

    def _keep(self, **changes: object) -> Remember:
        self.kept = replace(self.kept, **changes)  # type: ignore[arg-type]
        return Remember(self.kept)

    def _enter(self, broker: BrokerId, leader: Leader) -> Tell:
        return Tell(broker, Enter(self.me, leader.generation, self.kept.table, leader.returns))

    def _tell_all(self, message: Message) -> Iterator[Effect]:
        for broker in self.others:
            yield Tell(broker, message)


@lru_cache(maxsize=1024)
def _but(me: BrokerId, brokers: tuple[BrokerId, ...]) -> tuple[BrokerId, ...]:
    """All of them but us, each once. Kept, because it is asked for with every message."""
    return tuple(dict.fromkeys(broker for broker in brokers if broker != me))
