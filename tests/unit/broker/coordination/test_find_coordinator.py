"""Who coordinates a group: the leader of its partition, asked for one group or for many."""

import asyncio
from collections.abc import Generator
from types import SimpleNamespace
from typing import Any

import pytest

from anabranch.broker.handlers import find_coordinator, offset_commit, offset_delete
from anabranch.broker.topics.topics import TopicState
from anabranch.errors import NotControllerError
from anabranch.values import BrokerId
from anabranch.wire.error_codes import ErrorCode as E
from support.broker_bench import Bench, in_loop, turn
from support.cluster_bench import ClusterBench

LEADERS = {0: BrokerId(0), 1: BrokerId(2), 2: None, 3: BrokerId(4)}
ADDRESSES = {0: ("zero", 9000), 2: ("two", 9002)}
GROUPS = {"d": 0, "a": 1, "b": 2, "c": 3}  # By Java's hash: "a" is 97.


def call_of(version: int) -> Any:
    client = SimpleNamespace(host="x", local_address=("here", 9092))
    return SimpleNamespace(header=SimpleNamespace(api_version=version), client=client)


async def find(bench: Bench, version: int, *groups: str, key_type: int = 0) -> Any:
    request = {"key_type": key_type, "key": groups[0], "coordinator_keys": list(groups)}
    answer = find_coordinator.handle(bench.broker, call_of(version), request)
    return await (bench.broker.turns.driven(answer) if isinstance(answer, Generator) else answer)


def in_cluster() -> ClusterBench:
    """Four partitions: one led here, one elsewhere, one by nobody, one by a broker nobody knows."""
    bench = ClusterBench(offsets_topic_num_partitions=4)

    def leader_of(topic: TopicState, index: int) -> BrokerId | None:
        assert topic.topic.name == "__consumer_offsets"
        return LEADERS[index]

    bench.broker.leader_of = leader_of
    bench.broker.address_of = lambda broker_id, client: ADDRESSES.get(broker_id)
    return bench


def outcome(row: dict[str, Any]) -> tuple[int, int, str, int]:
    return row["error_code"], row["node_id"], row["host"], row["port"]


EXPECTED = {
    "d": (E.NONE, 0, "zero", 9000),
    "a": (E.NONE, 2, "two", 9002),
    "b": (E.COORDINATOR_NOT_AVAILABLE, -1, "", -1),
    "c": (E.COORDINATOR_NOT_AVAILABLE, -1, "", -1),
}


@pytest.mark.parametrize("version", range(7))
def test_each_group_is_sent_to_the_leader_of_its_partition(version: int) -> None:
    @in_loop
    async def body() -> None:
        bench = in_cluster()
        for group_id, expected in EXPECTED.items():
            answer = await find(bench, version, group_id)
            assert outcome(answer if version < 4 else answer["coordinators"][0]) == expected

    body()


@in_loop
async def test_many_groups_are_answered_each_for_itself_in_their_order() -> None:
    bench = in_cluster()
    answer = await find(bench, 6, *EXPECTED, "a")
    rows = answer["coordinators"]
    assert [row["key"] for row in rows] == [*EXPECTED, "a"]
    assert [outcome(row) for row in rows] == [*EXPECTED.values(), EXPECTED["a"]]
    assert [bool(row["error_message"]) for row in rows] == [False, False, True, True, False]


@in_loop
async def test_first_question_makes_the_topic_and_a_refused_kind_does_not() -> None:
    bench = in_cluster()
    refused = await find(bench, 6, "tx", key_type=1)
    assert refused["coordinators"][0]["error_code"] == E.INVALID_REQUEST
    assert bench.topics.find("__consumer_offsets") is None
    answers = await asyncio.gather(*(find(bench, 6, "a") for _ in range(3)))
    assert [outcome(answer["coordinators"][0]) for answer in answers] == [EXPECTED["a"]] * 3
    state = bench.topics.find("__consumer_offsets")
    assert state is not None
    assert len(state.partitions) == 4


@pytest.mark.parametrize("version", [3, 6])
def test_while_the_topic_cannot_be_made_there_is_no_coordinator(version: int) -> None:
    @in_loop
    async def body() -> None:
        bench = in_cluster()

        async def refuse(name: str) -> TopicState:
            raise NotControllerError("an election is under way")

        bench.topics.create_on_use = refuse
        answer = await find(bench, version, "a", "d")
        rows = [answer] if version < 4 else answer["coordinators"]
        assert [outcome(row) for row in rows] == [(E.COORDINATOR_NOT_AVAILABLE, -1, "", -1)] * len(rows)

    body()


@in_loop
async def test_node_that_is_alone_coordinates_every_group_and_makes_nothing_for_it() -> None:
    bench = Bench()
    answer = await find(bench, 6, "a", "b", "")
    assert [outcome(row) for row in answer["coordinators"]] == [(E.NONE, 0, "here", 9092)] * 3
    assert bench.topics.find("__consumer_offsets") is None


@in_loop
async def test_offsets_of_partitions_kept_elsewhere_are_committed_and_deleted() -> None:
    bench = Bench(offsets_topic_num_partitions=1)
    bench.broker.start()
    await turn()
    await bench.topic("t", 2)
    state = bench.topics.known("t")
    state.partitions = []  # No broker but another keeps them.

    def partition(index: int) -> dict[str, Any]:
        committed = {"committed_offset": 5, "committed_leader_epoch": -1, "committed_metadata": ""}
        return {"partition_index": index, **committed}

    topics = [{"name": "t", "topic_id": None, "partitions": [partition(index) for index in (0, 1, 2, -1)]}]
    request = {
        "group_id": "g",
        "member_id": "",
        "generation_id_or_member_epoch": -1,
        "group_instance_id": None,
        "retention_time_ms": -1,
        "topics": topics,
    }
    answer = await offset_commit.handle(bench.broker, call_of(9), request)
    codes = [row["error_code"] for row in answer["topics"][0]["partitions"]]
    unknown = E.UNKNOWN_TOPIC_OR_PARTITION
    assert codes == [0, 0, unknown, unknown]
    assert sorted(one.partition for one in bench.broker.groups.fetch("g")) == [0, 1]
    answer = await offset_delete.handle(bench.broker, call_of(0), {"group_id": "g", "topics": topics})
    codes = [row["error_code"] for row in answer["topics"][0]["partitions"]]
    assert (answer["error_code"], codes) == (0, [0, 0, unknown, unknown])
    assert bench.broker.groups.fetch("g") == {}
    await bench.broker.drain()
