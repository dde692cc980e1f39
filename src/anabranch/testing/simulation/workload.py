"""Workload: the random run of one seed: clients, faults and deaths, and a witness who objects.

Topics are made, deleted and made again under the same names; plain and idempotent producers write to their
partitions; groups commit offsets; consumers look. Meanwhile writes and syncs fail, the disk fills up, the process is
killed, and the power goes between any two operations of the disk, during recovery too. A topic whose making or
deleting was not answered may be there or not: nobody uses it before the next life has said which.
"""

import errno
from collections.abc import Callable
from random import Random
from typing import NamedTuple

from anabranch.testing.fakes.disk import Operation
from anabranch.testing.in_process_client import Body, Pending
from anabranch.testing.simulation.producers import IdempotentProducer, PlainProducer, when_settled
from anabranch.testing.simulation.simulator import SimulationError, Simulator
from anabranch.testing.simulation.witness import Place, Witness
from anabranch.wire.api_keys import ApiKey
from anabranch.wire.error_codes import ErrorCode

STEPS = 150
TOPICS = ("t0", "t1", "t2")
PARTITIONS_MAX = 3
GROUPS = ("g0", "g1")
PAUSE_MS_MAX = 12
SETTLE_MS = 3_000
HOUSEKEEPING_MS = 6_000
ROUNDS_MAX = 30
ROOM_BYTES_MAX = 3_000

THERE, GONE, BUSY, UNKNOWN = "there", "gone", "busy", "unknown"

FAULTS: tuple[tuple[Operation, int], ...] = (
    ("write", errno.ENOSPC),
    ("write", errno.EIO),
    ("sync", errno.EIO),
    ("truncate", errno.EIO),
    ("create", errno.ENOSPC),
    ("rename", errno.EIO),
    ("sync_folder", errno.EIO),
    ("unlink", errno.EIO),
)

Producer = PlainProducer | IdempotentProducer


class Action(NamedTuple):
    weight: int
    act: Callable[[], None]


