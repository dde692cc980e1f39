"""Records at a broker that does not lead: with `produce.forward` it hands them to whoever does."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from anabranch.broker.handlers import dispatch
from anabranch.broker.peers.messages import ForwardRequest
from anabranch.broker.requests import routing
from anabranch.broker.requests.call import Call
from anabranch.broker.requests.routing import Gate
from anabranch.broker.ring.driver import ring_driver
from anabranch.errors import UnsupportedVersionError
from anabranch.testing.in_process_client import Pending
from anabranch.values import BrokerId
from anabranch.wire.api_keys import ApiKey
from anabranch.wire.codec import encode_request
from anabranch.wire.error_codes import ErrorCode as E
from anabranch.wire.header import RequestHeader
from support.broker_bench import Bench, batch_of
from support.broker_cluster import close_all
from support.whole_cluster import WholeCluster, whole_cluster_of

PARTITIONS = 6


@pytest.fixture(autouse=True)
def clusters_end() -> Iterator[None]:
    yield
    close_all()


def routed_cluster(factor: int = -1, **settings: str) -> WholeCluster:
    cluster = whole_cluster_of(3, **{"produce.forward": "true", **settings})
    row = {
        "name": "t",
        "num_partitions": PARTITIONS,
        "replication_factor": factor,
        "assignments": [],
        "configs": [],
    }
    body = {"topics": [row], "timeout_ms": 10_000, "validate_only": False}
    assert cluster.ask(1, ApiKey.CREATE_TOPICS, 7, body)["topics"][0]["error_code"] == 0
    cluster.until(lambda: all(everybody_knows(cluster, index) for index in range(PARTITIONS)))
    return cluster


def everybody_knows(cluster: WholeCluster, index: int) -> bool:
    """All agree who leads, and it may write."""
    named = {leader_of(cluster, index, each) for each in cluster.lives}
    leader = named.pop()
    if named or leader not in cluster.lives:
        return False
    partition = cluster.broker(leader).topics.find_partition("t", index)
    ring = ring_driver(partition) if partition is not None else None
    return partition is not None and (ring is None or (ring.mode.may_write and ring.mode.is_settled))


def leader_of(cluster: WholeCluster, index: int, asked: int | None = None) -> int:
    broker = cluster.broker(asked if asked is not None else min(cluster.lives))
    state = broker.topics.find("t")
    return (broker.leader_of(state, index) or 0) if state is not None else 0


def request(
    batches: dict[int, bytes], acks: int = -1, topic: Any = "t", timeout_ms: int = 5000
) -> dict[str, Any]:
    rows = [{"index": index, "records": batch} for index, batch in batches.items()]
    data = [{"name" if isinstance(topic, str) else "topic_id": topic, "partition_data": rows}]
    return {"transactional_id": None, "acks": acks, "timeout_ms": timeout_ms, "topic_data": data}


def produce(
    cluster: WholeCluster, broker_id: int, batches: dict[int, bytes], version: int = 12, **more: Any
) -> dict[int, dict[str, Any]]:
    """The row of each partition."""
    answer = cluster.ask(broker_id, ApiKey.PRODUCE, version, request(batches, **more))
    return {row["index"]: row for topic in answer["responses"] for row in topic["partition_responses"]}


def idempotent(number: int, producer_id: int = 77) -> bytes:
    return bytes(batch_of(b"%d" % number, producer_id=producer_id, producer_epoch=0, base_sequence=number))


def not_leading(cluster: WholeCluster, index: int) -> int:
    return next(each for each in sorted(cluster.lives) if each != leader_of(cluster, index))


@pytest.mark.parametrize("factor", [1, 3])
def test_every_broker_takes_records_for_every_partition(factor: int) -> None:
    cluster = routed_cluster(factor)
    assert len({leader_of(cluster, index) for index in range(PARTITIONS)}) > 1
    for round_number, broker_id in enumerate(sorted(cluster.lives)):
        batches = {index: bytes(batch_of(b"%d" % broker_id)) for index in range(PARTITIONS)}
        rows = produce(cluster, broker_id, batches)
        assert [rows[index]["error_code"] for index in range(PARTITIONS)] == [0] * PARTITIONS
        assert [rows[index]["base_offset"] for index in range(PARTITIONS)] == [round_number] * PARTITIONS
    for index in range(PARTITIONS):
        partition = cluster.broker(leader_of(cluster, index)).topics.partition("t", index)
        assert partition.high_watermark == 3


def test_every_version_is_answered_as_by_the_leader() -> None:
    cluster = routed_cluster()
    topic_id = cluster.broker(1).topics.known("t").topic.topic_id
    other = not_leading(cluster, 0)
    offset = 0
    for version in range(3, 14):
        topic = topic_id if version >= 13 else "t"
        for acks in (-1, 1):
            row = produce(cluster, other, {0: bytes(batch_of(b"v"))}, version, acks=acks, topic=topic)[0]
            assert (row["error_code"], row["base_offset"]) == (0, offset)
            assert row["log_start_offset"] == (0 if version >= 5 else -1)
            offset += 1


def test_a_refusal_of_the_leader_comes_back_with_its_words() -> None:
    cluster = routed_cluster()
    other = not_leading(cluster, 0)
    broken = batch_of(b"v")
    broken[-1] ^= 1
    direct = produce(cluster, leader_of(cluster, 0), {0: bytes(broken)})[0]
    through = produce(cluster, other, {0: bytes(broken)})[0]
    assert direct["error_code"] == E.CORRUPT_MESSAGE
    assert through == direct


def test_a_counting_producer_gets_no_duplicates_and_no_gaps() -> None:
    cluster = routed_cluster()
    other = not_leading(cluster, 0)
    for number in range(5):
        assert produce(cluster, other, {0: idempotent(number)})[0]["base_offset"] == number
    again = produce(cluster, other, {0: idempotent(4)})[0]
    assert (again["error_code"], again["base_offset"]) == (0, 4)
    assert produce(cluster, other, {0: idempotent(6)})[0]["error_code"] == E.OUT_OF_ORDER_SEQUENCE_NUMBER
    # What the leader has heard through others counts when it is asked itself.
    assert produce(cluster, leader_of(cluster, 0), {0: idempotent(5)})[0]["base_offset"] == 5


def test_a_producer_that_is_not_known_begins_with_its_first_batch() -> None:
    """The one before may have failed on its way, and comes again."""
    cluster = routed_cluster()
    other = not_leading(cluster, 0)
    assert produce(cluster, other, {0: idempotent(1)})[0]["error_code"] == E.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert produce(cluster, other, {0: idempotent(0)})[0]["base_offset"] == 0
    assert produce(cluster, other, {0: idempotent(1)})[0]["base_offset"] == 1
    # Of whom it hears itself a leader takes what it may have forgotten.
    assert produce(cluster, leader_of(cluster, 0), {0: idempotent(4, producer_id=78)})[0]["base_offset"] == 2


def test_a_counting_producer_loses_nothing_when_the_leader_dies_meanwhile() -> None:
    cluster = routed_cluster()
    leader, other = leader_of(cluster, 0), not_leading(cluster, 0)
    acknowledged: dict[int, int] = {}
    codes: set[int] = set()
    for number in range(12):
        if number == 5:
            task = cluster.loop.create_task(
                cluster.lives[other].client.ask(ApiKey.PRODUCE, 12, request({0: idempotent(number)}))
            )
            cluster.run(1)  # It is under way.
            cluster.kill(leader)
            answer = cluster.do(_result(task))
            codes.add(answer["responses"][0]["partition_responses"][0]["error_code"])
        for _ in range(300):
            row = produce(cluster, other, {0: idempotent(number)})[0]
            if row["error_code"] == 0:
                acknowledged[number] = row["base_offset"]
                break
            codes.add(row["error_code"])
            cluster.run(50)
    assert acknowledged == {number: number for number in range(12)}
    assert codes - {0} <= {E.NOT_LEADER_OR_FOLLOWER, E.REQUEST_TIMED_OUT, E.NOT_ENOUGH_REPLICAS}
    assert E.NOT_LEADER_OR_FOLLOWER in codes


async def _result(task: "asyncio.Task[Any]") -> Any:
    return await task


def test_without_an_answer_nobody_says_that_it_was_not_written() -> None:
    cluster = routed_cluster()
    leader, other = leader_of(cluster, 0), not_leading(cluster, 0)
    cluster.net.cut(BrokerId(leader), BrokerId(other), one_way=True)  # It hears, and is not heard.
    row = produce(cluster, other, {0: bytes(batch_of(b"v"))}, timeout_ms=100)[0]
    assert row["error_code"] == E.REQUEST_TIMED_OUT
    assert cluster.broker(leader).topics.partition("t", 0).high_watermark == 1


def test_whom_nobody_reaches_is_named_and_nothing_more() -> None:
    cluster = routed_cluster(factor=1)
    leader, other = leader_of(cluster, 0), not_leading(cluster, 0)
    cluster.net.cut(BrokerId(leader), BrokerId(other))
    cluster.until(lambda: not cluster.lives[other].peers.is_up(BrokerId(leader)))
    row = produce(cluster, other, {0: bytes(batch_of(b"v"))})[0]
    assert row["error_code"] == E.NOT_LEADER_OR_FOLLOWER


def test_there_is_no_second_hop() -> None:
    cluster = routed_cluster()
    other = cluster.broker(not_leading(cluster, 0))
    assert other.routing is not None
    body = encode_request(ApiKey.PRODUCE, 9, request({0: bytes(batch_of(b"v"))}))
    answer = cluster.do(other.routing.asked(ForwardRequest(ApiKey.PRODUCE, 9, None, "h", body)))
    assert E.NOT_LEADER_OR_FOLLOWER.to_bytes(2, "big") in bytes(answer.body)
    assert other.routing.forwarded_total == 0
    with pytest.raises(UnsupportedVersionError):
        cluster.do(other.routing.asked(ForwardRequest(ApiKey.PRODUCE, 99, None, "h", body)))


def test_without_acknowledgements_an_error_closes_the_connection() -> None:
    cluster = routed_cluster()
    leader, other = leader_of(cluster, 0), not_leading(cluster, 0)
    client = cluster.lives[other].client

    def send(batch: bytes) -> Pending:
        async def work() -> Pending:
            return client.send(ApiKey.PRODUCE, 9, request({0: batch}, acks=0))

        pending: Pending = cluster.do(work())
        cluster.until(lambda: pending.is_settled)
        return pending

    assert send(bytes(batch_of(b"v"))).closed_because is None
    cluster.until(lambda: cluster.broker(leader).topics.partition("t", 0).high_watermark == 1)
    broken = batch_of(b"v")
    broken[-1] ^= 1
    assert "checksum" in (send(bytes(broken)).closed_because or "")


def test_a_partition_that_comes_twice_is_taken_once() -> None:
    cluster = routed_cluster()
    other = not_leading(cluster, 0)
    body = request({0: bytes(batch_of(b"v"))})
    body["topic_data"][0]["partition_data"] *= 2
    rows = cluster.ask(other, ApiKey.PRODUCE, 12, body)["responses"][0]["partition_responses"]
    assert [row["error_code"] for row in rows] == [0, E.INVALID_REQUEST]


def test_no_records_at_all_are_refused_by_the_leader() -> None:
    cluster = routed_cluster()
    direct = produce(cluster, leader_of(cluster, 0), {0: None})[0]  # type: ignore[dict-item]
    assert direct["error_code"] != 0
    assert produce(cluster, not_leading(cluster, 0), {0: None})[0] == direct  # type: ignore[dict-item]


def test_the_connection_is_held_until_the_leader_has_answered() -> None:
    cluster = routed_cluster()
    leader = leader_of(cluster, 0)
    for broker_id in cluster.lives:
        client = _Client()
        call = _dispatched(cluster, broker_id, client)
        assert call.holds is (broker_id != leader)
        cluster.until(client.has_answer)


class _Client:
    host, local_address = "h", ("127.0.0.1", 1)
    is_answered = False

    def has_answer(self) -> bool:
        return self.is_answered

    def answered(self, call: Call, pieces: Any) -> None:
        self.is_answered = True

    def settled(self) -> None: ...

    def dropped(self, call: Call, reason: str) -> None: ...


def _dispatched(cluster: WholeCluster, broker_id: int, client: _Client) -> Call:
    body = bytearray(encode_request(ApiKey.PRODUCE, 9, request({0: bytes(batch_of(b"v"))})))
    call = Call(client, RequestHeader(ApiKey.PRODUCE, 9, 1, None), memoryview(body), 0, len(body))

    async def work() -> None:
        dispatch(cluster.broker(broker_id), call)

    cluster.do(work())
    return call


def test_what_is_under_way_is_limited_and_the_rest_keeps_its_order() -> None:
    async def work() -> None:
        gate, entered = Gate(), []

        async def pass_through(number: int, size: int) -> None:
            await gate.enter(size)
            entered.append(number)

        half = routing.ON_THE_WAY_BYTES_MAX // 2
        tasks = [asyncio.ensure_future(pass_through(number, half)) for number in range(4)]
        tasks.append(asyncio.ensure_future(pass_through(4, 3 * half)))
        tasks.append(asyncio.ensure_future(pass_through(5, 1)))
        await asyncio.sleep(0)
        assert entered == [0, 1]
        gate.leave(half)
        await asyncio.sleep(0)
        assert entered == [0, 1, 2]
        gate.leave(half)
        gate.leave(half)
        await asyncio.sleep(0)
        assert entered == [0, 1, 2, 3]  # The large one goes alone, and what is behind it waits.
        gate.leave(half)
        await asyncio.sleep(0)
        assert entered == [0, 1, 2, 3, 4]
        gate.leave(3 * half)
        await asyncio.gather(*tasks)
        assert entered == [0, 1, 2, 3, 4, 5]

    asyncio.run(work())


def test_a_node_alone_routes_nothing() -> None:
    async def work() -> None:
        assert Bench().broker.routing is None

    asyncio.run(work())
