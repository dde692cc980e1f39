"""A ring partition under loss, delay, cuts, pauses, crashes and new disks, by seed; mutants that seeds must catch."""

from collections.abc import Callable, Iterator

import pytest

from anabranch.modes.ring.effects import Effect, Kept, Tell
from anabranch.modes.ring.messages import Promise, Propose
from anabranch.modes.ring.replica import RingReplica
from support.ring_world import RingWorld, run

SEEDS = 150
SEEDS_MAX = 600

Patch = pytest.MonkeyPatch


@pytest.mark.parametrize("seed", range(SEEDS))
def test_nothing_acknowledged_is_lost_and_all_replicas_become_equal(seed: int) -> None:
    assert run(seed)["acknowledged"] > 0


def test_a_seed_repeats_itself() -> None:
    assert run(7) == run(7)


def test_two_replicas_work_too_and_one_alone() -> None:
    for count in (1, 2):
        world = RingWorld(3, count)
        world.trouble(300)
        world.calm()
        assert world.counts["acknowledged"] > 0


def test_the_other_of_two_replicas_goes_on_when_one_has_lost_its_disk() -> None:
    """Both have what was acknowledged: whichever is left has everything."""
    wipes = 0
    for seed in range(SEEDS // 5):
        world = RingWorld(seed, 2)
        world.trouble(800)
        world.calm()
        assert world.counts["acknowledged"] > 0
        wipes += world.counts["wipes"]
    assert wipes > SEEDS // 5


# --- mutants


def no_adoption(patch: Patch) -> None:
    """The candidate leads with the log it has."""

    def decide(self: RingReplica) -> Iterator[Effect]:
        if self.candidate is not None and (self.candidate.promises or not self.others):
            yield from self._open_when_synced()

    patch.setattr(RingReplica, "_decide", decide)


def promise_not_persisted(patch: Patch) -> None:
    def on_propose(self: RingReplica, message: Propose) -> Iterator[Effect]:
        if self.kept.is_trusted and message.generation > self.kept.promised:
            self._stop()
            promised = message.generation
            yield Tell(
                message.sender, Promise(self.me, promised, True, promised, self.synced_end, self.kept.table)
            )

    patch.setattr(RingReplica, "_on_propose", on_propose)


def acknowledged_before_the_sync(patch: Patch) -> None:
    def synced_end(self: RingReplica) -> int:
        return self.end

    patch.setattr(RingReplica, "synced_end", property(synced_end, lambda self, value: None), raising=False)


def generation_entered_before_the_log_is_equal(patch: Patch) -> None:
    def enter_rows(self: RingReplica, copying: object) -> Iterator[Effect]:
        table = self.kept.table
        for row in copying.table.rows:  # type: ignore[attr-defined]
            if row.generation > table.last:
                table = table.entered(
                    row.generation, max(row.start, table.rows[-1].start if table.rows else 0)
                )
        if table != self.kept.table:
            yield self._keep(table=table)

    patch.setattr(RingReplica, "_enter_rows", enter_rows)


def blank_replica_trusted_too_early(patch: Patch) -> None:
    patch.setattr(Kept, "is_trusted", property(lambda self: True))


@pytest.mark.parametrize(
    "mutant",
    [
        no_adoption,
        promise_not_persisted,
        acknowledged_before_the_sync,
        generation_entered_before_the_log_is_equal,
        blank_replica_trusted_too_early,
    ],
    ids=lambda mutant: mutant.__name__,
)
def test_seeds_catch(mutant: Callable[[Patch], None], monkeypatch: Patch) -> None:
    mutant(monkeypatch)
    assert any(_fails(seed) for seed in range(SEEDS_MAX)), "no seed noticed"


def _fails(seed: int) -> bool:
    try:
        run(seed)
    except (AssertionError, IndexError):
        return True
    return False
