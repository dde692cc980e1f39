"""The writer against a store and a table that do what they may, in any order: late, twice, without saying so.

Invariants, checked at each step: nothing is proposed before the writer heard that it is stored; numbers are proposed in
their order, and a number means one segment or nothing; every batch is answered exactly once, and with success only if
the table has it; when a segment fails, so does everything gathered after it; bytes held are bounded. After the faults a
calm, in which everything ends.
"""

from collections import Counter
from random import Random

import pytest

from anabranch.modes.object.events import (
    Answer,
    Applied,
    Arrived,
    Effect,
    Event,
    Fail,
    Jumped,
    ProposalEnded,
    Propose,
    Reason,
    Refuse,
    Registered,
    Stop,
    Store,
    Stored,
    StoreFailed,
    Take,
    Tick,
)
from anabranch.modes.object.writer import Limits, ObjectWriter

BATCH_MAX = 400
LIMITS = Limits(gather_ms=100, gather_bytes=600, puts_max=3, held_bytes_max=3000)

Commits = list[tuple[int, int | None]]


class World:
    def __init__(self, seed: int, writer: type[ObjectWriter] = ObjectWriter) -> None:
        self.rng = Random(seed)
        self.writer = writer(LIMITS, self.rng.randrange)
        self.now_ms = 0
        self.counts: Counter[str] = Counter()
        # The store.
        self.puts: dict[int, int] = {}
        self.heard_stored: set[int] = set()
        # The table, as this broker has applied it.
        self.epoch: int | None = None
        self.is_fenced = False
        self.last_number = -1
        self.kept: list[int] = []
        """Serial numbers of the segments in it, in order."""
        # Proposals: under way, and those that may be applied whenever.
        self.under_way: dict[int, tuple[int, Commits]] = {}
        self.counted_on: int | None = None
        """The proposal that nothing has overtaken yet."""
        self.floating: list[tuple[int, Commits]] = []
        self.meaning: dict[tuple[int | None, int], int] = {}
        # Producers.
        self.open: dict[int, list[int]] = {}

    # --- the writer, and what it must keep to

    def do(self, event: Event) -> None:
        before = set(self.open)
        effects = self.writer.step(event, self.now_ms)
        for effect in effects:
            self.carry_out(effect, event)
        failed = [
            each.serial for each in effects if isinstance(each, Fail) and each.reason is not Reason.UNKNOWN
        ]
        if failed:
            left = before & set(self.open)
            assert all(each < min(failed) for each in left), "what is behind a failure goes on"
        held = sum(map(sum, self.open.values()))
        assert self.writer.held_bytes == held
        assert held < LIMITS.held_bytes_max + BATCH_MAX

    def carry_out(self, effect: Effect, event: Event) -> None:
        self.counts[type(effect).__name__] += 1
        match effect:
            case Take():
                assert isinstance(event, Arrived)
                assert not self.is_fenced, "nothing counts now"
                self.open.setdefault(effect.serial, []).append(event.size)
            case Refuse():
                is_full = self.writer.held_bytes >= LIMITS.held_bytes_max
                assert self.is_fenced or is_full or effect.reason is Reason.STOPPING
            case Store():
                assert effect.serial not in self.puts, "one try at a time"
                assert (
                    self.meaning.setdefault((self.writer.epoch, effect.number), effect.serial)
                    == effect.serial
                )
                self.puts[effect.serial] = effect.number
                assert len(self.puts) <= LIMITS.puts_max
            case Propose():
                self.proposed(effect)
            case Answer():
                assert effect.serial in self.kept, "acknowledged, and not in the table"
                self.end(effect.serial)
            case Fail():
                assert effect.reason is Reason.UNKNOWN or effect.serial not in self.kept
                self.end(effect.serial)

    def end(self, serial: int) -> None:
        del self.open[serial]
        self.puts.pop(serial, None)

    def proposed(self, effect: Propose) -> None:
        assert self.counted_on not in self.under_way, "one proposal at a time"
        self.counted_on = effect.proposal
        assert self.epoch is not None
        assert not self.is_fenced, "nothing counts now"
        numbers = [number for number, _ in effect.commits]
        assert numbers == list(range(self.last_number + 1, self.last_number + 1 + len(numbers)))
        for number, serial in effect.commits:
            if serial is not None:
                assert serial in self.heard_stored, "proposed before it was stored"
                assert self.meaning[self.epoch, number] == serial
        self.under_way[effect.proposal] = self.epoch, list(effect.commits)

    # --- what happens to it

    def apply(self, epoch: int, commits: Commits) -> None:
        """As the table does."""
        for number, serial in commits:
            counts = epoch == self.epoch and not self.is_fenced and number == self.last_number + 1
            if counts:
                self.last_number = number
                if serial is not None:
                    self.kept.append(serial)
            if epoch == self.epoch and (counts or self.is_fenced):
                self.note_overtaken(number)
                self.do(Applied(number, counts))

    def note_overtaken(self, number: int) -> None:
        if self.counted_on in self.under_way and number >= self.under_way[self.counted_on][1][-1][0]:
            self.counted_on = None

    def something(self) -> None:
        rng = self.rng
        match rng.randrange(14):
            case 0 | 1 | 2 | 3:
                self.do(Arrived(rng.randint(1, BATCH_MAX)))
            case 4 | 5:
                self.end_put(rng.choice([True, True, False]))
            case 6:
                self.end_proposal(rng.choice(["agreed", "agreed", "lost", "late"]))
            case 7 | 8:
                self.apply_floating()
            case 10 if rng.random() < 0.1:
                self.register()
            case 11 if rng.random() < 0.1:
                self.fence(not self.is_fenced)
            case 12 if rng.random() < 0.1:
                self.jump()
            case _:
                self.pass_time(rng.choice([1, 20, 150, 2000]))

    def end_put(self, is_good: bool) -> None:
        if self.puts:
            serial = self.rng.choice(list(self.puts))
            del self.puts[serial]
            if is_good:
                self.heard_stored.add(serial)
            self.do(Stored(serial) if is_good else StoreFailed(serial))

    def end_proposal(self, how: str) -> None:
        if not self.under_way:
            return
        proposal = self.rng.choice(list(self.under_way))
        epoch, commits = self.under_way.pop(proposal)
        if how == "agreed" and self.rng.random() < 0.5:
            self.apply(epoch, commits)
        elif how != "lost":
            self.floating.append((epoch, commits))
        self.do(ProposalEnded(proposal, is_agreed=how == "agreed"))

    def apply_floating(self) -> None:
        """The order of the log is not that of the asking: a question may have been long on its way."""
        if self.floating:
            place = self.rng.randrange(len(self.floating))
            epoch, commits = self.floating[place]
            if self.rng.random() < 0.8:
                del self.floating[place]
            self.apply(epoch, commits)

    def register(self) -> None:
        self.epoch = (self.epoch or 0) + self.rng.randint(1, 9)
        self.last_number, self.is_fenced = -1, False
        self.counted_on = None
        self.do(Registered(self.epoch))

    def fence(self, is_fenced: bool) -> None:
        if self.epoch is not None:
            self.is_fenced = is_fenced
            self.counted_on = None if is_fenced else self.counted_on
            self.do(Registered(self.epoch, is_fenced))

    def jump(self) -> None:
        """Some of what floats was applied before the snapshot; of that we only see how far it went."""
        for epoch, commits in (*self.floating, *self.under_way.values()):
            for number, serial in commits:
                if epoch == self.epoch and not self.is_fenced and number == self.last_number + 1:
                    self.last_number = number
                    if serial is not None:
                        self.kept.append(serial)
        self.counted_on = None
        self.do(Jumped(self.last_number))

    def pass_time(self, milliseconds: int) -> None:
        end_ms = self.now_ms + milliseconds
        for _ in range(1000):
            due_ms = self.writer.due_ms()
            if due_ms is None or due_ms > end_ms:
                break
            self.now_ms = max(self.now_ms, due_ms)
            self.do(Tick())
        else:
            raise AssertionError("it wants to be woken for ever")
        self.now_ms = end_ms

    def calm(self) -> None:
        if self.epoch is None:
            self.register()
        self.fence(False)
        for _ in range(2000):
            if self.writer.is_idle:
                break
            self.end_put(True)
            self.end_proposal("agreed")
            while self.floating:
                epoch, commits = self.floating.pop(0)
                self.apply(epoch, commits)
            self.pass_time(100)
        assert self.writer.is_idle
        assert not self.open
        assert self.writer.held_bytes == 0
        assert self.kept == sorted(self.kept), "kept in another order than it came"
        assert len(set(self.kept)) == len(self.kept), "kept twice"


