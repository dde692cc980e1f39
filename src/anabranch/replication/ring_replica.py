"""One replica of a ring partition: who leads, which logs are equal, what is safe. It decides, and does nothing itself.

Three replicas in the order of the ring: B1, B2, B3. Odd generations are B1's, even ones B2's, B3 never leads: so a
generation has one possible leader, and nobody holds elections.

1. A replica writes down its promise of a generation before it answers, and follows nothing lower from then on.
2. A candidate needs its own promise and one more. It makes its log equal to the best of those that promised (greatest
   last generation, then end) before it leads: a record that only B3 has survives so.
3. It opens its generation at the end of its log. A replica enters the row (generation, start) when its log is equal
   below `start`, ends there and is synced; and takes records of a generation only once it has entered it. So a table
   never says more than is true, wherever a crash leaves it.
4. A record is safe when the leader and one follower that has entered the generation have synced it.
5. A leader that hears no follower lets nobody write, and needs a new generation to go on.
6. A record that was published is never withdrawn. (Readers see nothing else.)
7. A replica whose disk may lack what it once had synced neither promises nor counts, until it has entered a generation
   whose candidate knew of its return: what was acknowledged before lies below that generation's start. A disk that the
   agreed table does not name is named there first: the one before it, should it come back, has neither what was written
   nor what was promised on this one. (Of two replicas such a one promises, but offers nothing: the other has all that
   was acknowledged.) Where no two may promise, a view that somebody forces goes on with what the best of those that are
   left has (`ring_recovery.py`).

A partition goes over to other replicas by a new *view*. Whoever leads copies everything to those who shall keep it
(`target`), lets nobody write for a moment, has a majority of the present replicas promise that no generation after its
own begins (`Seal`), and says where the next view may begin. That it does is agreed on elsewhere; then every replica
`enter_view`s. Generations go on counting.

Effects are carried out in the order of the list, each before the next: what is remembered is on the disk before
anybody is told.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache

from anabranch.replication.generations import Generations
from anabranch.replication.mode import Publish
from anabranch.replication.ring_effects import (
    NOT_PROMISED,
    AskForDisk,
    CutBack,
    Effect,
    EndView,
    Kept,
    Remember,
    Sync,
    Take,
    Tell,
    Unseal,
)
from anabranch.replication.ring_messages import (
    NO_MOVE,
    Beat,
    Enter,
    Equal,
    Message,
    Missing,
    Outdated,
    Promise,
    Propose,
    Pull,
    Push,
    Returned,
    ReturnId,
    Seal,
    Sealed,
)
from anabranch.replication.ring_roles import Candidate, Copying, Follower, Leader
from anabranch.values import BrokerId, Generation, Offset

PROPOSE_AGAIN_MS = 500
BEAT_MS = 500
SILENCE_MS = 1500
REIGN_MS_MIN = 5000
NEAR_OFFSETS = 2000
"""What may be missing when the last writes of a view are let in."""
CLOSING_MS_MAX = 2000
"""How long writers may be kept waiting for the end of a view, before they are let in again for a while."""
SETTLE_MS = 6000
PUSHES_UNDER_WAY_MAX = 8
"""To one follower; what comes after waits, and leaves together."""
REFUSED_MS = 10_000
"""How long a replica whose disk took nothing leaves it to others to lead."""
SEND_AGAIN_MS = 2 * BEAT_MS
"""What a follower has not answered by then is taken for lost."""
RESIGN_MS_MAX = 1000
"""How long a leader that goes waits for what it has taken to be safe."""
AT_ONCE_MS = -1
NOTHING = Offset(0), Generations()
"""What a replica has to offer that is not trusted."""

Fits = Callable[[Offset, Offset], Offset]
"""Where a piece of a log ends that begins at the first offset and reaches the second at most: it has whole batches, at
least one of them, and not too many bytes."""


class RingReplica:
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

    # --- time -------------------------------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> Iterator[Effect]:
        self._now_ms = now_ms
        yield from self._leave_office()
        if self.leader is not None:
            yield from self._tick_leader(self.leader)
        elif self.candidate is not None and self._is_kept_waiting(self.candidate):
            yield from self._propose_again(self.candidate)
        elif self._should_lead():
            yield from self.propose()
        elif self.candidate is None and not self._was_led_lately:
            yield from self._say_missing()
        yield from self._pull_again()
        return_id = "" if self._is_unfit and self.leader is None else self.kept.return_id
        if return_id is not None and self._is_time(self._told_return_ms, BEAT_MS):
            self._told_return_ms = now_ms
            yield from self._tell_all(Returned(self.me, self.kept.promised, return_id))
        yield from self._trust_if_entered()
        yield from self._settle()
        self.due_ms = self._next_due_ms()

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

    def _next_due_ms(self) -> int:
        if self.leader is not None:
            return self.leader.beaten_ms + BEAT_MS
        if self._following is None or not self.kept.is_trusted or self._is_unfit:
            return AT_ONCE_MS
        silent_ms = self._heard_leader_ms + SILENCE_MS
        return min(silent_ms, self._entered_ms + REIGN_MS_MIN) if self.me == self.replicas[0] else silent_ms

    def _say_missing(self) -> Iterator[Effect]:
        if self._place is not None and self._now_ms - self._said_ms >= BEAT_MS:
            self._said_ms = self._now_ms
            yield from self._tell_all(Missing(self.me, self.kept.promised))

    @property
    def _was_led_lately(self) -> bool:
        return self._now_ms - self._heard_leader_ms < SILENCE_MS

    def _is_kept_waiting(self, candidate: Candidate) -> bool:
        return self._now_ms - candidate.since_ms >= PROPOSE_AGAIN_MS

    def _should_lead(self) -> bool:
        place, kept = self._place, self.kept
        if self.candidate is not None or place is None or place > 1 or self._is_unfit:
            return False
        if not kept.is_trusted or kept.sealed is not None:
            return False
        if place == 0:
            is_free = self._is_new or not self.others or not self._was_led_lately
            return is_free or self._may_retake()
        if self._was_led_lately:
            return False
        return self._is_missed_by_others() or self._cannot_lead(self.replicas[0])

    def _is_missed_by_others(self) -> bool:
        """The third replica has not heard a leader either, and said so lately."""
        return any(
            self._now_ms - said_ms < SILENCE_MS
            for broker, said_ms in self._missing_ms.items()
            if broker in self.replicas[2:]
        )

    def _cannot_lead(self, broker: BrokerId) -> bool:
        """It has said lately that it is not to be trusted."""
        said_ms = self._returned_ms.get(broker)
        return said_ms is not None and self._now_ms - said_ms < SILENCE_MS

    @property
    def heirs(self) -> tuple[BrokerId, ...]:
        """Who else may lead, as far as they have said."""
        return tuple(one for one in self.replicas[:2] if one != self.me and not self._cannot_lead(one))

    def _may_retake(self) -> bool:
        """B1 takes over from B2 when it has everything, and not at once."""
        return self._follows_closely() and self._now_ms - self._entered_ms >= REIGN_MS_MIN

    def _follows_closely(self) -> bool:
        return self._following is not None and self.kept.table.last == self._following[1]

    def retake(self) -> Iterator[Effect]:
        """B1 takes over at once, if it has everything: somebody asked for it."""
        is_fit = self.kept.is_trusted and self.kept.sealed is None and not self._is_unfit
        if self._place == 0 and self.candidate is None and is_fit and self._follows_closely():
            yield from self.propose()

    def resign(self) -> Iterator[Effect]:
        """This broker is about to stop: take nothing more, and when all that was taken is safe, let others lead."""
        if self._resigned_ms is None:
            self._resigned_ms, self.due_ms = self._now_ms, AT_ONCE_MS
            self.candidate = None
            yield from self._leave_office()

    def _leave_office(self) -> Iterator[Effect]:
        resigned_ms = self._resigned_ms
        if self.leader is None or resigned_ms is None:
            return
        if self.safe >= self.end or self._is_time(resigned_ms, RESIGN_MS_MAX):
            self._stop()
            self._told_return_ms = self._now_ms
            yield from self._tell_all(Returned(self.me, self.kept.promised, ""))

    def _tick_leader(self, leader: Leader) -> Iterator[Effect]:
        heard = [
            broker for broker in self.others if self._now_ms - leader.followers[broker].heard_ms < SILENCE_MS
        ]
        if self.others and not heard and self._now_ms - leader.since_ms >= SILENCE_MS:
            self.leader = None  # Rule 5. The next tick proposes a new one.
            return
        if self._now_ms - leader.beaten_ms >= BEAT_MS:
            # The beats of all partitions of a broker fall together: a link carries them in one go.
            leader.beaten_ms = self._now_ms - self._now_ms % BEAT_MS
            yield from self._tick_move(leader)
            before, leader.safe_at_beat = leader.safe_at_beat, self.safe
            for broker, follower in leader.followers.items():
                is_heard = self._now_ms - follower.heard_ms < SILENCE_MS
                follower.is_close = is_heard and follower.counts and follower.equal_end >= before
                yield Tell(broker, Beat(self.me, leader.generation, self.safe))
                if follower.next is None:
                    yield self._enter(broker, leader)
                elif follower.under_way and self._is_time(follower.moved_ms, SEND_AGAIN_MS):
                    follower.begin_again(follower.equal_end)
                yield from self._push(broker, leader)

    def peer_up(self, broker: BrokerId) -> Iterator[Effect]:
        """There is a new link to this broker: what went over the old one may be lost."""
        if self.leader is not None and broker in self.leader.followers:
            self.leader.followers[broker].begin_again(None)
            yield self._enter(broker, self.leader)
        elif self.candidate is not None and broker in self.others and broker not in self.candidate.promises:
            yield Tell(broker, Propose(self.me, self.candidate.generation))

    def _pull_again(self) -> Iterator[Effect]:
        if self.copying is not None and self.copying.end is not None:
            yield from self._ask()

    def _ask(self) -> Iterator[Effect]:
        """For what follows our end, unless we did a moment ago."""
        generation = self.candidate.generation if self.candidate is not None else self.kept.promised
        if self.copying is None or (
            self._asked is not None
            and self._asked[0] == self.end
            and not self._is_time(self._asked[1], BEAT_MS)
        ):
            return
        self._asked = (self.end, self._now_ms)
        yield Tell(self.copying.source, Pull(self.me, generation, self.end))

    # --- becoming leader --------------------------------------------------------------------------------------------

    def propose(self) -> Iterator[Effect]:
        """Ask for the next generation that is ours to lead."""
        place = self._place
        assert place is not None
        assert place <= 1
        assert self.kept.is_trusted
        generation = Generation(self.kept.promised + 1)
        if generation % 2 == place:
            generation = Generation(generation + 1)
        self._stop()
        self.candidate = Candidate(generation, dict(self._returns), self._now_ms)
        yield self._keep(promised=generation)
        yield from self._tell_all(Propose(self.me, generation))
        yield from self._decide()

    def _propose_again(self, candidate: Candidate) -> Iterator[Effect]:
        """While nobody answers, the same: a new generation costs a sync, and the others may be gone for days."""
        if candidate.promises or candidate.returns != self._returns:
            yield from self.propose()
            return
        candidate.since_ms = self._now_ms
        yield from self._tell_all(Propose(self.me, candidate.generation))
        yield from self._decide()

    def _stop(self) -> None:
        self.leader = self.candidate = self.copying = self._following = self._asked = None
        self._is_new = False
        self.due_ms = AT_ONCE_MS

    def _keep(self, **changes: object) -> Remember:
        self.kept = replace(self.kept, **changes)  # type: ignore[arg-type]
        return Remember(self.kept)

    def _on_propose(self, message: Propose) -> Iterator[Effect]:
        if not self._may_promise or self._place is None or self.kept.sealed is not None:
            return
        generation, promised = message.generation, self.kept.promised
        again = generation == promised and self.kept.table.last < generation and self._following is None
        if generation > promised or (again and self.candidate is None):
            self._stop()
            self._wait_for_leader()
            if generation > promised:
                yield self._keep(promised=generation)
            end, table = (self.synced_end, self.kept.table) if self.kept.is_trusted else NOTHING
            yield Tell(message.sender, Promise(self.me, generation, True, generation, end, table))
        else:
            yield Tell(message.sender, Promise(self.me, generation, False, promised))

    @property
    def _may_promise(self) -> bool:
        """Rule 7. Of two, the other has everything that was ever safe, and needs no more than our word that we follow
        nothing lower."""
        return self.kept.is_trusted or len(self.replicas) == 2

    def _wait_for_leader(self) -> None:
        """Somebody else is about to lead: give it the time, but not again and again."""
        if not self._was_led_lately:
            self._heard_leader_ms = self._now_ms

    def _on_promise(self, message: Promise) -> Iterator[Effect]:
        candidate = self.candidate
        if candidate is None or self.copying is not None or message.generation != candidate.generation:
            return
        if message.sender not in self.replicas:
            return  # Its word does not count.
        if message.is_given:
            candidate.promises[message.sender] = message
            yield from self._decide()
        elif message.promised > self.kept.promised:
            yield self._keep(promised=message.promised)
            yield from self.propose()

    def _decide(self) -> Iterator[Effect]:
        """With one promise more than our own, or as many as there can be."""
        candidate = self.candidate
        assert candidate is not None
        if self.others and not candidate.promises:
            return
        best = max(candidate.promises.values(), key=lambda one: (one.table.last, one.end), default=None)
        if best is not None and (best.table.last, best.end) > (self.kept.table.last, self.synced_end):
            yield from self._copy(best.sender, best.table, best.end)
        else:
            yield from self._open_when_synced()

    def _open_when_synced(self) -> Iterator[Effect]:
        if self.synced_end < self.end:
            yield Sync(self.end, self.cuts)
            return
        candidate = self.candidate
        assert candidate is not None
        self.candidate = self.copying = None
        yield self._keep(table=self.kept.table.entered(candidate.generation, self.end))
        followers = {broker: Follower() for broker in self._copiers}
        leader = Leader(candidate.generation, self.end, self._now_ms, candidate.returns, followers)
        self.leader, self.due_ms = leader, AT_ONCE_MS
        for broker in followers:
            yield self._enter(broker, leader)
        yield from self._advance()

    def _enter(self, broker: BrokerId, leader: Leader) -> Tell:
        return Tell(broker, Enter(self.me, leader.generation, self.kept.table, leader.returns))

    # --- going over to others ---------------------------------------------------------------------------------------

    def aim(self, target: tuple[BrokerId, ...] | None, move: int) -> Iterator[Effect]:
        """Who shall keep this partition; None: those who do. `move` tells one such decision from all others."""
        if move == self.move and target == self.target:
            return
        self.target, self.move = target, move
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

    def _is_target_near(self, leader: Leader) -> bool:
        return self._is_kept_by_target(leader, Offset(max(leader.start, self.end - NEAR_OFFSETS)))

    def _is_kept_by_target(self, leader: Leader, end: Offset) -> bool:
        """Whether a majority of those who shall keep the partition have everything below `end`."""
        assert self.target is not None
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
            is_late = self._now_ms - leader.closing_ms >= CLOSING_MS_MAX
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

    # --- copying ----------------------------------------------------------------------------------------------------

    def _copy(
        self, source: BrokerId, table: Generations, end: Offset, *, for_good: bool = False
    ) -> Iterator[Effect]:
        """Cut what the other does not have, and take the rest from it."""
        common = self.kept.table.common_end(self.end, table, end)
        self.copying = Copying(source, table, None if for_good else end)
        cut = self.kept.table.cut(common)
        # Rows that began at the cut and are not the other's never were, either.
        cut = Generations([row for row in cut.rows if row in table.rows])
        if common < self.end:
            self.end = common
            self.synced_end = min(self.synced_end, common)
            self.cuts += 1
            yield CutBack(common)
        if cut != self.kept.table:
            yield self._keep(table=cut)
        yield from self._go_on()

    def _go_on(self) -> Iterator[Effect]:
        """Enter what can be entered, and ask for what comes next."""
        copying = self.copying
        if copying is None:
            return
        if self.synced_end < self.end:
            yield Sync(self.end, self.cuts)
        else:
            yield from self._enter_rows(copying)
        if copying.end is None:
            yield from self._tell_equal(copying.source)
        elif self.synced_end == self.end:
            yield from self._adopt(copying, copying.end)

    def _tell_equal(self, leader: BrokerId) -> Iterator[Effect]:
        """Also while more is being synced: a leader that never pauses must hear of what is safe."""
        assert self._following is not None
        generation = self._following[1]
        entered = self.kept.table.last == generation
        is_trusted = self.kept.is_trusted
        yield Tell(leader, Equal(self.me, generation, self.synced_end, entered, is_trusted, self.move))

    def _adopt(self, copying: Copying, end: Offset) -> Iterator[Effect]:
        if self.end >= end:
            yield from self._open_when_synced()
        else:
            yield from self._ask()

    def _enter_rows(self, copying: Copying) -> Iterator[Effect]:
        table = self.kept.table
        for row in copying.table.rows:
            if row.generation > table.last and row.start == self.end:
                table = table.entered(*row)
        if table != self.kept.table:
            self._entered_ms = self._now_ms
            yield self._keep(table=table)

    # --- following --------------------------------------------------------------------------------------------------

    def _on_enter(self, message: Enter) -> Iterator[Effect]:
        if message.table.last != message.generation:
            return  # Nobody who leads says that.
        if message.generation < self.kept.promised:
            yield Tell(message.sender, Outdated(self.me, self.kept.promised))
            return
        if self._following != (message.sender, message.generation):
            self._stop()
            self._following = (message.sender, message.generation)
            if message.generation > self.kept.promised:
                yield self._keep(promised=message.generation)
            self._entered_ms = self._now_ms
            # What we have of its own generation we have from it, and it has not less.
            end = max(self.end, message.table.rows[-1].start)
            yield from self._copy(message.sender, message.table, end, for_good=True)
        else:
            yield from self._go_on()
        self._heard_leader_ms = self._now_ms
        yield from self._trust(message)

    def _trust(self, message: Enter) -> Iterator[Effect]:
        known = message.returns.get(self.me)
        if self.kept.return_id is not None and known == self.kept.return_id:
            self._knows_of_us = message.generation
            yield from self._trust_if_entered()

    def _trust_if_entered(self) -> Iterator[Effect]:
        if self.kept.return_id is None or self.kept.table.last != self._knows_of_us:
            return
        if not self._is_strange:
            yield self._keep(return_id=None)
            yield from self._go_on()
        elif self._is_time(self._asked_for_disk_ms, BEAT_MS):
            self._asked_for_disk_ms = self._now_ms
            yield AskForDisk()

    def find_disk(self, strange: ReturnId | None) -> Iterator[Effect]:
        """The agreed table names this disk for us; or another one (`strange`: by what name we have come back), and then
        what we have and promised is not all that this replica has. Where we keep it alone, it is all there is."""
        was_strange, self._is_strange = self._is_strange, strange is not None and bool(self.others)
        if not self._is_strange:
            yield from self._trust_if_entered()
        elif not was_strange:
            self._stop()
            self._knows_of_us = None
            yield self._keep(return_id=strange)

    def _on_push(self, message: Push) -> Iterator[Effect]:
        copying = self.copying
        if copying is None or message.sender != copying.source or not self._is_current(message):
            if message.generation < self.kept.promised:
                yield Tell(message.sender, Outdated(self.me, self.kept.promised))
            return
        self._heard_leader_ms = self._now_ms
        self._heard_safe = message.safe
        if message.start > self.end or message.start < self.end < message.end:
            yield from self._ask()  # One before it was lost.
            return
        if message.start < self.end or message.written_in != self.kept.table.last:
            yield from self._go_on()
            return
        yield Take(message)
        self.end = message.end
        yield Sync(self.end, self.cuts)
        yield from self._publish(min(message.safe, self.end))

    def not_taken(self, end: Offset, published: Offset, is_refused: bool) -> Iterator[Effect]:
        """The records of the last `Take` were spoiled, or the disk refused them: our log still ends at `end`, and what
        was to be done after it is left undone."""
        self.end = end
        self.safe = published
        if is_refused:
            self._refused_ms, self.due_ms = self._now_ms, AT_ONCE_MS
        else:
            yield from self._ask()

    def refused(self) -> Iterator[Effect]:
        """The disk takes nothing, or we are about to stop: whoever leads has to let somebody else, and says so."""
        self._refused_ms = self._told_return_ms = self._now_ms
        self._stop()
        yield from self._tell_all(Returned(self.me, self.kept.promised, ""))

    def _is_current(self, message: Message) -> bool:
        if self.candidate is not None:
            return message.generation == self.candidate.generation
        return self._following == (message.sender, message.generation)

    def _on_beat(self, message: Beat) -> Iterator[Effect]:
        if message.generation < self.kept.promised:
            yield Tell(message.sender, Outdated(self.me, self.kept.promised))
            return
        self._heard_safe = message.safe
        if self._following == (message.sender, message.generation):
            self._heard_leader_ms = self._now_ms
            if self.kept.table.last == message.generation:
                yield from self._publish(min(message.safe, self.synced_end))
            yield from self._go_on()
        elif self.candidate is None:  # We were not there when it began.
            yield Tell(message.sender, Pull(self.me, message.generation, self.end))

    # --- leading ----------------------------------------------------------------------------------------------------

    def appended(self, end: Offset) -> Iterator[Effect]:
        """The leader's log has grown."""
        assert self.leader is not None
        self.end = end
        for broker in self.leader.followers:
            yield from self._push(broker, self.leader)
        yield Sync(end, self.cuts)

    def _push(self, broker: BrokerId, leader: Leader) -> Iterator[Effect]:
        follower = leader.followers[broker]
        while follower.next is not None and self._may_push(follower, follower.next):
            push = self._piece(follower.next, leader.generation, self.end)
            if not follower.under_way:
                follower.moved_ms = self._now_ms
            follower.next = push.end
            follower.under_way.append(push.end)
            yield Tell(broker, push)

    def _may_push(self, follower: Follower, start: Offset) -> bool:
        if start >= self.end or len(follower.under_way) >= PUSHES_UNDER_WAY_MAX:
            return False
        # Of a later generation it takes nothing before it has entered that, with all that lies below on its disk.
        return follower.equal_end >= start or not self.kept.table.has_row_at(start)

    def not_sent(self, broker: BrokerId, start: Offset) -> None:
        """A push that begins here, and all that came after, did not leave: there was no room. The next tick tries
        again."""
        follower = self.leader.followers.get(broker) if self.leader is not None else None
        if follower is None or follower.next is None or follower.next <= start:
            return
        follower.next = start
        while follower.under_way and follower.under_way[-1] > start:
            follower.under_way.pop()

    def push_on(self) -> Iterator[Effect]:
        """There may be room again."""
        if self.leader is not None:
            for broker in self.leader.followers:
                yield from self._push(broker, self.leader)

    def _piece(self, start: Offset, generation: Generation, end: Offset) -> Push:
        """Records of one generation, and not too many."""
        written_in = self.kept.table.at(start)
        _, written_end = self.kept.table.end_of(written_in, end)
        stop = self._fits(start, min(written_end, end))
        assert start < stop <= min(written_end, end), f"{start} to {stop} of {written_end}"
        return Push(self.me, generation, start, stop, written_in, self.safe)

    def _on_pull(self, message: Pull) -> Iterator[Effect]:
        """Of a candidate that we promised: our log is the best. Or of somebody who does not follow us yet, or has
        missed something: it begins again, and says where."""
        if self.leader is not None:
            if message.sender in self.leader.followers:
                self.leader.followers[message.sender].begin_again(None)
                yield self._enter(message.sender, self.leader)
        elif message.generation == self.kept.promised and message.start < self.synced_end:
            yield Tell(message.sender, self._piece(message.start, message.generation, self.synced_end))

    def _on_equal(self, message: Equal) -> Iterator[Effect]:
        leader = self.leader
        follower = None if leader is None else leader.followers.get(message.sender)
        if leader is None or follower is None or message.generation != leader.generation:
            return
        is_replica = message.sender in self.replicas
        if message.end > self.end or (not is_replica and message.move != self.move):
            return
        follower.heard_ms = self._now_ms
        follower.has_entered, follower.is_trusted = message.has_entered, message.is_trusted
        counted, follower.counts = follower.counts, message.has_entered and message.is_trusted and is_replica
        # One that counts no more has come back with another disk, or less on it than it had.
        still = counted and follower.counts
        follower.equal_end = max(follower.equal_end, message.end) if still else message.end
        if follower.counts != counted:
            follower.is_close = follower.counts
        follower.answered(message.end, self._now_ms)
        yield from self._push(message.sender, leader)
        yield from self._advance()

    def _advance(self) -> Iterator[Effect]:
        leader = self.leader
        if leader is None:
            return
        ends = [follower.equal_end for follower in leader.followers.values() if follower.counts]
        if self.others and not ends:
            return
        safe = min(self.synced_end, max(ends, default=self.synced_end))
        if safe >= leader.start:
            yield from self._publish(safe)
            yield from self._leave_office()

    def _publish(self, safe: Offset) -> Iterator[Effect]:
        if safe > self.safe:
            self.safe = safe
            yield Publish(safe)

    # --- events -----------------------------------------------------------------------------------------------------

    def synced(self, end: Offset, cuts: int) -> Iterator[Effect]:
        """What a `Sync` asked for is done."""
        if cuts != self.cuts or end <= self.synced_end:
            return
        assert end <= self.end, f"{end} is synced of {self.end}"
        self.synced_end = end
        if self.leader is not None:
            yield from self._advance()
        elif self.candidate is not None and self.copying is None:
            yield from self._decide()
        else:
            yield from self._go_on()
            yield from self._trust_if_entered()

    def at(self, now_ms: int) -> None:
        """What comes next happens now."""
        self._now_ms = now_ms

    def heard(self, message: Message) -> Iterator[Effect]:
        effects: Iterator[Effect] = getattr(self, _HEARD[type(message)])(message)
        return effects

    def _on_outdated(self, message: Outdated) -> Iterator[Effect]:
        if message.generation > self.kept.promised:
            self._stop()
            self._wait_for_leader()
            yield self._keep(promised=message.generation)

    def _on_missing(self, message: Missing) -> Iterator[Effect]:
        self._missing_ms[message.sender] = self._now_ms
        yield from ()

    def _on_returned(self, message: Returned) -> Iterator[Effect]:
        """A leader that does not know of it yet opens a generation that does."""
        self._returned_ms[message.sender] = self._now_ms
        if not message.return_id:
            yield from self._without(message.sender)  # It has everything it had, and is no leader now.
            return
        self._returns[message.sender] = message.return_id
        leader = self.leader
        if (
            leader is not None
            and message.sender in leader.followers
            and leader.returns.get(message.sender) != message.return_id
            and self.kept.sealed is None
        ):
            yield from self.propose()

    def _without(self, broker: BrokerId) -> Iterator[Effect]:
        """If it led us, somebody else may, at once."""
        if self.leader_id != broker:
            return
        self._heard_leader_ms = self._now_ms - SILENCE_MS
        self.due_ms = AT_ONCE_MS
        if self._should_lead():
            yield from self.propose()

    def _tell_all(self, message: Message) -> Iterator[Effect]:
        for broker in self.others:
            yield Tell(broker, message)


@lru_cache(maxsize=1024)
def _but(me: BrokerId, brokers: tuple[BrokerId, ...]) -> tuple[BrokerId, ...]:
    """All of them but us, each once. Kept, because it is asked for with every message."""
    return tuple(dict.fromkeys(broker for broker in brokers if broker != me))


_HEARD = {
    Propose: "_on_propose",
    Promise: "_on_promise",
    Enter: "_on_enter",
    Pull: "_on_pull",
    Push: "_on_push",
    Equal: "_on_equal",
    Beat: "_on_beat",
    Outdated: "_on_outdated",
    Returned: "_on_returned",
    Missing: "_on_missing",
    Seal: "_on_seal",
    Sealed: "_on_sealed",
}
"""Looked up by name when it is needed: tests put broken rules in the place of one."""
