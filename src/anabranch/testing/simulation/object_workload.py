"""ObjectWorkload: the random run of one seed with topics in an object store, beside others or alone.

Producers write to any broker for the same partitions and consumers read from any, while the store refuses, is slow,
does what it was asked and never says so, or is away. Limits are small, so that objects are merged, cut by retention,
compacted and collected within a run, and the metadata is snapshotted often. A topic is made and deleted now and then.
In calm all brokers must have the same table, and show the same; the store must have every object that is named and,
after a while, none that is not. `cluster_runs --objects` runs seeds of it.
"""

from random import Random

from anabranch.cluster.objects.upkeep import own_prefixes
from anabranch.testing.in_process_client import Body, Pending
from anabranch.testing.simulation.cluster_clients import ClusterClient, ClusterWitness
from anabranch.testing.simulation.cluster_simulator import ClusterSimulator
from anabranch.testing.simulation.cluster_workload import Action, ClusterWorkload
from anabranch.testing.simulation.object_clients import (
    Cleaned,
    Follower,
    ObjectClient,
    ObjectTopics,
    ObjectWitness,
    RoamingProducer,
)
from anabranch.testing.simulation.producers import IN_FLIGHT_MAX, IdempotentProducer, PlainProducer
from anabranch.testing.simulation.reading_on import Reading
from anabranch.testing.simulation.simulator import SimulationError
from anabranch.testing.simulation.witness import Place
from anabranch.wire.api_keys import ApiKey
from anabranch.wire.error_codes import ErrorCode

