"""The gateway of any broker reaches whoever leads or coordinates; by virtual time, over a net that can be cut."""

import asyncio
from collections.abc import Iterator

import pytest

from anabranch.errors import BrokerRefusedError, NotOwnerError, RequestTimedOutError
from anabranch.gateway.calls import LATEST, Calls, codes_in
from anabranch.gateway.produce.produce_batcher import Gatherer
from anabranch.gateway.read.reading import read_records
from anabranch.values import BrokerId
from anabranch.wire.api_keys import ApiKey
from anabranch.wire.error_codes import ErrorCode
from support.broker_cluster import close_all
from support.whole_cluster import WholeCluster, whole_cluster_of

PARTITIONS = 3


@pytest.fixture(autouse=True)
def clusters_end() -> Iterator[None]:
    yield
    close_all()


def cluster_with_topic(seed: int = 1, mode: str = "ring") -> WholeCluster:
    cluster = whole_cluster_of(3, seed)
    row = {
        "name": "t",
        "num_partitions": PARTITIONS,
        "replication_factor": -1,
        "assignments": [],
        "configs": [{"name": "anabranch.mode", "value": mode}],
    }
    body = {"topics": [row], "timeout_ms": 10_000, "validate_only": False}
    assert cluster.ask(1, ApiKey.CREATE_TOPICS, 7, body)["topics"][0]["error_code"] == 0
    cluster.until(lambda: all(calls_of(cluster, each).leader("t", 0) for each in cluster.lives))
    cluster.run(500)
    return cluster


def calls_of(cluster: WholeCluster, broker_id: int) -> Calls:
    return Calls(cluster.broker(broker_id))


def gatherer_of(cluster: WholeCluster, broker_id: int) -> Gatherer:
    broker = cluster.broker(broker_id)
    return Gatherer(Calls(broker), broker.settings, broker.clock)


def elsewhere(cluster: WholeCluster, index: int = 0) -> int:
    """A broker that does not lead that partition."""
    leader = calls_of(cluster, min(cluster.lives)).leader("t", index)
    return next(each for each in sorted(cluster.lives) if each != leader)


async def values(calls: Calls, index: int, topic: str = "t", wait_ms: int = 0) -> list[bytes]:
    """All of a partition. What another broker holds of a branch has to be waited for."""
    found: list[bytes] = []
    offset = 0
    while True:
        fetched = await calls.fetch(topic, index, offset, wait_ms=wait_ms)
        read = read_records(
            fetched.batches, offset, records_max=10_000, bytes_max=2**30, unpacked_bytes_max=2**30
        )
        if not read.records:
            return found
        found += [record.value or b"" for record in read.records]
        offset = read.next_offset


def test_records_for_every_partition_are_written_and_read_at_every_broker() -> None:
    cluster = cluster_with_topic()

    async def body() -> None:
        for broker_id in cluster.lives:
            gather = gatherer_of(cluster, broker_id)
            for index in range(PARTITIONS):
                placed = await gather.send("t", index, None, b"%d" % broker_id)
                assert (placed.partition, placed.offset) == (index, broker_id - 1)
        for broker_id in cluster.lives:
            calls = calls_of(cluster, broker_id)
            for index in range(PARTITIONS):
                assert await values(calls, index) == [b"1", b"2", b"3"]
                assert await calls.list_offsets("t", index, LATEST) == (3, -1)

    cluster.do(body())


def test_reader_elsewhere_waits_for_a_record_and_shares_its_question() -> None:
    cluster = cluster_with_topic()
    calls = calls_of(cluster, elsewhere(cluster))
    leader = calls.leader("t", 0)
    assert leader is not None

    async def body() -> None:
        waiting = [asyncio.ensure_future(calls.fetch("t", 0, 0, wait_ms=30_000)) for _ in range(50)]
        await asyncio.sleep(1)
        assert calls.asked_total["there"] == 1
        assert not any(each.done() for each in waiting)
        await gatherer_of(cluster, leader).send("t", 0, None, b"late")
        for each in waiting:
            assert (await each).high_watermark == 1

    begun_ms = cluster.clock.monotonic_ms()
    cluster.do(body())
    assert cluster.clock.monotonic_ms() - begun_ms < 5000


