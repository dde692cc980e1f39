"""What seeds of whole clusters have found, as schedules."""

from anabranch.testing.cluster_simulator import ClusterSimulator
from anabranch.values import BrokerId
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
