"""Schedules of whole brokers whose topic changes its mode: what happens when is written down, and not by seed."""

from collections.abc import Callable

from anabranch.cluster.metadata.rows import Topic
from anabranch.testing.in_process_client import Pending
from anabranch.testing.simulation.branch_copies import missing_branches
from anabranch.testing.simulation.cluster_simulator import ClusterSimulator
from anabranch.testing.simulation.object_workload import SMALL_STORE
from anabranch.testing.simulation.simulator import Producer, SimulationError, fetch_request, records_from
from anabranch.wire.api_keys import ApiKey
from anabranch.wire.error_codes import ErrorCode
from support.branch_schedule import BranchSchedule

FORMS = {"branch": "branched", "object": "stored", "ring": "kept", "solo": "kept"}
WRITES_MAX = 200
CHANGE_MS_MAX = 60_000
DIES_MS_MAX = 400


class ModeSchedule(BranchSchedule):
    """Three brokers with an object store, and one topic in mode branch with a copy at each."""

    def __init__(self, seed: int = 1, entries_per_snapshot: int = 1000) -> None:
        """`entries_per_snapshot`: with few, whoever comes back without the others knows some of what was agreed on."""
        self._entries_per_snapshot = entries_per_snapshot
        super().__init__(seed)
        self.acknowledged: list[bytes] = []
        self._sequence = 0

    def _simulator(self, seed: int) -> ClusterSimulator:
        return ClusterSimulator(
            seed,
            3,
            settings=SMALL_STORE,
            has_store=True,
            entries_per_snapshot=self._entries_per_snapshot,
        )

    # --- writing and reading

    def say(self, value: bytes) -> None:
        """By one idempotent producer, to whoever leads, as often as it takes."""
        producer = (1000, 0, self._sequence)
        for _ in range(WRITES_MAX):
            if (leader := self.leader()) is not None and self._is_taken(leader, value, producer):
                self._sequence += 1
                self.acknowledged.append(value)
                return
            self.sim.run(50)
        raise SimulationError(f"nobody takes {value!r}")

    def _is_taken(self, leader: int, value: bytes, producer: Producer | None) -> bool:
        pending = self.send(leader, value, producer, timeout_ms=2000)
        self.sim.run_until(lambda: pending.is_settled)
        if pending.body is None:
            return False
        return pending.body["responses"][0]["partition_responses"][0]["error_code"] == ErrorCode.NONE

    def leader(self) -> int | None:
        """Whoever writes, in whichever form."""
        for number, life in self.sim.lives.items():
            if self.sim.leads(life, ("t", 0)) or any(life.broker.topics.object_partitions()):
                return number
        return None

    def check(self) -> None:
        """Once all is well, a reader who begins anew sees each record once. Raises SimulationError."""
        self.sim.run_until(lambda: self.sim.is_whole() and not missing_branches(self.sim))
        found = self.found()
        if sorted(found) != sorted(self.acknowledged):
            lost = sorted(set(self.acknowledged) - set(found))
            twice = sorted({each for each in found if found.count(each) > 1})
            raise SimulationError(f"lost {lost}, twice {twice}, beyond {set(found) - set(self.acknowledged)}")

    def found(self) -> list[bytes]:
        offset, found = 0, []
        while (more := self._read(offset)) != []:
            for offset, value in more or ():
                found.append(value or b"")
                offset += 1
        return found

    def _read(self, offset: int) -> list[tuple[int, bytes | None]] | None:
        """What whoever leads has from there on; None: it does so no more."""
        self.sim.run_until(lambda: self.leader() is not None)
        leader = self.leader()
        assert leader is not None
        wanted = {**fetch_request("t", 0, offset), "max_wait_ms": 100}
        answer = self.ask(leader, ApiKey.FETCH, 12, wanted)["responses"][0]["partitions"][0]
        if answer["error_code"] == ErrorCode.NOT_LEADER_OR_FOLLOWER:
            self.sim.run(50)
            return None
        if answer["error_code"]:
            raise SimulationError(f"{ErrorCode(answer['error_code'])!r} at {offset}")
        return list(records_from(answer["records"], offset))

    # --- modes

    def alter(self, mode: str, at: int = 1) -> Pending:
        config = {"name": "anabranch.mode", "config_operation": 0, "value": mode}
        resource = {"resource_type": 2, "resource_name": "t", "configs": [config]}
        body = {"resources": [resource], "validate_only": False}
        pending = self.sim.send(at, ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, body, timeout_ms=5000)
        self.sim.run_until(lambda: pending.is_settled)
        return pending

    def refusal(self, mode: str, at: int = 1) -> str | None:
        pending = self.alter(mode, at)
        assert pending.body is not None, pending.closed_because
        message: str | None = pending.body["responses"][0]["error_message"]
        return message

    def wish(self, mode: str) -> None:
        """Until it is agreed to: after a split some are not reached yet."""
        for _ in range(WRITES_MAX):
            if self.refusal(mode) is None:
                return
            self.sim.run(50)
        raise SimulationError(f"nobody lets it be {mode}: {self.refusal(mode)}")

    def topics(self) -> dict[int, Topic | None]:
        """As each broker knows it; one that has just come back may know nothing yet."""
        return {number: life.broker.metadata.table.topics.get("t") for number, life in self.sim.lives.items()}

    def topic(self) -> Topic | None:
        return next((topic for topic in self.topics().values() if topic is not None), None)

    def closer(self) -> int | None:
        """Who is to bring it out of branches, as far as anybody knows."""
        placements = [topic.placements[0] for topic in self.topics().values() if topic and topic.placements]
        return next((each.closer for each in placements if each.closer is not None), None)

    def is_in(self, mode: str) -> bool:
        """As far as everybody who runs knows, and has done what is to be done for it."""
        return all(
            topic is not None
            and topic.mode == mode
            and set(topic.all_forms) == {FORMS[mode]}
            and self.sim.broker(number).topics.is_settled
            for number, topic in self.topics().items()
        )

    def change(self, mode: str, *, meanwhile: Callable[[], None] | None = None) -> None:
        """Ask until it is agreed to, and write until it is so."""
        end_ms = self.sim.clock.monotonic_ms() + CHANGE_MS_MAX
        while not self.is_in(mode):
            if self.sim.clock.monotonic_ms() > end_ms:
                raise SimulationError(f"not {mode} after {CHANGE_MS_MAX} ms: {self.topic()}")
            if (topic := self.topic()) is not None and topic.mode != mode:
                self.alter(mode, next(iter(self.sim.lives)))
            self.say(b"%s %d" % (mode.encode(), len(self.acknowledged)))
            if meanwhile is not None:
                meanwhile()
            self.sim.run(50)

    def until_closing(self) -> int:
        """Until it is agreed on who brings it out of branches: that broker."""
        end_ms = self.sim.clock.monotonic_ms() + CHANGE_MS_MAX
        while (closer := self.closer()) is None:
            if self.sim.clock.monotonic_ms() > end_ms:
                raise SimulationError("nobody closes it")
            self.sim.run(1)
        return closer

    def die_after(self, broker_id: int, steps: int, *, loses_power: bool) -> bool:
        """When its disk has done so many operations more, if it does; and come back. Whether it died."""
        disk = self.sim.machines[broker_id].disk
        last = disk.operations + steps
        if loses_power:
            disk.crash_at = last
        for _ in range(DIES_MS_MAX):
            if broker_id in self.sim.lives and not loses_power and disk.operations >= last:
                self.sim.kill(broker_id)
            if broker_id not in self.sim.lives:
                self.sim.run(200)
                self.sim.start(broker_id)
                return True
            self.sim.run(1)
        disk.crash_at = None
        return False

    def until_somebody_knows(self, form: str) -> int:
        """Until it is agreed on that it has this form, and somebody does not know: that one."""
        for _ in range(CHANGE_MS_MAX):
            forms = {number: topic.form(0) if topic else None for number, topic in self.topics().items()}
            unaware = [number for number, known in forms.items() if known != form]
            if form in forms.values() and unaware:
                return unaware[0]
            if not unaware:
                raise SimulationError("all came to know it at once: another seed may do")
            self.sim.run(1)
        raise SimulationError(f"it does not become {form}")

    def neither_closer_nor_quorum_leader(self) -> int:
        leaders = {number for number, life in self.sim.lives.items() if life.broker.metadata.is_leader}
        return min(self.sim.lives.keys() - leaders - {self.primary()})

    def wish_at_once(self, mode: str) -> None:
        """Of the leader of the quorum, before it notices that somebody is away."""
        leader = next(number for number, life in self.sim.lives.items() if life.broker.metadata.is_leader)
        if (said := self.refusal(mode, leader)) is not None:
            raise AssertionError(said)

    def try_alone(self, broker_id: int) -> None:
        """Write to a broker that is cut off: what it acknowledges has to be there in the end."""
        value = b"alone %d" % len(self.acknowledged)
        if self._is_taken(broker_id, value, None):
            self.acknowledged.append(value)
