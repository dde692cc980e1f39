"""Topics go through all forms, by seed, while brokers die, are cut off and come back: no record is lost or doubled, and
the mode that was asked for last comes about."""

from collections.abc import Iterator
from random import Random

import pytest

from anabranch.values import BrokerId
from support.broker_cluster import close_all
from support.form_cluster import EARLIEST, AwayStore
from support.join_cluster import JoinCluster

SEEDS = 12
FORMS = {"branch": "branched", "object": "stored", "ring": "kept", "solo": "kept"}
FOLDERS = {"branch": 6, "object": 0, "ring": 6}
"""Of two partitions at three brokers."""


@pytest.fixture(autouse=True)
def clusters_end() -> Iterator[None]:
    yield
    close_all()


class FaultyCluster(JoinCluster):
    """Whenever time passes, one broker at a time may die, or be cut off from the others; and the store may be away."""

    def __init__(self, mode: str, seed: int) -> None:
        self.chance = Random(f"faults {seed}")
        self.is_faulty = False
        self.dead: tuple[int, int] | None = None
        self.cut_until_ms = 0
        super().__init__(mode, 2, seed)

    def run(self, milliseconds: int) -> None:
        super().run(milliseconds)
        if not self.is_faulty:
            return
        now_ms = self.clock.monotonic_ms()
        self._cut_or_heal(now_ms)
        store = self.spoil() if self.chance.random() < 0.01 else self.store
        assert isinstance(store, AwayStore)
        store.is_away = store.is_away and self.chance.random() > 0.05
        if self.dead is None and self.chance.random() < 0.02:
            broker_id = self.chance.choice(sorted(self.lives))
            self.kill(broker_id)
            self.dead = broker_id, now_ms + self.chance.choice([200, 2000, 8000])
        elif self.dead is not None and now_ms >= self.dead[1]:
            self.revive()

    def _cut_or_heal(self, now_ms: int) -> None:
        if self.cut_until_ms and now_ms >= self.cut_until_ms:
            self.cut_until_ms = 0
            self.net.heal()
        elif not self.cut_until_ms and self.dead is None and self.chance.random() < 0.01:
            self.cut_until_ms = now_ms + self.chance.choice([300, 3000, 6000])
            self.net.isolate(BrokerId(self.chance.choice(sorted(self.lives))))

    def revive(self) -> None:
        if self.dead is not None:
            (broker_id, _), self.dead = self.dead, None
            self.start(broker_id)

    def check(self, index: int = 0) -> None:
        """Of what went to two sides of a split nobody promises the order."""
        start = self.deleted.get(index, 0)
        assert self.offset(EARLIEST, index) == start
        assert sorted(self.values(index, start), key=int) == self.written[index][start:]

    def settle_down(self) -> None:
        self.is_faulty = False
        self.net.heal()
        assert isinstance(self.store, AwayStore)
        self.store.is_away = False
        self.revive()
        self.settle()


@pytest.mark.parametrize("seed", range(SEEDS))
def test_nothing_is_lost_or_doubled(seed: int) -> None:
    chance = Random(f"plan {seed}")
    mode = chance.choice(sorted(FORMS))
    cluster = FaultyCluster(mode, seed)
    for index in (0, 1) * 5:
        cluster.produce(index)
    cluster.is_faulty = True
    has_gaps = mode == "branch"
    for _ in range(chance.randrange(2, 5)):
        mode = chance.choice([each for each in sorted(FORMS) if each != mode])
        while not cluster.lives or cluster.leader_id is None or cluster.alter(mode)["error_code"]:
            cluster.run(100)
        has_gaps = has_gaps or mode == "branch"
        for _ in range(chance.choice([3, 20, 100])):  # The next wish may come before this one is fulfilled.
            index = chance.randrange(2)
            cluster.produce(index)
            if chance.random() < 0.05 and not has_gaps:  # Else an offset is no count.
                cluster.delete_below(chance.randrange(len(cluster.written[index])), index)
            cluster.run(chance.choice([5, 50, 200]))
    cluster.settle_down()
    for index in (0, 1):
        cluster.produce(index, repeat=True)
    cluster.until(lambda: cluster.is_done(FORMS[mode]), 60_000)
    for index in (0, 1):
        cluster.produce(index, repeat=True)
        cluster.produce(index)
        cluster.check(index)
    if mode != "solo":  # A broker that was away while copies became fewer keeps its own.
        cluster.until(lambda: len(cluster.folders()) == FOLDERS[mode], 60_000)
        cluster.check(0)
