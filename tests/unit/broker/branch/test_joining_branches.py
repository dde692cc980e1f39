"""Topics that go over to mode branch while they are written to and read."""

import random
from collections.abc import Iterator

import pytest

from anabranch.broker.branch.lanes.log_to_lanes import JOINING_FILE, FirstLane
from anabranch.cluster.metadata.residence import BRANCHED
from anabranch.cluster.metadata.table import MetadataTable
from anabranch.wire.error_codes import ErrorCode as E
from support.broker_cluster import close_all
from support.form_cluster import LATEST
from support.join_cluster import JoinCluster


@pytest.fixture(autouse=True)
def clusters_end() -> Iterator[None]:
    yield
    close_all()


@pytest.mark.parametrize("kept", ["ring", "solo"])
def test_records_and_producers_go_over_to_branches_under_load(kept: str) -> None:
    cluster = JoinCluster(kept, 2)
    for _ in range(20):
        cluster.produce(0)
        cluster.produce(1)
    cluster.change("branch", "branched", partitions=2)
    for index in (0, 1):
        cluster.produce(index, repeat=True)
        cluster.check(index)
        cluster.produce(index)
        cluster.produce(index, repeat=True)
        cluster.check(index)


def test_what_was_deleted_before_the_change_stays_deleted() -> None:
    cluster = JoinCluster("ring")
    for _ in range(20):
        cluster.produce()
    cluster.delete_below(7)
    cluster.change("branch", "branched")
    cluster.check()
    assert cluster.fetch_code(3) == E.OFFSET_OUT_OF_RANGE
    cluster.delete_below(12)
    cluster.check()


def test_all_three_have_everything_and_go_on_after_a_restart() -> None:
    cluster = JoinCluster("ring")
    for _ in range(20):
        cluster.produce()
    cluster.change("branch", "branched")
    for _ in range(3):
        cluster.produce()
    cluster.run(3000)
    for broker in (1, 2, 3):
        cluster.kill(broker)
        cluster.start(broker)
        cluster.until(lambda: cluster.leader_id is not None and cluster.is_done("branched"))
        cluster.produce()
        cluster.run(3000)
        cluster.check()
    for broker in (1, 2):
        cluster.kill(broker)
    cluster.run(5000)
    cluster.check()
    cluster.produce()  # One that is left alone goes on: this is what the mode is for.
    cluster.check()


def test_a_replica_that_was_away_begins_anew_and_gets_everything() -> None:
    cluster = JoinCluster("ring")
    for _ in range(5):
        cluster.produce()
    leader = cluster.leader_of(0)
    away = next(each for each in (1, 2, 3) if each not in (leader, cluster.leader_id))
    cluster.kill(away)
    cluster.change("branch", "branched")
    cluster.start(away)
    lags: list[int] = []

    def has_all() -> bool:
        """As `cluster drain` looks at it: what of the line is not here yet."""
        partition = cluster.broker(away).topics.find_partition("t", 0)
        if partition is not None and partition.residence == BRANCHED and len(partition.line) > 1:
            lags.append(partition.lag)
        return bool(lags) and lags[-1] == 0

    cluster.until(lambda: cluster.is_done("branched") and has_all())
    assert lags[0] >= 5
    cluster.produce()
    cluster.run(5000)
    for broker in {1, 2, 3} - {away}:
        cluster.kill(broker)
    cluster.run(5000)
    cluster.check()


@pytest.mark.parametrize("seed", range(12))
def test_brokers_that_are_killed_during_the_change_cost_no_record(seed: int) -> None:
    rng = random.Random(seed)
    cluster = JoinCluster("ring", seed=seed)
    for _ in range(rng.randrange(30)):
        cluster.produce()
    cluster.change_among_deaths("branch", "branched", rng)
    cluster.check()


@pytest.mark.parametrize("step", range(4))
def test_files_that_were_moved_half_way_are_moved_on(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """A crash between any two of them: the next start goes on."""
    cluster = JoinCluster("ring", **{"segment.bytes": "1024"})
    for _ in range(40):
        cluster.produce()
    cluster.run(1000)
    broken: list[str] = []
    move = FirstLane._move

    def torn(self: FirstLane, names: list[str]) -> None:
        if broken:
            move(self, names)
            return
        broken.append(self.folder)
        target = f"{self.folder}/lane-0000000000"
        self.files.make_folder(target)
        assert len(names) > 4
        for name in names[: step * len(names) // 3]:
            self.files.rename(f"{self.folder}/{name}", f"{target}/{name}")
            self.files.write(f"{self.folder}/{name}", b"", sync=True)  # As a start that finds no log here.
        raise OSError(28, "the power is cut")

    monkeypatch.setattr(FirstLane, "_move", torn)
    cluster.change("branch", "branched")
    assert broken
    cluster.run(8000)
    cluster.check()
    ends = {life.broker.branches.find(cluster.key()).lanes.held(0) for life in cluster.lives.values()}  # type: ignore[union-attr, arg-type]
    assert len(ends) == 1
    for broker, life in cluster.lives.items():
        names = life.disk.list("data/t-0")
        assert JOINING_FILE not in names, broker
        assert not any(name.endswith(".log") for name in names)


def test_what_only_a_former_leader_has_is_in_nobodys_lane() -> None:
    cluster = JoinCluster("ring")
    for _ in range(5):
        cluster.produce()
    cluster.run(1000)
    leader = cluster.leader_of(0)
    assert leader is not None
    others = {1, 2, 3} - {leader}
    for broker in others:
        cluster.kill(broker)
    cluster.write_alone(leader, b"nobody was told that this is safe")
    cluster.kill(leader)
    for broker in others:
        cluster.start(broker)
    cluster.until(lambda: cluster.leader_id is not None and cluster.leader_of(0) in others)
    cluster.produce()
    cluster.change("branch", "branched")
    cluster.start(leader)
    cluster.until(lambda: cluster.is_done("branched"))
    cluster.produce()
    cluster.run(5000)
    for broker in others:
        cluster.kill(broker)
    cluster.run(5000)
    cluster.check()


def test_without_the_rule_which_replicas_are_equal_it_would_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FirstLane, "_is_equal", property(lambda self: True))
    with pytest.raises(AssertionError):
        test_what_only_a_former_leader_has_is_in_nobodys_lane()


def test_a_change_that_is_called_off_before_it_is_done_leaves_the_ring() -> None:
    cluster = JoinCluster("ring")
    cluster.produce()
    leader = cluster.leader_of(0)
    for broker in {1, 2, 3} - {leader, cluster.leader_id}:
        cluster.kill(broker)
    assert cluster.alter("branch")["error_code"] == 0
    assert cluster.alter("ring")["error_code"] == 0
    cluster.run(3000)
    assert cluster.forms() == {"kept"}
    assert cluster.placement().target is None
    cluster.produce()
    cluster.check()


def test_the_table_says_the_same_after_a_snapshot() -> None:
    cluster = JoinCluster("ring", 2)
    cluster.produce()
    cluster.change("branch", "branched")
    table = cluster.leader.metadata.table
    copy = MetadataTable()
    copy.restore(table.snapshot())
    assert copy.topics == table.topics
    assert table.topics["t"].copies == 3


def test_clients_that_knew_a_generation_believe_whoever_reigns_and_are_not_told_of_a_cut() -> None:
    cluster = JoinCluster("ring")
    cluster.produce()
    before = cluster.generation()
    cluster.change("branch", "branched")
    assert cluster.generation() > before
    generation, end = cluster.end_of(before)
    assert generation == before
    assert end >= cluster.offset(LATEST)
