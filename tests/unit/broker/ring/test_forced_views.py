"""A ring that cannot get a leader by its own rules: it goes on when somebody accepts the loss, and not before."""

from collections.abc import Iterator
from typing import Any

import pytest

from anabranch.broker.handlers.elect_leaders import LOOK, UNCLEAN
from anabranch.broker.ring.driver import ring_driver
from anabranch.record.batch import batch_spans
from anabranch.record.records import records_of
from anabranch.wire.api_keys import ApiKey
from anabranch.wire.error_codes import ErrorCode as E
from support.broker_bench import batch_of
from support.broker_cluster import close_all
from support.whole_cluster import WholeCluster, whole_cluster_of

RECORDS = 20


@pytest.fixture(autouse=True)
def clusters_end() -> Iterator[None]:
    yield
    close_all()


class Ring:
    """A topic on three of five brokers, of which one votes: two may die, and the quorum lives."""

    def __init__(self, **settings: str) -> None:
        self.cluster: WholeCluster = whole_cluster_of(5, **settings)
        voters = self.cluster.voters()
        self.survivor = next(each for each in sorted(voters) if each not in (1, self.cluster.leader_id))
        self.lost = sorted({1, 2, 3, 4, 5} - voters)
        self.replicas = [self.lost[0], self.survivor, self.lost[1]]
        self.asked = next(each for each in (1, 2, 3) if each != self.survivor)
        assigned = [{"partition_index": 0, "broker_ids": self.replicas}]
        row = {
            "name": "t",
            "num_partitions": -1,
            "replication_factor": -1,
            "assignments": assigned,
            "configs": [],
        }
        body = {"topics": [row], "timeout_ms": 10_000, "validate_only": False}
        answer = self.cluster.ask(self.asked, ApiKey.CREATE_TOPICS, 7, body)
        assert answer["topics"][0]["error_code"] == 0, answer

    def leader(self) -> int | None:
        """Who leads and may write."""
        for broker_id, life in self.cluster.lives.items():
            partition = life.broker.topics.find_partition("t", 0)
            ring = ring_driver(partition) if partition is not None else None
            if ring is not None and ring.mode.may_write and ring.mode.is_settled:
                return broker_id
        return None

    def produce(self, number: int) -> int:
        """Where it was written."""
        self.cluster.until(lambda: self.leader() is not None)
        leader = self.leader()
        assert leader is not None
        data = [{"name": "t", "partition_data": [{"index": 0, "records": bytes(batch_of(b"%d" % number))}]}]
        body = {"transactional_id": None, "acks": -1, "timeout_ms": 3000, "topic_data": data}
        row = self.cluster.ask(leader, ApiKey.PRODUCE, 9, body)["responses"][0]["partition_responses"][0]
        assert row["error_code"] == 0, row
        return int(row["base_offset"])

    def elect(self, kind: int, asked: int | None = None, topic: str = "t", index: int = 0) -> tuple[int, str]:
        body = {
            "election_type": kind,
            "topic_partitions": [{"topic": topic, "partitions": [index]}],
            "timeout_ms": 8000,
        }
        answer = self.cluster.ask(asked or self.asked, ApiKey.ELECT_LEADERS, 2, body)
        row = answer["replica_election_results"][0]["partition_result"][0]
        return row["error_code"], row["error_message"] or ""

    def placement(self) -> Any:
        table = self.cluster.leader.metadata.table
        return table.placement(table.topics["t"], 0)

    def fill(self) -> None:
        for number in range(RECORDS):
            assert self.produce(number) == number
        self.cluster.until(lambda: self.ends() == {RECORDS})

    def ends(self) -> set[int]:
        found = [life.broker.topics.find_partition("t", 0) for life in self.cluster.lives.values()]
        return {partition.log.end_offset for partition in found if partition is not None}

    def is_whole(self, copies: int = 3) -> bool:
        """As many copies as there were, all of them in sync."""
        leader, placement = self.leader(), self.placement()
        if leader is None or placement.target is not None or len(placement.replicas) != copies:
            return False
        ring = ring_driver(self.cluster.broker(leader).topics.partition("t", 0))
        assert ring is not None
        return len(ring.mode.replica.in_sync) == copies

    def values(self) -> list[bytes]:
        leader = self.leader()
        assert leader is not None
        partition = self.cluster.broker(leader).topics.partition("t", 0)
        topic_id = partition.topic_id
        asked = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 2**20}
        body = {
            "max_wait_ms": 100,
            "min_bytes": 1,
            "max_bytes": 2**20,
            "session_id": 0,
            "session_epoch": -1,
            "topics": [{"topic_id": topic_id, "partitions": [asked]}],
            "forgotten_topics_data": [],
        }
        row = self.cluster.ask(leader, ApiKey.FETCH, 16, body)["responses"][0]["partitions"][0]
        assert row["error_code"] == 0
        data = bytes(row["records"])
        batches = [data[start:end] for start, end in batch_spans(data)]
        return [record.value or b"" for batch in batches for record in records_of(batch)]


