"""Defects that random runs have found, each as the shortest story that shows it."""

import errno
from collections.abc import Iterator

import pytest

from anabranch.testing.simulation.simulator import Simulator, produced
from anabranch.testing.simulation.workload import Workload
from anabranch.wire.error_codes import ErrorCode

PRODUCER = 5


@pytest.fixture
def sim() -> Iterator[Simulator]:
    with Simulator(seed=1) as sim:
        sim.run_until(sim.create_topic("t"))
        yield sim


def send(
    sim: Simulator, values: list[bytes], sequence: int | None = None, acks: int = -1
) -> tuple[ErrorCode, int]:
    producer = (PRODUCER, 0, sequence) if sequence is not None else None
    pending = sim.produce("t", 0, values, acks, producer)
    sim.run_until(pending)
    answer = produced(pending)
    assert answer is not None
    return answer


def test_what_follows_a_refused_first_batch_does_not_take_its_place(sim: Simulator) -> None:
    sim.disk.fail_next("write", errno.ENOSPC)
    assert send(sim, [b"first"], sequence=0)[0] is ErrorCode.KAFKA_STORAGE_ERROR
    assert send(sim, [b"second"], sequence=1)[0] is ErrorCode.NOT_ENOUGH_REPLICAS
    assert send(sim, [b"first"], sequence=0) == (ErrorCode.NONE, 0)
    assert send(sim, [b"second"], sequence=1) == (ErrorCode.NONE, 1)


def test_a_snapshot_of_producers_does_not_outlive_the_records_it_was_made_from(sim: Simulator) -> None:
    sim.disk.fail_next("sync")
    assert send(sim, [b"lost"])[0] is ErrorCode.KAFKA_STORAGE_ERROR
    sim.restart(lose_power=True)  # The stop has left a snapshot that counts the lost record.
    assert send(sim, [b"kept"], sequence=0) == (ErrorCode.NONE, 0)
    sim.kill()
    assert send(sim, [b"kept"], sequence=0) == (ErrorCode.NONE, 0)
    assert sim.fetch_all("t", 0) == [(0, b"kept")]


@pytest.mark.parametrize("seed", range(10))
def test_a_write_that_was_taken_back_stays_away_after_a_power_cut(seed: int) -> None:
    with Simulator(seed) as sim:
        sim.run_until(sim.create_topic("t"))
        assert send(sim, [b"a" * 900]) == (ErrorCode.NONE, 0)
        sim.disk.fail_next("create", errno.ENOSPC)
        refused = [
            sim.produce("t", 0, [b"b" * 700]),
            sim.produce("t", 0, [b"c" * 900]),
        ]  # One write, two segments.
        for pending in refused:
            sim.run_until(pending)
            assert produced(pending) == (ErrorCode.KAFKA_STORAGE_ERROR, -1)
        assert send(sim, [b"d" * 1500]) == (ErrorCode.NONE, 1)
        sim.crash()
        assert sim.fetch_all("t", 0) == [(0, b"a" * 900), (1, b"d" * 1500)]


def test_a_node_stops_although_its_disk_refuses_the_mark_of_a_clean_shutdown(sim: Simulator) -> None:
    send(sim, [b"a"])
    sim.disk.fail_next("write", errno.ENOSPC, path_contains="recovery-points")
    sim.restart()
    assert sim.fetch_all("t", 0) == [(0, b"a")]


def test_a_topic_that_cannot_be_made_nor_swept_away_is_refused(sim: Simulator) -> None:
    sim.disk.fail_next("create", errno.ENOSPC, path_contains="u-0")
    sim.disk.fail_next("sync_folder")
    body = sim.run_until(sim.create_topic("u"))
    assert body is not None
    assert body["topics"][0]["error_code"] == ErrorCode.KAFKA_STORAGE_ERROR


@pytest.mark.parametrize("seed", range(10))
def test_a_topic_made_while_the_node_stops_keeps_what_is_acknowledged_later(seed: int) -> None:
    with Simulator(seed) as sim:
        sim.run_until(sim.create_topic("s"))
        making = sim.create_topic("t")
        sim.run(0)
        sim.restart()
        if making.body is None:
            sim.run_until(sim.create_topic("t"))
        assert send(sim, [b"kept"]) == (ErrorCode.NONE, 0)
        sim.crash()
        assert sim.fetch_all("t", 0) == [(0, b"kept")]


def test_a_repeat_of_what_a_failed_sync_lost_is_not_taken_for_safe(sim: Simulator) -> None:
    log = sim.broker.topics.partition("t", 0).log

    def checkpoint() -> None:
        """While the sync is under way, as it is every few seconds."""
        log.flush_indexes()
        partitions = list(sim.broker.topics.partitions())
        sim.broker.housekeeping.write_checkpoints(partitions)

    lost = [sim.produce("t", 0, [b"%d" % number * 400], -1, (PRODUCER, 0, number)) for number in range(5)]
    sim.disk.wait_before("sync", checkpoint)
    sim.disk.fail_next("sync", path_contains="t-0/")
    for pending in lost:
        sim.run_until(pending)
        assert produced(pending) == (ErrorCode.KAFKA_STORAGE_ERROR, -1)
    sim.kill()  # The page cache still has the records; the disk does not.
    repeats = [send(sim, [b"%d" % number * 400], sequence=number) for number in range(5)]
    assert repeats == [(ErrorCode.NONE, number) for number in range(5)]
    sim.crash()
    assert sim.fetch_all("t", 0) == [(number, b"%d" % number * 400) for number in range(5)]


def test_power_that_goes_while_a_reader_has_an_index_made_anew_is_survived() -> None:
    """Seed 9134: a fetch met an index that could not be true, and the cut came while it was written again."""
    workload = Workload(9134)
    with workload.sim:
        workload.run()
