"""Consumer groups over whole brokers: their coordinator dies, is cut off and comes back."""

from collections.abc import Iterator
from typing import Any

import pytest

from anabranch.values import BrokerId
from anabranch.wire.api_keys import ApiKey
from anabranch.wire.error_codes import ErrorCode as E
from support.broker_cluster import close_all
from support.whole_cluster import WholeCluster, whole_cluster_of


@pytest.fixture(autouse=True)
def clusters_end() -> Iterator[None]:
    yield
    close_all()


class Member:
    """One consumer of a group, as clients are: it finds the coordinator, and again when it is sent away."""

    def __init__(self, cluster: WholeCluster, group_id: str = "g") -> None:
        self.cluster, self.group_id = cluster, group_id
        self.coordinator = -1
        self.member_id = ""
        self.generation = -1
        self.acknowledged = -1

    def find(self, through: int | None = None) -> int:
        """Ask until there is a coordinator that lives."""
        for _ in range(100):
            asked = through if through is not None else min(self.cluster.lives)
            request = {"key_type": 0, "coordinator_keys": [self.group_id]}
            row = self.cluster.ask(asked, ApiKey.FIND_COORDINATOR, 6, request)["coordinators"][0]
            if row["error_code"] == E.NONE and row["node_id"] in self.cluster.lives:
                self.coordinator = row["node_id"]
                return self.coordinator
            assert row["error_code"] in (E.NONE, E.COORDINATOR_NOT_AVAILABLE)
            self.cluster.run(100)
        raise AssertionError("no coordinator was found")

    def _ask(self, api: ApiKey, version: int, body: dict[str, Any]) -> dict[str, Any]:
        if self.coordinator not in self.cluster.lives:
            self.find()
        return self.cluster.ask(self.coordinator, api, version, {"group_id": self.group_id, **body})

    def join(self) -> None:
        """Join and sync, whatever it takes."""
        for _ in range(100):
            code = self._join_once()
            if code == E.NONE:
                return
            if code == E.UNKNOWN_MEMBER_ID:
                self.member_id = ""
            elif code in (E.NOT_COORDINATOR, E.COORDINATOR_NOT_AVAILABLE):
                self.coordinator = -1
            else:
                assert code in (
                    E.MEMBER_ID_REQUIRED,
                    E.COORDINATOR_LOAD_IN_PROGRESS,
                    E.ILLEGAL_GENERATION,
                    E.REBALANCE_IN_PROGRESS,
                ), E(code).name
            self.cluster.run(100)
        raise AssertionError("the group did not come about")

    def _join_once(self) -> int:
        body = {
            "session_timeout_ms": 10_000,
            "rebalance_timeout_ms": 10_000,
            "member_id": self.member_id,
            "group_instance_id": None,
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": b""}],
        }
        joined = self._ask(ApiKey.JOIN_GROUP, 9, body)
        self.member_id = joined["member_id"] or self.member_id
        if joined["error_code"] != E.NONE:
            return int(joined["error_code"])
        self.generation = joined["generation_id"]
        sync = {
            "generation_id": self.generation,
            "member_id": self.member_id,
            "group_instance_id": None,
            "protocol_type": "consumer",
            "protocol_name": "range",
            "assignments": [{"member_id": self.member_id, "assignment": b"work"}],
        }
        synced = self._ask(ApiKey.SYNC_GROUP, 5, sync)
        assert synced["error_code"] or synced["assignment"] == b"work"
        return int(synced["error_code"])

    def commit(self, offset: int, generation: int | None = None) -> int:
        partition = {"partition_index": 0, "committed_offset": offset, "committed_metadata": ""}
        body = {
            "generation_id_or_member_epoch": self.generation if generation is None else generation,
            "member_id": self.member_id,
            "group_instance_id": None,
            "topics": [{"name": "t", "partitions": [partition]}],
        }
        answer = self._ask(ApiKey.OFFSET_COMMIT, 8, body)
        code = int(answer["topics"][0]["partitions"][0]["error_code"])
        if code == E.NONE:
            self.acknowledged = max(self.acknowledged, offset)
        return code

    def committed(self) -> int:
        """As the coordinator says, once it says anything."""
        topics = [{"name": "t", "partition_indexes": [0]}]
        body = {"groups": [{"group_id": self.group_id, "topics": topics}], "require_stable": False}
        for _ in range(100):
            self.find()
            group = self._ask(ApiKey.OFFSET_FETCH, 8, body)["groups"][0]
            if group["error_code"] == E.NONE:
                return int(group["topics"][0]["partitions"][0]["committed_offset"])
            assert group["error_code"] in (E.NOT_COORDINATOR, E.COORDINATOR_LOAD_IN_PROGRESS)
            self.cluster.run(100)
        raise AssertionError("the group was not loaded")


