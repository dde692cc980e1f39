"""The life of a broker: it loads while it serves, and stops in the middle of anything."""

import asyncio
from typing import Any

import pytest

from anabranch.broker.coordination import offsets_topic
from anabranch.broker.coordination.groups.shard import Shard
from anabranch.broker.coordination.offsets_topic import OffsetsTopic
from anabranch.errors import FencedGenerationError, StorageError, UnknownGenerationError
from anabranch.testing.fakes.disk import Operation
from anabranch.values import Offset
from support.broker_bench import DATA, Bench, batch_of, in_loop, turn


@in_loop
async def test_stop_while_groups_are_loaded_does_not_wait_for_all_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(offsets_topic, "RECORDS_PER_TURN", 1)
    bench = Bench(offsets_topic_num_partitions=1)
    await OffsetsTopic(bench.core, bench.topics).append(
        "g", [(b"%d" % number, b"v") for number in range(1000)]
    )
    again = bench.again()
    replayed: list[bytes] = []

    def replay(shard: Shard, key: bytes, value: bytes | None) -> None:
        replayed.append(key)

    again.broker.groups.replay = replay
    again.broker.start()
    await turn(5)
    await again.broker.drain()
    assert 0 < len(replayed) < 100
    await again.broker.close()


@pytest.mark.parametrize("failure", [StorageError("no"), ZeroDivisionError("defect")])
def test_groups_that_cannot_be_read_back_stay_unavailable_and_are_said_aloud(
    failure: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    @in_loop
    async def body() -> None:
        bench = Bench(offsets_topic_num_partitions=1)
        await OffsetsTopic(bench.core, bench.topics).append("g", [(b"k", b"v")])
        again = bench.again()
        loaded: list[bool] = []

        def replay(shard: Shard, key: bytes, value: bytes | None) -> None:
            raise failure

        again.broker.groups.replay = replay
        again.broker.groups.loaded = lambda shard: loaded.append(True)
        again.broker.start()
        await turn()
        assert "cannot be read back" in caplog.text
        assert not loaded
        assert again.broker.groups_failed
        await again.broker.drain()
        await again.broker.close()

    body()


@in_loop
async def test_stop_answers_producers_and_fetches_that_wait() -> None:
    bench = Bench()
    partition = await bench.topic("t")
    woken: list[bool] = []

    def retry(final: bool) -> bool:
        woken.append(final)
        return True

    bench.core.fetch_waits.wait(retry, [partition], 60_000)
    bench.broker.start()
    await bench.broker.drain()
    assert woken == [True]
    await bench.broker.close()
    answered = bench.submit(partition)
    await turn()
    assert answered[0].error is not None


@in_loop
async def test_mark_of_a_clean_stop_that_cannot_be_left_does_not_break_the_stop() -> None:
    bench = Bench()
    await bench.topic("t")
    bench.disk.fail_next("write", path_contains="clean-shutdown")
    await bench.broker.close()
    assert not bench.disk.exists(f"{DATA}/clean-shutdown")
    assert bench.again().topics.find("t") is not None


@in_loop
@pytest.mark.parametrize("operation", ["unlink", "sync_folder"])
async def test_mark_of_a_clean_stop_that_cannot_be_taken_away_keeps_the_broker_from_starting(
    operation: Operation,
) -> None:
    bench = Bench()
    await bench.broker.close()
    bench.disk.fail_next(operation)
    with pytest.raises(StorageError, match=r"clean-shutdown cannot be removed: .*start again\.$"):
        bench.again()


@in_loop
async def test_cluster_id_stays_the_same() -> None:
    bench = Bench()
    assert bench.again().broker.cluster_id == bench.broker.cluster_id


@in_loop
async def test_generation_of_a_client_is_compared_with_ours() -> None:
    bench = Bench()
    partition = await bench.topic("t")
    partition.generation = 3
    partition.check_generation(-1)
    partition.check_generation(3)
    with pytest.raises(FencedGenerationError):
        partition.check_generation(2)
    with pytest.raises(UnknownGenerationError):
        partition.check_generation(4)


@in_loop
async def test_address_is_the_advertised_one_or_the_one_the_client_found_us_at() -> None:
    class Somebody:
        host, local_address = "x", ("10.0.0.1", 9092)

    client: Any = Somebody()
    assert Bench().broker.address_for(client) == ("10.0.0.1", 9092)
    assert Bench(advertise="kafka.example:19092").broker.address_for(client) == ("kafka.example", 19092)


@in_loop
async def test_deleting_a_topic_goes_on_when_groups_cannot_forget_it() -> None:
    bench = Bench()
    await bench.topic("t")

    async def refuse(names: list[str]) -> None:
        raise StorageError("no")

    bench.broker.groups.forget_topics = refuse
    await bench.broker.topics.delete("t")
    assert bench.topics.find("t") is None


@in_loop
async def test_snapshot_of_producers_shortens_the_next_start_and_is_not_trusted_beyond_the_log() -> None:
    bench = Bench()
    partition = await bench.topic("t")
    await bench.core.append(partition, batch_of(producer_id=5, producer_epoch=0, base_sequence=0))
    await bench.broker.housekeeping.checkpoint()
    again = bench.again().topics.partition("t", 0)
    assert (again.snapshot_offset, list(again.producers.producers)) == (1, [5])

    snapshot = bench.disk.read(f"{DATA}/t-0/producers")
    fresh = Bench()
    other = await fresh.topic("t")
    assert other.log.end_offset == 0
    fresh.disk.write(f"{DATA}/t-0/producers", snapshot)  # Of records that this log has lost.
    assert fresh.again().topics.partition("t", 0).producers.producers == {}


@in_loop
async def test_producers_behind_the_snapshot_are_replayed() -> None:
    bench = Bench()
    partition = await bench.topic("t")
    await bench.core.append(partition, batch_of(producer_id=5, producer_epoch=0, base_sequence=0))
    await bench.broker.housekeeping.checkpoint()
    await bench.core.append(partition, batch_of(producer_id=6, producer_epoch=0, base_sequence=0))
    again = bench.again().topics.partition("t", 0)
    assert list(again.producers.producers) == [5, 6]
    assert again.producers.producers[6].batches[-1].base_offset == Offset(1)


@in_loop
async def test_two_brokers_tasks_do_not_outlive_the_stop() -> None:
    bench = Bench()
    bench.broker.start()
    await turn()
    await bench.broker.drain()
    await bench.broker.close()
    await turn()
    assert asyncio.all_tasks() == {asyncio.current_task()}
