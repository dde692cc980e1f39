"""State files are the old one or the new one, never half of each."""

from random import Random

import pytest

from anabranch.log.disk.checkpoint import (
    RecoveryMark,
    RecoveryPoint,
    read_checkpoint,
    read_offsets,
    read_recovery_points,
    write_checkpoint,
    write_offsets,
    write_recovery_points,
)
from anabranch.testing.fakes.disk import FakeDisk, PowerLoss
from anabranch.values import Offset

PATH = "data/state"


@pytest.fixture
def disk() -> FakeDisk:
    disk = FakeDisk()
    disk.make_folder("data")
    return disk


def test_a_value_comes_back(disk: FakeDisk) -> None:
    write_checkpoint(disk, PATH, {"a": [1, "ä"]})
    assert read_checkpoint(disk, PATH) == ({"a": [1, "ä"]}, None)


def test_a_missing_file_says_so(disk: FakeDisk) -> None:
    value, reason = read_checkpoint(disk, PATH)
    assert value is None
    assert reason is not None
    assert "no such file" in reason


def test_any_cut_or_flipped_bit_reads_as_missing_with_a_reason(disk: FakeDisk) -> None:
    write_checkpoint(disk, PATH, {"offset": 12345})
    whole = disk.read(PATH)
    for size in range(len(whole)):
        disk.write(PATH, whole[:size])
        value, reason = read_checkpoint(disk, PATH)
        assert value is None
        assert reason
    for position in range(len(whole)):
        disk.write(PATH, whole)
        disk.flip_bit(PATH, position, position % 7)
        value, reason = read_checkpoint(disk, PATH)
        assert value is None, position
        assert reason


def test_a_crash_at_any_step_leaves_the_old_value_or_the_new_one() -> None:
    for seed in range(60):
        for step in range(1, 7):
            disk = FakeDisk()
            disk.make_folder("data")
            write_checkpoint(disk, PATH, "old" * 400)
            disk.crash_at = disk.operations + step
            try:
                write_checkpoint(disk, PATH, "new" * 500)
                expected = ["new" * 500]
            except PowerLoss:
                expected = ["old" * 400, "new" * 500]
            disk.crash(Random(seed))
            assert read_checkpoint(disk, PATH).value in expected


def test_recovery_points_depend_on_the_boot(disk: FakeDisk) -> None:
    write_recovery_points(disk, PATH, "boot 1", {"t-0": RecoveryMark(Offset(5), Offset(9))})
    assert read_recovery_points(disk, PATH, "boot 1") == ({"t-0": RecoveryPoint(Offset(9), Offset(5))}, None)
    assert read_recovery_points(disk, PATH, "boot 2") == ({"t-0": RecoveryPoint(Offset(5), Offset(5))}, None)


def test_a_machine_that_cannot_name_its_boot_trusts_only_what_was_synced(disk: FakeDisk) -> None:
    write_recovery_points(disk, PATH, "", {"t-0": RecoveryMark(Offset(5), Offset(9))})
    assert read_recovery_points(disk, PATH, "")[0]["t-0"].offset == 5


def test_offsets_by_partition_come_back(disk: FakeDisk) -> None:
    write_offsets(disk, PATH, {"t-0": Offset(7), "t-1": Offset(0)})
    assert read_offsets(disk, PATH) == ({"t-0": 7, "t-1": 0}, None)
    assert read_offsets(disk, "data/none")[0] == {}
