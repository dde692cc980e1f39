"""Topics that come out of mode branch while they are written to and read."""

import random
from collections.abc import Iterator

import pytest

from anabranch.wire.error_codes import ErrorCode as E
from support.broker_cluster import close_all
from support.join_cluster import JoinCluster


@pytest.fixture(autouse=True)
def clusters_end() -> Iterator[None]:
    yield
    close_all()


@pytest.mark.parametrize(("mode", "flush"), [("ring", "always"), ("ring", "os"), ("solo", "os")])
def test_records_and_producers_come_out_of_branches_under_load(mode: str, flush: str) -> None:
    cluster = JoinCluster("ring", 2, flush=flush)
    for _ in range(5):
        cluster.produce(0)
        cluster.produce(1)
    cluster.change("branch", "branched", partitions=2)
    for _ in range(20):
        cluster.produce(0)
        cluster.produce(1)
    cluster.change(mode, "kept", partitions=2)
    for index in (0, 1):
        cluster.produce(index, repeat=True)
        cluster.check(index)
        cluster.produce(index)
        cluster.produce(index, repeat=True)
        cluster.check(index)


def test_with_a_broker_away_it_is_refused_with_the_reason() -> None:
    cluster = JoinCluster("ring")
    cluster.change("branch", "branched")
    away = next(each for each in (1, 2, 3) if each not in (cluster.leader_of(0), cluster.leader_id))
    cluster.kill(away)
    cluster.run(5000)
    answer = cluster.alter("ring")
    assert answer["error_code"] == E.INVALID_CONFIG
    assert f"broker {away} is not reached" in answer["error_message"]
    cluster.produce()
    cluster.start(away)
    cluster.run(5000)
    cluster.change("ring", "kept")
    cluster.check()


@pytest.mark.parametrize("seed", range(12))
def test_brokers_that_are_killed_during_the_change_cost_no_record(seed: int) -> None:
    rng = random.Random(seed)
    cluster = JoinCluster("ring", seed=seed)
    cluster.change("branch", "branched")
    for _ in range(rng.randrange(30)):
        cluster.produce()
    cluster.change_among_deaths("ring", "kept", rng, kills_ms_max=3000)
    cluster.check()
