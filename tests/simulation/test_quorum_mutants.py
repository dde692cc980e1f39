"""The seeds see what they are there to see: with one rule of the quorum broken, some of them fail."""

from collections.abc import Callable

import pytest

from anabranch.cluster.raft.leader_progress import Reign
from anabranch.cluster.raft.quorum import Quorum, Ready
from support.quorum_world import Disk, World, run

SEEDS_MAX = 300

Patch = pytest.MonkeyPatch


def vote_not_persisted(patch: Patch) -> None:
    write = Disk.write

    def forgetful(self: Disk, ready: Ready) -> None:
        kept, ready.vote = self.vote, None
        write(self, ready)
        self.vote = kept

    patch.setattr(Disk, "write", forgetful)


def acknowledged_before_the_sync(patch: Patch) -> None:
    ready = Quorum.ready

    def hasty(self: Quorum) -> Ready:
        made = ready(self)
        made.now, made.after = made.now + made.after, []
        self.persisted(made.token)
        return made

    patch.setattr(Quorum, "ready", hasty)


def read_without_a_majority(patch: Patch) -> None:
    def ask(self: Reign, context: object, commit_end: int) -> None:
        self.answered.append((context, commit_end))

    patch.setattr(Reign, "ask", ask)


def commit_by_one(patch: Patch) -> None:
    def committed(self: Reign, commit_end: int) -> int:
        return max(commit_end, *(self._stable_end(voter) for voter in self._log.members.voters))

    patch.setattr(Reign, "committed", committed)


def voters_changed_all_at_once(patch: Patch) -> None:
    change = World.change

    def reckless(self: World) -> None:
        for found in self.leading():
            quorum = self.members[found]
            if quorum._reign is not None:
                quorum.commit_end = max(quorum.commit_end, min(quorum.log.members_end, quorum.log.stable_end))
        change(self)

    patch.setattr(World, "change", reckless)


@pytest.mark.parametrize(
    "mutant",
    [
        vote_not_persisted,
        acknowledged_before_the_sync,
        commit_by_one,
        voters_changed_all_at_once,
    ],
    ids=lambda mutant: mutant.__name__,
)
def test_seeds_catch(mutant: Callable[[Patch], None], monkeypatch: Patch) -> None:
    mutant(monkeypatch)
    assert any(_fails(seed) for seed in range(SEEDS_MAX)), "no seed noticed"


def paused_leader_reads(world: World) -> None:
    """It stops, another is elected and acknowledges something, it goes on and is asked at once."""
    world.loss = 0
    world.run(5_000)
    old = world.leading()[0]
    world.paused = {old}
    world.run(10_000)
    new = next(member for member in world.leading() if member != old)
    world.members[new].propose([b"later"])
    world.waiting[new, world.lives[new], world.members[new].log.end - 1, b"later"] = 1
    world.pump(new)
    world.run(11_000)
    assert world.acknowledged, "the schedule is not what it should be"
    world.paused = set()
    world.members[old].read(max(world.acknowledged) + 1)
    world.pump(old)
    world.run(20_000)


def test_a_leader_of_the_past_answers_no_read() -> None:
    world = World(1, 3)
    paused_leader_reads(world)
    assert world.counts["reads"] == 0


def test_the_schedule_catches_reads_without_a_majority(monkeypatch: Patch) -> None:
    read_without_a_majority(monkeypatch)
    with pytest.raises(AssertionError, match="a read of the past"):
        paused_leader_reads(World(1, 3))


def _fails(seed: int) -> bool:
    try:
        run(seed, steps=1000)
    except AssertionError:
        return True
    return False
