"""Five brokers, and a partition that moves between them while they fail by seed: views on top of `RingWorld`.

Who keeps the partition is agreed on elsewhere: `agreed` is that log, which every broker follows at its own pace and
remembers. Entries: ("aim", target) and ("view", number, replicas, end, generation); of two for one view the first
counts.
"""

from typing import Any

from anabranch.modes.ring.effects import Effect, EndView, Kept, Unseal
from anabranch.modes.ring.replica import RingReplica
from support.ring_world import TICK_MS, Machine, RingWorld

BROKERS = (1, 2, 3, 4, 5)


class RingMoveWorld(RingWorld):
    def __init__(self, seed: int, replicas: tuple[int, ...] = (1, 2, 3), wipes: bool = True) -> None:
        self.agreed: list[tuple[Any, ...]] = []
        self.view: tuple[int, tuple[int, ...], int] = (0, replicas, 0)
        self.target: tuple[int, ...] | None = None
        self.first = replicas
        self.forced: set[int] = set()
        """Views that began although the one before could not end."""
        self.applied = dict.fromkeys(BROKERS, 0)
        self.is_on = dict.fromkeys(BROKERS, False)
        super().__init__(seed, len(BROKERS), wipes)
        self.counts |= {"views": 0, "unseals": 0}

    # --- what a broker knows

    def known(self, broker: int) -> tuple[int, tuple[int, ...], int, tuple[int, ...] | None]:
        """View, replicas, generation and target as this broker has heard of them."""
        view, replicas, generation, target = 0, self.first, 0, None
        for entry in self.agreed[: self.applied[broker]]:
            if entry[0] == "aim":
                target = entry[1]
            else:
                _, view, replicas, _, generation = entry
                target = None if target == replicas else target
        return view, replicas, generation, target

    def move_known(self, broker: int) -> int:
        return max((at for at in range(self.applied[broker]) if self.agreed[at][0] == "aim"), default=-1)

    def boot(self, broker: int) -> None:
        machine = self.machines[broker]
        machine.life += 1
        machine.effects, machine.waiting, machine.is_busy = [], [], False
        machine.synced = len(machine.log)
        self.is_on[broker] = True
        self.bring_in_line(broker)
        self.later(self.chance.random() * TICK_MS, "tick", broker, machine.life)

    def bring_in_line(self, broker: int) -> None:
        machine = self.machines[broker]
        view, replicas, generation, target = self.known(broker)
        if broker not in (*replicas, *(target or ())):
            if machine.replica is not None or machine.log or machine.kept != Kept():
                machine.replica, machine.log, machine.synced = None, [], 0
                machine.kept = Kept()
                machine.life += 1
                machine.cuts += 1
                machine.effects, machine.waiting, machine.is_busy = [], [], False
                self.later(self.chance.random() * TICK_MS, "tick", broker, machine.life)
            return
        if machine.replica is None:
            if machine.kept == Kept() and not machine.log:
                machine.kept = Kept(promised=generation, view=view)
            machine.replica = RingReplica(
                broker,
                replicas if machine.kept.view >= view else (),
                machine.kept,
                len(machine.log),
                int(self.now_ms),
                fits=self.fits,
            )
        is_forced = view in self.forced
        self.do(broker, "enter_view", view, replicas, generation, int(self.now_ms), is_forced)
        self.do(broker, "aim", target, self.move_known(broker))

    def crash(self, broker: int) -> None:
        was_on = self.is_on[broker]
        self.is_on[broker] = False
        had = self.machines[broker].replica is not None
        super().crash(broker)
        if was_on and not had:
            self.machines[broker].life += 1
            self.later(self.chance.uniform(50, 4000), "boot", broker)

    def on_boot(self, broker: int) -> None:
        if not self.is_on[broker]:
            self.boot(broker)

    def wipe(self, broker: int) -> None:
        """One disk at a time: not while another may lack what was acknowledged."""
        keepers = [self.machines[one] for one in self.view[1]]
        whole = all(
            len(machine.log) > offset and machine.log[offset] == record
            for machine in keepers
            for offset, record in self.acknowledged.items()
        )
        if broker in self.view[1] and len(keepers) == 3 and whole and self.target is None:
            trusted = all(machine.kept.is_trusted for machine in keepers)
            if trusted:
                self.crash(broker)
                self._value += 1
                machine = self.machines[broker]
                view, _, generation, _ = self.known(broker)
                machine.kept = Kept(promised=generation, return_id=f"return-{self._value}", view=view)
                machine.log, machine.synced = [], 0
                self.counts["wipes"] += 1

    def lose_disk(self, broker: int) -> None:
        """It comes back with another, whatever the others have."""
        self.crash(broker)
        self._value += 1
        view, _, generation, _ = self.known(broker)
        machine = self.machines[broker]
        machine.kept = Kept(promised=generation, return_id=f"return-{self._value}", view=view)
        machine.log, machine.synced = [], 0

    def force(self, broker: int, target: tuple[int, ...]) -> None:
        """Somebody accepts the loss: this one goes on alone, and the others get copies."""
        number, _, generation = self.view
        seen = max(machine.kept.promised for machine in self.machines.values())
        self.view = (number + 1, (broker,), max(generation, seen))
        self.forced.add(number + 1)
        self.target = target
        self.agreed.append(("aim", target))
        self.agreed.append(("view", number + 1, (broker,), 0, self.view[2]))

    def on_tick(self, broker: int, life: int) -> None:
        machine = self.machines[broker]
        if machine.life != life or not self.is_on[broker]:
            return
        if self.applied[broker] < len(self.agreed) and self.chance.random() < 0.3:
            self.applied[broker] += 1
            self.bring_in_line(broker)
        if machine.life == life:
            if machine.replica is not None:
                self.do(broker, "tick", int(self.now_ms))
            self.later(TICK_MS, "tick", broker, life)

    # --- messages carry the view

    def send(self, sender: int, to: int, kind: str, what: object) -> None:
        replica = self.machines[sender].replica
        assert replica is not None
        super().send(sender, to, kind, (self.machines[sender].kept.view, what))

    def on_message(self, broker: int, sender: int, message: Any) -> None:
        replica = self.machines[broker].replica
        if replica is not None and message[0] == replica.kept.view:
            super().on_message(broker, sender, message[1])

    def check_copies(self, end: int) -> None:
        """A partition under way is on others than the three."""

    # --- agreeing

    def carry_out_one(self, broker: int, machine: Machine, effect: Effect) -> None:
        if isinstance(effect, EndView | Unseal):
            if (broker, 0) not in self.cut and self.chance.random() >= self.loss:
                delay = self.chance.choice([1, 20, 300, 2000]) * self.chance.random()
                self.later(delay, "proposal", broker, machine.kept.view, effect)
            return
        super().carry_out_one(broker, machine, effect)

    def on_proposal(self, broker: int, view: int, effect: EndView | Unseal) -> None:
        number, replicas, _ = self.view
        if view != number:
            return
        if isinstance(effect, EndView):
            if effect.move != max(at for at, entry in enumerate(self.agreed) if entry[0] == "aim"):
                return
            assert effect.replicas == self.target
            self.check_moved(effect)
            replicas = effect.replicas
            self.counts["views"] += 1
        else:
            self.counts["unseals"] += 1
        self.view = (number + 1, replicas, effect.generation)
        self.target = None if self.target == replicas else self.target
        self.agreed.append(("view", number + 1, replicas, 0, effect.generation))

    def check_moved(self, effect: EndView) -> None:
        """Nothing that was acknowledged lies beyond."""
        assert all(offset < effect.end for offset in self.acknowledged), "acknowledged beyond the boundary"

    # --- what people do

    def on_something(self) -> None:
        if self.chance.random() < 0.012:
            count = self.chance.choice([1, 2, 3, 3, 3])
            self.target = tuple(self.chance.sample(BROKERS, count))
            if self.target == self.view[1]:
                self.target = None
            self.agreed.append(("aim", self.target))
        super().on_something()

    def check_leader(self, broker: int, machine: Machine) -> None:
        replica = machine.replica
        if replica is not None and replica.leader is not None:
            known = self.leaders.setdefault(replica.leader.generation, (broker, replica.kept.view))  # type: ignore[arg-type]
            assert known == (broker, replica.kept.view), "two leaders"

    def wipe_one(self) -> None:
        if self.wipes:
            self.wipe(self.chance.choice(self.brokers))

    def calm(self) -> None:
        self.cut, self.paused, self.loss = set(), set(), 0
        for broker in self.brokers:
            self.on_boot(broker)
        self.run(self.now_ms + 60_000)
        assert self.target is None, f"the move to {self.target} does not end"
        before = self.counts["acknowledged"]
        self.produce()
        self.run(self.now_ms + 5_000)
        assert self.counts["acknowledged"] > before, "no write succeeds after the calm"
        keepers = self.view[1]
        logs = [self.machines[broker].log for broker in keepers]
        assert all(log == logs[0] for log in logs), "logs differ after the calm"
        for offset, record in self.acknowledged.items():
            assert logs[0][offset] == record, f"the acknowledged record at {offset} is gone"
        assert all(self.machines[broker].kept.is_trusted for broker in keepers), "one is still not trusted"


def run(seed: int, steps: int = 800, *, wipes: bool = True) -> dict[str, int]:
    world = RingMoveWorld(seed, [(1,), (1, 2), (1, 2, 3), (3, 1, 5)][seed % 4], wipes)
    world.trouble(steps)
    world.calm()
    return world.counts
