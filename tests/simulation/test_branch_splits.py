"""Splits of a cluster of whole brokers that heal again: both sides go on, and nothing acknowledged is lost."""

from unittest.mock import patch

from anabranch.broker.branch.peers import BranchPeers
from anabranch.wire.error_codes import ErrorCode
from support.branch_cluster import BranchCluster


def others_than(leader: int, brokers: int = 3) -> tuple[int, ...]:
    return tuple(broker for broker in range(1, brokers + 1) if broker != leader)


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
        others = others_than(leader)
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


def test_a_side_without_a_copy_goes_on_behind_what_it_has_heard_of() -> None:
    cluster = BranchCluster(3)
    with cluster.sim:
        cluster.create(factor=1)
        for number in range(5):
            cluster.produce(1, b"before %d" % number)
        leader = cluster.wait_leader(1)
        others = others_than(leader)
        cluster.sim.run(1000)
        cluster.split((leader,), others)
        cluster.sim.run(2500)
        offset = cluster.produce(others[0], b"elsewhere")
        assert cluster.read(others[0]) == []  # What comes first is not on this side, and is not skipped.
        assert cluster.read(others[0], offset) == [(offset, b"elsewhere")]
        cluster.produce(leader, b"alone")
        cluster.heal()
        cluster.calm()
        values = cluster.values(others[0])
        assert values[:5] == [b"before %d" % number for number in range(5)]
        assert sorted(values[5:]) == [b"alone", b"elsewhere"]  # type: ignore[type-var]


def test_what_a_primary_lacks_is_read_from_whoever_has_it() -> None:
    cluster = BranchCluster(4)
    with (
        cluster.sim,
        patch.object(BranchPeers, "_begin_backfill"),
        patch.object(BranchPeers, "_lets_go_on", return_value=False),
        patch.object(BranchPeers, "_is_to_follow", return_value=False),
    ):
        cluster.create(factor=1)
        for number in range(5):
            cluster.produce(1, b"before %d" % number)
        before = cluster.wait_leader(1)
        with patch("anabranch.broker.branch.takeover.Reigning._catch_up"):
            branches = cluster.sim.broker(before).branches
            assert branches is not None
            assert branches.peers is not None
            branches.peers.is_leaving = True
            cluster.sim.run_until(lambda: cluster.wait_leader(1) != before)
        cluster.produce(1, b"after")
        leader = cluster.wait_leader(1)
        assert 0 not in cluster.partition(leader).lanes
        cluster.read(1)
        cluster.sim.run(200)
        assert cluster.values(1) == [*(b"before %d" % number for number in range(5)), b"after"]


