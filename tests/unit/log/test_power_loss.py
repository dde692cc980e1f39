"""Unsynced writes dropped in any subset: what was synced is there, offsets are unique and in order."""

from random import Random

import pytest
from log_helpers import FOLDER, NOW_MS, Open, make_batch, offsets_of, open_on, read_all

from anabranch.log.checkpoint import RecoveryMark, read_recovery_points, write_recovery_points
from anabranch.log.log import Log
from anabranch.testing.fake_disk import FakeDisk, PowerLoss
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
