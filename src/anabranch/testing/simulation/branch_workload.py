"""BranchWorkload: the random run of one seed with topics in branch mode.

Two to five brokers fall into sides again and again, and die, also while the sides join. Producers write on every side
and retry on another; consumers wander between sides and never go back; groups commit what they have read and go on from
what was committed. In calm all brokers must have the same rows, show the same line and keep equal bytes, and everybody
must have seen everything. `cluster_runs --branches` runs seeds of it.
"""

from collections.abc import Callable
from random import Random

from anabranch.testing.in_process_client import Body, Pending
from anabranch.testing.simulation.branch_clients import (
    BranchClient,
    BranchWitness,
    GroupReader,
    MovingProducer,
    Origin,
    Wanderer,
)
from anabranch.testing.simulation.branch_copies import differing_copies, missing_branches, origin_in
from anabranch.testing.simulation.branch_faults import BranchFaults
from anabranch.testing.simulation.cluster_clients import ClusterClient, ClusterWitness, Found
from anabranch.testing.simulation.cluster_simulator import ClusterSimulator
from anabranch.testing.simulation.cluster_workload import (
    PRODUCERS_MAX,
    WHOLE_MS_MAX,
    Action,
    ClusterWorkload,
)
from anabranch.testing.simulation.producers import IN_FLIGHT_MAX, IdempotentProducer, PlainProducer
from anabranch.testing.simulation.reading_on import Reading
from anabranch.testing.simulation.simulator import SimulationError
from anabranch.testing.simulation.witness import Place
from anabranch.wire.api_keys import ApiKey
from anabranch.wire.error_codes import ErrorCode

BRANCH_STEPS = 100
STEADY_MS = 1000
WHOLE_TRIES_MAX = 30
WANDERERS_MAX = 5
READERS_MAX = 2
KEPT, CUT = "b0", "b1"
"""Nothing of the first is ever removed; of the second something is, now and then."""


