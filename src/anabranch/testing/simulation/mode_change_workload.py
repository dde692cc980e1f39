"""WanderingWorkload: the random run of one seed with topics that wander through all modes.

Their mode is changed again and again between solo, ring, branch and object, also before the last change is done, while
brokers fall into sides, die, stand still and come back, and the object store is away. The promises of `BranchWorkload`
hold over all modes, since no mode promises less: an offset names one record for ever; what was acknowledged is there in
the end, once; what one producer wrote to one lane stays in order; whoever reads on and never goes back misses nothing.
In calm each topic must come to the mode that is asked for last, and nothing of any other may be left, on a disk or in
the store. `cluster_runs --modes` runs seeds of it.
"""

from random import Random

from anabranch.testing.in_process_client import Body, Pending
from anabranch.testing.simulation.branch_clients import (
    BranchClient,
    BranchWitness,
    MovingProducer,
    Origin,
    Wanderer,
)
from anabranch.testing.simulation.branch_workload import CUT, KEPT, READERS_MAX, BranchWorkload
from anabranch.testing.simulation.cluster_simulator import ClusterSimulator
from anabranch.testing.simulation.cluster_workload import Action
from anabranch.testing.simulation.mode_traces import left_in_folders, origin_over_modes
from anabranch.testing.simulation.object_workload import SMALL_STORE, surplus_objects
from anabranch.testing.simulation.producers import IdempotentProducer, PlainProducer
from anabranch.testing.simulation.reading_on import Reading
from anabranch.testing.simulation.simulator import SimulationError, produced
from anabranch.testing.simulation.witness import Place, Sent
from anabranch.wire.api_keys import ApiKey
from anabranch.wire.error_codes import ErrorCode

WANDERING_STEPS = 110
CHANGED_MS_MAX = 240_000
COLLECTED_MS_MAX = 150_000
QUIET_ROUNDS = 4
WAITS_MAX = 60
MODES = ("branch", "object", "ring", "solo")
START_MODES = ("branch", "object", "ring")


