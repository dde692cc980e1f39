"""Unsynced writes dropped in any subset: what was synced is there, offsets are unique and in order."""

from random import Random

import pytest
from log_helpers import FOLDER, NOW_MS, Open, fill, make_batch, offsets_of, open_on, read_all

from anabranch.errors import StorageError
from anabranch.log.disk.checkpoint import (
    RecoveryMark,
    RecoveryPoint,
    read_recovery_points,
    write_recovery_points,
)
from anabranch.log.log import Log
from anabranch.log.segment.timestamps import settled
from anabranch.testing.fakes.disk import FakeDisk, PowerLoss
from anabranch.values import Offset

POINTS = "data/recovery-points"


def _work(log: Log, disk: FakeDisk, rng: Random, acknowledged: dict[int, bytes], boot: str) -> None:
    """Append, sync, checkpoint in a random order; `acknowledged` holds what a client was told is safe."""
    # What an earlier process wrote and this one found is acknowledged too, once a sync has covered it.
    waiting: dict[int, bytes] = {int.from_bytes(batch[:8], "big"): batch for batch in read_all(log)}
    for _ in range(rng.randrange(1, 30)):
        step = rng.random()
        if step < 0.6:
            batches = []
            for _ in range(rng.randrange(1, 4)):
                base = batches[-1][2] + 1 if batches else log.end_offset
                batches.append(make_batch(base, rng.randrange(1, 4), rng.choice((10, 200, 900))))
            log.append(batches, NOW_MS)
            waiting.update((int(batch[1]), bytes(batch[0])) for batch in batches)
        elif step < 0.8:
            log.sync()
            acknowledged.update(waiting)
            waiting.clear()
        else:
            log.flush_indexes()
            write_recovery_points(disk, POINTS, boot, {"t-0": log.recovery_mark})


def _open_after_crash(disk: FakeDisk, open_log: Open, boot: str) -> Log:
    points, _ = read_recovery_points(disk, POINTS, boot)
    point = points.get("t-0")
    return open_log(point=point, segment_bytes=3000, index_interval_bytes=300)


@pytest.mark.parametrize("first_seed", range(0, 400, 50))
def test_what_was_synced_survives_a_power_cut(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 50):
        rng, disk = Random(seed), FakeDisk()
        open_log = open_on(disk)
        disk.make_folder("data")
        acknowledged: dict[int, bytes] = {}
        boot = 0
        for _ in range(4):
            if rng.random() < 0.5:
                disk.crash_at = disk.operations + rng.randrange(1, 120)
            try:
                log = _open_after_crash(disk, open_log, f"boot {boot}")
                _check(log, acknowledged, seed)
                _work(log, disk, rng, acknowledged, f"boot {boot}")
            except PowerLoss:
                pass
            if rng.random() < 0.4:
                disk.kill()
            else:
                disk.crash(rng)
                boot += 1
        _check(_open_after_crash(disk, open_log, f"boot {boot}"), acknowledged, seed)


def _check(log: Log, acknowledged: dict[int, bytes], seed: int) -> None:
    batches = read_all(log)
    offsets = offsets_of(batches)
    # The name of a first segment that was never synced may be lost while that of the second is kept.
    assert offsets == list(range(log.start_offset, log.end_offset)), f"seed {seed}"
    held = {int.from_bytes(batch[:8], "big"): batch for batch in batches}
    for base, batch in acknowledged.items():
        assert held.get(base) == batch, f"seed {seed}: offset {base} was acknowledged"


def test_a_killed_process_loses_nothing_that_was_written() -> None:
    disk = FakeDisk()
    open_log = open_on(disk)
    log = open_log()
    log.append([make_batch(offset) for offset in range(50)], NOW_MS)
    write_recovery_points(disk, POINTS, "boot", {"t-0": log.recovery_mark})
    disk.kill()
    points, _ = read_recovery_points(disk, POINTS, "boot")
    assert points["t-0"].offset == 50
    points, _ = read_recovery_points(disk, POINTS, "another boot")
    assert points["t-0"].offset == 0
    assert open_log(point=50).end_offset == 50


def test_a_mark_names_both_what_is_synced_and_what_is_written() -> None:
    log = open_on(FakeDisk())()
    log.append([make_batch(0), make_batch(1)], NOW_MS)
    log.sync()
    log.append([make_batch(2)], NOW_MS)
    assert log.recovery_mark == RecoveryMark(Offset(2), Offset(3))
    assert FOLDER.endswith("t-0")


@pytest.mark.parametrize("batches", [0, 3, 200])
def test_a_clean_stop_does_not_touch_a_log_that_has_not_changed(batches: int) -> None:
    disk = FakeDisk()
    open_log = open_on(disk)
    log = open_log(index_interval_bytes=500)
    fill(log, batches)
    log.close()
    log = open_log(clean=True, index_interval_bytes=500)
    before = disk.operations
    log.close()
    assert disk.operations == before