def test_offset_beyond_the_end_is_empty_after_the_wait_and_one_below_the_start_is_refused() -> None:
    cluster = cluster_with_topic()
    calls = calls_of(cluster, elsewhere(cluster))

    async def body() -> None:
        begun_ms = cluster.clock.monotonic_ms()
        fetched = await calls.fetch("t", 0, 7 << 32, wait_ms=1000)
        assert (bytes(fetched.batches), fetched.high_watermark) == (b"", 0)
        assert 900 <= cluster.clock.monotonic_ms() - begun_ms <= 2000
        with pytest.raises(BrokerRefusedError) as refused:
            await calls.fetch("t", 9, 0)
        assert refused.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    cluster.do(body())


@pytest.mark.parametrize("seed", range(10))
def test_nothing_is_lost_or_written_twice_when_leaders_die(seed: int) -> None:
    cluster = cluster_with_topic(seed)
    writer = 1
    gather = gatherer_of(cluster, writer)
    placed: dict[bytes, tuple[int, int]] = {}

    async def write(number: int) -> None:
        for step in range(20):
            value = b"%d/%d" % (number, step)
            try:
                found = await gather.send("t", number % PARTITIONS, None, value)
            except (BrokerRefusedError, RequestTimedOutError):
                continue
            placed[value] = found.partition, found.offset

    async def body() -> None:
        await asyncio.gather(*(write(number) for number in range(30)))

    task = cluster.loop.create_task(body())
    cluster.run(20 + seed)
    victim = next(each for each in cluster.lives if each != writer)
    dead = cluster.lives[victim]  # What it was about to answer would be reported as lost if nobody held it.
    cluster.kill(victim)
    cluster.run(4000)
    cluster.start(victim)
    cluster.until(task.done, within_ms=60_000)
    cluster.run(8000)

    async def check() -> None:
        calls = calls_of(cluster, writer)
        stored = [await values(calls, index) for index in range(PARTITIONS)]
        everything = [value for each in stored for value in each]
        assert len(everything) == len(set(everything)), "a batch was written twice"
        assert len(placed) > 300
        for value, (index, offset) in placed.items():
            assert stored[index][offset] == value

    cluster.do(check())
    assert dead.is_over


@pytest.mark.parametrize("seed", range(3))
def test_gateways_on_both_sides_of_a_split_go_on_with_a_branch_topic(seed: int) -> None:
    cluster = cluster_with_topic(seed, mode="branch")
    gathers = {each: gatherer_of(cluster, each) for each in cluster.lives}
    written: list[set[bytes]] = [set() for _ in range(PARTITIONS)]

    async def write(broker_id: int, when: bytes) -> None:
        for number in range(10):
            for index in range(PARTITIONS):
                value = b"%s/%d/%d" % (when, broker_id, number)
                await gathers[broker_id].send("t", index, None, value)
                written[index].add(value)

    async def write_everywhere(when: bytes) -> None:
        await asyncio.gather(*(write(broker_id, when) for broker_id in gathers))

    cluster.do(write_everywhere(b"before"))
    cluster.net.isolate(BrokerId(1))
    cluster.do(write_everywhere(b"split"))
    cluster.net.heal()
    cluster.run(15_000)
    cluster.do(write_everywhere(b"after"))
    cluster.run(3000)

    async def check() -> None:
        for broker_id in cluster.lives:
            for index in range(PARTITIONS):
                found = await values(calls_of(cluster, broker_id), index)
                assert sorted(found) == sorted(written[index]), "each record once, at every broker"

    cluster.do(check())
    lanes = cluster.broker(1).topics.partition("t", 0).branches.opened

    async def read_branches() -> None:
        seen: set[bytes] = set()
        for lane in lanes:
            read = [await values(calls_of(cluster, each), 0, f"t@{lane}", 500) for each in cluster.lives]
            assert read[0] == read[1] == read[2], "a branch is the same at every broker"
            seen.update(read[0])
        assert seen == written[0]
        with pytest.raises(BrokerRefusedError, match="only for reading"):
            await gathers[2].send(f"t@{max(lanes)}", 0, None, b"v")

    assert len(lanes) > 1
    cluster.do(read_branches())