class WanderingWorkload(BranchWorkload):
    def __init__(self, seed: int, *, steps: int = WANDERING_STEPS) -> None:
        chosen = Random(seed + 3)
        self._entries_per_snapshot = chosen.choice((20, 60, 1000))
        self._altering = 0
        self._refused: dict[str, str] = {}
        super().__init__(seed, steps=steps)
        self._modes = tuple(mode for mode in MODES if mode != "solo" or not self._loses_disks)
        self._first_modes = {topic: chosen.choice(START_MODES) for topic in self._partitions}
        self._last_modes = {topic: chosen.choice(self._modes) for topic in self._partitions}

    # --- what is simulated ------------------------------------------------------------------------------------------

    def _simulate(self, seed: int, brokers: int, flush: str) -> ClusterSimulator:
        settings = {"offsets.mode": "branch"} if self._offsets_mode == "branch" else {}
        return ClusterSimulator(
            seed,
            self._brokers,
            settings={**SMALL_STORE, **settings},
            has_store=True,
            entries_per_snapshot=self._entries_per_snapshot,
        )

    def _as_made(self, topic: str) -> Body:
        mode = self._first_modes[topic]
        made = super()._as_made(topic)
        made["configs"] = [
            {"name": "anabranch.mode", "value": mode},
            {"name": "retention.ms", "value": "-1"},
        ]
        return {**made, "replication_factor": -1} if mode == "object" else made

    def _deeds(self) -> list[Action]:
        return [*super()._deeds(), Action(5, self._change_mode), Action(3, self._go_over)]

    def _troubles(self, times: int) -> list[Action]:
        faults = self.faults
        times = min(times, 2)
        return [
            *super()._troubles(times),
            Action(2 * times, faults.store_away),
            Action(1 * times, faults.cut_store),
            Action(2 * times, faults.spoil_store),
            Action(1, faults.join),
        ]

    def _swap_a_disk(self) -> None:
        """Once everybody has everything, and nobody is about to move it."""
        if not self._unsettled():
            super()._swap_a_disk()

    # --- modes ------------------------------------------------------------------------------------------------------

    def _change_mode(self) -> None:
        if self._made:
            self._alter(self._rng.choice(self._made), self._rng.choice(self._modes))

    def _go_over(self) -> None:
        """Change one, and write and read until it has come about, or for a while."""
        self._change_mode()
        for _ in range(WAITS_MAX):
            self._produce()
            self._wander()
            self.faults.pass_time(100)
            if not self._altering and not self._unsettled():
                return

    def _alter(self, topic: str, mode: str) -> None:
        config = {"name": "anabranch.mode", "config_operation": 0, "value": mode}
        resource = {"resource_type": 2, "resource_name": topic, "configs": [config]}
        body = {"resources": [resource], "validate_only": False}
        self._altering += 1

        def answered(pending: Pending) -> None:
            self._altering -= 1
            said = pending.body["responses"][0]["error_message"] if pending.body is not None else None
            self._refused[topic] = str(pending.closed_because or said)
            self.sim.note(f"{topic} shall be {mode}: {self._refused[topic]}")

        api = ApiKey.INCREMENTAL_ALTER_CONFIGS
        self._client.send(self._rng.choice(sorted(self.sim.machines)), api, 1, body).on_settled = answered

    def _unsettled(self) -> dict[str, str]:
        """Topics some partition of which does not have the form of its mode, as far as anybody knows."""
        return {
            name: f"broker {number} knows it as {topic.mode}, {topic.all_forms}"
            for number, life in self.sim.lives.items()
            for name, topic in life.broker.metadata.table.topics.items()
            if name in self._made and topic.forms
        }

    # --- producers and consumers --------------------------------------------------------------------------------------

    def _plain_producer(self, place: Place) -> PlainProducer:
        self._names += 1
        return OneByOne(f"plain-{self._names}", place, self._branch_client(), self.witness)

    def _prepare(self, producer: IdempotentProducer) -> None:
        """Of several batches that go to several brokers a ring may take the second first, and the first never. Nor does
        it know one that comes again after five others: it refuses that, as Kafka does."""
        assert isinstance(producer, MovingProducer)
        producer.ahead_max = 1
        producer.silence_chance = 0

    def _reigns_now(self, place: Place) -> int | None:
        """Somebody who reigns or leads; of what is in the store anybody."""
        serving = [
            number
            for number, life in self.sim.lives.items()
            if any(
                (each.id.topic, each.id.partition) == place for each in life.broker.topics.object_partitions()
            )
        ]
        return self._rng.choice(serving) if serving else super()._reigns_now(place)

    def _cut(self, offset: int) -> None:
        self._cuts[CUT] = max(self._cuts.get(CUT, 0), offset)

    def _new_wanderer(self, number: int, place: Place) -> Wanderer:
        if number < READERS_MAX:
            return super()._new_wanderer(number, place)
        return SteadyWanderer(f"wanderer-{number}", place, self._branch_client(), self.witness)

    def _origin(self, place: Place) -> Origin:
        return origin_over_modes(self.sim, place)

    # --- calm -------------------------------------------------------------------------------------------------------

    def _calm(self) -> None:
        self.faults.end_all()
        self._come_to_last_modes()
        super()._calm()
        self._wait_for("disks with nothing left over", lambda: not self._left(), lambda: str(self._left()))
        self._wait_for("a store with nothing left over", self._is_collected, self._surplus, COLLECTED_MS_MAX)
        self.sim.run_until(self.sim.is_whole)

    def _left(self) -> list[str]:
        return left_in_folders(self.sim, self._made)

    def _come_to_last_modes(self) -> None:
        end_ms = self.sim.clock.monotonic_ms() + CHANGED_MS_MAX
        quiet_rounds = 0  # A wish of before may still be on its way from one broker to another.
        while quiet_rounds < QUIET_ROUNDS:
            waiting = {**self._unasked(), **self._unsettled()}
            if self.sim.clock.monotonic_ms() >= end_ms:
                raise SimulationError(f"not changed after {CHANGED_MS_MAX} ms: {waiting}; {self._refused}")
            for topic in sorted(self._unasked()):
                self._alter(topic, self._last_modes[topic])
            for _ in range(5):
                self._produce()
                self._wander()
                self.sim.run(200)
            quiet_rounds = 0 if waiting or self._altering else quiet_rounds + 1

    def _unasked(self) -> dict[str, str]:
        return {
            name: f"broker {number} knows it in mode {topic.mode}"
            for number, life in self.sim.lives.items()
            for name, topic in life.broker.metadata.table.topics.items()
            if name in self._made and topic.mode != self._last_modes[name]
        }

    def _is_collected(self) -> bool:
        return not surplus_objects(self.sim)

    def _surplus(self) -> str:
        return str(sorted(surplus_objects(self.sim)))


class OneByOne(PlainProducer):
    """Waits for each answer, and goes by another name after any but a good one: an earlier batch may still be written,
    and behind a later one if another broker takes that."""

    def __init__(self, name: str, place: Place, sim: BranchClient, witness: BranchWitness) -> None:
        super().__init__(name, place, sim, witness)
        self._first_name = name
        self._renamed = 0
        self._is_waiting = False

    def act(self, rng: Random) -> None:
        if not self._is_waiting:
            self._is_waiting = True
            super().act(rng)

    def _answered(self, pending: Pending, batch: list[Sent], acks: int) -> None:
        self._is_waiting = False
        super()._answered(pending, batch, acks)
        answer = produced(pending)
        if answer is None or answer[0]:
            self._renamed += 1
            self.name = f"{self._first_name}-{self._renamed}"


class SteadyWanderer(Wanderer):
    """Nobody may tell it that its position does not exist: it would begin anew."""

    def _heard(self, reading: Reading) -> None:
        if reading.code is ErrorCode.OFFSET_OUT_OF_RANGE and self.place[0] == KEPT:
            raise SimulationError(f"{self.name} is refused at {self.position} of {self.place}: {reading}")
        super()._heard(reading)
