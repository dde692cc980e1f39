"""Three replicas of a ring partition in one thread, over a network and disks that fail by seed.

Invariants: what any replica publishes at an offset is the same everywhere and for ever; a generation has one leader;
an offset that was published is never withdrawn. After the faults a calm: somebody leads, writes succeed again, all logs
are equal, and nothing acknowledged is gone.
"""

import heapq
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

from anabranch.modes.mode import Publish
from anabranch.modes.ring.effects import CutBack, Effect, Kept, Remember, Sync, Take, Tell
from anabranch.modes.ring.messages import Message, Push
from anabranch.modes.ring.replica import RingReplica

TICK_MS = 100
CALM_MS = 40_000
STEP_MS = 30


class Stored(NamedTuple):
    generation: int
    value: int


@dataclass
class Machine:
    """A broker with its disk. Beyond `synced` the log may be lost in a crash."""

    kept: Kept
    log: list[Stored] = field(default_factory=list)
    synced: int = 0
    cuts: int = 0
    replica: RingReplica | None = None
    life: int = 0
    effects: list[Effect] = field(default_factory=list)
    waiting: list[tuple[object, ...]] = field(default_factory=list)
    is_busy: bool = False
    published: int = 0


class RingWorld:
    def __init__(self, seed: int, count: int = 3, wipes: bool = True) -> None:
        self.chance = Random(seed)
        self.brokers = tuple(range(1, count + 1))
        self.machines = {broker: Machine(Kept()) for broker in self.brokers}
        self.wipes = wipes
        self.now_ms = 0.0
        self.cut: set[tuple[int, int]] = set()
        self.paused: set[int] = set()
        self.loss = self.chance.choice([0, 0.04, 0.15])
        self.piece_max = self.chance.choice([1, 3, 1000])
        self.chosen: dict[int, Stored] = {}
        self.leaders: dict[int, int] = {}
        self.pending: dict[tuple[int, int, int], Stored] = {}
        self.acknowledged: dict[int, Stored] = {}
        self.counts = dict.fromkeys(["acknowledged", "crashes", "wipes", "generations", "second", "cuts"], 0)
        self._value = 0
        self._events: list[tuple[float, int, tuple[object, ...]]] = []
        self._number = 0
        for broker in self.brokers:
            self.boot(broker)

    # --- time

    def later(self, ms: float, *event: object) -> None:
        self._number += 1
        heapq.heappush(self._events, (self.now_ms + ms, self._number, event))

    def run(self, until_ms: float) -> None:
        while self._events and self._events[0][0] <= until_ms:
            self.now_ms, _, event = heapq.heappop(self._events)
            name, *rest = event
            if name != "something" and rest[0] in self.paused:
                self.later(20, *event)
            else:
                getattr(self, f"on_{name}")(*rest)
        self.now_ms = until_ms

    # --- machines

    def boot(self, broker: int) -> None:
        machine = self.machines[broker]
        machine.life += 1
        machine.effects, machine.waiting, machine.is_busy = [], [], False
        machine.published = 0
        machine.synced = len(machine.log)
        machine.replica = RingReplica(
            broker, self.brokers, machine.kept, len(machine.log), int(self.now_ms), fits=self.fits
        )
        self.later(self.chance.random() * TICK_MS, "tick", broker, machine.life)

    def fits(self, start: int, end: int) -> int:
        return min(end, start + self.piece_max)

    def crash(self, broker: int) -> None:
        machine = self.machines[broker]
        if machine.replica is None:
            return
        doing = machine.effects[0] if machine.effects else None
        if isinstance(doing, Remember) and self.chance.random() < 0.5:
            machine.kept = doing.kept
        del machine.log[self.chance.randint(machine.synced, len(machine.log)) :]
        machine.replica = None
        machine.life += 1
        self.counts["crashes"] += 1
        self.later(self.chance.uniform(50, 4000), "boot", broker)

    def wipe(self, broker: int) -> None:
        """A new disk; one at a time, and only while the others are trusted."""
        if all(machine.kept.is_trusted for machine in self.machines.values()):
            self.crash(broker)
            self._value += 1
            self.machines[broker].kept = Kept(return_id=f"return-{self._value}")
            self.machines[broker].log = []
            self.counts["wipes"] += 1

    def on_boot(self, broker: int) -> None:
        if self.machines[broker].replica is None:
            self.boot(broker)

    def on_tick(self, broker: int, life: int) -> None:
        machine = self.machines[broker]
        if machine.life != life or machine.replica is None:
            return
        self.do(broker, "tick", int(self.now_ms))
        self.later(TICK_MS, "tick", broker, life)

    def on_message(self, broker: int, sender: int, message: Message) -> None:
        if self.machines[broker].replica is not None:
            self.do(broker, "heard", message)

    def send(self, sender: int, to: int, kind: str, what: object) -> None:
        copies = 2 if self.chance.random() < 0.03 else 1
        for _ in range(copies):
            if (sender, to) not in self.cut and self.chance.random() >= self.loss:
                delay = self.chance.choice([1, 5, 20, 200]) * self.chance.random()
                self.later(delay, kind, to, sender, what)

    # --- carrying out what was decided

    def do(self, broker: int, *event: object) -> None:
        """One thing at a time: the next event waits until all effects of the one before are carried out."""
        machine = self.machines[broker]
        if machine.is_busy:
            machine.waiting.append(event)
            return
        name, *rest = event
        replica = machine.replica
        assert replica is not None
        replica._now_ms = int(self.now_ms)
        machine.effects = list(getattr(replica, str(name))(*rest))
        machine.is_busy = True
        self.carry_out(broker)

    def carry_out(self, broker: int) -> None:
        machine = self.machines[broker]
        while machine.effects:
            effect = machine.effects[0]
            if isinstance(effect, Remember):
                wait = self.chance.choice([0, 2, 30]) * self.chance.random()
                self.later(wait, "remembered", broker, machine.life)
                return
            machine.effects.pop(0)
            if isinstance(effect, Take) and self.chance.random() < self.loss / 4:
                assert machine.replica is not None
                # Spoiled on its way, or the disk is full.
                refused = self.chance.random() < 0.3
                machine.effects = list(
                    machine.replica.not_taken(len(machine.log), machine.published, refused)
                )
                continue
            self.carry_out_one(broker, machine, effect)
        machine.is_busy = False
        self.check_leader(broker, machine)
        if machine.waiting:
            self.do(broker, *machine.waiting.pop(0))

    def on_remembered(self, broker: int, life: int) -> None:
        machine = self.machines[broker]
        if machine.life == life:
            effect = machine.effects.pop(0)
            assert isinstance(effect, Remember)
            machine.kept = effect.kept
            self.carry_out(broker)

    def carry_out_one(self, broker: int, machine: Machine, effect: Effect) -> None:
        match effect:
            case Tell(to, message):
                self.tell(broker, machine, to, message)
            case CutBack(end):
                assert end >= self.published_by(broker), f"{broker} withdraws what it published"
                del machine.log[end:]
                machine.synced = min(machine.synced, end)
                machine.cuts += 1
                self.counts["cuts"] += 1
                self.check_copies(end)
            case Take(push):
                assert len(machine.log) == push.start
                machine.log.extend(push.records)
            case Sync(end, cuts):
                wait = self.chance.choice([0, 1, 5, 60]) * self.chance.random()
                self.later(wait, "synced", broker, machine.life, machine.cuts, end, cuts)
            case Publish(end):
                self.publish(broker, machine, end)

    def tell(self, broker: int, machine: Machine, to: int, message: Message) -> None:
        if isinstance(message, Push):
            if self.chance.random() < self.loss / 4:
                assert machine.replica is not None
                machine.replica.not_sent(to, message.start)  # The link has no room.
                return
            message.records = machine.log[message.start : message.end]
        self.send(broker, to, "message", message)

    def check_copies(self, end: int) -> None:
        """What was acknowledged stays on two machines, as long as no disk was lost."""
        if not all(machine.kept.is_trusted for machine in self.machines.values()):
            return
        for offset, record in self.acknowledged.items():
            if offset >= end:
                holders = [one for one in self.machines.values() if one.log[offset : offset + 1] == [record]]
                assert len(holders) > 1, f"the acknowledged record at {offset} is on {len(holders)} machines"

    def published_by(self, broker: int) -> int:
        replica = self.machines[broker].replica
        return 0 if replica is None else replica.safe

    def on_synced(self, broker: int, life: int, disk_cuts: int, end: int, cuts: int) -> None:
        machine = self.machines[broker]
        if machine.life != life:
            return
        if disk_cuts == machine.cuts:
            machine.synced = max(machine.synced, end)
        self.do(broker, "synced", end, cuts)

    def publish(self, broker: int, machine: Machine, end: int) -> None:
        assert end <= len(machine.log), f"{broker} publishes what it does not have"
        machine.published = end
        for offset in range(end):
            record = machine.log[offset]
            known = self.chosen.setdefault(offset, record)
            assert known == record, f"{broker} has {record} at {offset}, published was {known}"
            if self.pending.pop((broker, machine.life, offset), None) == record:
                self.acknowledged[offset] = record
                self.counts["acknowledged"] += 1

    def check_leader(self, broker: int, machine: Machine) -> None:
        leader = None if machine.replica is None else machine.replica.leader
        if leader is not None and leader.generation not in self.leaders:
            self.counts["generations"] += 1
            self.counts["second"] += broker == 2
        if leader is not None:
            assert self.leaders.setdefault(leader.generation, broker) == broker, "two leaders"

    # --- what people and faults do

    def on_something(self) -> None:
        happens = [
            (70, self.produce),
            (3, self.split),
            (4, self.heal),
            (2, self.crash_one),
            (1, self.wipe_one),
            (1, self.pause_one),
            (3, self.resume_all),
        ]
        weights, deeds = zip(*happens, strict=True)
        self.chance.choices(deeds, weights)[0]()

    def produce(self) -> None:
        """At whoever believes to lead."""
        for broker, machine in self.machines.items():
            replica = machine.replica
            if replica is None or not replica.may_write or machine.is_busy or broker in self.paused:
                continue
            assert replica.leader is not None
            if self.chance.random() < self.loss / 20:
                self.do(broker, "refused")  # Its disk is full.
                continue
            for _ in range(self.chance.randint(1, 3)):
                self._value += 1
                record = Stored(replica.leader.generation, self._value)
                self.pending[broker, machine.life, len(machine.log)] = record
                machine.log.append(record)
            self.do(broker, "appended", len(machine.log))

    def split(self) -> None:
        pairs = [(one, other) for one in self.brokers for other in self.brokers if one != other]
        if self.chance.random() < 0.5:
            alone = self.chance.choice(self.brokers)
            self.cut = {pair for pair in pairs if alone in pair}
        else:
            self.cut = {pair for pair in pairs if self.chance.random() < 0.3}

    def heal(self) -> None:
        """Links are made anew, of which both sides hear."""
        healed, self.cut = self.cut, set()
        for one, other in sorted(healed):
            if self.machines[one].replica is not None and one not in self.paused:
                self.do(one, "peer_up", other)

    def crash_one(self) -> None:
        self.crash(self.chance.choice(self.brokers))

    def wipe_one(self) -> None:
        if self.wipes and len(self.brokers) > 1:
            self.wipe(self.chance.choice(self.brokers))

    def pause_one(self) -> None:
        self.paused = {self.chance.choice(self.brokers)}

    def resume_all(self) -> None:
        self.paused = set()

    # --- the whole run

    def trouble(self, steps: int) -> None:
        for number in range(steps):
            self.later(number * STEP_MS, "something")
        self.run(steps * STEP_MS + 100)

    def calm(self) -> None:
        self.cut, self.paused, self.loss = set(), set(), 0
        for broker in self.brokers:
            self.on_boot(broker)
        self.run(self.now_ms + CALM_MS)
        before = self.counts["acknowledged"]
        self.produce()
        self.run(self.now_ms + 5_000)
        assert self.counts["acknowledged"] > before, "no write succeeds after the calm"
        logs = [machine.log for machine in self.machines.values()]
        assert all(log == logs[0] for log in logs), "logs differ after the calm"
        for offset, record in self.acknowledged.items():
            assert logs[0][offset] == record, f"the acknowledged record at {offset} is gone"
        assert all(machine.kept.is_trusted for machine in self.machines.values()), "one is still not trusted"


def run(seed: int, steps: int = 800, *, wipes: bool = True) -> dict[str, int]:
    world = RingWorld(seed, wipes=wipes)
    world.trouble(steps)
    world.calm()
    return world.counts
