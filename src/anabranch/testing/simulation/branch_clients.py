"""Clients of topics in branch mode: they stay with the side of a split that they know, move to another, and read on
there. A witness holds all brokers together to what any of them has said.

What is promised, whatever the network does: an offset names one record for ever; what was acknowledged is there in the
end, once, for a reader who begins anew; what one producer wrote to one branch stays in order; and whoever reads on from
where it was, at whichever broker, and never goes back, misses nothing.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from typing import NamedTuple

from anabranch.testing.in_process_client import Body, Pending
from anabranch.testing.simulation.cluster_clients import ClusterWitness, Found
from anabranch.testing.simulation.cluster_simulator import ClusterSimulator
from anabranch.testing.simulation.producers import IdempotentProducer
from anabranch.testing.simulation.reading_on import Reading, ReadingClient
from anabranch.testing.simulation.simulator import Producer, SimulationError, produce_request, produced
from anabranch.testing.simulation.witness import Place, Sent
from anabranch.wire.error_codes import ErrorCode

MOVE_CHANCE = 0.3
"""Of a client that was refused, or heard nothing: it may have to wait for an election where it is, too."""
SILENCE_CHANCE = 0.06
LATE_MS = 5000

Origin = Callable[[int], int]
"""Where the record at an offset was written first."""


class BranchWitness(ClusterWitness):
    """`must_be_there`: what was acknowledged since records were last removed on purpose."""

    def __init__(self) -> None:
        super().__init__()
        self._names: dict[Place, dict[int, Sent]] = {}
        self._must: dict[Place, set[Sent]] = {}
        self._may_go: dict[Place, set[Sent]] = {}
        self._late: set[Sent] = set()

    def acknowledged(self, place: Place, base_offset: int, sent: Sequence[Sent], acks: int) -> None:
        for offset, record in enumerate(sent, base_offset):
            self._name(place, offset, record)
        self.is_safe(place, sent)

    def is_safe(self, place: Place, sent: Sequence[Sent]) -> None:
        """They were acknowledged, wherever they are."""
        self._must.setdefault(place, set()).update(set(sent) - self._may_go.get(place, set()))
        table = self._promised.setdefault(place, {})
        for record in sent:
            table[len(table)] = record  # `counts` is all that anybody asks of it.

    def may_be_removed(self, place: Place) -> None:
        """All that there is by now: somebody asks for it."""
        gone = self._may_go.setdefault(place, set())
        gone.update(self._must.pop(place, set()), self._names.get(place, {}).values())

    def may_be_late(self, sent: Sequence[Sent]) -> None:
        """Its producer goes on with what comes after them, and then sends them again: where they were not, they come
        behind that."""
        self._late.update(sent)

    def must_be_there(self, place: Place) -> set[Sent]:
        return self._must.get(place, set())

    def shown(self, place: Place, found: Found) -> list[Sent]:
        """To anybody, by any broker."""
        offsets = [offset for offset, _ in found]
        if offsets != sorted(set(offsets)):
            raise SimulationError(f"the offsets of {place} go back: {offsets}")
        records = [Sent.decode(value or b"") for _, value in found]
        for offset, record in zip(offsets, records, strict=True):
            self._name(place, offset, record)
        return records

    def _name(self, place: Place, offset: int, record: Sent) -> None:
        other = self._names.setdefault(place, {}).setdefault(offset, record)
        if other != record:
            raise SimulationError(f"offset {offset} of {place} names {other} and {record}")

    def shown_to_all(self, place: Place, found: Found, origin: Origin, *, may_repeat: bool) -> None:
        """From the start, when all is well. `may_repeat`: what an idempotent producer has sent to two sides, of which
        one had no copy, may be there twice."""
        records = self.shown(place, found)
        twice = {record for record, times in Counter(records).items() if times > 1}
        if twice := {each for each in twice if not (may_repeat and each.producer.startswith("idempotent"))}:
            raise SimulationError(f"{sorted(twice)} are in {place} more than once")
        if lost := self.must_be_there(place) - set(records):
            raise SimulationError(f"{sorted(lost)} of {place} were acknowledged, and are lost")
        self._check_order(place, found, origin)

    def _check_order(self, place: Place, found: Found, origin: Origin) -> None:
        last: dict[tuple[str, int], Sent] = {}
        for offset, value in found:
            record, first = Sent.decode(value or b""), origin(offset)
            self._name(place, first, record)
            if record in self._late:
                continue
            branch = (record.producer, first >> 32)
            if branch in last and record.number <= last[branch].number:
                raise SimulationError(
                    f"{record} at {offset} of {place} follows {last[branch]}, and went to that branch before it"
                )
            last[branch] = record

    def has_read_on(self, name: str, place: Place, seen: set[Sent]) -> None:
        """Whoever never went back has come to the end."""
        if missed := self.must_be_there(place) - seen:
            raise SimulationError(f"{name} has read all of {place}, and missed {sorted(missed)}")


class BranchClient(ReadingClient):
    """Knows the cluster as one broker shows it, its home, until it moves."""

    may_skip = True

    def __init__(self, sim: ClusterSimulator, rng: Random) -> None:
        super().__init__(sim, rng)
        self.home = super().anybody()
        self._times: dict[Producer, int] = {}

    def _produce_request(
        self, place: Place, values: Sequence[bytes], acks: int, producer: Producer | None
    ) -> Body:
        """Whoever tries again sends the same bytes."""
        now_ms = self._sim.clock.wall_ms()
        time_ms = now_ms if producer is None else self._times.setdefault(producer, now_ms)
        return produce_request(*place, values, time_ms, acks, producer)

    def anybody(self) -> int:
        return self.home

    def now_ms(self) -> int:
        return self._sim.clock.monotonic_ms()

    def move(self) -> None:
        self.home = super().anybody()
        self._leaders.clear()
        self._coordinators.clear()

    def forget(self, place: Place) -> None:
        """Whoever was asked does not know, or says nothing."""
        self._forget(place)

    def _forget(self, place: Place) -> None:
        super()._forget(place)
        if self._rng.random() < MOVE_CHANCE:
            self.move()


class Late(NamedTuple):
    """A batch that was written, of which the producer has not heard."""

    batch: list[Sent]
    broker_id: int
    due_ms: int


class MovingProducer(IdempotentProducer):
    """Retries at whoever is the primary where it is now, also on the other side of a split; it moves only when nothing
    of it is under way, as clients do.

    Now and then the link to the primary dies without a sign: no more answers come. The producer waits for another
    primary and goes on there; what was under way to the first is sent again when its time is up, or when that broker
    is the primary once more. So does Java's.
    """

    silence_chance = SILENCE_CHANCE

    def __init__(
        self, name: str, place: Place, client: BranchClient, witness: BranchWitness, producer_id: int
    ) -> None:
        super().__init__(name, place, client, witness, producer_id)
        self._client = client
        self._safe = witness
        self._silent: int | None = None
        self._late: list[Late] = []

    def act(self, rng: Random) -> None:
        if not self._in_flight and rng.random() < 0.05:
            self._client.move()
        if self._silent is not None or self._late:
            if not self._goes_on(self._client.leader_of(self.place)):
                return
        elif self._in_flight and self.silence_chance and rng.random() < self.silence_chance:
            self._silent = self._client.leader_of(self.place)
        super().act(rng)

    def _goes_on(self, leader: int | None) -> bool:
        """What is due is to be sent again; the answer: whether anything may be sent."""
        if self._silent is not None:
            if self._in_flight:
                return False
            if self._late and leader in (None, self._silent) and not self._is_due(self._late[0]):
                self._client.forget(self.place)
                return False
            self._silent = None
        due = [each for each in self._late if self._is_due(each) or each.broker_id == leader]
        if due:
            self._late = [each for each in self._late if each not in due]
            self._must_retry = True
        return True

    def _is_due(self, late: Late) -> bool:
        return self._client.now_ms() >= late.due_ms

    def _under_way(self) -> list[list[Sent]]:
        late = [each.batch for each in self._late]
        return [batch for batch in super()._under_way() if batch not in late]

    def _answered(self, pending: Pending, batch: list[Sent]) -> None:
        answer = produced(pending)
        if self._silent is not None and answer is not None and not answer[0]:
            self._in_flight -= 1
            self._late.append(Late(batch, self._silent, self._client.now_ms() + LATE_MS))
            self._safe.may_be_late(batch)
            self._client.note(f"{self.name} {batch[0].number}+{len(batch)}: {answer}, which it does not hear")
            return
        super()._answered(pending, batch)
        if batch not in self._unacknowledged:  # Also when it was only said to be there already.
            self._safe.is_safe(self.place, batch)


class Wanderer:
    """A consumer that goes on where it was, at whichever broker, and never goes back."""

    def __init__(self, name: str, place: Place, client: BranchClient, witness: BranchWitness) -> None:
        self.name = name
        self.place = place
        self.position = 0
        self.seen: set[Sent] = set()
        self._client = client
        self._witness = witness
        self._is_asking = False

    def act(self, rng: Random) -> None:
        """Ask once more whoever is the primary where it is; now and then it goes elsewhere."""
        if self._is_asking:
            return
        if rng.random() < 0.2:
            self._client.move()
        broker_id = self._client.leader_of(self.place)
        self._ask(self._client.home if broker_id is None else broker_id)

    def _ask(self, broker_id: int) -> None:
        self._is_asking = True
        self._client.read_on(self.place, broker_id, self.position, self._heard, once=True)

    def _heard(self, reading: Reading) -> None:
        self._is_asking = False
        if reading.code != ErrorCode.NONE:
            self._client.forget(self.place)
        if reading.found:
            self._client.note(f"{self.name} {self.place}: {reading.asked} to {reading.next_offset}")
        self.seen.update(self._witness.shown(self.place, reading.found))
        self.position = max(self.position, reading.next_offset)

    def finish(self, broker_id: int, then: Callable[[ErrorCode | None], None]) -> None:
        """Read on to the end, in calm."""

        def heard(reading: Reading) -> None:
            self._heard(reading)
            then(reading.code)

        self._is_asking = True
        self._client.read_on(self.place, broker_id, self.position, heard)


class GroupReader(Wanderer):
    """One member of a group at a time: it commits how far it has read, and another goes on from what was committed."""

    def __init__(self, name: str, place: Place, client: BranchClient, witness: BranchWitness) -> None:
        super().__init__(name, place, client, witness)
        self.commits = 0

    def act(self, rng: Random) -> None:
        if self._is_asking:
            return
        chance = rng.random()
        if chance < 0.3 and self.position:
            self._commit()
        elif chance < 0.4:
            self._client.move()
            self.take_over()
        else:
            super().act(rng)

    def _commit(self) -> None:
        position = self.position
        self._is_asking = True

        def then(code: ErrorCode | None) -> None:
            self._is_asking = False
            self._client.note(f"{self.name} commits {position} of {self.place}: {code}")
            self.commits += code == ErrorCode.NONE

        self._client.commit(self.name, self.place, position, then)

    def take_over(self, then: Callable[[bool], None] = lambda is_known: None) -> None:
        """As a member does that has just come: from what was committed, or from the start."""
        self._is_asking = True

        def heard(offset: int | None) -> None:
            self._is_asking = False
            if offset is not None:
                self._client.note(f"{self.name} goes on at {offset} of {self.place}")
                self.position = max(offset, 0)
            then(offset is not None)

        self._client.committed(self.name, self.place, heard)
