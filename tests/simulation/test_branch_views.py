"""What is seen of branches while a cluster of whole brokers is split, and afterwards: the rows, a branch as a topic of
its own, and counters."""

from collections.abc import Coroutine
from itertools import pairwise
from typing import Any

import pytest

from anabranch.broker.branch.served_records import records_behind
from anabranch.cli.branch.facts import PartitionFacts, put_together
from anabranch.cli.branch.tree import drawn
from anabranch.errors import BrokerRefusedError
from anabranch.gateway.calls import Calls
from anabranch.modes.branch.history import records_between
from anabranch.modes.branch.rows import Lane
from anabranch.server.metrics import NodeCollector
from anabranch.testing.simulation.simulator import fetch_request, produce_request, produced, records_from
from anabranch.wire.api_keys import ApiKey
from anabranch.wire.error_codes import ErrorCode
from support.branch_cluster import TOPIC, BranchCluster
from support.broker_bench import batch_of


def ask(
    cluster: BranchCluster, broker: int, api: ApiKey, version: int, body: dict[str, Any]
) -> dict[str, Any]:
    pending = cluster.sim.send(broker, api, version, body)
    cluster.sim.run_until(lambda: pending.is_settled)
    assert pending.body is not None, pending.closed_because
    return pending.body


def done(cluster: BranchCluster, broker: int, work: Coroutine[Any, Any, Any]) -> Any:
    task = cluster.sim.lives[broker].loop.create_task(work)
    cluster.sim.run_until(task.done)
    return task.result()


def facts(cluster: BranchCluster, *brokers: int) -> PartitionFacts:
    answers = {
        broker: ask(cluster, broker, ApiKey.DESCRIBE_BRANCHES, 0, {"topics": None}) for broker in brokers
    }
    [found] = put_together(answers)
    return found


def read(cluster: BranchCluster, broker: int, topic: str) -> list[bytes | None]:
    """As a consumer of this very broker, which may have to ask others first."""
    found: list[bytes | None] = []
    offset, tries = 0, 0
    while tries < 5:
        body = ask(cluster, broker, ApiKey.FETCH, 12, fetch_request(topic, 0, offset))
        [row] = body["responses"][0]["partitions"]
        assert row["error_code"] == ErrorCode.NONE, row
        piece = list(records_from(row["records"], offset))
        found += [value for _, value in piece]
        offset, tries = (piece[-1][0] + 1, 0) if piece else (offset, tries + 1)
        cluster.sim.run(100)
    assert offset == row["high_watermark"], "whoever has read everything is at the end"
    return found


def split_and_written(cluster: BranchCluster) -> tuple[int, int]:
    """Both sides have written; who leads each."""
    cluster.create()
    cluster.produce(1, b"before")
    cluster.calm()
    leader = cluster.wait_leader(1)
    others = tuple(broker for broker in (1, 2, 3) if broker != leader)
    cluster.split((leader,), others)
    cluster.produce(leader, b"alone")
    cluster.sim.run(2500)
    cluster.produce(others[0], b"together")
    return leader, others[0]


def lane_with(cluster: BranchCluster, values: list[bytes]) -> Lane:
    """The branch whose line has exactly these records."""
    for lane in cluster.partition(1).branches.opened:
        if read(cluster, 1, f"{TOPIC}@{lane}") == values:
            return lane
    raise AssertionError(f"no branch has {values}")


def test_every_broker_serves_both_sides_of_a_split_when_it_is_over() -> None:
    cluster = BranchCluster(11)
    with cluster.sim:
        split_and_written(cluster)
        cluster.heal()
        cluster.calm()
        cluster.produce(1, b"after")
        alone = lane_with(cluster, [b"before", b"alone"])
        together = lane_with(cluster, [b"before", b"together"])
        for broker in (1, 2, 3):
            assert read(cluster, broker, f"{TOPIC}@{alone}") == [b"before", b"alone"]
            assert read(cluster, broker, f"{TOPIC}@{together}") == [b"before", b"together"]


def test_all_brokers_together_tell_of_both_sides_and_afterwards_of_one() -> None:
    cluster = BranchCluster(12)
    with cluster.sim:
        leader, other = split_and_written(cluster)
        found = facts(cluster, 1, 2, 3)
        assert {side.primary for side in found.sides} == {leader, other}
        assert len(found.open_tips()) == 2
        answer = ask(cluster, leader, ApiKey.DESCRIBE_BRANCHES, 0, {"topics": None})
        silent = {row["broker_id"] for row in answer["brokers"] if not row["is_in_view"]}
        assert silent == {1, 2, 3} - {leader}
        cluster.heal()
        cluster.calm()
        cluster.produce(1, b"after")
        cluster.calm()
        found = facts(cluster, 1, 2, 3)
        assert [len(found.sides), len(found.open_tips())] == [1, 1]
        assert sum(row.note.startswith("joins") for row in drawn(found)) == 1
        assert all(facts(cluster, broker).rows for broker in (1, 2, 3))


