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
   left has (`recovery.py`).

A partition goes over to other replicas by a new *view*: `moves.py`.

Effects are carried out in the order of the list, each before the next: what is remembered is on the disk before
anybody is told.
"""

from collections.abc import Iterator

from anabranch.modes.generations import Generations
from anabranch.modes.mode import Publish
from anabranch.modes.ring.effects import (
    AskForDisk,
    CutBack,
    Effect,
    Sync,
    Take,
    Tell,
)
from anabranch.modes.ring.messages import (
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
from anabranch.modes.ring.moves import RingMoves
from anabranch.modes.ring.roles import Candidate, Copying, Follower, Leader
from anabranch.modes.ring.state import AT_ONCE_MS, SILENCE_MS
from anabranch.values import BrokerId, Generation, Offset

PROPOSE_AGAIN_MS = 500
BEAT_MS = 500
REIGN_MS_MIN = 5000
PUSHES_UNDER_WAY_MAX = 8
"""To one follower; what comes after waits, and leaves together."""
SEND_AGAIN_MS = 2 * BEAT_MS
"""What a follower has not answered by then is taken for lost."""
RESIGN_MS_MAX = 1000
"""How long a leader that goes waits for what it has taken to be safe."""
NOTHING = Offset(0), Generations()
"""What a replica has to offer that is not trusted."""


class RingReplica(RingMoves):
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
        if self._is_strange:
            yield from self._trust_if_entered()
        yield from self._settle()
        self.due_ms = self._next_due_ms()

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
