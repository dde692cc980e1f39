"""The fake disk forgets, fails and fills up as it is told."""

import errno
from random import Random

import pytest

from anabranch.errors import DataFolderInUseError
from anabranch.testing.fakes.clock import FakeClock
from anabranch.testing.fakes.disk import FakeDisk, PowerLoss
from anabranch.testing.fakes.inode import SECTOR_BYTES


@pytest.fixture
def disk() -> FakeDisk:
    disk = FakeDisk()
    disk.make_folder("d")
    return disk


def crashed(disk: FakeDisk, seed: int) -> FakeDisk:
    after = disk.copy()
    after.crash(Random(seed))
    return after


def test_what_was_synced_survives_every_crash(disk: FakeDisk) -> None:
    file = disk.create("d/a")
    file.pwritev([b"kept", b" for sure"], 0)
    file.sync()
    disk.sync_folder("d")
    assert {crashed(disk, seed).read("d/a") for seed in range(50)} == {b"kept for sure"}


def test_an_unsynced_write_is_kept_lost_or_torn(disk: FakeDisk) -> None:
    file = disk.create("d/a")
    disk.sync_folder("d")
    file.pwritev([b"x" * 3 * SECTOR_BYTES], 0)
    ends = {crashed(disk, seed).read("d/a") for seed in range(200)}
    assert b"" in ends
    assert b"x" * 3 * SECTOR_BYTES in ends
    assert any(b"\0" in end and end.rstrip(b"\0").endswith(b"x") for end in ends), "a hole of zeros"
    assert any(len(end) % SECTOR_BYTES for end in ends), "a torn last write"


def test_an_unsynced_name_may_be_lost_with_synced_content(disk: FakeDisk) -> None:
    file = disk.create("d/a")
    file.pwritev([b"content"], 0)
    file.sync()
    assert {crashed(disk, seed).exists("d/a") for seed in range(50)} == {True, False}


def test_an_unsynced_rename_leaves_the_old_name_or_the_new_one(disk: FakeDisk) -> None:
    disk.write("d/a", b"content", sync=True)
    disk.sync_folder("d")
    disk.rename("d/a", "d/b")
    assert {tuple(crashed(disk, seed).list("d")) for seed in range(50)} == {("a",), ("b",)}


def test_a_failed_sync_loses_what_reads_still_show_until_the_cache_is_dropped(disk: FakeDisk) -> None:
    file = disk.create("d/a")
    file.pwritev([b"lost"], 0)
    disk.fail_next("sync")
    with pytest.raises(OSError, match="d/a"):
        file.sync()
    file.sync()
    assert file.pread(10, 0) == b"lost"
    file.forget_cache()
    assert file.pread(10, 0) == b""


def test_faults_strike_once_where_they_are_told_to(disk: FakeDisk) -> None:
    a, b = disk.create("d/a"), disk.create("d/b")
    disk.fail_next("write", errno.ENOSPC, path_contains="b")
    assert a.pwritev([b"1"], 0) == 1
    with pytest.raises(OSError, match="d/b") as caught:
        b.pwritev([b"1"], 0)
    assert caught.value.errno == errno.ENOSPC
    assert b.pwritev([b"1"], 0) == 1
    disk.short_next(2)
    assert a.pwritev([b"12345"], 0) == 2
    assert disk.read("d/a") == b"12"


def test_a_full_disk_takes_what_fits_then_refuses(disk: FakeDisk) -> None:
    disk.capacity_bytes = 10
    file = disk.create("d/a")
    assert file.pwritev([b"x" * 15], 0) == 10
    with pytest.raises(OSError, match="d/a"):
        file.pwritev([b"x"], 10)
    assert file.pwritev([b"y"], 0) == 1
    assert disk.free_bytes("d") == 0


def test_power_goes_at_the_chosen_change_and_old_files_are_dead_afterwards(disk: FakeDisk) -> None:
    file = disk.create("d/a")
    disk.crash_at = disk.operations + 2
    file.pwritev([b"1"], 0)
    for _ in range(2):
        with pytest.raises(PowerLoss):
            file.sync()
    disk.crash(Random(1))
    with pytest.raises(OSError, match="power loss"):
        file.size()
    disk.write("d/b", b"goes on")


def test_a_slow_operation_waits_for_what_the_test_says(disk: FakeDisk) -> None:
    waited = []
    disk.wait_before("sync", lambda: waited.append("once"))
    file = disk.create("d/a")
    file.sync()
    file.sync()
    assert waited == ["once"]


def test_a_lock_is_held_until_it_is_released_or_the_process_dies(disk: FakeDisk) -> None:
    held = disk.lock("d/.lock")
    with pytest.raises(DataFolderInUseError):
        disk.lock("d/.lock")
    held.release()
    disk.lock("d/.lock")
    disk.kill()
    disk.lock("d/.lock")


def test_a_clock_moves_only_when_told() -> None:
    clock = FakeClock(wall_ms=1000)
    clock.advance(50)
    clock.jump_wall(-500)
    assert (clock.wall_ms(), clock.monotonic_ms()) == (550, 50)
