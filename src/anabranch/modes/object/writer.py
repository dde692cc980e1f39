"""ObjectWriter: decides when a broker stores what it has gathered, and in which order that is agreed on.

What producers send is gathered in one segment for all partitions (ACTIVE), which is closed when it is old or large
enough (SEALED), gets its number and is stored (FLUSHING), and is over once its commit is applied (FLUSHED):

    ACTIVE > SEALED > FLUSHING: being stored > stored > proposed > FLUSHED, its producers answered

Numbers count from 0 within one registration of the broker. Several segments are stored at once, in any order; they are
proposed in the order of their numbers, each only once it and all before it are stored, everything that is ready in one
proposal, and one proposal at a time. One whose fate is not known is made again until this broker has applied it: the
table takes a number once.

A number that fails is *void*: it is proposed without anything in it, so that the next ones may follow. With it fails
everything behind it, the active segment too: a producer that has several batches under way must not have the second
one kept and the first one refused. This happens to what could not be stored for `GIVE_UP_MS`, and to everything when
the broker is fenced; a new registration forgets all numbers of the one before.

Pure: events in, effects out, in order. Segments are told apart by a serial number of their own. The bytes are the
driver's (`broker/object/writer_driver.py`); here they are only counted.
"""

from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

from anabranch.modes.object.events import (
    Answer,
    Applied,
    Arrived,
    Effect,
    Event,
    Fail,
    Jumped,
    NameTaken,
    ProposalEnded,
    Propose,
    Reason,
    Refuse,
    Registered,
    Stop,
    Store,
    StoreAnswers,
    Stored,
    StoreFailed,
    Take,
)
from anabranch.values import SegmentState

GATHER_BATCHES_MAX = 20_000
GIVE_UP_MS = 30_000
STORE_AGAIN_MS_MIN = 100
STORE_AGAIN_MS_MAX = 1_000
PROPOSE_AGAIN_MS_MIN = 50
PROPOSE_AGAIN_MS_MAX = 1_000
APPLIED_MS_MAX = 10_000
"""A proposal that was agreed on so long ago and is not applied here is made again."""
PROPOSAL_SEGMENTS_MAX = 256
PROPOSAL_BATCHES_MAX = GATHER_BATCHES_MAX
"""In one proposal, unless a single segment has more."""


class Limits(NamedTuple):
    """From the node's settings."""

    gather_ms: int
    gather_bytes: int
    puts_max: int
    held_bytes_max: int
    """Gathered and not yet agreed on, whether somebody waits for it or not."""


# --- segments ------------------------------------------------------------------------------------------------------


class Segment:
    """One object in the making."""

    __slots__ = (
        "again_ms",
        "batches",
        "failed_ms",
        "failures",
        "is_stored",
        "number",
        "opened_ms",
        "pauses",
        "serial",
        "size",
        "state",
    )

    def __init__(self, serial: int, now_ms: int) -> None:
        self.serial = serial
        self.opened_ms = now_ms
        self.state = SegmentState.ACTIVE
        self.number = -1
        self.batches = 0
        self.size = 0
        self.is_stored = False
        self.failures = 0
        self.pauses = 0
        """Failures since the store last answered: how long the next pause is."""
        self.failed_ms: int | None = None
        """Since when it could not be stored."""
        self.again_ms: int | None = None
        """When it is tried again; None: a try is under way, or none is needed."""


class SegmentView(NamedTuple):
    """One line for people."""

    state: SegmentState
    number: int | None
    batches: int
    size: int
    age_ms: int
    failures: int
    is_stored: bool


class Proposal:
    __slots__ = ("again_ms", "last_number", "serial")

    def __init__(self, serial: int, last_number: int) -> None:
        self.serial = serial
        self.last_number = last_number
        self.again_ms: int | None = None
        """When it is made again, unless it is applied before; None: once it has ended."""


# --- the writer ----------------------------------------------------------------------------------------------------