def test_what_has_rotted_in_a_lane_is_put_back_from_another_copy() -> None:
    cluster = BranchCluster(5)
    with cluster.sim:
        cluster.create()
        for number in range(20):
            cluster.produce(1, b"value %d" % number * 20)
        cluster.calm()
        leader = cluster.wait_leader(1)
        partition = cluster.partition(leader)
        log = partition.lanes.get(partition.view.lane)
        assert log is not None
        segment = log.segments[-1]
        whole = segment.file.pread(segment.published_bytes, 0)
        cluster.sim.machines[leader].disk.flip_bit(segment.file.path, len(whole) // 2)
        assert segment.file.pread(len(whole), 0) != whole
        peering = cluster.sim.broker(leader).peering
        assert peering is not None
        with cluster.sim._by(cluster.sim.lives[leader]):
            peering.repairs.begin(partition, segment.base_offset)
        cluster.sim.run(1000)
        assert segment.file.pread(len(whole), 0) == whole
        assert peering.repairs.regions_repaired_total == 1


def test_a_primary_short_of_room_names_another_that_has_more() -> None:
    cluster = BranchCluster(5, **{"branch.disk.free.min.bytes": 2**30})
    with cluster.sim:
        cluster.create()
        cluster.produce(1, b"before")
        before = cluster.wait_leader(1)
        cluster.calm()
        cluster.sim.machines[before].disk.capacity_bytes = 2**30
        cluster.sim.run_until(lambda: cluster.wait_leader(1) != before)
        cluster.produce(1, b"after")
        cluster.calm()
        after = cluster.partition(before)
        slots = cluster.sim.broker(1).metadata.table.slots
        assert after.branches.placed_slot != slots[cluster.sim.broker(before).metadata.me.directory_id]
        assert cluster.values(2) == [b"before", b"after"]


def test_partitions_are_made_where_there_is_room() -> None:
    cluster = BranchCluster(6)
    with cluster.sim:
        for broker in (1, 2):
            cluster.sim.machines[broker].disk.capacity_bytes = 2**39
        cluster.create()
        cluster.produce(1, b"a")
        assert cluster.wait_leader(1) == 3
        assert cluster.sim.broker(1).metadata.table.topics["t"].first == (3,)


def test_groups_commit_on_both_sides_and_the_lesser_counts_afterwards() -> None:
    cluster = BranchCluster(7, **{"offsets.mode": "branch", "offsets.topic.num.partitions": 1})
    offsets = "__consumer_offsets"
    with cluster.sim:
        cluster.create()
        cluster.commit(1, 5)
        cluster.calm(offsets)
        leader = cluster.wait_leader(1, offsets)
        other = others_than(leader)[0]
        for mine, its in ((8, 7), (20, 30)):
            cluster.split((leader,), others_than(leader))
            cluster.sim.run(2500)
            cluster.commit(leader, mine)
            cluster.commit(other, its)
            assert (cluster.committed(leader), cluster.committed(other)) == (mine, its)
            cluster.heal()
            cluster.calm(offsets)
            assert cluster.committed(1) == cluster.committed(3) == min(mine, its)
            leader = cluster.wait_leader(1, offsets)
            other = others_than(leader)[0]


def test_a_broker_that_stops_lets_another_reign_first_and_takes_over_again_when_it_is_back() -> None:
    cluster = BranchCluster(8)
    with cluster.sim:
        cluster.create()
        cluster.produce(1, b"before")
        cluster.calm()
        leader = cluster.wait_leader(1)
        other = others_than(leader)[0]
        cluster.sim.stop(leader)
        cluster.sim.run_until(lambda: leader not in cluster.sim.lives)
        assert cluster.wait_leader(other) != leader
        assert (
            not cluster.partition(other).tube.rows[-1].inputs
        )  # It was handed over, and nothing had to be joined.
        cluster.produce(other, b"meanwhile")
        cluster.sim.start(leader)
        cluster.sim.run_until(lambda: cluster.sim.lives[leader].is_ready)
        cluster.sim.run_until(lambda: cluster.wait_leader(other) == leader)
        cluster.produce(other, b"after")
        assert cluster.values(other) == [b"before", b"meanwhile", b"after"]
        lanes = [row.new for row in cluster.partition(other).branches.opened.values()]
        assert len(lanes) == len(set(lanes)) == 3


def test_a_batch_sent_to_both_sides_is_there_once() -> None:
    cluster = BranchCluster(9)
    with cluster.sim:
        cluster.create()
        cluster.produce(1, b"first", producer=(7, 0, 0))
        cluster.calm()
        leader = cluster.wait_leader(1)
        other = others_than(leader)[0]
        cluster.split((leader,), others_than(leader))
        cluster.sim.run(2500)
        cluster.freeze_time()
        cluster.produce(leader, b"twice", producer=(7, 0, 1))
        cluster.produce(other, b"twice", producer=(7, 0, 1))
        cluster.produce(other, b"once", producer=(7, 0, 2))
        cluster.heal()
        cluster.calm()
        assert cluster.values(1) == [b"first", b"twice", b"once"]
        cluster.produce(1, b"once", producer=(7, 0, 2))
        assert cluster.values(1) == [b"first", b"twice", b"once"]


def test_a_primary_whose_disk_fails_lets_another_reign() -> None:
    cluster = BranchCluster(7, flush="always")
    with cluster.sim:
        cluster.create()
        cluster.produce(1, b"before")
        before = cluster.wait_leader(1)
        cluster.sim.machines[before].disk.fail_next("sync", path_contains="lane-")
        for number in range(5):
            cluster.produce(others_than(before)[0], b"after %d" % number)
        assert cluster.wait_leader(others_than(before)[0]) != before
        assert set(cluster.acknowledged) <= set(cluster.values(others_than(before)[0]))
        cluster.sim.kill(before)
        cluster.sim.start(before)
        cluster.sim.run_until(lambda: cluster.sim.broker(before).topics.find_partition("t", 0) is not None)
        cluster.calm()
        for broker in (1, 2, 3):
            assert set(cluster.acknowledged) <= set(cluster.values(broker))


def test_a_side_with_too_few_copies_refuses_if_the_topic_says_so() -> None:
    cluster = BranchCluster(10)
    with cluster.sim:
        cluster.create(configs={"min.insync.replicas": "2"})
        cluster.produce(1, b"before")
        cluster.calm()
        leader = cluster.wait_leader(1)
        cluster.split((leader,), others_than(leader))
        cluster.sim.run(2500)
        assert cluster.try_produce(leader, b"alone") == ErrorCode.NOT_ENOUGH_REPLICAS
        cluster.produce(others_than(leader)[0], b"together")