def run(seed: int, writer: type[ObjectWriter] = ObjectWriter, steps: int = 400) -> Counter[str]:
    world = World(seed, writer)
    for _ in range(steps):
        world.something()
    world.calm()
    if seed % 2:
        world.do(Stop())
        world.do(Stop(is_over=True))
    return world.counts


def test_the_rules_hold_in_any_order_of_events() -> None:
    counts: Counter[str] = Counter()
    for seed in range(400):
        counts += run(seed)
    # It is no test if nothing happens in it.
    for kind in ("Take", "Refuse", "Store", "Propose", "Answer", "Fail"):
        assert counts[kind] > 400, counts


# --- mutants: each of these must be noticed --------------------------------------------------------------------------


class ProposesBeforeStored(ObjectWriter):
    def _ready(self) -> Commits:
        return [(number, each.serial if each else None) for number, each in self._open.items()]


class ProposesOutOfOrder(ObjectWriter):
    def _ready(self) -> Commits:
        ready = [(number, each) for number, each in self._open.items() if each is None or each.is_stored]
        return [(number, each.serial if each else None) for number, each in ready]


class KeepsWhatIsBehindAFailure(ObjectWriter):
    def _fail_from(self, number: int, reason: Reason, effects: list[Effect]) -> None:
        segment = self._open.get(number)
        if segment is not None:
            self._open[number] = None
            self._fail(segment, reason, effects)
        elif number == 0:
            super()._fail_from(number, reason, effects)