class BranchWorkload(ClusterWorkload):
    witness: BranchWitness
    faults: BranchFaults

    def __init__(self, seed: int, *, steps: int = BRANCH_STEPS) -> None:
        chosen = Random(seed + 2)
        self._brokers = chosen.choice((2, 3, 3, 4, 5))
        self._offsets_mode = chosen.choice(("ring", "branch"))
        self._has_removal = chosen.random() < 0.4
        self._loses_disks = self._brokers > 2 and chosen.random() < 0.4
        self._wanderers: list[Wanderer] = []
        super().__init__(seed, steps=steps)
        self._copies_min = 2
        fewest, most = 2 if self._loses_disks else 1, min(3, self._brokers)
        for topic in self._partitions:
            self._copies[topic] = chosen.choice((most, chosen.randint(fewest, most)))

    # --- what is simulated ------------------------------------------------------------------------------------------

    def _simulate(self, seed: int, brokers: int, flush: str) -> ClusterSimulator:
        settings = {"offsets.mode": "branch"} if self._offsets_mode == "branch" else {}
        return ClusterSimulator(seed, self._brokers, settings=settings)

    def _hear(self) -> ClusterWitness:
        return BranchWitness()

    def _new_client(self) -> ClusterClient:
        return self._branch_client()

    def _branch_client(self) -> BranchClient:
        return BranchClient(self.sim, self._rng)

    def _topics(self) -> dict[str, int]:
        self.faults = BranchFaults(self.sim, self._rng, may_lose_disks=self._loses_disks)
        return {KEPT: 1, **({CUT: 1} if self._has_removal else {})}

    def _first_topics(self) -> list[str]:
        return list(self._partitions)

    def _as_made(self, topic: str) -> Body:
        return {
            **super()._as_made(topic),
            "configs": [
                {"name": "anabranch.mode", "value": "branch"},
                {"name": "retention.ms", "value": "-1"},
            ],
        }

    def _deeds(self) -> list[Action]:
        return [
            Action(60, self._produce),
            Action(6, self._make_topic),
            Action(8, self._add_producer),
            Action(30, self._wander),
            Action(6, self._consume),
            Action(12, self._wait),
            *([Action(3, self._remove)] if self._has_removal else []),
        ]

    def _troubles(self, times: int) -> list[Action]:
        faults = self.faults
        troubles = [
            Action(14, faults.split),
            Action(3, faults.deafen),
            Action(1, faults.kill),
            Action(1, faults.stop),
            Action(1, faults.crash),
            Action(2, faults.crash_soon),
            Action(1, faults.pause),
            Action(1, faults.slow_disk),
            Action(1, faults.fill_disk),
            Action(1, faults.fail_disk),
            Action(1, faults.spoil_net),
            Action(1, faults.cut),
            Action(2, self._swap_a_disk),
        ]
        return [Action(min(times, 2) * action.weight, action.act) for action in troubles]

    def _swap_a_disk(self) -> None:
        """Once everybody has everything, which may take a while."""
        for _ in range(WHOLE_TRIES_MAX if self._loses_disks else 0):
            if not self.faults.is_split and self.sim.is_whole() and not missing_branches(self.sim):
                self.faults.lose_disk()
                return
            self.faults.pass_time(100)

    # --- producers --------------------------------------------------------------------------------------------------

    def _add_producer(self) -> None:
        if len(self._producers) < PRODUCERS_MAX:
            super()._add_producer()

    def _plain_producer(self, place: Place) -> PlainProducer:
        self._names += 1
        return PlainProducer(f"plain-{self._names}", place, self._branch_client(), self.witness)

    def _idempotent_producer(self, name: str, place: Place, producer_id: int) -> IdempotentProducer:
        producer = MovingProducer(name, place, self._branch_client(), self.witness, producer_id)
        producer.ahead_max = IN_FLIGHT_MAX
        return producer

    # --- consumers --------------------------------------------------------------------------------------------------

    def _wander(self) -> None:
        places = self._places()
        if places and len(self._wanderers) < WANDERERS_MAX:
            place, number = self._rng.choice(places), len(self._wanderers)
            self._wanderers.append(self._new_wanderer(number, place))
        for wanderer in self._wanderers:
            if self._rng.random() < 0.5:
                wanderer.act(self._rng)

    def _new_wanderer(self, number: int, place: Place) -> Wanderer:
        client = self._branch_client()
        if number < READERS_MAX:
            return GroupReader(f"group-{number}", place, client, self.witness)
        return Wanderer(f"wanderer-{number}", place, client, self.witness)

    def _wait(self) -> None:
        """Long enough for an election, and for lines to join."""
        for _ in range(self._rng.choice((5, 10, 20))):
            self._produce()
            self._wander()
            self.faults.pass_time(100)

    def _consume_from(self, place: Place) -> None:
        """From the start, at anybody."""
        client = self._branch_client()

        def then(reading: Reading) -> None:
            self.sim.note(f"{client.home} shows {len(reading.found)} of {place}: {reading.code}")
            self.witness.shown(place, reading.found)

        client.read_on(place, client.home, 0, then)

    def _remove(self) -> None:
        """DeleteRecords, of the topic that may be cut, below something that somebody has read, or some of it: that may
        be in the middle of a batch, or between two lanes."""
        positions = [each.position for each in self._wanderers if each.place == (CUT, 0)]
        if (CUT, 0) not in self._places() or not positions:
            return
        offset = max(0, self._rng.choice(positions) - self._rng.randint(0, 2))
        client = self._branch_client()
        leader = client.home if self._rng.random() < 0.3 else self._reigns_now((CUT, 0))
        partitions = [{"partition_index": 0, "offset": offset}]
        body = {"timeout_ms": 2000, "topics": [{"name": CUT, "partitions": partitions}]}
        self.witness.may_be_removed((CUT, 0))
        self._cut(offset)

        def answered(pending: Pending) -> None:
            row = pending.body["topics"][0]["partitions"][0] if pending.body is not None else None
            code = None if row is None else ErrorCode(row["error_code"])
            self.witness.may_be_removed((CUT, 0))
            self.sim.note(f"{CUT} is cut at {offset}: {pending.closed_because or code!r}")

        client.send(leader or client.home, ApiKey.DELETE_RECORDS, 2, body).on_settled = answered

    def _cut(self, offset: int) -> None:
        """Somebody asks for it, who may never know whether it was done."""

    def _reigns_now(self, place: Place) -> int | None:
        """Somebody who reigns."""
        found = [number for number, life in self.sim.lives.items() if self.sim.leads(life, place)]
        return self._rng.choice(found) if found else None

    def _commit(self) -> None:
        """`GroupReader` does."""

    # --- calm -------------------------------------------------------------------------------------------------------

    def _calm(self) -> None:
        super()._calm()
        self._wait_for("the branches to be one", self._are_one, lambda: missing_branches(self.sim))

    def _are_one(self) -> bool:
        """For a while already: whoever is to reign may have waited until it had everything."""
        end_ms = self.sim.clock.monotonic_ms() + STEADY_MS
        while not missing_branches(self.sim):
            if self.sim.clock.monotonic_ms() >= end_ms:
                return True
            self.sim.run(100)
        return False

    def _wait_for(
        self,
        what: str,
        is_so: Callable[[], bool],
        why: Callable[[], str],
        milliseconds_max: int = WHOLE_MS_MAX,
    ) -> None:
        end_ms = self.sim.clock.monotonic_ms() + milliseconds_max
        while not is_so():
            if self.sim.clock.monotonic_ms() >= end_ms:
                raise SimulationError(f"waited in vain for {what}: {why()}")
            self.sim.run(100)

    def _read_everything(self) -> None:
        if differing := differing_copies(self.sim, self._cuts):
            raise SimulationError(differing)
        for place in self._places():
            self._read_place(place)
        for wanderer in self._wanderers:
            self._finish(wanderer)

    def _read_place(self, place: Place) -> None:
        """At every broker that reads for others; all of them must show the same."""
        shown: dict[int, Found] = {}
        self._wait_for(f"anybody to show {place}", lambda: self._show(place, shown), lambda: "nobody does")
        first, *others = shown
        for number in others:
            if shown[number] != shown[first]:
                raise SimulationError(_difference(place, first, shown[first], number, shown[number]))
        self.sim.note(f"{list(shown)} show {len(shown[first])} of {place}")
        self.witness.shown_to_all(
            place, shown[first], self._origin(place), may_repeat=not self._is_known_everywhere(place)
        )

    def _origin(self, place: Place) -> Origin:
        return origin_in(self.sim, place)

    def _is_known_everywhere(self, place: Place) -> bool:
        """A side without any copy cannot know what a producer had written before."""
        return self._copies[place[0]] == self._brokers

    def _show(self, place: Place, shown: dict[int, Found]) -> bool:
        """Whether any did: somebody else may just have begun to reign."""
        for number in self.sim.lives:
            reading = self._read_whole(place, number)
            if reading.code is ErrorCode.NONE:
                shown[number] = reading.found
        return bool(shown)

    def _read_whole(self, place: Place, number: int) -> Reading:
        done: list[Reading] = []
        self._branch_client().read_on(place, number, 0, done.append)
        self._wait_for(f"{number} to show {place}", lambda: bool(done), lambda: "it does not end")
        return done[0]

    def _finish(self, wanderer: Wanderer) -> None:
        """Read on to the end, wherever; of a group from what was committed."""
        if isinstance(wanderer, GroupReader):
            known: list[bool] = []
            wanderer.take_over(known.append)
            self._wait_for(f"{wanderer.name} to go on", lambda: bool(known), lambda: "nobody answers")
        self._wait_for(
            f"{wanderer.name} to read on", lambda: self._reads_to_end(wanderer), lambda: "nobody lets it"
        )
        self.witness.has_read_on(wanderer.name, wanderer.place, wanderer.seen)

    def _reads_to_end(self, wanderer: Wanderer) -> bool:
        codes: list[ErrorCode | None] = []
        leader = self._reigns_now(wanderer.place)
        if leader is None:
            return False
        wanderer.finish(leader, codes.append)
        self._wait_for(f"{wanderer.name} to finish", lambda: bool(codes), lambda: "nobody answers")
        return codes[0] is ErrorCode.NONE


def _difference(place: Place, one: int, ones: Found, other: int, others: Found) -> str:
    missing = [offset for offset, _ in ones if offset not in dict(others)]
    more = [offset for offset, _ in others if offset not in dict(ones)]
    return f"{one} and {other} show {place} differently: {other} lacks {missing} and has {more} besides"
