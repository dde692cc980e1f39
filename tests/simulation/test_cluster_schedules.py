"""What seeds of whole clusters have found, as schedules."""

from anabranch.broker.ring.driver import ring_driver
from anabranch.testing.simulation.cluster_simulator import ClusterSimulator
from anabranch.testing.simulation.simulator import produce_request
from anabranch.values import BrokerId, TopicPartition
from anabranch.wire.api_keys import ApiKey


def make(sim: ClusterSimulator, topic: str, replicas: list[int]) -> None:
    assignments = [{"partition_index": 0, "broker_ids": replicas}]
    made = {"name": topic, "num_partitions": -1, "replication_factor": -1, "assignments": assignments}
    body = {"topics": [{**made, "configs": []}], "timeout_ms": 5000}
    pending = sim.send(replicas[0], ApiKey.CREATE_TOPICS, 7, body)
    sim.run_until(lambda: pending.body is not None)
    assert pending.body is not None
    assert pending.body["topics"][0]["error_code"] == 0
    sim.run_until(sim.is_whole)


def test_a_new_disk_is_named_before_anybody_counts_on_it() -> None:
    with ClusterSimulator(1) as sim:
        sim.start_all()
        make(sim, "t", [1, 2, 3])
        sim.kill(3)
        sim.wipe(3)
        sim.start(3)
        metadata = sim.broker(3).metadata

        def is_trusted() -> bool:
            partition = sim.broker(3).topics.find_partition("t", 0)
            return (
                partition is not None
                and (ring := ring_driver(partition)) is not None
                and ring.mode.replica.kept.is_trusted
            )

        sim.run_until(is_trusted)
        placement = metadata.table.placement(metadata.table.topics["t"], 0)
        assert placement.directory_of(BrokerId(3)) == metadata.me.directory_id


def test_a_broker_that_stops_before_it_knows_the_table_does_not_vouch_for_its_logs() -> None:
    """It has looked at none of them after the power cut: the next start must."""
    with ClusterSimulator(1, flush="os") as sim:
        sim.start_all()
        make(sim, "t", [1, 2, 3])
        sim.crash(3)
        sim.net.isolate(BrokerId(3))
        sim.start(3)
        sim.run(3000)
        sim.stop(3)
        sim.run_until(lambda: 3 not in sim.lives)
        sim.start(3)
        assert not sim.broker(3).state.was_clean
        sim.net.heal()
        sim.run_until(sim.is_whole)
        sim.stop(3)
        sim.run_until(lambda: 3 not in sim.lives)
        sim.start(3)
        assert sim.broker(3).state.was_clean


def test_a_log_that_takes_no_writes_becomes_one_of_a_ring_that_waits_for_a_restart() -> None:
    with ClusterSimulator(1) as sim:
        sim.start_all()
        make(sim, "t", [1])
        sim.machines[1].disk.fail_next("sync", path_contains="data/t-0")
        body = produce_request("t", 0, [b"a"], sim.clock.wall_ms(), -1, None)
        pending = sim.send(1, ApiKey.PRODUCE, 9, {**body, "timeout_ms": 1000})
        sim.run_until(lambda: pending.is_settled)
        assert sim.replicas()[TopicPartition("t", 0)][1].log.fenced
        partitions = [{"partition_index": 0, "replicas": [1, 2]}]
        move = {"timeout_ms": 1000, "topics": [{"name": "t", "partitions": partitions}]}
        sim.send(2, ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, move)
        sim.run(3000)
        sim.kill(1)
        sim.start(1)
        sim.run_until(sim.is_whole)
        assert sim.replicas()[TopicPartition("t", 0)].keys() == {1, 2}


def test_voters_that_know_no_address_find_each_other_behind_a_broker_that_knows_nothing() -> None:
    """All were off; the first address that the others are to ask is that of a broker with a new disk."""
    with ClusterSimulator(1) as sim:
        sim.start_all()
        for number in sim.machines:
            sim.crash(number)
        sim.wipe(1)
        for number in sim.machines:
            sim.start(number)
        sim.run_until(sim.is_settled)