class ReusesNumbers(ObjectWriter):
    def _fail_from(self, number: int, reason: Reason, effects: list[Effect]) -> None:
        super()._fail_from(number, reason, effects)
        for each in [each for each in self._open if each >= number]:
            del self._open[each]
            self._next_number = min(self._next_number, each)


class GoesOnAfterAJump(ObjectWriter):
    def _jumped(self, last_number: int, effects: list[Effect]) -> None:
        self._proposal = None


class HoldsWithoutLimit(ObjectWriter):
    def _refusal(self) -> Reason | None:
        return Reason.NOT_REGISTERED if self._is_fenced else None


class ForgetsTheFence(ObjectWriter):
    def _registered(self, event: Registered, effects: list[Effect]) -> None:
        super()._registered(Registered(event.epoch), effects)


class NeverAsksAgain(ObjectWriter):
    def _proposal_ended(self, event: ProposalEnded, now_ms: int) -> None:
        pass


class NeverGivesUp(ObjectWriter):
    def _store_failed(self, serial: int, now_ms: int) -> None:
        pass


@pytest.mark.parametrize(
    "mutant",
    [
        ProposesBeforeStored,
        ProposesOutOfOrder,
        KeepsWhatIsBehindAFailure,
        ReusesNumbers,
        GoesOnAfterAJump,
        HoldsWithoutLimit,
        ForgetsTheFence,
        NeverAsksAgain,
        NeverGivesUp,
    ],
)
def test_a_writer_that_breaks_a_rule_is_caught(mutant: type[ObjectWriter]) -> None:
    caught = 0
    for seed in range(60):
        try:
            run(seed, mutant)
        except (AssertionError, KeyError):
            caught += 1
    assert caught, f"{mutant.__name__} passes"