def test_records_wait_while_nobody_leads_and_are_refused_when_nobody_comes() -> None:
    cluster = cluster_with_topic()
    writer = 1
    gather = gatherer_of(cluster, writer)
    for victim in [each for each in cluster.lives if each != writer]:
        cluster.kill(victim)

    async def body() -> None:
        with pytest.raises((BrokerRefusedError, RequestTimedOutError)):
            await gather.send("t", 0, None, b"x")

    cluster.do(body())


def test_new_topic_is_written_at_once_at_every_broker() -> None:
    cluster = cluster_with_topic()

    async def body() -> None:
        for number in range(10):
            gathers = [gatherer_of(cluster, each) for each in cluster.lives]
            places = await asyncio.gather(*(each.send(f"new-{number}", 0, None, b"v") for each in gathers))
            assert sorted(placed.offset for placed in places) == [0, 1, 2]
            for each in cluster.lives:
                fetched = await calls_of(cluster, each).fetch(f"new-{number}", 0, 0)
                assert fetched.high_watermark == 3

    cluster.do(body())


def test_group_is_asked_of_its_coordinator_from_any_broker() -> None:
    cluster = cluster_with_topic()

    async def body() -> None:
        for broker_id in cluster.lives:
            calls = calls_of(cluster, broker_id)
            for group in ("a", "b", "c", "d"):
                request = {
                    "group_id": group,
                    "generation_id_or_member_epoch": -1,
                    "member_id": "",
                    "group_instance_id": None,
                    "retention_time_ms": -1,
                    "topics": [
                        {
                            "name": "t",
                            "partitions": [
                                {
                                    "partition_index": 0,
                                    "committed_offset": broker_id,
                                    "committed_leader_epoch": -1,
                                    "committed_metadata": None,
                                }
                            ],
                        }
                    ],
                }
                answer = await calls.ask_group(group, ApiKey.OFFSET_COMMIT, 8, request)
                assert set(codes_in(answer)) == {0}
        request = {"groups": [{"group_id": "a", "topics": None}], "require_stable": False}
        answer = await calls_of(cluster, 2).ask_group("a", ApiKey.OFFSET_FETCH, 8, request)
        assert answer["groups"][0]["topics"][0]["partitions"][0]["committed_offset"] == max(cluster.lives)

    cluster.do(body())


def test_broker_that_cannot_be_reached_is_said_so_at_once() -> None:
    cluster = cluster_with_topic()
    request = {"replica_id": -1, "isolation_level": 0, "topics": []}
    with pytest.raises(NotOwnerError, match="cannot be reached"):
        cluster.do(calls_of(cluster, 1).ask(ApiKey.LIST_OFFSETS, 8, request, at=BrokerId(99)))


@pytest.mark.parametrize("broker_id", [1, 2, 3])
@pytest.mark.parametrize("has_written", [False, True])
def test_writers_on_the_minority_side_of_a_ring_are_answered_in_time(
    broker_id: int, has_written: bool
) -> None:
    """Whether they reach the leader, lead themselves, or cannot have a producer id."""
    cluster = cluster_with_topic()
    gather = gatherer_of(cluster, broker_id)
    clock = cluster.clock

    async def write(index: int, waited: list[int]) -> str:
        begun_ms = clock.monotonic_ms()
        try:
            await gather.send("t", index, None, b"v")
        except (BrokerRefusedError, RequestTimedOutError) as error:
            waited.append(clock.monotonic_ms() - begun_ms)
            return str(error)
        return "written"

    async def body() -> None:
        waited: list[int] = []
        if has_written:
            assert [await write(index, waited) for index in range(PARTITIONS)] == ["written"] * PARTITIONS
        cluster.net.isolate(BrokerId(broker_id))
        await asyncio.sleep(1)
        for _ in range(2):
            told = await asyncio.gather(
                *(write(index, waited) for index in range(PARTITIONS) for _ in range(3))
            )
            assert "written" not in told
            assert [text for text in told if "t-" not in text] == []
        assert max(waited) <= gather.delivery_ms + 500

    cluster.do(body())