def make_topic(cluster: WholeCluster, through: int) -> None:
    topic = {"name": "t", "num_partitions": 1, "replication_factor": -1, "assignments": [], "configs": []}
    request = {"topics": [topic], "timeout_ms": 5000, "validate_only": False}
    answer = cluster.ask(through, ApiKey.CREATE_TOPICS, 7, request)
    assert answer["topics"][0]["error_code"] == E.NONE, answer
    cluster.run(1000)


def with_topic(seed: int = 1) -> WholeCluster:
    cluster = whole_cluster_of(3, seed)
    make_topic(cluster, 2)
    return cluster


def test_every_broker_names_the_same_coordinator_and_only_that_one_serves_the_group() -> None:
    cluster = with_topic()
    member = Member(cluster)
    member.join()
    assert {member.find(through=each) for each in (1, 2, 3)} == {member.coordinator}
    assert member.commit(5) == E.NONE
    for other in {1, 2, 3} - {member.coordinator}:
        stranger = Member(cluster)
        stranger.coordinator, stranger.member_id, stranger.generation = other, member.member_id, 1
        assert stranger.commit(9) == E.NOT_COORDINATOR
        described = cluster.ask(other, ApiKey.DESCRIBE_GROUPS, 5, {"groups": ["g"]})["groups"][0]
        assert described["error_code"] == E.NOT_COORDINATOR
        assert cluster.ask(other, ApiKey.LIST_GROUPS, 4, {"states_filter": []})["groups"] == []
    listed = cluster.ask(member.coordinator, ApiKey.LIST_GROUPS, 4, {"states_filter": []})["groups"]
    assert [group["group_id"] for group in listed] == ["g"]
    assert member.committed() == 5


@pytest.mark.parametrize("seed", range(1, 5))
def test_group_outlives_its_coordinator_with_every_offset_that_was_acknowledged(seed: int) -> None:
    cluster = with_topic(seed)
    member = Member(cluster)
    generations = []
    for offset in range(1, 5):
        member.join()
        generations.append(member.generation)
        assert member.commit(offset) == E.NONE
        dead = member.coordinator
        cluster.kill(dead)
        assert member.committed() == offset
        assert member.coordinator != dead
        cluster.start(dead)
        cluster.settle()
        cluster.run(3000)  # The first of the ring takes its partitions back, and with them the group.
        assert member.committed() == offset
    assert generations == sorted(generations)


def test_stable_member_goes_on_without_joining_again_when_its_coordinator_dies() -> None:
    cluster = with_topic()
    member = Member(cluster)
    member.join()
    generation = member.generation
    assert member.commit(1) == E.NONE
    cluster.kill(member.coordinator)
    member.committed()
    assert member.commit(2) == E.NONE
    assert (member.generation, member.committed()) == (generation, 2)
    member.join()
    assert member.generation == generation + 1


