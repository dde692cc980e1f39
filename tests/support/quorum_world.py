"""Members of a quorum in one thread, over a network and disks that fail by seed: the core alone, quick and repeatable.

Invariants, checked at every step: one leader per term, one entry per offset once it is committed anywhere, every member
applies each offset once and in order, a read sees what was acknowledged before it was asked. After the faults a calm:
a leader is there, everybody is equal, and nothing acknowledged is gone.
"""

import heapq
from dataclasses import dataclass, field
from random import Random

from anabranch.cluster.raft.log import QuorumLog
from anabranch.cluster.raft.messages import Entry, Member, Members, Message, Snapshot
from anabranch.cluster.raft.quorum import Quorum, Ready, Role
from anabranch.errors import QuorumBusyError

CALM_MS = 60_000
PAUSE_LOOK_MS = 20


@dataclass
class Disk:
    """What a crash leaves."""

    snapshot: Snapshot
    vote: tuple[int, Member | None] = (0, None)
    entries: list[Entry] = field(default_factory=list)

    def write(self, ready: Ready) -> None:
        if ready.vote:
            self.vote = ready.vote
        if ready.snapshot:
            self.snapshot, self.entries = ready.snapshot, []
        if ready.entries:
            self.put(*ready.entries)

    def put(self, start: int, entries: list[Entry]) -> None:
        place = start - self.snapshot.end
        self.entries[max(0, place) :] = entries[max(0, -place) :]