COLLECT_MS = 4_000
CLEAN_MS_MAX = 150_000
"""Longer than upkeep rests after a store that failed, and what it does then."""
OBJECT_STEPS = 120
FOLLOWERS = 4
WHOLE_TRIES_MAX = 30
SMALL_STORE = {
    "object.gather.ms": 50,
    "object.gather.bytes": 2048,
    "object.merge.bytes": 4096,
    "object.collect.ms": COLLECT_MS,
    "object.cache.bytes": 8192,
    "object.cache.disk.bytes": 16384,
    "object.snapshot.ms": 5_000,
    "log.retention.check.interval.ms": 2_000,
    "log.cleaner.backoff.ms": 2_000,
}
OVERRIDES = {
    Cleaned.KEPT: {"retention.ms": "-1"},
    Cleaned.CUT: {"retention.ms": "-1", "retention.bytes": "4000"},
    Cleaned.COMPACTED: {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.1"},
}
PASSING = "passing"
"""The topic that comes and goes."""


class ObjectWorkload(ClusterWorkload):
    witness: ObjectWitness

    def __init__(self, seed: int, *, steps: int = OBJECT_STEPS) -> None:
        chosen = Random(seed + 2)
        self._has_rings = chosen.random() < 0.4
        self._cleaned: ObjectTopics = {"o0": Cleaned.KEPT}
        for number in range(1, 3):
            self._cleaned[f"o{number}"] = chosen.choice((Cleaned.KEPT, Cleaned.CUT, Cleaned.COMPACTED))
        self._entries_per_snapshot = chosen.choice((20, 60, 1000))
        self._followers: list[Follower] = []
        self._roaming: list[RoamingProducer] = []
        super().__init__(seed, steps=steps)
        self._copies_min = 2

    # --- what is simulated ------------------------------------------------------------------------------------------

    def _simulate(self, seed: int, brokers: int, flush: str) -> ClusterSimulator:
        return ClusterSimulator(
            seed,
            brokers,
            flush=flush,
            settings=SMALL_STORE,
            has_store=True,
            entries_per_snapshot=self._entries_per_snapshot,
        )

    def _hear(self) -> ClusterWitness:
        return ObjectWitness(self._cleaned)

    def _new_client(self) -> ClusterClient:
        return self._object_client()

    def _object_client(self, broker_id: int | None = None) -> ObjectClient:
        return ObjectClient(self.sim, self._rng, self._cleaned, broker_id)

    def _topics(self) -> dict[str, int]:
        rings = {"t0": 1} if self._has_rings else {}
        return {**rings, **{topic: self._rng.randint(1, 2) for topic in self._cleaned}}

    def _first_topics(self) -> list[str]:
        return list(self._partitions)

    def _as_made(self, topic: str) -> Body:
        if topic not in self._cleaned and topic != PASSING:
            return super()._as_made(topic)
        overrides = {"anabranch.mode": "object", **OVERRIDES[self._cleaned.get(topic, Cleaned.KEPT)]}
        return {
            "name": topic,
            "num_partitions": self._partitions.get(topic, 1),
            "replication_factor": -1,
            "configs": [{"name": name, "value": value} for name, value in overrides.items()],
        }

    def _deeds(self) -> list[Action]:
        return [
            *super()._deeds(),
            Action(30, self._roam),
            Action(20, self._follow),
            Action(3, self._cut),
            Action(4, self._pass_by),
        ]

    def _troubles(self, times: int) -> list[Action]:
        faults = self.faults
        lose = [] if self._has_rings else [Action(6 * times, self._lose_disks)]
        return [
            *super()._troubles(times),
            *lose,
            Action(3 * times, faults.store_away),
            Action(2 * times, faults.cut_store),
            Action(5 * times, faults.spoil_store),
        ]

    def _lose_disks(self) -> None:
        for _ in range(WHOLE_TRIES_MAX):
            if self.sim.is_whole():
                break
            self.faults.pass_time(100)
        self.faults.lose_disks()

    # --- deeds ------------------------------------------------------------------------------------------------------

    def _is_object(self, place: Place) -> bool:
        return place[0] in self._cleaned

    def _object_places(self) -> list[Place]:
        return [place for place in self._places() if self._is_object(place)]

    def _roam(self) -> None:
        places = self._object_places()
        if places and len(self._roaming) < len(places):
            place = places[len(self._roaming)]
            self._roaming.append(
                RoamingProducer(lambda number: self._session(place, number), self._client.anybody)
            )
        for producer in self._roaming:
            producer.act(self._rng)

    def _session(self, place: Place, broker_id: int) -> PlainProducer:
        self._names += 1
        return PlainProducer(f"plain-{self._names}", place, self._object_client(broker_id), self.witness)

    def _plain_producer(self, place: Place) -> PlainProducer:
        if not self._is_object(place):
            return super()._plain_producer(place)
        return self._session(place, self._client.anybody())

    def _prepare(self, producer: IdempotentProducer) -> None:
        if self._is_object(producer.place):
            producer.ahead_max = IN_FLIGHT_MAX

    def _follow(self) -> None:
        places = self._object_places()
        if places and len(self._followers) < FOLLOWERS:
            name, place = f"follower-{len(self._followers)}", self._rng.choice(places)
            self._followers.append(Follower(name, place, self._object_client(), self.witness))
        for follower in self._followers:
            follower.act()

    def _consume_from(self, place: Place) -> None:
        if not self._is_object(place):
            super()._consume_from(place)
            return
        broker_id = self._client.anybody()
        self._object_client().read_on(
            place, broker_id, 0, lambda each: self._has_read(place, broker_id, each)
        )

    def _has_read(self, place: Place, broker_id: int, reading: Reading) -> None:
        self.sim.note(f"{broker_id} shows {len(reading.found)} of {place}: {reading.code}")
        self.witness.saw_some(place, reading)

    def _commit(self) -> None:
        if self._has_rings:  # Else the topic of all commits may lose its disks.
            super()._commit()

    def _cut(self) -> None:
        """DeleteRecords, of a topic that retention cuts as well."""
        places = [each for each in self._object_places() if self._cleaned[each[0]] is Cleaned.CUT]
        if not places:
            return
        topic, index = place = self._rng.choice(places)
        offset = self._rng.randint(0, self.witness.counts().get(place, 0))
        partitions = [{"partition_index": index, "offset": offset}]
        body = {"timeout_ms": 2000, "topics": [{"name": topic, "partitions": partitions}]}

        def answered(pending: Pending) -> None:
            code = (
                pending.body["topics"][0]["partitions"][0]["error_code"] if pending.body is not None else None
            )
            self.sim.note(f"{place} is cut at {offset}: {pending.closed_because or code}")

        self._client.send(self._client.anybody(), ApiKey.DELETE_RECORDS, 2, body).on_settled = answered

    def _pass_by(self) -> None:
        """Make a topic, write to it, and delete it again."""

        def answered(pending: Pending) -> None:
            self.sim.note(f"{pending.api.name} {PASSING}: {pending.closed_because or 'answered'}")

        api, version, body = self._rng.choice(
            [
                (ApiKey.CREATE_TOPICS, 7, {"topics": [self._as_made(PASSING)], "timeout_ms": 2000}),
                (ApiKey.DELETE_TOPICS, 5, {"topic_names": [PASSING], "timeout_ms": 2000}),
            ]
        )
        self._client.send(self._client.anybody(), api, version, body).on_settled = answered
        PlainProducer(PASSING, (PASSING, 0), self._passing_client(), _Nobody()).act(self._rng)

    def _passing_client(self) -> ObjectClient:
        return ObjectClient(self.sim, self._rng, {PASSING: Cleaned.KEPT}, self._client.anybody())

    # --- calm -------------------------------------------------------------------------------------------------------

    def _read_everything(self) -> None:
        super()._read_everything()
        self._wait_for_collection()
        self._say_what_was_done()
        self.sim.check_equal()
        super()._read_everything()

    def _read_in_calm(self, place: Place, waiting: set[object]) -> None:
        if not self._is_object(place):
            super()._read_in_calm(place, waiting)
            return
        for number in self.sim.lives:
            self._read_from(number, place, waiting)

    def _read_from(self, number: int, place: Place, waiting: set[object]) -> None:
        waiting.add((place, number))

        def then(reading: Reading) -> None:
            if reading.code == ErrorCode.NONE and reading.next_offset == reading.high_watermark:
                self.witness.saw_whole(place, reading)
                waiting.discard((place, number))
            else:  # It still rests after a store that was away, or retention has just cut the partition.
                self.sim.world.call_later(0.5, self._read_from, number, place, waiting)

        self._object_client().read_on(place, number, 0, then)

    def _say_what_was_done(self) -> None:
        for number, life in self.sim.lives.items():
            assert life.broker.objects is not None
            upkeep, writing = life.broker.objects.upkeep, life.broker.objects.writing
            merges = upkeep.merges
            self.sim.note(
                f"{number}: puts={writing.puts_total} merges={merges.merges_total} compactions="
                f"{merges.compactions_total} deleted={upkeep.objects_deleted_total} orphans={upkeep.orphans_total}"
            )

    def _wait_for_collection(self) -> None:
        """Until the store has what is named, and nothing else of ours."""
        end_ms = self.sim.clock.monotonic_ms() + CLEAN_MS_MAX
        while surplus := surplus_objects(self.sim):
            if self.sim.clock.monotonic_ms() >= end_ms:
                raise SimulationError(f"not collected after {CLEAN_MS_MAX} ms: {sorted(surplus)}")
            self.sim.run(1000)
        self.sim.run_until(self.sim.is_whole)


def surplus_objects(sim: ClusterSimulator) -> set[str]:
    """What nobody names. Raises SimulationError if an object is named that is not there."""
    assert sim.bucket is not None
    found: set[str] = set()
    for number, life in sim.lives.items():
        objects = life.broker.metadata.table.objects
        named = {each.name for each in objects.referenced()}
        there = {
            name for prefix in own_prefixes(objects.incarnation or 0) for name in sim.bucket.names(prefix)
        }
        if not named <= there:
            raise SimulationError(f"{number} names objects that are not there: {sorted(named - there)}")
        found |= there - named
    return found


class _Nobody(ObjectWitness):
    """Holds nobody to anything: what is written to a topic that goes away has no place."""

    def __init__(self) -> None:
        super().__init__({})

    def acknowledged(self, *_: object) -> None:
        """Whatever it was told."""
