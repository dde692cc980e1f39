"""The simulator itself: time, deaths, and what ends a run."""

import asyncio
import errno
from collections.abc import Iterator
from random import Random

import pytest

from anabranch.testing.fakes.clock import FakeClock
from anabranch.testing.fakes.disk import FakeDisk, PowerLoss
from anabranch.testing.fakes.loop import SimWorkers, VirtualLoop
from anabranch.testing.simulation.simulator import SimulationError, Simulator, produced
from anabranch.wire.error_codes import ErrorCode


@pytest.fixture
def sim() -> Iterator[Simulator]:
    with Simulator(seed=3) as sim:
        sim.run_until(sim.create_topic("t"))
        yield sim


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    loop = VirtualLoop(FakeClock(), lambda: False)
    yield loop
    loop.close()


def values(sim: Simulator) -> list[bytes | None]:
    return [value for _, value in sim.fetch_all("t", 0) or []]


# --- time --------------------------------------------------------------------------------------------------------


def test_waiting_costs_no_time_and_timers_fire_in_order(loop: VirtualLoop) -> None:
    fired: list[tuple[str, float]] = []
    for name, delay in (("day", 86_400), ("second", 1), ("hour", 3_600)):
        loop.call_later(delay, lambda name=name: fired.append((name, loop.time())))
    loop.run_for(100_000_000)
    assert fired == [("second", 1.0), ("hour", 3600.0), ("day", 86400.0)]
    assert loop.time() == 100_000.0


def test_a_loop_with_nothing_to_do_says_so_instead_of_hanging(loop: VirtualLoop) -> None:
    async def forever() -> None:
        await loop.create_future()

    task = loop.create_task(forever())
    with pytest.raises(AssertionError, match="nothing is scheduled"):
        loop.run_until_complete(task)
    task.cancel()
    loop.run_for(0)


def test_workers_run_in_an_order_that_the_seed_decides(loop: VirtualLoop) -> None:
    def order(seed: int) -> list[int]:
        done: list[int] = []
        workers = SimWorkers(loop, Random(seed))
        for number in range(8):
            workers.sync(lambda number=number: number, lambda result, error: done.append(result))
        loop.run_for(1000)
        return done

    assert order(1) == order(1)
    assert sorted(order(1)) == list(range(8))
    assert len({tuple(order(seed)) for seed in range(10)}) > 1


def test_a_worker_hands_its_error_to_whoever_asked(loop: VirtualLoop) -> None:
    errors: list[BaseException | None] = []
    SimWorkers(loop, Random(1)).heavy(lambda: 1 // 0, lambda result, error: errors.append(error))
    loop.run_for(1000)
    assert [type(error) for error in errors] == [ZeroDivisionError]


# --- deaths ------------------------------------------------------------------------------------------------------


def test_what_was_acknowledged_outlives_a_power_cut(sim: Simulator) -> None:
    sim.run_until(sim.produce("t", 0, [b"a"]))
    sim.crash()
    assert values(sim) == [b"a"]


def test_what_was_only_written_outlives_the_process() -> None:
    with Simulator(seed=3, flush="os") as sim:
        sim.run_until(sim.create_topic("t"))
        assert produced(sim.produce("t", 0, [b"never run"])) is None
        sim.run_until(sim.produce("t", 0, [b"written"]))
        sim.kill()
        assert values(sim) == [b"never run", b"written"]


def test_some_seed_loses_what_was_never_synced() -> None:
    lost = 0
    for seed in range(10):
        with Simulator(seed, flush="os") as sim:
            sim.run_until(sim.create_topic("t"))
            sim.run_until(sim.produce("t", 0, [b"written"]))
            sim.crash()
            lost += values(sim) == []
    assert 0 < lost < 10


def test_a_request_that_the_power_cut_overtakes_is_never_answered(sim: Simulator) -> None:
    pending = sim.produce("t", 0, [b"a"])
    sim.crash()
    sim.run(1000)
    assert not pending.is_settled


def test_the_power_can_go_at_any_operation_of_the_disk(sim: Simulator) -> None:
    life = sim.lives
    sim.disk.crash_at = sim.disk.operations + 1
    assert sim.run_until(sim.produce("t", 0, [b"a"])) is None
    assert sim.lives > life


def test_a_clean_restart_loses_nothing_even_if_the_power_goes(sim: Simulator) -> None:
    sim.run_until(sim.produce("t", 0, [b"a"], acks=1))
    sim.restart(lose_power=True)
    assert values(sim) == [b"a"]


# --- what ends a run -----------------------------------------------------------------------------------------------


def test_a_refusal_is_an_answer_and_not_a_defect(sim: Simulator) -> None:
    sim.disk.fail_next("write", errno.ENOSPC)
    pending = sim.produce("t", 0, [b"a"])
    sim.run_until(pending)
    assert produced(pending) == (ErrorCode.KAFKA_STORAGE_ERROR, -1)


def test_an_exception_that_nobody_handles_ends_the_run(sim: Simulator) -> None:
    sim._loop.call_soon(lambda: 1 // 0)
    with pytest.raises(SimulationError, match="ZeroDivisionError"):
        sim.run(1)


def test_reading_a_topic_that_is_not_there_ends_the_run(sim: Simulator) -> None:
    with pytest.raises(SimulationError, match="UNKNOWN_TOPIC_OR_PARTITION"):
        sim.fetch_all("nowhere", 0)


def test_nothing_runs_on_in_a_buried_loop() -> None:
    with Simulator(seed=3) as sim:
        loop = sim._loop
    assert loop.is_closed()
    assert not asyncio.all_tasks(loop)


# --- the disk's part -----------------------------------------------------------------------------------------------


def test_a_dark_disk_is_dark_until_it_is_restarted() -> None:
    disk = FakeDisk()
    disk.crash_at = disk.operations + 1
    with pytest.raises(PowerLoss):
        disk.create("a")
    assert disk.is_dark
    disk.crash(Random(1))
    assert not disk.is_dark


def test_forgotten_faults_do_not_strike() -> None:
    disk = FakeDisk()
    disk.fail_next("create")
    disk.forget_faults()
    disk.create("a")


def test_an_older_change_of_a_name_never_comes_true_after_a_newer_one() -> None:
    disk = FakeDisk()
    disk.make_folder("inner")
    disk.create("a")
    disk.rename("a", "inner/a")
    disk.sync_folder("inner")
    disk.sync_folder(".")
    disk.crash(Random(1))
    assert (disk.exists("a"), disk.exists("inner/a")) == (False, True)