class World:
    def __init__(self, seed: int, count: int | None = None) -> None:
        self.chance = Random(seed)
        count = count or self.chance.choice([1, 3, 3, 3, 5])
        self.everyone = [Member(number, f"d{number}") for number in range(1, count + 3)]
        first = Members(frozenset(self.everyone[:count]))
        self.disks = {member: Disk(Snapshot(0, 0, first, ())) for member in first.voters}
        self.now_ms = 0
        self.members: dict[Member, Quorum] = {}
        self.lives: dict[Member, int] = dict.fromkeys(self.everyone, 0)
        self.writing: dict[Member, Ready | None] = {}
        self.applied: dict[Member, list[Entry]] = {}
        self.chosen: dict[int, Entry] = {}
        self.leaders: dict[int, Member] = {}
        self.waiting: dict[tuple[Member, int, int, bytes], int] = {}
        self.acknowledged: dict[int, Entry] = {}
        self.reads: list[tuple[Member, int, int, int]] = []
        self.counts = dict.fromkeys(
            ["acknowledged", "crashes", "reads", "snapshots", "changes", "installed"], 0
        )
        self.cut: set[tuple[Member, Member]] = set()
        self.paused: set[Member] = set()
        self.loss = self.chance.choice([0, 0.02, 0.15])
        self._events: list[tuple[float, int, tuple[object, ...]]] = []
        self._number = 0
        self._value = 0
        for member in sorted(first.voters):
            self.boot(member)

    # --- time

    def later(self, ms: float, *event: object) -> None:
        self._number += 1
        heapq.heappush(self._events, (self.now_ms + ms, self._number, event))

    def run(self, until_ms: float) -> None:
        while self._events and self._events[0][0] <= until_ms:
            at, _, event = heapq.heappop(self._events)
            self.now_ms = at
            if self._whom(event) in self.paused:
                self.later(PAUSE_LOOK_MS, *event)
            else:
                getattr(self, f"on_{event[0]}")(*event[1:])
        self.now_ms = until_ms

    @staticmethod
    def _whom(event: tuple[object, ...]) -> object:
        """The member to whom something happens."""
        first = event[1] if len(event) > 1 else None
        return first if first is None or isinstance(first, Member) else first.receiver

    # --- members

    def boot(self, member: Member) -> None:
        disk = self.disks.setdefault(member, Disk(Snapshot(0, 0, Members(frozenset()), ())))
        log = QuorumLog(disk.snapshot, disk.entries)
        term, vote = disk.vote
        random = Random(self.chance.random())
        self.members[member] = Quorum(
            member, log, random.randrange, term=term, vote=vote, now_ms=int(self.now_ms)
        )
        self.applied[member] = list(disk.snapshot.data)
        self.writing[member] = None
        self.lives[member] += 1
        self.later(self.chance.random() * 50, "tick", member, self.lives[member])

    def alive(self, member: Member, life: int) -> bool:
        return member in self.members and self.lives[member] == life

    def crash(self, member: Member) -> None:
        ready, disk = self.writing[member], self.disks[member]
        if ready is not None and self.chance.random() < 0.5 and not ready.snapshot:
            if ready.vote:
                disk.vote = ready.vote
            elif ready.entries:
                start, entries = ready.entries
                if start >= disk.snapshot.end:
                    disk.put(start, entries[: self.chance.randint(0, len(entries))])
        del self.members[member]
        self.lives[member] += 1
        self.counts["crashes"] += 1
        self.later(self.chance.uniform(50, 3000), "boot", member)

    def on_boot(self, member: Member) -> None:
        if member not in self.members:
            self.boot(member)

    def on_tick(self, member: Member, life: int) -> None:
        if self.alive(member, life):
            self.members[member].tick(int(self.now_ms))
            self.later(50, "tick", member, life)
            self.pump(member)

    def on_message(self, message: Message) -> None:
        if message.receiver in self.members:
            self.members[message.receiver].tick(int(self.now_ms))
            self.members[message.receiver].step(message)
            self.pump(message.receiver)

    def on_written(self, member: Member, life: int) -> None:
        if self.alive(member, life):
            ready = self.writing[member]
            self.disks[member].write(ready)
            self.writing[member] = None
            self.send(ready.after)
            self.members[member].persisted(ready.token)
            self.pump(member)

    def send(self, messages: list[Message]) -> None:
        for message in messages:
            copies = 2 if self.chance.random() < 0.03 else 1
            for _ in range(copies):
                if (message.sender, message.receiver) in self.cut or self.chance.random() < self.loss:
                    continue
                self.later(
                    self.chance.choice([5, 10, 30, 30, 250]) * self.chance.random(), "message", message
                )

    def pump(self, member: Member) -> None:
        quorum = self.members[member]
        if self.writing[member] is None and quorum.has_ready():
            ready = quorum.ready()
            self.send(ready.now)
            if ready.snapshot:
                self.applied[member] = list(ready.snapshot.data)
                self.counts["installed"] += 1
            for context, end in ready.answered:
                self.reads.append((member, self.lives[member], context, end))
            self.writing[member] = ready
            self.later(
                self.chance.choice([0, 1, 10, 80]) * self.chance.random(),
                "written",
                member,
                self.lives[member],
            )
        if quorum.role is Role.LEADER:
            assert self.leaders.setdefault(quorum.term, member) == member, (
                f"two leaders of term {quorum.term}"
            )
        self.apply(member, quorum)

    def apply(self, member: Member, quorum: Quorum) -> None:
        for offset, entry in quorum.take_committed():
            assert self.chosen.setdefault(offset, entry) == entry, f"two entries at {offset}"
            assert len(self.applied[member]) == offset, f"{member} applied {offset} out of order"
            self.applied[member].append(entry)
            if self.waiting.pop((member, self.lives[member], offset, entry.data), None):
                self.acknowledged[offset] = entry
                self.counts["acknowledged"] += 1
        for read in [one for one in self.reads if one[0] == member]:
            if read[1] != self.lives[member]:
                self.reads.remove(read)
            elif quorum.applied_end >= read[3]:
                self.reads.remove(read)
                self.counts["reads"] += 1
                assert len(self.applied[member]) >= read[2], "a read of the past"

    # --- what people and faults do

    def leading(self) -> list[Member]:
        return [member for member, quorum in self.members.items() if quorum.role is Role.LEADER]

    def on_something(self) -> None:
        happens = [
            (60, self.propose),
            (10, self.read),
            (1, self.crash_one),
            (1, self.split),
            (5, self.drop),
            (5, self.change),
            (1, self.transfer),
            (1, self.pause_one),
            (3, self.resume_all),
            (13, lambda: None),
        ]
        weights, deeds = zip(*happens, strict=True)
        self.chance.choices(deeds, weights)[0]()

    def crash_one(self) -> None:
        if self.members:
            self.crash(self.chance.choice(sorted(self.members)))

    def pause_one(self) -> None:
        if self.members:
            self.paused = {self.chance.choice(sorted(self.members))}

    def resume_all(self) -> None:
        self.paused = set()

    def some_leader(self) -> tuple[Member, Quorum] | None:
        leaders = self.leading()
        if not leaders:
            return None
        member = self.chance.choice(leaders)
        return member, self.members[member]

    def propose(self) -> None:
        if found := self.some_leader():
            member, quorum = found
            values = []
            for _ in range(self.chance.randint(1, 4)):
                self._value += 1
                values.append(b"%d" % self._value)
            start = quorum.propose(values)
            for number, value in enumerate(values):
                self.waiting[member, self.lives[member], start + number, value] = 1
            self.pump(member)

    def read(self) -> None:
        if found := self.some_leader():
            member, quorum = found
            try:
                quorum.read(max(self.acknowledged, default=-1) + 1)
            except QuorumBusyError:
                return
            self.pump(member)

    def split(self) -> None:
        known = sorted(self.disks)
        self.cut = set()
        what = self.chance.random()
        if what < 0.4:
            side = set(self.chance.sample(known, self.chance.randint(1, len(known))))
            self.cut = {(a, b) for a in known for b in known if (a in side) != (b in side)}
        elif what < 0.6:  # One way only.
            self.cut = {(a, b) for a in known for b in known if self.chance.random() < 0.25}

    def drop(self) -> None:
        member = self.chance.choice(sorted(self.members)) if self.members else None
        if member is None:
            return
        quorum = self.members[member]
        if (
            self.writing[member] is not None
            or quorum.has_ready()
            or quorum.applied_end - quorum.log.start <= 5
        ):
            return
        end = quorum.applied_end - self.chance.randint(0, 3)
        snapshot = quorum.drop(end, tuple(self.applied[member][:end]))
        disk = self.disks[member]
        disk.entries = disk.entries[end - disk.snapshot.end :]
        disk.snapshot = snapshot
        self.counts["snapshots"] += 1

    def change(self) -> None:
        if not (found := self.some_leader()):
            return
        member, quorum = found
        voters, learners = set(quorum.members.voters), set(quorum.members.learners)
        one = self.chance.choice(self.everyone)
        if one in voters:
            if len(voters) > 2:
                voters.discard(one)
        elif one in learners:
            voters.add(one)
            learners.discard(one)
        else:
            learners.add(one)
            if one not in self.disks:
                self.boot(one)
        try:
            quorum.change_members(Members(frozenset(voters), frozenset(learners)))
        except QuorumBusyError:
            return
        self.counts["changes"] += 1
        self.pump(member)

    def transfer(self) -> None:
        if found := self.some_leader():
            member, quorum = found
            others = sorted(quorum.members.voters - {member})
            if others:
                quorum.transfer(self.chance.choice(others))
                self.pump(member)

    # --- the whole run

    def trouble(self, steps: int) -> None:
        for number in range(steps):
            self.later(number * 25 + self.chance.random() * 25, "something")
        self.run(steps * 25 + 100)

    def calm(self) -> None:
        self.cut, self.paused, self.loss = set(), set(), 0
        for member in sorted(self.disks):
            self.on_boot(member)
        self.run(self.now_ms + CALM_MS)
        leaders = self.leading()
        assert leaders, "nobody leads after the calm"
        top = max(leaders, key=lambda member: self.members[member].term)
        for member in self.members[top].members.everyone:
            assert self.applied[member] == self.applied[top], f"{member} differs from the leader"
        for offset, entry in self.acknowledged.items():
            assert self.applied[top][offset] == entry, f"acknowledged entry {offset} is gone"


def run(seed: int, steps: int = 1500) -> dict[str, int]:
    world = World(seed)
    world.trouble(steps)
    world.calm()
    return world.counts