def test_a_power_cut_after_a_clean_stop_may_take_any_of_the_sidecars_and_no_record() -> None:
    for seed in range(100):
        rng = Random(seed)
        disk = FakeDisk()
        open_log = open_on(disk)
        written: list[bytes] = []
        times = [rng.randrange(NOW_MS) for _ in range(60)]
        for life in range(3):
            log = open_log(clean=bool(life), index_interval_bytes=200)
            for timestamp in times[life * 20 : life * 20 + 20]:
                batch = make_batch(log.end_offset, timestamp=timestamp)
                log.append([batch], NOW_MS)
                written.append(bytes(batch[0]))
            log.close()
        disk.crash(rng)
        log = open_log(clean=True, index_interval_bytes=200)
        assert read_all(log) == written, f"seed {seed}"
        assert log.segments[-1].largest_timestamp()[0] == max(times), f"seed {seed}"
        for timestamp in (0, *times):
            first = next(number for number, time in enumerate(times) if time >= timestamp)
            found = settled(log.offset_for_time(timestamp))
            assert found is not None
            assert found.offset == first, f"seed {seed}"


def test_indexes_of_a_clean_stop_are_on_the_disk() -> None:
    """They have no sum: an older one, of records that were lost meanwhile, would be believed."""
    for seed in range(30):
        disk = FakeDisk()
        log = open_on(disk)(index_interval_bytes=200)
        fill(log, 30)
        log.flush_indexes()
        fill(log, 30)
        log.close()
        kept = {path: disk.read(path) for path in (f"{FOLDER}/{0:020}.index", f"{FOLDER}/{0:020}.timeindex")}
        disk.crash(Random(seed))
        assert {path: disk.read(path) for path in kept} == kept, f"seed {seed}"


def test_sidecars_of_two_clean_stops_are_not_mixed() -> None:
    disk = FakeDisk()
    open_log = open_on(disk)
    kept: dict[str, bytes] = {}
    for life in range(2):
        log = open_log(clean=bool(life), index_interval_bytes=200)
        log.append([make_batch(log.end_offset, timestamp=NOW_MS + 1000 * life)], NOW_MS)
        fill(log, 20, timestamp=NOW_MS - 1)
        log.close()
        for suffix in (".seal", ".timeindex"):
            path = f"{FOLDER}/{0:020}{suffix}"
            kept.setdefault(path, disk.read(path))
    for path, data in kept.items():
        disk.write(path, data)
    log = open_log(clean=True, index_interval_bytes=200)
    assert log.segments[-1].largest_timestamp()[0] == NOW_MS + 1000


def test_a_killed_process_leaves_nothing_to_sync_where_all_was_synced() -> None:
    disk = FakeDisk()
    open_log = open_on(disk)
    log = open_log()
    fill(log, 5)
    log.sync()
    disk.kill()
    assert open_log(point=RecoveryPoint(Offset(5), Offset(5))).is_synced
    assert not open_log(point=RecoveryPoint(Offset(5), Offset(4))).is_synced
    assert not open_log().is_synced


def test_the_name_of_a_log_that_was_still_empty_when_the_process_was_killed_is_synced_with_its_records() -> (
    None
):
    for seed in range(30):
        disk = FakeDisk()
        open_log = open_on(disk)
        open_log()
        disk.kill()
        log = open_log(point=RecoveryPoint(Offset(0), Offset(0)))
        written = fill(log, 1)
        log.sync()
        disk.crash(Random(seed))
        assert read_all(open_log()) == written


def test_a_seal_never_speaks_of_records_that_were_not_synced() -> None:
    disk = FakeDisk()
    log = open_on(disk)()
    fill(log, 3)
    disk.fail_next("sync", path_contains=".log")
    with pytest.raises(StorageError):
        log.close()
    assert not [name for name in disk.list(FOLDER) if name.endswith(".seal")]


@pytest.mark.parametrize(("lost", "stays"), [(0, True), (1, False)])
def test_a_seal_stays_after_a_crash_unless_it_speaks_of_records_that_are_gone(lost: int, stays: bool) -> None:
    disk = FakeDisk()
    open_log = open_on(disk)
    log = open_log()
    fill(log, 3)
    log.close()
    path, seal = f"{FOLDER}/{0:020}.log", f"{FOLDER}/{0:020}.seal"
    disk.write(path, disk.read(path)[: len(disk.read(path)) - lost])
    log = open_log()
    fill(log, 3)
    assert disk.exists(seal) == stays
    log.sync()
    for seed in range(20):
        crashed = disk.copy()
        crashed.crash(Random(seed))
        assert stays or not crashed.exists(seal), f"seed {seed}"
        assert len(read_all(open_on(crashed)())) == 6 - lost
