"""Topics that come out of mode branch while they are written to and read: their lanes become logs again."""

import random
from collections.abc import Iterator

import pytest

from anabranch.values import BrokerId
from anabranch.wire.error_codes import ErrorCode as E
from support.broker_cluster import close_all
from support.form_cluster import EARLIEST, LATEST
from support.join_cluster import JoinCluster


@pytest.fixture(autouse=True)
def clusters_end() -> Iterator[None]:
    yield
    close_all()


def in_branches(mode: str = "branch", partitions: int = 1, seed: int = 1, **configs: str) -> JoinCluster:
    """With records, and in mode branch."""
    cluster = JoinCluster(mode, partitions, seed, **configs)
    for _ in range(5):
        for index in range(partitions):
            cluster.produce(index)
    if mode != "branch":
        cluster.change("branch", "branched", partitions=partitions)
    cluster.run(2000)
    return cluster


def split_and_heal(cluster: JoinCluster) -> None:
    """Who reigns is left alone for a while, and goes on: so there are lanes of several brokers in the line."""
    alone = cluster.leader_of(0)
    assert alone is not None
    cluster.net.isolate(BrokerId(alone))
    for _ in range(3):
        cluster.produce()
    cluster.run(4000)
    cluster.net.heal()
    cluster.run(8000)


def check(cluster: JoinCluster, index: int = 0) -> None:
    """Nothing is lost and nothing doubled. What a producer wrote on both sides of a split is in no order of its own."""
    start = cluster.deleted.get(index, 0)
    assert cluster.offset(EARLIEST, index) == start
    assert sorted(cluster.values(index, start)) == sorted(cluster.written[index][start:])


def check_each(cluster: JoinCluster) -> None:
    """Every replica has everything: also whoever leads next."""
    check(cluster)
    logs = set()
    for life in cluster.lives.values():
        log = life.broker.topics.partition("t", 0).log
        logs.add(tuple(header.base_offset for header in log.batch_headers(log.start_offset)))
    assert {len(found) for found in logs} == {len(cluster.written[0])}
    assert len(logs) == 1


@pytest.mark.parametrize("before", ["branch", "ring", "solo"])
@pytest.mark.parametrize("after", ["ring", "solo"])
def test_records_and_producers_come_out_of_branches_under_load(before: str, after: str) -> None:
    cluster = in_branches(before, 2)
    split_and_heal(cluster)
    cluster.change(after, "kept", partitions=2)
    for index in (0, 1):
        cluster.produce(index, repeat=True)
        cluster.produce(index)
        cluster.produce(index, repeat=True)
        check(cluster, index)


def test_every_replica_has_all_of_it_after_a_restart_of_each() -> None:
    cluster = in_branches()
    split_and_heal(cluster)
    cluster.change("ring", "kept")
    cluster.run(2000)
    check_each(cluster)
    for broker in (1, 2, 3):
        cluster.kill(broker)
        cluster.produce()
        cluster.start(broker)
        cluster.until(lambda: cluster.leader_id is not None and cluster.is_done("kept"))
        cluster.run(3000)
        check_each(cluster)


def test_a_replica_that_lost_its_disk_gets_everything_again() -> None:
    cluster = in_branches()
    cluster.change("ring", "kept")
    cluster.run(2000)
    lost = next(each for each in (1, 2, 3) if each not in (cluster.leader_id, cluster.leader_of(0)))
    cluster.kill(lost, lose_disk=True)
    cluster.produce()
    cluster.start(lost)
    cluster.run(15_000)
    cluster.produce()
    cluster.run(2000)
    check_each(cluster)


def test_what_was_deleted_in_branches_stays_deleted() -> None:
    cluster = in_branches(**{"segment.bytes": "1024"})
    cluster.delete_below(3)
    cluster.change("ring", "kept")
    cluster.check()
    assert cluster.fetch_code(1) == E.OFFSET_OUT_OF_RANGE
    for broker in (1, 2, 3):
        cluster.kill(broker)
        cluster.start(broker)
        cluster.until(lambda: cluster.leader_id is not None and cluster.is_done("kept"))
        cluster.run(2000)
    cluster.check()


def test_a_reader_goes_on_where_it_was_through_all_of_it() -> None:
    cluster = in_branches()
    position = cluster.offset(LATEST)
    seen = len(cluster.written[0])
    for mode, form in (("ring", "kept"), ("branch", "branched"), ("solo", "kept"), ("branch", "branched")):
        cluster.change(mode, form)
        assert cluster.values(0, position) == cluster.written[0][seen:]
        cluster.run(2000)
    assert cluster.offset(EARLIEST) == 0
    cluster.check()


def test_a_folder_that_slept_through_several_lives_is_of_none() -> None:
    cluster = in_branches("ring")
    cluster.change("ring", "kept")
    cluster.run(2000)
    away = next(each for each in (1, 2, 3) if each not in (cluster.leader_id, cluster.leader_of(0)))
    cluster.kill(away)
    for _ in range(3):
        cluster.produce()
    cluster.change("branch", "branched")
    for _ in range(3):
        cluster.produce()
    cluster.start(away)
    cluster.until(lambda: cluster.is_done("branched"))
    cluster.run(8000)
    cluster.check()
    cluster.change("ring", "kept")
    cluster.run(5000)
    check_each(cluster)


def test_a_broker_that_is_killed_before_it_has_its_log_makes_it_at_its_start() -> None:
    cluster = in_branches("ring")
    split_and_heal(cluster)
    away = next(each for each in (1, 2, 3) if each not in (cluster.leader_id, cluster.leader_of(0)))
    assert cluster.alter("ring")["error_code"] == 0
    cluster.until(lambda: "leaving" in cluster.lives[away].disk.list("data/t-0"))
    cluster.kill(away)
    cluster.run(3000)
    cluster.start(away)
    cluster.until(lambda: cluster.leader_id is not None and cluster.is_done("kept"), within_ms=60_000)
    cluster.produce()
    cluster.run(5000)
    check_each(cluster)


def test_branches_of_before_are_no_topics_any_more() -> None:
    cluster = in_branches("ring")
    split_and_heal(cluster)
    lanes = [span.lane for span in cluster.leader.branches.find(cluster.key()).line]  # type: ignore[union-attr, arg-type]
    assert cluster.leader.topics.find_view(f"t@{lanes[-1]}") is not None
    cluster.change("ring", "kept")
    for lane in lanes:
        assert cluster.leader.topics.find_view(f"t@{lane}") is None
    cluster.change("branch", "branched")
    for lane in lanes:
        assert cluster.leader.topics.find_view(f"t@{lane}") is None


@pytest.mark.parametrize("seed", range(4))
def test_brokers_that_are_killed_during_the_change_cost_no_record(seed: int) -> None:
    rng = random.Random(seed)
    cluster = in_branches(rng.choice(("ring", "branch")), seed=seed)
    if seed % 2:
        split_and_heal(cluster)
    cluster.change_among_deaths("ring", "kept", rng)
    check_each(cluster)