def test_two_of_three_disks_are_lost_and_what_the_third_has_goes_on() -> None:
    ring = Ring()
    ring.fill()
    for broker_id in ring.lost:
        ring.cluster.kill(broker_id, lose_disk=True)
    ring.cluster.start(*ring.lost)
    ring.cluster.settle()
    ring.cluster.run(15_000)
    assert ring.leader() is None

    code, told = ring.elect(LOOK)
    assert code == 0, told
    assert f"Broker {ring.survivor} has offsets 0 to {RECORDS - 1}" in told
    assert f"Broker {ring.lost[0]} has no records; it may lack records" in told
    assert f"goes on with what broker {ring.survivor} has" in told
    assert f"What broker {ring.lost[0]} and broker {ring.lost[1]} once had besides that is lost" in told
    ring.cluster.run(3000)
    assert ring.leader() is None, "to look changes nothing"

    code, told = ring.elect(UNCLEAN)
    assert code == 0, told
    assert ring.produce(RECORDS) == RECORDS
    ring.cluster.until(ring.is_whole, within_ms=60_000)
    assert sorted(ring.placement().replicas) == sorted(ring.replicas)
    assert ring.produce(RECORDS + 1) == RECORDS + 1
    assert ring.values() == [b"%d" % number for number in range(RECORDS + 2)]
    ring.cluster.until(lambda: ring.ends() == {RECORDS + 2})
    # All of them count again: any one of the three may go.
    ring.cluster.kill(ring.survivor)
    assert ring.produce(RECORDS + 2) == RECORDS + 2
    assert ring.elect(UNCLEAN, asked=min(ring.cluster.lives))[0] == E.ELECTION_NOT_NEEDED


def test_brokers_that_do_not_come_back_are_replaced_by_others() -> None:
    ring = Ring()
    ring.fill()
    for broker_id in ring.lost:
        ring.cluster.kill(broker_id)
    ring.cluster.run(15_000)
    assert ring.leader() is None
    code, told = ring.elect(UNCLEAN)
    assert code == 0, told
    assert "is lost for good, and thrown away should it come back" in told
    assert ring.produce(RECORDS) == RECORDS
    ring.cluster.until(ring.is_whole, within_ms=60_000)
    assert not set(ring.lost) & set(ring.placement().replicas)
    ring.cluster.start(*ring.lost)
    ring.cluster.settle()
    ring.cluster.run(5000)
    assert ring.produce(RECORDS + 1) == RECORDS + 1
    assert ring.ends() == {RECORDS + 2}


def test_nothing_is_forced_where_the_rules_give_a_leader() -> None:
    ring = Ring()
    ring.fill()
    for kind in (LOOK, UNCLEAN):
        assert ring.elect(kind)[0] == E.ELECTION_NOT_NEEDED
    ring.cluster.kill(ring.lost[0], lose_disk=True)
    assert ring.elect(UNCLEAN)[0] == E.ELECTION_NOT_NEEDED  # Also while nobody leads: somebody will.
    assert ring.produce(RECORDS) == RECORDS
    assert ring.placement().view == 0


def test_what_cannot_be_done_is_said() -> None:
    ring = Ring()
    assert ring.elect(UNCLEAN, topic="nothing")[0] == E.UNKNOWN_TOPIC_OR_PARTITION
    assert ring.elect(UNCLEAN, index=7)[0] == E.UNKNOWN_TOPIC_OR_PARTITION
    assert ring.elect(3)[0] == E.INVALID_REQUEST
    body = {"election_type": UNCLEAN, "topic_partitions": None, "timeout_ms": 1000}
    assert ring.cluster.ask(ring.asked, ApiKey.ELECT_LEADERS, 2, body)["error_code"] == E.INVALID_REQUEST
    for broker_id in ring.replicas:
        ring.cluster.kill(broker_id)
    ring.cluster.run(10_000)
    code, told = ring.elect(UNCLEAN, asked=min(ring.cluster.lives))
    assert code == E.PREFERRED_LEADER_NOT_AVAILABLE
    assert "start one of these brokers first" in told
