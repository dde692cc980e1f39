"""ClusterFaults: what goes wrong in a simulated cluster, by seed, and comes to an end again.

Every fault ends by itself after a while; `end_all` ends them at once. Under flush=os a power cut loses what only one
disk has, as a lost disk does: such faults strike only while all brokers have everything.
"""

from collections.abc import Callable
from random import Random

from anabranch.testing.fakes.net import FaultPlan
from anabranch.testing.fakes.store import NO_FAULTS, StoreFaults
from anabranch.testing.simulation.cluster_simulator import ClusterSimulator, Life
from anabranch.testing.simulation.workload import FAULTS
from anabranch.values import BrokerId

BROKERS_MAX = 5
ROOM_BYTES_MAX = 3_000
SLOW_MS_MAX = 300
OLD_DISK_CHANCE = 0.5
STORE_TIMEOUT_MS = 1500
STORE_LATE_MS_MAX = 5000


class ClusterFaults:
    def __init__(self, sim: ClusterSimulator, rng: Random, *, may_lose_disks: bool) -> None:
        self._sim = sim
        self._rng = rng
        self._may_lose_disks = may_lose_disks
        self._ends: list[tuple[int, Callable[[], None]]] = []
        self._starting: set[int] = set()

    # --- time ----------------------------------------------------------------------------------------------------

    def pass_time(self, milliseconds: int) -> None:
        """Let time pass, and end what has lasted long enough."""
        self._sim.run(milliseconds)
        for number, machine in self._sim.machines.items():
            if machine.life is None and number not in self._starting:
                self._starting.add(number)
                self._after(self._rng.choice((50, 500, 4000)), self._start, number)
        now_ms = self._sim.clock.monotonic_ms()
        for end in [end for end in self._ends if end[0] <= now_ms]:
            self._ends.remove(end)
            end[1]()

    def _after(self, milliseconds: int, act: Callable[[int], None], number: int) -> None:
        self._ends.append((self._sim.clock.monotonic_ms() + milliseconds, lambda: act(number)))

    def _start(self, number: int) -> None:
        self._starting.discard(number)
        if self._sim.machines[number].life is None:
            self._sim.start(number)

    def end_all(self) -> None:
        """Nothing fails any more, and everybody runs."""
        sim = self._sim
        sim.note("calm")
        self._ends.clear()
        self._starting.clear()
        sim.net.plan = FaultPlan()
        sim.net.heal()
        self._mend_store(0)
        for number, machine in sim.machines.items():
            machine.disk.crash_at = None
            machine.disk.capacity_bytes = None
            machine.disk.forget_faults()
            if machine.life is not None and machine.life.needs_restart:
                sim.kill(number)
            if machine.life is None:
                sim.start(number)
            else:
                machine.life.workers.slow_ms_max = 0
                sim.resume(number)

    # --- processes and machines ----------------------------------------------------------------------------------

    def _somebody(self) -> Life | None:
        running = [life for life in self._sim.lives.values() if not life.is_paused]
        return self._rng.choice(running) if running else None

    def kill(self) -> None:
        if life := self._somebody():
            self._sim.kill(life.machine.broker_id)

    def stop(self) -> None:
        if life := self._somebody():
            self._sim.stop(life.machine.broker_id)

    @property
    def _may_lose_power(self) -> bool:
        return self._sim.flush == "always" or self._sim.is_whole()

    def crash(self) -> None:
        if (life := self._somebody()) and self._may_lose_power:
            self._sim.crash(life.machine.broker_id)
            if self._rng.random() < 0.3:  # It goes once more, while it recovers.
                disk = life.machine.disk
                disk.crash_at = disk.operations + self._rng.randint(1, 30)

    def crash_soon(self) -> None:
        """Between any two operations of its disk."""
        if (life := self._somebody()) and self._sim.flush == "always":
            disk = life.machine.disk
            disk.crash_at = disk.operations + self._rng.randint(1, 40)

    def pause(self) -> None:
        if life := self._somebody():
            number, of = life.machine.broker_id, life.number
            self._sim.pause(number)

            def resume(number: int) -> None:
                now = self._sim.lives.get(number)
                if now is not None and now.number == of:
                    self._sim.resume(number)

            self._after(self._rng.choice((100, 1000, 3000, 6000)), resume, number)

    def lose_disk(self) -> None:
        if self._may_lose_disks and (life := self._somebody()) and self._sim.is_whole():
            machine = life.machine
            self._sim.kill(machine.broker_id)
            if machine.shelved is not None and self._rng.random() < OLD_DISK_CHANCE:
                self._sim.put_back(machine.broker_id)
            else:
                self._sim.wipe(machine.broker_id)

    def lose_disks(self) -> None:
        """Of as many as the metadata quorum can do without: only for those who keep nothing else on them."""
        leader = next(
            (life.broker for life in self._sim.lives.values() if life.broker.metadata.is_leader), None
        )
        if leader is None or not self._sim.is_whole():
            return
        voters = sorted(member.broker_id for member in leader.metadata.members.voters)
        for number in [*sorted(self._sim.machines.keys() - set(voters)), self._rng.choice(voters)]:
            self._sim.kill(number)
            self._sim.wipe(number)

    def join(self) -> None:
        """One more broker."""
        number = max(self._sim.machines) + 1
        if number <= BROKERS_MAX:
            self._sim.note(f"{number} joins")
            self._sim.add(number)
            self._sim.start(number)

    # --- links ---------------------------------------------------------------------------------------------------

    def _heal(self, number: int) -> None:
        self._sim.note(f"the links of {number} are whole")
        self._sim.net.heal(BrokerId(number))

    def cut(self) -> None:
        one, other = self._rng.sample(sorted(self._sim.machines), 2)
        one_way = self._rng.random() < 0.5
        self._sim.note(f"cut from {one} to {other}{'' if one_way else ' and back'}")
        self._sim.net.cut(BrokerId(one), BrokerId(other), one_way=one_way)
        self._after(self._rng.choice((300, 2000, 5000)), self._heal, one)

    def isolate(self) -> None:
        number = self._rng.choice(sorted(self._sim.machines))
        self._sim.note(f"{number} is cut off")
        for other in self._sim.machines:
            if other != number:
                self._sim.net.cut(BrokerId(number), BrokerId(other))
        self._after(self._rng.choice((300, 3000, 6000)), self._heal, number)

    def spoil_net(self) -> None:
        """For a while some of what is told is lost, doubled, late or out of order."""
        rng = self._rng
        self._sim.note("the network is bad")
        self._sim.net.plan = FaultPlan(
            lose=rng.choice((0.0, 0.02, 0.2)),
            double=rng.choice((0.0, 0.05)),
            reorder=rng.choice((0.0, 0.05)),
            slow=rng.choice((0.0, 0.02)),
            slow_ms_max=rng.choice((100, 1000)),
            delay_ms_max=rng.choice((2, 20)),
        )
        self._after(rng.choice((500, 3000)), self._mend_net, 0)

    def _mend_net(self, _: int) -> None:
        self._sim.note("the network is good")
        self._sim.net.plan = FaultPlan()

    # --- the object store ------------------------------------------------------------------------------------------

    def store_away(self) -> None:
        """For everybody; now and then longer than brokers try."""
        assert self._sim.bucket is not None
        self._sim.note("the store is away")
        self._sim.bucket.is_away = True
        self._after(self._rng.choice((300, 2000, 2000, 8000)), self._mend_store, 0)

    def cut_store(self) -> None:
        """For one broker."""
        if (life := self._somebody()) and life.store is not None:
            self._sim.note(f"{life.machine.broker_id} does not reach the store")
            life.store.is_cut = True
            self._after(self._rng.choice((300, 2000, 5000)), self._mend_store, 0)

    def spoil_store(self) -> None:
        rng = self._rng
        self._sim.note("the store is bad")
        self._sim.spoil_store(
            StoreFaults(
                refused=rng.choice((0.0, 0.3)),
                slow=rng.choice((0.0, 0.3)),
                lost=rng.choice((0.0, 0.1)),
                silent=rng.choice((0.0, 0.1, 0.4)),
                late=rng.choice((0.0, 0.1)),
                busy=rng.choice((0.0, 0.3)),
                slow_ms_max=rng.choice((200, 1500)),
                timeout_ms=STORE_TIMEOUT_MS,
                late_ms_max=STORE_LATE_MS_MAX,
            )
        )
        self._after(rng.choice((1000, 4000)), self._mend_store, 0)

    def _mend_store(self, _: int) -> None:
        if self._sim.bucket is None:
            return
        self._sim.note("the store is good")
        self._sim.bucket.is_away = False
        self._sim.spoil_store(NO_FAULTS)
        for life in self._sim.lives.values():
            if life.store is not None:
                life.store.is_cut = False

    # --- disks ---------------------------------------------------------------------------------------------------

    def slow_disk(self) -> None:
        if life := self._somebody():
            self._sim.note(f"the disk of {life.machine.broker_id} is slow")
            life.workers.slow_ms_max = self._rng.choice((20, SLOW_MS_MAX))
            self._after(self._rng.choice((500, 3000)), self._speed_up, life.machine.broker_id)

    def _speed_up(self, number: int) -> None:
        if number in self._sim.lives:
            self._sim.lives[number].workers.slow_ms_max = 0

    def fill_disk(self) -> None:
        if life := self._somebody():
            disk = life.machine.disk
            self._sim.note(f"the disk of {life.machine.broker_id} is nearly full")
            used = disk.total_bytes("") - disk.free_bytes("")
            disk.capacity_bytes = used + self._rng.randint(0, ROOM_BYTES_MAX)
            self._after(self._rng.choice((500, 3000)), self._make_room, life.machine.broker_id)

    def fail_disk(self) -> None:
        """Under flush=os what a failed sync was to write is lost without a power cut, so that nobody would know."""
        if (life := self._somebody()) and self._sim.flush == "always":
            operation, error = self._rng.choice(FAULTS)
            self._sim.note(f"the next {operation} of {life.machine.broker_id} will fail")
            life.machine.disk.fail_next(operation, error, times=self._rng.randint(1, 2))

    def _make_room(self, number: int) -> None:
        self._sim.machines[number].disk.capacity_bytes = None