def test_a_branch_is_found_by_name_alone_and_only_for_reading() -> None:
    cluster = BranchCluster(13)
    with cluster.sim:
        cluster.create()
        cluster.produce(1, b"a")
        leader, name = cluster.wait_leader(1), f"{TOPIC}@0"
        listed = ask(cluster, leader, ApiKey.METADATA, 12, {"topics": None})["topics"]
        assert [row["name"] for row in listed] == [TOPIC]
        asked = {"topics": [{"topic_id": None, "name": name}], "allow_auto_topic_creation": True}
        [row] = ask(cluster, leader, ApiKey.METADATA, 9, asked)["topics"]
        assert (row["error_code"], row["name"], row["partitions"][0]["leader_epoch"]) == (0, name, -1)
        body = produce_request(name, 0, [b"x"], cluster.sim.clock.wall_ms(), -1, None)
        pending = cluster.sim.send(leader, ApiKey.PRODUCE, 9, {**body, "timeout_ms": 5000})
        cluster.sim.run_until(lambda: pending.is_settled)
        answer = produced(pending)
        assert answer is not None
        assert answer[0] == ErrorCode.INVALID_TOPIC_EXCEPTION
        deleted = ask(cluster, leader, ApiKey.DELETE_TOPICS, 5, {"topic_names": [name], "timeout_ms": 5000})
        assert deleted["responses"][0]["error_code"] == ErrorCode.INVALID_TOPIC_EXCEPTION
        assert "only for reading" in deleted["responses"][0]["error_message"]
        missing = {"topics": [{"topic_id": None, "name": f"{TOPIC}@77"}], "allow_auto_topic_creation": True}
        [row] = ask(cluster, leader, ApiKey.METADATA, 9, missing)["topics"]
        assert row["error_code"] == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_counters_tell_of_a_split_and_of_what_joining_it_took() -> None:
    cluster = BranchCluster(14)
    with cluster.sim:
        split_and_written(cluster)
        cluster.heal()
        cluster.calm()
        broker = cluster.sim.broker(1)
        assert broker.branches is not None
        metrics = {
            each.name: each.samples[0].value
            for each in NodeCollector(broker, None)._branches(broker.branches)  # type: ignore[arg-type]
        }
        assert metrics["anabranch_branches_open"] == 0
        assert metrics["anabranch_branches_merged"] >= 1
        assert metrics["anabranch_branch_records_reappended"] >= 1
        assert metrics["anabranch_branch_silent_peers"] == 0


def test_the_gateway_of_any_broker_reads_a_branch_and_writes_to_none() -> None:
    cluster = BranchCluster(15)
    with cluster.sim:
        cluster.create()
        cluster.produce(1, b"a")
        cluster.calm()
        for broker in (1, 2, 3):
            calls, name = Calls(cluster.sim.broker(broker)), f"{TOPIC}@0"
            view = calls.known_topic(name)
            assert view is not None
            fetched = done(cluster, broker, calls.fetch(name, 0, 0))
            assert list(records_from(fetched.batches, 0)) == [(0, b"a")]
            writing = calls.produce(name, view.topic_id, 0, batch_of(b"x"))
            with pytest.raises(BrokerRefusedError, match="only for reading"):
                done(cluster, broker, writing)


def send_batch(cluster: BranchCluster, leader: int, body: dict[str, Any]) -> None:
    pending = cluster.sim.send(leader, ApiKey.PRODUCE, 9, {**body, "timeout_ms": 5000})
    cluster.sim.run_until(lambda: pending.is_settled)
    answer = produced(pending)
    assert answer is not None
    assert answer[0] == ErrorCode.NONE, answer


def test_a_batch_that_was_sent_to_both_sides_is_not_counted_twice() -> None:
    """It is left out when they are joined, and leaves a gap in the branch that joins them."""
    cluster = BranchCluster(16)
    with cluster.sim:
        leader, other = split_and_written(cluster)
        repeated = produce_request(TOPIC, 0, [b"r1", b"r2"], cluster.sim.clock.wall_ms(), -1, (7, 0, 0))
        for primary in (leader, other):
            cluster.produce(primary, b"one of %d" % primary)
            send_batch(cluster, primary, repeated)
            cluster.produce(primary, b"two of %d" % primary)
        cluster.heal()
        cluster.calm()
        cluster.produce(1, b"after")
        cluster.calm()
        values = cluster.values(1)
        assert sorted(values).count(b"r1") == 1  # type: ignore[type-var]
        found = facts(cluster, cluster.wait_leader(1))
        gaps = sum(one.lane == other.lane for one, other in pairwise(found.line))
        assert gaps == 1, "there is one, or this test shows nothing"
        assert records_between(found.line, 0, 2**63) == len(values) == 10
        broker = cluster.sim.broker(cluster.wait_leader(1))
        assert broker.branches is not None
        assert records_behind(broker.branches.gaps, cluster.partition(broker.id), 0) == 10
