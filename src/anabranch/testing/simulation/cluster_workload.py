"""ClusterWorkload: the random run of one seed: clients, faults and deaths, and a witness who objects.

Topics of one to three copies are made through any broker; plain and idempotent producers write to whoever leads;
consumers read, and groups commit offsets. Meanwhile messages are lost, doubled, late and out of order, links are cut
one way or both, disks are slow or full, processes stand still or are killed, and the power goes between any two
operations of a disk. Then comes calm: nothing fails any more, and all must be well again within a bound.
`cluster_runs` runs seeds of it.
"""

from collections.abc import Callable
from random import Random
from typing import NamedTuple

from anabranch.testing.in_process_client import Body, Pending
from anabranch.testing.simulation.cluster_clients import ClusterClient, ClusterWitness, Found
from anabranch.testing.simulation.cluster_faults import ClusterFaults
from anabranch.testing.simulation.cluster_simulator import ClusterSimulator
from anabranch.testing.simulation.producers import IdempotentProducer, PlainProducer
from anabranch.testing.simulation.simulator import SimulationError
from anabranch.testing.simulation.witness import Place
from anabranch.wire.api_keys import ApiKey
from anabranch.wire.error_codes import ErrorCode

STEPS = 150
TOPICS_MAX = 3
PARTITIONS_MAX = 3
PRODUCERS_MAX = 8
GROUPS = ("g0", "g1")
MAKE_MS = 3_000
LIVELY_MS_MAX = 30_000
WHOLE_MS_MAX = 60_000

Producer = PlainProducer | IdempotentProducer
Key = tuple[str, Place]


class Action(NamedTuple):
    weight: int
    act: Callable[[], None]