def test_coordinator_that_is_cut_off_acknowledges_nothing_and_gives_the_group_up() -> None:
    cluster = with_topic()
    member = Member(cluster)
    member.join()
    assert member.commit(1) == E.NONE
    cut = member.coordinator
    cluster.net.isolate(BrokerId(cut))
    assert member.commit(2) in (E.NOT_COORDINATOR, E.COORDINATOR_NOT_AVAILABLE)
    survivor = next(each for each in cluster.lives if each != cut)
    cluster.until(lambda: member.find(through=survivor) != cut)
    assert member.commit(3) == E.NONE
    cluster.net.heal()
    cluster.run(5000)
    holders = [
        each for each in cluster.lives if cluster.broker(each).groups.shard(_shard(cluster)) is not None
    ]
    assert holders == [member.find()]
    assert member.committed() == 3


def _shard(cluster: WholeCluster) -> int:
    return cluster.broker(1).offsets_topic.shard_of("g")


def test_coordinator_without_followers_acknowledges_nothing_and_keeps_nobody_waiting() -> None:
    cluster = with_topic()
    member = Member(cluster)
    member.join()
    assert member.commit(1) == E.NONE
    others = {1, 2, 3} - {member.coordinator}
    for other in others:
        cluster.kill(other)
    began_ms = cluster.clock.monotonic_ms()
    assert member.commit(2) in (E.COORDINATOR_NOT_AVAILABLE, E.NOT_COORDINATOR)
    assert cluster.clock.monotonic_ms() - began_ms < 7000
    cluster.run(2000)
    assert member.commit(3) in (E.COORDINATOR_NOT_AVAILABLE, E.NOT_COORDINATOR)
    cluster.start(*others)
    cluster.settle()
    cluster.run(3000)
    assert member.committed() in (1, 2)  # What was not acknowledged may have been kept.
    assert member.commit(4) == E.NONE


# --- other brokers keep it than before ----------------------------------------------------------------------


def reassign(cluster: WholeCluster, replicas: list[int]) -> None:
    partitions = [{"partition_index": index, "replicas": replicas} for index in range(3)]
    topics = [{"name": "__consumer_offsets", "partitions": partitions}]
    request = {"timeout_ms": 5000, "allow_replication_factor_change": True, "topics": topics}
    answer = cluster.ask(min(cluster.lives), ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, request)
    assert answer["error_code"] == E.NONE


def replicas_of(cluster: WholeCluster) -> set[tuple[int, ...]]:
    table = cluster.broker(min(cluster.lives)).metadata.table
    topic = table.topics["__consumer_offsets"]
    return {table.placement(topic, index).replicas for index in range(3)}


def test_group_of_a_first_broker_goes_on_when_others_join_it() -> None:
    cluster = WholeCluster()
    cluster.start(1)
    cluster.settle()
    make_topic(cluster, 1)
    member = Member(cluster)
    member.join()
    generation = member.generation
    assert (member.coordinator, member.commit(5)) == (1, E.NONE)
    cluster.start(2, 3)
    cluster.settle()
    cluster.until(lambda: {len(each) for each in replicas_of(cluster)} == {3})
    cluster.run(3000)
    assert member.committed() == 5
    cluster.kill(member.coordinator)
    assert member.committed() == 5
    cluster.until(lambda: member.commit(6) == E.NONE)  # Not before another broker follows the new leader.
    assert (member.committed(), member.generation) == (6, generation)


def test_group_moves_with_its_partition_while_it_commits() -> None:
    cluster = with_topic()
    member = Member(cluster)
    member.join()
    old = member.coordinator
    new = next(each for each in (1, 2, 3) if each != old)
    reassign(cluster, [new, old, 6 - new - old])
    refusals = set()
    for offset in range(100):
        code = member.commit(offset)
        if code != E.NONE:
            refusals.add(code)
            member.coordinator = -1
        cluster.run(50)
        assert member.committed() >= member.acknowledged
    assert refusals <= {E.NOT_COORDINATOR, E.COORDINATOR_LOAD_IN_PROGRESS, E.COORDINATOR_NOT_AVAILABLE}
    assert (member.find(), member.acknowledged) == (new, 99)
    assert replicas_of(cluster) == {(new, old, 6 - new - old)}
