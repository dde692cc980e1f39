"""RingMoves: how a partition goes over to other replicas, by a new *view*.

Whoever leads copies everything to those who shall keep it (`target`), lets nobody write for a moment, has a majority of
the present replicas promise that no generation after its own begins (`Seal`), and says where the next view may begin.
That it does is agreed on elsewhere; then every replica `enter_view`s. Generations go on counting.

A partition may also go over to the object store (`STORE`): then nobody copies, somebody else brings its records there,
and says how far (`stored`). All else is the same, but that no replica is left to enter the next view.
"""

from collections.abc import Iterator

from anabranch.modes.ring.effects import Effect, EndView, Tell, Unseal
from anabranch.modes.ring.messages import Outdated, Seal, Sealed
from anabranch.modes.ring.roles import Follower, Leader
from anabranch.modes.ring.state import NOTHING_STORED, RingState
from anabranch.values import BrokerId, Generation, Offset

NEAR_OFFSETS = 2000
"""What may be missing when the last writes of a view are let in."""
CLOSING_MS_MAX = 2000
"""How long writers may be kept waiting for the end of a view, before they are let in again for a while."""
SETTLE_MS = 6000
STORE: tuple[BrokerId, ...] = ()
"""The target of a partition that goes over to the object store."""
NEAR_STORE_OFFSETS = 100_000
CLOSING_STORE_MS_MAX = 5000
"""The same two for a store, which takes much at a time, and its time for it."""


class RingMoves(RingState):
    def aim(self, target: tuple[BrokerId, ...] | None, move: int) -> Iterator[Effect]:
        """Who shall keep this partition; None: those who do. `move` tells one such decision from all others."""
        if move == self.move and target == self.target:
            return
        self.target, self.move = target, move
        self.stored_end = NOTHING_STORED
        leader = self.leader
        if leader is None:
            return
        for broker in [broker for broker in leader.followers if broker not in self.replicas]:
            del leader.followers[broker]
        for broker in self._copiers:
            if broker not in leader.followers:
                leader.followers[broker] = Follower()
                yield self._enter(broker, leader)

    def _tick_move(self, leader: Leader) -> Iterator[Effect]:
        if self.target is None:
            if self.kept.sealed is None:
                leader.closing_ms = None
            else:  # Called off after the seal.
                yield Unseal(self.kept.sealed)
        elif leader.closing_ms is None:
            if self._now_ms - leader.opened_ms >= CLOSING_MS_MAX and self._is_target_near(leader):
                leader.closing_ms = self._now_ms
                yield from self._end_view(leader)
        else:
            yield from self._end_view(leader)

    def stored(self, end: Offset) -> Iterator[Effect]:
        """The object store has all records below `end`, and everything that goes with them."""
        leader = self.leader
        if leader is None or self.target != STORE:
            return
        self.stored_end = end
        if leader.closing_ms is not None:
            yield from self._end_view(leader)

    @property
    def is_closing(self) -> bool:
        """Nobody may write here, for the view is about to end."""
        return self.leader is not None and self.leader.closing_ms is not None

    def _is_target_near(self, leader: Leader) -> bool:
        near = NEAR_STORE_OFFSETS if self.target == STORE else NEAR_OFFSETS
        return self._is_kept_by_target(leader, Offset(max(leader.start, self.end - near)))

    def _is_kept_by_target(self, leader: Leader, end: Offset) -> bool:
        """Whether a majority of those who shall keep the partition have everything below `end`."""
        assert self.target is not None
        if self.target == STORE:
            return self.stored_end >= end
        keepers = [broker for broker in self.target if self._keeps(broker, leader, end)]
        return len(keepers) * 2 > len(self.target)

    def _keeps(self, broker: BrokerId, leader: Leader, end: Offset) -> bool:
        if broker == self.me:
            return self.synced_end >= end
        follower = leader.followers.get(broker)
        # One that is not trusted could promise nothing in the next view: were most like it, nobody could lead there.
        is_fit = follower is not None and follower.has_entered and follower.is_trusted
        return follower is not None and is_fit and follower.equal_end >= end

    def _end_view(self, leader: Leader) -> Iterator[Effect]:
        """All of it is safe and where it shall be: seal the view, then let the next one begin."""
        assert leader.closing_ms is not None
        if self.safe < self.end or self.target is None or not self._is_kept_by_target(leader, self.end):
            ms_max = CLOSING_STORE_MS_MAX if self.target == STORE else CLOSING_MS_MAX
            is_late = self._now_ms - leader.closing_ms >= ms_max
            if is_late and self.kept.sealed is None:
                leader.closing_ms, leader.opened_ms = None, self._now_ms
            return
        if self.kept.sealed is None:
            yield self._keep(sealed=leader.generation)
            leader.sealed_by.add(self.me)
        if len(leader.sealed_by) * 2 > len(self.replicas):
            yield EndView(self.end, leader.generation, self.target, self.move)
        else:
            for broker in self.others:
                yield Tell(broker, Seal(self.me, leader.generation))

    def _on_seal(self, message: Seal) -> Iterator[Effect]:
        generation = message.generation
        if generation < self.kept.promised:
            yield Tell(message.sender, Outdated(self.me, self.kept.promised))
        elif self._following == (message.sender, generation) and self.kept.is_trusted:
            if self.kept.sealed is None:
                yield self._keep(sealed=generation)
            yield Tell(message.sender, Sealed(self.me, generation))

    def _on_sealed(self, message: Sealed) -> Iterator[Effect]:
        leader = self.leader
        is_meant = leader is not None and message.generation == leader.generation == self.kept.sealed
        if leader is not None and is_meant and message.sender in self.replicas:
            leader.sealed_by.add(message.sender)
            yield from self._end_view(leader)

    def _settle(self) -> Iterator[Effect]:
        """A seal must not be the end of everything: whoever made it may have died."""
        sealed = self.kept.sealed
        if sealed is None or self.leader is not None or self._was_led_lately:
            return
        if self._now_ms - self._settled_ms >= SETTLE_MS:
            self._settled_ms = self._now_ms
            yield Unseal(sealed)

    def enter_view(
        self,
        view: int,
        replicas: tuple[BrokerId, ...],
        generation: Generation,
        now_ms: int,
        is_forced: bool = False,
    ) -> Iterator[Effect]:
        """It was agreed on: from now on these keep the partition, and its generations exceed `generation`. What we
        have stays: it is a part of what the view begins with. `is_forced`: the view before could not end by its own
        rules (rule 7); somebody has accepted the loss, so there is nothing left that one of us could lack."""
        if view <= self.kept.view:
            return
        self._stop()
        self._is_new = True
        self.replicas, self.target = replicas, None
        self._returns.clear()
        self._returned_ms.clear()
        self._missing_ms.clear()
        self._knows_of_us = None
        self._now_ms = self._heard_leader_ms = self._entered_ms = self._settled_ms = now_ms
        promised = max(self.kept.promised, generation)
        return_id = None if is_forced else self.kept.return_id
        yield self._keep(view=view, promised=promised, sealed=None, replicas=replicas, return_id=return_id)