class ClusterWorkload:
    def __init__(self, seed: int, *, steps: int = STEPS, swaps_disks: bool = False) -> None:
        """`swaps_disks`: that is most of what happens, which is rare otherwise."""
        self._rng = rng = Random(seed + 1)
        self._copies_min = lowest = rng.choice((1, 2, 2)) if not swaps_disks else 2
        flush = "os" if lowest > 1 and rng.random() < 0.3 else "always"
        self.sim = self._simulate(seed, rng.choice((3, 3, 3, 4)), flush)
        self.witness = self._hear()
        self.faults = ClusterFaults(self.sim, rng, may_lose_disks=lowest > 1)
        self._client = self._new_client()
        self._steps = steps
        self._partitions = self._topics()
        self._copies = {topic: rng.choice((lowest, 3, 3)) for topic in self._partitions}
        self._made: list[str] = []
        self._producers: list[Producer] = []
        self._producer_ids: set[int] = set()
        self._names = 0
        self._tried: dict[Key, list[int]] = {}
        self._ever_tried: dict[Key, set[int]] = {}
        self._committing: set[Key] = set()
        self._cuts: dict[str, int] = {}
        """Of topics that somebody cuts and that go through several modes: below which offset, at most."""
        troubles = self._swaps() if swaps_disks else self._troubles(rng.choice((1, 1, 3)))
        self._actions = (*self._deeds(), *troubles)

    def _topics(self) -> dict[str, int]:
        """With their partitions."""
        return {f"t{n}": self._rng.randint(1, PARTITIONS_MAX) for n in range(TOPICS_MAX)}

    def _simulate(self, seed: int, brokers: int, flush: str) -> ClusterSimulator:
        return ClusterSimulator(seed, brokers, flush=flush)

    def _hear(self) -> ClusterWitness:
        return ClusterWitness()

    def _new_client(self) -> ClusterClient:
        return ClusterClient(self.sim, self._rng)

    def _deeds(self) -> list[Action]:
        return [
            Action(70, self._produce),
            Action(6, self._make_topic),
            Action(6, self._add_producer),
            Action(12, self._consume),
            Action(8, self._commit),
            Action(6, self._look_at_commit),
            Action(8, self._wait),
            Action(2, self._move),
        ]

    def _troubles(self, times: int) -> list[Action]:
        faults = self.faults
        troubles = [
            Action(2, faults.kill),
            Action(2, faults.stop),
            Action(2, faults.crash),
            Action(2, faults.crash_soon),
            Action(2, faults.pause),
            Action(3, faults.cut),
            Action(2, faults.isolate),
            Action(1, faults.slow_disk),
            Action(1, faults.fill_disk),
            Action(2, faults.spoil_net),
            Action(1, faults.fail_disk),
            Action(1, faults.lose_disk),
            Action(1, faults.join),
        ]
        return [Action(times * action.weight, action.act) for action in troubles]

    def _swaps(self) -> list[Action]:
        return [Action(4, self.faults.kill), Action(2, self.faults.cut), Action(6, self._swap_a_disk)]

    def _swap_a_disk(self) -> None:
        for _ in range(WHOLE_MS_MAX // 100):
            if self.sim.is_whole():
                break
            self.faults.pass_time(100)
        self.faults.lose_disk()

    def run(self) -> None:
        """All steps, then calm: every promise is checked once more. Raises SimulationError."""
        self.sim.note(f"flush={self.sim.flush}, copies of {self._copies}, partitions {self._partitions}")
        self.sim.start_all()
        for topic in self._first_topics():
            self._make(topic)
        self.sim.run(500)
        for _ in range(4):
            self._add_producer()
            self.sim.run(50)
        weights = [action.weight for action in self._actions]
        for _ in range(self._steps):
            self._rng.choices(self._actions, weights)[0].act()
            self.faults.pass_time(self._rng.choice((2, 10, 40)))
        self._calm()
        self.sim.check_equal(self._cuts)
        self._check_topics()
        self._read_everything()

    def _first_topics(self) -> list[str]:
        return list(self._partitions)[:2]

    def _check_topics(self) -> None:
        table = next(iter(self.sim.lives.values())).broker.metadata.table
        for topic in self._made:
            found = table.topics.get(topic)
            if found is None or found.partition_count != self._partitions[topic]:
                raise SimulationError(f"{topic} was made and is not there, or has other partitions: {found}")

    def _wait(self) -> None:
        """Long enough for others to take over."""
        for _ in range(self._rng.choice((5, 20, 40))):
            self._produce()
            self.faults.pass_time(100)

    # --- topics ---------------------------------------------------------------------------------------------------

    def _make_topic(self) -> None:
        missing = [topic for topic in self._partitions if topic not in self._made]
        if missing:
            self._make(self._rng.choice(missing))

    def _make(self, topic: str) -> None:
        made = self._as_made(topic)

        def answered(pending: Pending) -> None:
            code = ErrorCode(pending.body["topics"][0]["error_code"]) if pending.body is not None else None
            self.sim.note(f"CREATE_TOPICS {topic}: {pending.closed_because or code!r}")
            if code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS) and topic not in self._made:
                self._made.append(topic)

        body = {"topics": [made], "timeout_ms": MAKE_MS}
        self._client.send(self._client.anybody(), ApiKey.CREATE_TOPICS, 7, body).on_settled = answered

    def _as_made(self, topic: str) -> Body:
        return {
            "name": topic,
            "num_partitions": self._partitions[topic],
            "replication_factor": self._copies[topic],
        }

    def _move(self) -> None:
        """Let other brokers keep a partition, or more or fewer; now and then call such a move off."""
        places = self._places()
        if not places:
            return
        topic, index = self._rng.choice(places)
        copies = self._rng.randint(self._copies_min, 3)
        replicas = self._rng.sample(sorted(self.sim.machines), copies) if self._rng.random() < 0.9 else None
        partition = {"partition_index": index, "replicas": replicas}
        body = {"timeout_ms": MAKE_MS, "topics": [{"name": topic, "partitions": [partition]}]}

        def answered(pending: Pending) -> None:
            rows = pending.body["responses"] if pending.body is not None else ()
            codes = [ErrorCode(row["partitions"][0]["error_code"]) for row in rows]
            self.sim.note(f"{topic}-{index} goes to {replicas}: {pending.closed_because or codes}")

        api = ApiKey.ALTER_PARTITION_REASSIGNMENTS
        self._client.send(self._client.anybody(), api, 0, body).on_settled = answered

    def _places(self) -> list[Place]:
        return [(topic, index) for topic in self._made for index in range(self._partitions[topic])]

    # --- producers and consumers ----------------------------------------------------------------------------------

    def _add_producer(self) -> None:
        places = self._places()
        if not places or len(self._producers) >= PRODUCERS_MAX:
            return
        place = self._rng.choice(places)
        if self._rng.random() < 0.3:
            self._producers.append(self._plain_producer(place))
            return
        body = {"transactional_id": None, "transaction_timeout_ms": 1000}
        pending = self._client.send(self._client.anybody(), ApiKey.INIT_PRODUCER_ID, 4, body)
        pending.on_settled = lambda done: self._got_producer_id(place, done)

    def _plain_producer(self, place: Place) -> PlainProducer:
        self._names += 1
        client = self._new_client()
        producer = PlainProducer(f"plain-{self._names}", place, client, self.witness)
        # Where there is one copy only, acks=1 promises next to nothing.
        producer.acks = (-1,) if self._copies_min == 1 else (-1, 1)
        return producer

    def _got_producer_id(self, place: Place, pending: Pending) -> None:
        code = ErrorCode(pending.body["error_code"]) if pending.body is not None else None
        self.sim.note(f"INIT_PRODUCER_ID: {pending.closed_because or code!r}")
        if pending.body is None or code:
            return
        producer_id = pending.body["producer_id"]
        if producer_id in self._producer_ids:
            raise SimulationError(f"producer id {producer_id} was given twice")
        self._producer_ids.add(producer_id)
        self._names += 1
        producer = self._idempotent_producer(f"idempotent-{self._names}", place, producer_id)
        self._producers.append(producer)
        self._prepare(producer)

    def _idempotent_producer(self, name: str, place: Place, producer_id: int) -> IdempotentProducer:
        return IdempotentProducer(name, place, self._new_client(), self.witness, producer_id)

    def _prepare(self, producer: IdempotentProducer) -> None:
        """Before it sends anything."""

    def _produce(self) -> None:
        for producer in self._producers:
            if self._rng.random() < 0.5:
                producer.act(self._rng)

    def _consume(self) -> None:
        places = self._places()
        if places:
            self._consume_from(self._rng.choice(places))

    def _consume_from(self, place: Place) -> None:
        broker_id = self._client.leader_of(place)
        if broker_id is None or self._rng.random() < 0.3:
            broker_id = self._client.anybody()

        def then(found: Found, code: ErrorCode | None) -> None:
            self.sim.note(f"{broker_id} shows {len(found)} of {place}: {code}")
            self.witness.saw(place, found)

        self._client.read(place, broker_id, then)

    # --- groups ----------------------------------------------------------------------------------------------------

    def _commit(self) -> None:
        places = self._places()
        key = (self._rng.choice(GROUPS), self._rng.choice(places)) if places else None
        if key is None or key in self._committing:
            return
        offset = self._rng.randint(0, 1000)
        self._committing.add(key)
        self._tried.setdefault(key, [-1]).append(offset)
        self._ever_tried.setdefault(key, {-1}).add(offset)

        def then(code: ErrorCode | None) -> None:
            self.sim.note(f"{key[0]} commits {offset} of {key[1]}: {code}")
            self._committing.discard(key)
            if code == ErrorCode.NONE:
                self._tried[key] = [offset]

        self._client.commit(*key, offset, then)

    def _look_at_commit(self) -> None:
        """Who coordinates the group no longer, and does not know it yet, may still show an older one."""
        if not self._tried:
            return
        key = self._rng.choice(list(self._tried))

        def then(offset: int | None) -> None:
            if offset is not None and offset not in self._ever_tried[key]:
                raise SimulationError(
                    f"{key[0]} committed one of {self._ever_tried[key]} of {key[1]} and reads {offset}"
                )

        self._client.committed(*key, then)

    # --- calm ------------------------------------------------------------------------------------------------------

    def _calm(self) -> None:
        """Nothing fails any more: everybody must get through, and all copies must become equal."""
        self.faults.end_all()
        end_ms = self.sim.clock.monotonic_ms() + LIVELY_MS_MAX
        before = self.witness.counts()
        fresh: dict[Place, PlainProducer] = {}

        def is_lively() -> bool:
            for producer in self._producers:
                if isinstance(producer, IdempotentProducer) and not producer.is_done:
                    producer.act(self._rng)
            for place in self._unwritten(before):
                fresh.setdefault(place, self._plain_producer(place)).act(self._rng)
            return self.sim.is_settled() and self._is_all_written(before)

        while not is_lively():
            if self.sim.clock.monotonic_ms() >= end_ms:
                raise SimulationError(f"no calm after {LIVELY_MS_MAX} ms: {self._what_is_missing(before)}")
            self.sim.run(200)
        end_ms = self.sim.clock.monotonic_ms() + WHOLE_MS_MAX
        while missing := self.sim.missing():
            if self.sim.clock.monotonic_ms() >= end_ms:
                raise SimulationError(f"not whole after {WHOLE_MS_MAX} ms of calm: {missing}")
            self.sim.run(200)

    def _is_all_written(self, before: dict[Place, int]) -> bool:
        return not self._unwritten(before) and all(
            each.is_done for each in self._producers if isinstance(each, IdempotentProducer)
        )

    def _unwritten(self, before: dict[Place, int]) -> list[Place]:
        now = self.witness.counts()
        return [place for place in self._places() if now.get(place, 0) == before.get(place, 0)]

    def _what_is_missing(self, before: dict[Place, int]) -> str:
        stuck = [
            each.name for each in self._producers if isinstance(each, IdempotentProducer) and not each.is_done
        ]
        return f"{self.sim.unsettled()}; not written: {self._unwritten(before)}; not through: {stuck}"

    def _read_everything(self) -> None:
        waiting: set[object] = set()
        for place in self._places():
            self._read_in_calm(place, waiting)
        for key, tried in self._tried.items():
            self._look_in_calm(key, tried, waiting)
        end_ms = self.sim.clock.monotonic_ms() + LIVELY_MS_MAX
        while waiting:
            if self.sim.clock.monotonic_ms() >= end_ms:
                raise SimulationError(f"not to be read in calm: {waiting}")
            self.sim.run(50)

    def _read_in_calm(self, place: Place, waiting: set[object]) -> None:
        waiting.add(place)

        def then(found: Found, code: ErrorCode | None) -> None:
            if code == ErrorCode.NOT_LEADER_OR_FOLLOWER:  # The first replica has just taken over again.
                self.sim.world.call_later(0.2, self._read_in_calm, place, waiting)
                return
            if code != ErrorCode.NONE:
                raise SimulationError(f"{place} cannot be read in calm: {code}")
            self.witness.saw_all(place, found)
            waiting.discard(place)

        self._client.read(place, self._leader_now(place), then)

    def _look_in_calm(self, key: Key, tried: list[int], waiting: set[object]) -> None:
        waiting.add(key)

        def then(offset: int | None) -> None:
            if offset is None:  # The coordinator was another before.
                self.sim.world.call_later(0.2, self._client.committed, *key, then)
                return
            if offset not in tried:
                raise SimulationError(f"{key[0]} committed one of {tried} of {key[1]} and reads {offset}")
            waiting.discard(key)

        self._client.committed(*key, then)

    def _leader_now(self, place: Place) -> int:
        found = [number for number, life in self.sim.lives.items() if self.sim.leads(life, place)]
        if len(found) != 1:
            raise SimulationError(f"{place} is led by {found} in calm")
        return found[0]
