"""Lanes on the disk: copied as they are, opened again as they were, and never lost because a row is missing."""

from random import Random

import pytest

from anabranch.broker.branch.lanes.logs import LaneLogs, lane_folder
from anabranch.errors import CorruptDataError, StorageError
from anabranch.log.segment.index import IndexCache
from anabranch.log.settings import LogConfig
from anabranch.modes.branch.lines import Span
from anabranch.modes.branch.rows import Lane, first_offset
from anabranch.testing.fakes.disk import FakeDisk
from anabranch.values import Offset
from support.broker_bench import batch_of

FOLDER = "data/t-0"
LANE = Lane(7)
START = first_offset(LANE)


def lanes_on(disk: FakeDisk, *known: Lane, clean: bool = False) -> LaneLogs:
    disk.make_folder(FOLDER)
    lanes = LaneLogs(disk, FOLDER, LogConfig(), IndexCache())
    lanes.open({lane: first_offset(lane) for lane in known}, clean=clean)
    return lanes


def batch_at(offset: int, *values: bytes) -> bytearray:
    return batch_of(*values, base_offset=offset)


def test_copied_batches_keep_their_offsets_and_gaps() -> None:
    disk = FakeDisk()
    lanes = lanes_on(disk)
    lanes.make(LANE, START)
    data = batch_at(START, b"a", b"b") + batch_at(START + 5, b"c")
    assert lanes.append_copied(LANE, data, 0) == START + 6
    assert lanes.append_copied(LANE, data + batch_at(START + 6, b"d"), 0) == START + 7, (
        "what is here is left out"
    )
    lanes.extend(LANE, Offset(START + 10))
    assert lanes.sync(LANE) == START + 10
    disk.crash(Random(1))
    again = lanes_on(disk, LANE)
    assert again.all_held() == [Span(LANE, START, Offset(START + 10))]
    log = again.get(LANE)
    assert log is not None
    assert [header.base_offset - START for header in log.batch_headers(START)] == [0, 5, 6]


@pytest.mark.parametrize(
    "data",
    [
        batch_at(START + 1, b"x")[:-1],
        batch_at(START + 1, b"x")[:70] + b"?" + batch_at(START + 1, b"x")[71:],
        batch_at(START, b"x", b"y"),
        batch_at(first_offset(Lane(8)), b"x"),
        batch_at(START + 1, b"x") + batch_at(START + 1, b"y", b"z"),
    ],
    ids=["torn", "garbled", "begins before the end", "another lane's", "overlaps"],
)
def test_what_is_no_copy_of_the_lane_is_refused_whole(data: bytes) -> None:
    lanes = lanes_on(FakeDisk())
    lanes.make(LANE, START)
    lanes.append_copied(LANE, batch_at(START, b"a"), 0)
    with pytest.raises(CorruptDataError):
        lanes.append_copied(LANE, data, 0)
    assert lanes.held(LANE) == Span(LANE, START, Offset(START + 1))


def test_a_lane_without_records_is_found_again_where_it_begins() -> None:
    disk = FakeDisk()
    lanes_on(disk).make(LANE, START)
    disk.crash(Random(3))
    assert lanes_on(disk, LANE).held(LANE) in (None, Span(LANE, START, START))


def test_a_folder_that_no_row_names_is_kept_aside_for_one_start_if_there_are_records() -> None:
    disk = FakeDisk()
    lanes = lanes_on(disk)
    lanes.make(LANE, START)
    lanes.append_copied(LANE, batch_at(START, b"a"), 0)
    lanes.make(Lane(9), first_offset(Lane(9)))
    disk.kill()
    again = lanes_on(disk)
    assert list(again) == []
    assert again.highest == 9, "no such number is given again"
    assert disk.list(FOLDER) == [f"{lane_folder(LANE)}.aside"]
    disk.kill()
    lanes_on(disk)
    assert disk.list(FOLDER) == []


def test_a_dropped_lane_is_gone() -> None:
    disk = FakeDisk()
    lanes = lanes_on(disk)
    lanes.make(LANE, START)
    dropped = lanes.drop(LANE)
    assert LANE not in lanes
    dropped.delete()
    assert disk.list(FOLDER) == []
    assert lanes_on(disk, LANE).get(LANE) is None


def test_a_disk_that_refuses_a_lane_leaves_none_behind() -> None:
    disk = FakeDisk()
    lanes = lanes_on(disk)
    disk.fail_next("create", path_contains="lane-")
    with pytest.raises(StorageError):
        lanes.make(LANE, START)
    assert LANE not in lanes
    lanes.make(LANE, START)
    assert lanes.held(LANE) == Span(LANE, START, START)


def test_a_copy_that_has_lost_its_beginning_is_out_of_the_way_unless_that_was_removed() -> None:
    disk = FakeDisk()
    lanes = lanes_on(disk)
    log = lanes.make(LANE, START)
    lanes.append_copied(LANE, batch_at(START, b"a"), 0)
    log.roll()
    lanes.append_copied(LANE, batch_at(START + 1, b"b"), 0)
    lanes.sync(LANE)
    folder = f"{FOLDER}/{lane_folder(LANE)}"
    for name in disk.list(folder):
        if name.startswith(f"{START:020d}"):
            disk.unlink(f"{folder}/{name}")
    again = LaneLogs(disk, FOLDER, LogConfig(), IndexCache())
    again.open({LANE: START}, clean=False, removed={LANE: Offset(START + 1)})
    assert again.held(LANE) == Span(LANE, Offset(START + 1), Offset(START + 2))
    torn = lanes_on(disk, LANE)
    assert LANE not in torn
    assert torn.highest == LANE, "its number is not given again"
    torn.make(LANE, START)
    assert torn.append_copied(LANE, batch_at(START, b"a"), 0) == START + 1


def test_what_recovery_could_not_trust_outlives_its_lane() -> None:
    disk = FakeDisk()
    for _ in range(2):
        lanes = lanes_on(disk)
        lanes.make(LANE, START)
        lanes.append_copied(LANE, batch_at(START, b"a") + batch_at(START + 1, b"b"), 0)
        disk.flip_bit(f"{FOLDER}/{lane_folder(LANE)}/{START:020d}.log", 30)
        disk.kill()
        again = lanes_on(disk, LANE)
        assert again.held(LANE) == Span(LANE, START, START)
        again.drop(LANE).delete()
        disk.kill()
    name = f"quarantine-{lane_folder(LANE)}"
    assert disk.list(FOLDER) == [name, f"{name}.1"]
    assert lanes_on(disk).all_held() == []
