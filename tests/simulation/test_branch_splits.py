"""Splits of a cluster of whole brokers that heal again: both sides go on, and nothing acknowledged is lost."""

from support.branch_cluster import BranchCluster


def test_a_topic_in_mode_branch_takes_records_from_offset_0_on() -> None:
    cluster = BranchCluster(1)
    with cluster.sim:
        cluster.create()
        assert cluster.produce(1, b"a") == 0
        assert cluster.produce(2, b"b") == 1
        cluster.calm()
        assert cluster.values(3) == [b"a", b"b"]


def test_both_sides_of_a_split_go_on_and_have_everything_afterwards() -> None:
    cluster = BranchCluster(2)
    with cluster.sim:
        cluster.create()
        cluster.produce(1, b"before")
        cluster.calm()
        leader = cluster.wait_leader(1)
        others = tuple(broker for broker in (1, 2, 3) if broker != leader)
        cluster.split((leader,), others)
        cluster.produce(leader, b"alone")
        cluster.sim.run(2500)
        cluster.produce(others[0], b"together")
        assert cluster.values(leader) == [b"before", b"alone"]
        assert cluster.values(others[0]) == [b"before", b"together"]
        cluster.heal()
        cluster.calm()
        for broker in (1, 2, 3):
            values = cluster.values(broker)
            assert sorted(values) == [b"alone", b"before", b"together"]  # type: ignore[type-var]
            assert values[0] == b"before"
        cluster.produce(2, b"after")
        assert cluster.values(3)[-1] == b"after"
