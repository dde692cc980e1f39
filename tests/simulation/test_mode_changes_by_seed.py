"""Whole clusters whose topics go out of the object store and back into it, under the load and the faults of
`object_workload.py`: every promise is kept, and in calm nothing is left over in the store or on a disk."""

import pytest

from anabranch.testing.in_process_client import Pending
from anabranch.testing.simulation.cluster_runs import trace_of
from anabranch.testing.simulation.object_clients import Cleaned
from anabranch.testing.simulation.object_workload import Action, ObjectWorkload
from anabranch.testing.simulation.producers import IdempotentProducer
from anabranch.testing.simulation.simulator import SimulationError
from anabranch.wire.api_keys import ApiKey

SEEDS = 8
STORED_MS_MAX = 240_000
QUIET_ROUNDS = 4
HAPPENS = ("shall be ring: None", "shall be object: None", "is killed", "the power of", "the store is away")


class ModeWorkload(ObjectWorkload):
    def __init__(self, seed: int) -> None:
        self._altering = 0
        super().__init__(seed)

    def _topics(self) -> dict[str, int]:
        self._has_rings = True  # Disks are not lost all at once: brokers keep records now and then.
        self._cleaned.update(dict.fromkeys(self._cleaned, Cleaned.KEPT))
        return super()._topics()

    def _deeds(self) -> list[Action]:
        return [*super()._deeds(), Action(8, self._change_mode)]

    def _prepare(self, producer: IdempotentProducer) -> None:
        """Of several batches that go to several brokers a ring may take the second first."""
        producer.ahead_max = 1

    def _change_mode(self) -> None:
        made = [topic for topic in self._made if topic in self._cleaned]
        if made:
            self._alter(self._rng.choice(made), self._rng.choice(("object", "ring")))

    def _alter(self, topic: str, mode: str) -> None:
        config = {"name": "anabranch.mode", "config_operation": 0, "value": mode}
        resource = {"resource_type": 2, "resource_name": topic, "configs": [config]}
        body = {"resources": [resource], "validate_only": False}
        self._altering += 1

        def answered(pending: Pending) -> None:
            self._altering -= 1
            said = pending.body["responses"][0]["error_message"] if pending.body is not None else None
            self.sim.note(f"{topic} shall be {mode}: {pending.closed_because or said}")

        api = ApiKey.INCREMENTAL_ALTER_CONFIGS
        self._client.send(self._client.anybody(), api, 1, body).on_settled = answered

    def _calm(self) -> None:
        self.faults.end_all()
        end_ms = self.sim.clock.monotonic_ms() + STORED_MS_MAX
        quiet_rounds = 0  # A wish of before may still be on its way from one broker to another.
        while quiet_rounds < QUIET_ROUNDS:
            waiting = self._unstored()
            if self.sim.clock.monotonic_ms() >= end_ms:
                raise SimulationError(f"not in the store after {STORED_MS_MAX} ms of calm: {waiting}")
            for topic in sorted(waiting):
                self._alter(topic, "object")
            self.sim.run(3000)
            quiet_rounds = 0 if waiting or self._altering else quiet_rounds + 1
        super()._calm()
        left = [
            f"{number}: {name}"
            for number, life in self.sim.lives.items()
            for name in life.broker.files.list(life.broker.data_dir)
            if name.rpartition("-")[0] in self._cleaned
        ]
        if left:
            raise SimulationError(f"folders of partitions that are in the store are left: {left}")

    def _unstored(self) -> set[str]:
        """Topics that some broker does not know to be wholly in the store."""
        tables = [life.broker.metadata.table for life in self.sim.lives.values()]
        found = [(name, table.topics.get(name)) for table in tables for name in self._made]
        return {
            name
            for name, topic in found
            if name in self._cleaned and (topic is None or not topic.is_object or topic.forms)
        }


@pytest.mark.parametrize("first", range(0, SEEDS, 4))
def test_every_promise_is_kept_while_modes_change(first: int) -> None:
    text = ""
    for seed in range(first, first + 4):
        try:
            text += "\n".join(trace_of(seed, ModeWorkload))
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise
    if first == 0:  # Lest the seeds pass because nothing happens in them.
        assert [word for word in HAPPENS if word not in text] == []


def test_what_was_gathered_before_a_partition_left_the_store_does_not_come_behind_later_records() -> None:
    """Seed 500 found it, and then a broker whose table jumped over both changes."""
    trace_of(500, ModeWorkload)