class ObjectWriter:
    def __init__(self, limits: Limits, chance: Callable[[int], int]) -> None:
        self._limits = limits
        self._chance = chance
        self._epoch: int | None = None
        self._is_fenced = False
        self._is_stopping = self._is_over = False
        self._serial = 0
        self._next_number = 0
        self._segments: dict[int, Segment] = {}
        """All whose bytes are held, by serial number."""
        self._active: Segment | None = None
        self._sealed: deque[Segment] = deque()
        self._open: dict[int, Segment | None] = {}
        """Numbers that are not applied yet, in order; None: void."""
        self._proposal: Proposal | None = None
        self._proposal_serial = 0
        self._proposal_failures = 0
        self.held_bytes = 0
        self.flushed_segments = 0
        self.flushed_batches = 0
        self.flushed_bytes = 0
        self.void_numbers = 0

    def step(self, event: Event, now_ms: int) -> list[Effect]:
        effects: list[Effect] = []
        if isinstance(event, Arrived) and not self._arrived(event.size, now_ms, effects):
            return effects  # The commonest case: one more.
        if self._is_over:
            return effects
        match event:
            case Applied():
                self._applied(event, effects)
            case Registered():
                self._registered(event, effects)
            case Jumped():
                self._jumped(event.last_number, effects)
            case NameTaken():
                self._name_taken(event.serial, effects)
            case Stop():
                self._stop(event, effects)
            case _:
                self._note(event, now_ms)
        self._go_on(now_ms, effects)
        return effects

    def _note(self, event: Event, now_ms: int) -> None:
        """What by itself has no effect."""
        match event:
            case Stored():
                self._stored(event.serial, now_ms)
            case StoreFailed():
                self._store_failed(event.serial, now_ms)
            case StoreAnswers():
                self._store_answers(now_ms)
            case ProposalEnded():
                self._proposal_ended(event, now_ms)

    # --- what people and the driver ask ------------------------------------------------------------------------------

    @property
    def epoch(self) -> int | None:
        return self._epoch

    @property
    def is_crowded(self) -> bool:
        """Half of what may be held is: who sends more should wait."""
        return self.held_bytes * 2 >= self._limits.held_bytes_max

    @property
    def is_idle(self) -> bool:
        """Nothing is gathered, and nothing waits for its commit."""
        return self._active is None and not self._sealed and not self._open

    def due_ms(self) -> int | None:
        """When a Tick is wanted; None: only events can change anything."""
        times = [each.again_ms for each in self._flushing() if each.again_ms is not None]
        times += [each.failed_ms + GIVE_UP_MS for each in self._flushing() if each.failed_ms is not None]
        if self._active is not None and self._may_store:
            times.append(self._active.opened_ms + self._limits.gather_ms)
        if self._proposal is not None and self._proposal.again_ms is not None and self._may_propose:
            times.append(self._proposal.again_ms)
        return min(times, default=None)

    def describe(self, now_ms: int) -> list[SegmentView]:
        """The segments there are now, the oldest first."""
        segments = [each for each in self._open.values() if each is not None]
        segments += [*self._sealed, *([self._active] if self._active is not None else [])]
        return [
            SegmentView(
                each.state,
                each.number if each.number >= 0 else None,
                each.batches,
                each.size,
                now_ms - each.opened_ms,
                each.failures,
                each.is_stored,
            )
            for each in segments
        ]

    # --- gathering -----------------------------------------------------------------------------------------------

    def _arrived(self, size: int, now_ms: int, effects: list[Effect]) -> bool:
        """Whether a segment is full now."""
        refusal = self._refusal()
        if refusal is not None:
            effects.append(Refuse(refusal))
            return False
        active = self._active
        if active is None:
            self._serial += 1
            active = self._active = self._segments[self._serial] = Segment(self._serial, now_ms)
        active.batches += 1
        active.size += size
        self.held_bytes += size
        effects.append(Take(active.serial))
        is_full = active.size >= self._limits.gather_bytes or active.batches >= GATHER_BATCHES_MAX
        if is_full:
            self._seal()
        return is_full

    def _refusal(self) -> Reason | None:
        if self._is_stopping:
            return Reason.STOPPING
        if self._is_fenced:
            return Reason.NOT_REGISTERED
        if self.held_bytes >= self._limits.held_bytes_max:
            return Reason.STORE_AWAY
        return None

    def _seal(self) -> None:
        assert self._active is not None
        self._active.state = SegmentState.SEALED
        self._sealed.append(self._active)
        self._active = None

    # --- storing -------------------------------------------------------------------------------------------------

    def _go_on(self, now_ms: int, effects: list[Effect]) -> None:
        """Begin everything that may begin now."""
        self._give_up_if_due(now_ms, effects)
        for segment in self._flushing():
            if segment.again_ms is not None and segment.again_ms <= now_ms:
                segment.again_ms = None
                effects.append(Store(segment.serial, segment.number))
        while self._may_store and self._seal_if_due(now_ms):
            self._flush_next(effects)
        self._propose_if_due(now_ms, effects)

    @property
    def _may_store(self) -> bool:
        """Somebody else may be stored now. While nobody may, what is gathered grows instead of getting old."""
        has_room = sum(1 for _ in self._flushing()) < self._limits.puts_max
        return self._epoch is not None and not self._is_fenced and has_room

    def _seal_if_due(self, now_ms: int) -> bool:
        """Whether there is a sealed one."""
        active = self._active
        if active is not None and not self._sealed:
            is_old = now_ms - active.opened_ms >= self._limits.gather_ms
            if is_old or self._is_stopping:
                self._seal()
        return bool(self._sealed)

    def _flush_next(self, effects: list[Effect]) -> None:
        segment = self._sealed.popleft()
        segment.state = SegmentState.FLUSHING
        segment.number = self._next_number
        self._next_number += 1
        self._open[segment.number] = segment
        effects.append(Store(segment.serial, segment.number))

    def _flushing(self) -> Iterator[Segment]:
        """Those that the store does not have yet."""
        for segment in self._open.values():
            if segment is not None and not segment.is_stored:
                yield segment

    def _stored(self, serial: int, now_ms: int) -> None:
        segment = self._segments.get(serial)
        if segment is not None:
            segment.is_stored = True
            segment.again_ms = segment.failed_ms = None
        self._store_answers(now_ms)

    def _store_answers(self, now_ms: int) -> None:
        """What was to wait for that need not, and begins again with a short pause should it fail once more."""
        for segment in self._flushing():
            segment.pauses = 0
            segment.again_ms = None if segment.again_ms is None else now_ms

    def _store_failed(self, serial: int, now_ms: int) -> None:
        segment = self._segments.get(serial)
        if segment is None or segment.is_stored:
            return
        if segment.failed_ms is None:
            segment.failed_ms = now_ms
        pause_ms = _pause_ms(segment.pauses, STORE_AGAIN_MS_MIN, STORE_AGAIN_MS_MAX)
        segment.failures += 1
        segment.pauses += 1
        segment.again_ms = now_ms + pause_ms // 2 + self._chance(pause_ms // 2 + 1)

    def _name_taken(self, serial: int, effects: list[Effect]) -> None:
        segment = self._segments.get(serial)
        if segment is not None:
            self._fail_from(segment.number, Reason.STORE_AWAY, effects)

    def _give_up_if_due(self, now_ms: int, effects: list[Effect]) -> None:
        for segment in self._flushing():
            if segment.failed_ms is not None and now_ms - segment.failed_ms >= GIVE_UP_MS:
                self._fail_from(segment.number, Reason.STORE_AWAY, effects)
                return

    # --- proposing -----------------------------------------------------------------------------------------------

    @property
    def _may_propose(self) -> bool:
        return self._epoch is not None and not self._is_fenced

    def _propose_if_due(self, now_ms: int, effects: list[Effect]) -> None:
        proposal = self._proposal
        if proposal is not None and (proposal.again_ms is None or proposal.again_ms > now_ms):
            return
        commits = self._ready() if self._may_propose else []
        if not commits:
            return
        self._proposal_serial += 1
        self._proposal = Proposal(self._proposal_serial, commits[-1][0])
        effects.append(Propose(self._proposal_serial, commits))

    def _ready(self) -> list[tuple[int, int | None]]:
        """The numbers that may be committed now: there is none before them that may not."""
        commits: list[tuple[int, int | None]] = []
        batches = 0
        for number, segment in self._open.items():
            if segment is None:
                commits.append((number, None))
            elif not segment.is_stored or (commits and batches + segment.batches > PROPOSAL_BATCHES_MAX):
                break
            else:
                batches += segment.batches
                commits.append((number, segment.serial))
            if len(commits) >= PROPOSAL_SEGMENTS_MAX:
                break
        return commits

    def _proposal_ended(self, event: ProposalEnded, now_ms: int) -> None:
        proposal = self._proposal
        if proposal is None or proposal.serial != event.proposal:
            return
        if event.is_agreed:
            proposal.again_ms = now_ms + APPLIED_MS_MAX
            return
        pause_ms = _pause_ms(self._proposal_failures, PROPOSE_AGAIN_MS_MIN, PROPOSE_AGAIN_MS_MAX)
        self._proposal_failures += 1
        proposal.again_ms = now_ms + pause_ms // 2 + self._chance(pause_ms // 2 + 1)

    def _applied(self, event: Applied, effects: list[Effect]) -> None:
        number = event.number
        if number not in self._open:
            return  # A proposal that was made twice.
        proposal = self._proposal
        if proposal is not None and number >= proposal.last_number:
            self._proposal = None
            self._proposal_failures = 0
        if not event.counts:
            self._fail_from(number, Reason.NOT_REGISTERED, effects)
            return
        assert number == next(iter(self._open)), "numbers are applied in their order"
        segment = self._open.pop(number)
        if segment is None:
            self.void_numbers += 1
            return
        segment.state = SegmentState.FLUSHED
        self.flushed_segments += 1
        self.flushed_bytes += segment.size
        self.flushed_batches += segment.batches
        self._let_go(segment)
        effects.append(Answer(segment.serial))

    def _jumped(self, last_number: int, effects: list[Effect]) -> None:
        """Over some that may have been committed; what was proposed beyond that is proposed again."""
        for number in [each for each in self._open if each <= last_number]:
            segment = self._open.pop(number)
            if segment is not None:
                self._fail(segment, Reason.UNKNOWN, effects)
        self._proposal = None

    def _stop(self, event: Stop, effects: list[Effect]) -> None:
        self._is_stopping = True
        if event.is_over:
            self._fail_all(Reason.STOPPING, effects)
            self._open.clear()  # Another registration follows, which has numbers of its own.
            self._proposal = None
            self._is_over = True

    # --- failing -------------------------------------------------------------------------------------------------

    def _registered(self, event: Registered, effects: list[Effect]) -> None:
        if event.epoch is not None and event.epoch != self._epoch:
            if self._epoch is not None:
                self._fail_all(Reason.NOT_REGISTERED, effects)
            self._open.clear()
            self._proposal = None
            self._epoch, self._next_number = event.epoch, 0
        self._is_fenced = event.is_fenced
        if event.is_fenced:
            self._fail_all(Reason.NOT_REGISTERED, effects)
            self._proposal = None

    def _fail_all(self, reason: Reason, effects: list[Effect]) -> None:
        self._fail_from(0, reason, effects)

    def _fail_from(self, number: int, reason: Reason, effects: list[Effect]) -> None:
        """From this number on everything fails, also what has no number yet."""
        for each in self._open:
            segment = self._open[each]
            if each >= number and segment is not None:
                self._open[each] = None
                self._fail(segment, reason, effects)
        unnumbered, self._sealed = self._sealed, deque()
        for segment in unnumbered:
            self._fail(segment, reason, effects)
        if self._active is not None:
            active, self._active = self._active, None
            self._fail(active, reason, effects)

    def _fail(self, segment: Segment, reason: Reason, effects: list[Effect]) -> None:
        self._let_go(segment)
        effects.append(Fail(segment.serial, reason))

    def _let_go(self, segment: Segment) -> None:
        del self._segments[segment.serial]
        self.held_bytes -= segment.size
        assert self.held_bytes >= 0, "bytes were let go twice"


def _pause_ms(failures: int, ms_min: int, ms_max: int) -> int:
    return min(ms_max, ms_min << min(failures, 16))