class Workload:
    def __init__(self, seed: int, *, steps: int = STEPS, flush: str = "always") -> None:
        self.sim = Simulator(seed, flush=flush)
        self.witness = Witness()
        self._rng = Random(seed + 1)
        self._steps = steps
        self._topics = dict.fromkeys(TOPICS, GONE)
        self._partitions: dict[str, int] = {}
        self._producers: list[Producer] = []
        self._names = 0
        self._commits: dict[tuple[str, Place], list[int]] = {}
        self._actions = (
            Action(50, self._produce),
            Action(8, self._make_topic),
            Action(1, self._delete_topic),
            Action(5, self._add_producer),
            Action(6, self._consume),
            Action(6, self._commit),
            Action(4, self._look_at_commits),
            Action(5, self._fail_disk),
            Action(1, self._fill_disk),
            Action(2, self._kill),
            Action(2, self._crash),
            Action(3, self._crash_soon),
            Action(2, self._restart),
            Action(3, self._wait_for_housekeeping),
        )
        self._sync_may_fail = False

    def run(self) -> None:
        """All steps, then quiet: every promise is checked once more. Raises SimulationError."""
        weights = [action.weight for action in self._actions]
        for _ in range(self._steps):
            self._rng.choices(self._actions, weights)[0].act()
            self._pass_time(self._rng.randint(0, PAUSE_MS_MAX))
        self._settle()
        for place in self._places():
            records = self.sim.fetch_all(*place)
            assert records is not None
            self.witness.saw_all(place, records)
        self._look_at_commits()

    def _settle(self) -> None:
        """Nothing fails any more: idempotent producers must get through, and every log must end up synced."""
        self.sim.disk.crash_at = None
        self._kill()
        for _ in range(ROUNDS_MAX):
            for producer in self._producers:
                if isinstance(producer, IdempotentProducer) and not producer.is_done:
                    producer.act(self._rng)
            self._pass_time(SETTLE_MS)
            if all(each.is_done for each in self._producers if isinstance(each, IdempotentProducer)):
                return
        raise SimulationError("an idempotent producer cannot get through on a healthy disk")

    # --- lives ---------------------------------------------------------------------------------------------------

    def _pass_time(self, milliseconds: int) -> None:
        life = self.sim.lives
        self.sim.run(milliseconds)
        if self.sim.lives != life:
            self._reborn(lost_power=True)

    def _kill(self) -> None:
        self.sim.kill()
        # A failed sync drops what it was to write, as on Linux: the page cache is then no better than the disk.
        self._reborn(lost_power=self._sync_may_fail)

    def _crash(self) -> None:
        self.sim.crash(again_after=self._rng.choice((None, self._rng.randint(1, 30))))
        self._reborn(lost_power=True)

    def _crash_soon(self) -> None:
        self.sim.disk.crash_at = self.sim.disk.operations + self._rng.randint(1, 40)

    def _restart(self) -> None:
        lose_power = self._rng.random() < 0.5
        self.sim.restart(lose_power=lose_power)
        self._reborn(lost_power=True)

    def _reborn(self, *, lost_power: bool) -> None:
        """A new life: find out what became of unanswered requests, and connect again."""
        if lost_power:
            self.witness.power_lost()
        self._sync_may_fail = False
        life = self.sim.lives
        body = self.sim.run_until(self.sim.send(ApiKey.METADATA, 9, {"topics": None}))
        if self.sim.lives != life or body is None:
            self._reborn(lost_power=True)
            return
        self._compare_topics({topic["name"]: len(topic["partitions"]) for topic in body["topics"]})
        for producer in self._producers:
            producer.reconnect()

    def _compare_topics(self, found: dict[str, int]) -> None:
        for topic, state in self._topics.items():
            if state == THERE and found.get(topic) != self._partitions[topic]:
                raise SimulationError(f"{topic} was made and is gone, or has other partitions: {found}")
            if state == GONE and topic in found:
                raise SimulationError(f"{topic} was deleted and is back")
            if state in (BUSY, UNKNOWN):
                self._resolve(topic, found)

    def _resolve(self, topic: str, found: dict[str, int]) -> None:
        if topic in found:
            self._topics[topic] = THERE
            self._partitions[topic] = found[topic]
        else:
            self._drop(topic)

    # --- topics --------------------------------------------------------------------------------------------------

    def _pick(self, state: str) -> str | None:
        fitting = [topic for topic, each in self._topics.items() if each == state]
        return self._rng.choice(fitting) if fitting else None

    def _places(self) -> list[Place]:
        return [
            (topic, index)
            for topic, state in self._topics.items()
            if state == THERE
            for index in range(self._partitions[topic])
        ]

    def _make_topic(self) -> None:
        topic = self._pick(GONE)
        if topic is None:
            return
        self._topics[topic] = BUSY
        self._partitions[topic] = self._rng.randint(1, PARTITIONS_MAX)
        pending = self.sim.create_topic(topic, self._partitions[topic])
        when_settled(pending, lambda done: self._topic_answered(topic, done, "topics", THERE))

    def _delete_topic(self) -> None:
        topic = self._pick(THERE)
        if topic is None:
            return
        self._topics[topic] = BUSY
        # Its producers stop; what they have under way may be answered either way.
        self._producers = [each for each in self._producers if each.place[0] != topic]
        for (_, place), tried in self._commits.items():
            if place[0] == topic:
                tried.append(-1)  # They go with the topic; a death in between may leave them to the next one.
        pending = self.sim.delete_topic(topic)
        when_settled(pending, lambda done: self._topic_answered(topic, done, "responses", GONE))

    def _topic_answered(self, topic: str, pending: Pending, answers: str, state: str) -> None:
        code = pending.body[answers][0]["error_code"] if pending.body is not None else None
        self.sim.note(f"{pending.api.name} {topic}: {code}")
        if code:
            self._topics[topic] = UNKNOWN
        elif state == GONE:
            self._drop(topic)
        else:
            self._topics[topic] = state

    def _drop(self, topic: str) -> None:
        self._topics[topic] = GONE
        self._producers = [each for each in self._producers if each.place[0] != topic]
        self.witness.forget(topic)

    # --- producers and consumers -----------------------------------------------------------------------------------

    def _add_producer(self) -> None:
        places = self._places()
        if not places:
            return
        place = self._rng.choice(places)
        self._names += 1
        if self._rng.random() < 0.5:
            self._producers.append(PlainProducer(f"plain-{self._names}", place, self.sim, self.witness))
            return
        body = self._ask(ApiKey.INIT_PRODUCER_ID, 4, {"transactional_id": None})
        if body is not None and not body["error_code"] and self._topics[place[0]] == THERE:
            name = f"idempotent-{self._names}"
            producer = IdempotentProducer(name, place, self.sim, self.witness, body["producer_id"])
            self._producers.append(producer)

    def _ask(self, api: ApiKey, version: int, request: Body) -> Body | None:
        """The answer; None if the node died instead, and then the next life has begun."""
        life = self.sim.lives
        body = self.sim.run_until(self.sim.send(api, version, request))
        if self.sim.lives != life:
            self._reborn(lost_power=True)
            return None
        return body

    def _produce(self) -> None:
        for producer in self._producers:
            if self._rng.random() < 0.6 and self._topics[producer.place[0]] == THERE:
                producer.act(self._rng)

    def _consume(self) -> None:
        places = self._places()
        if not places:
            return
        place = self._rng.choice(places)
        life = self.sim.lives
        records = self.sim.fetch_all(*place)
        if self.sim.lives != life:
            self._reborn(lost_power=True)
        elif records is not None:
            self.witness.saw(place, records)

    # --- groups ----------------------------------------------------------------------------------------------------

    def _commit(self) -> None:
        places = self._places()
        if not places:
            return
        group, place = self._rng.choice(GROUPS), self._rng.choice(places)
        offset = self._rng.randint(0, 1000)
        tried = self._commits.setdefault((group, place), [-1])
        tried.append(offset)
        partition = {"partition_index": place[1], "committed_offset": offset, "committed_metadata": ""}
        request = {
            "group_id": group,
            "generation_id_or_member_epoch": -1,
            "member_id": "",
            "topics": [{"name": place[0], "partitions": [partition]}],
        }
        body = self._ask(ApiKey.OFFSET_COMMIT, 8, request)
        code = body["topics"][0]["partitions"][0]["error_code"] if body is not None else None
        self.sim.note(f"{group} commits {offset} of {place}: {code}")
        if code == ErrorCode.NONE:
            tried[:] = [offset]

    def _look_at_commits(self) -> None:
        for (group, place), tried in list(self._commits.items()):
            topics = [{"name": place[0], "partition_indexes": [place[1]]}]
            body = self._ask(ApiKey.OFFSET_FETCH, 8, {"groups": [{"group_id": group, "topics": topics}]})
            if body is None:
                return
            answer = body["groups"][0]
            if answer["error_code"]:
                continue
            offset = answer["topics"][0]["partitions"][0]["committed_offset"]
            if offset not in tried:
                raise SimulationError(f"{group} committed one of {tried} of {place} and reads {offset}")

    def _wait_for_housekeeping(self) -> None:
        self._pass_time(HOUSEKEEPING_MS)

    # --- faults ----------------------------------------------------------------------------------------------------

    def _fail_disk(self) -> None:
        operation, error = self._rng.choice(FAULTS)
        self.sim.note(f"the next {operation} will fail")
        self._sync_may_fail |= operation == "sync"
        self.sim.disk.fail_next(operation, error, times=self._rng.randint(1, 2))

    def _fill_disk(self) -> None:
        used = self.sim.disk.total_bytes("") - self.sim.disk.free_bytes("")
        self.sim.note("the disk is nearly full")
        self.sim.disk.capacity_bytes = used + self._rng.randint(0, ROOM_BYTES_MAX)
