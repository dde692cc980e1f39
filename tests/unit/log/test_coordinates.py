"""Files of coordinate rows: what is read is what was written and synced, and everything else is said aloud."""

import errno
import uuid
from random import Random

import pytest

from anabranch.errors import CorruptDataError, StorageError
from anabranch.log.coordinates import FileCoordinates
from anabranch.objects.layout.names import ROW_BYTES
from anabranch.testing.fakes.disk import FakeDisk

KEY = uuid.UUID(int=0xABC), 3
OTHER = uuid.UUID(int=0xDEF), 0
PATH = f"data/objects/{0xABC:032x}-3.1.rows"


def rows(first: int, count: int) -> bytes:
    return b"".join(bytes([number]) * ROW_BYTES for number in range(first, first + count))


@pytest.fixture
def disk() -> FakeDisk:
    disk = FakeDisk()
    disk.make_folder("data")
    return disk


@pytest.fixture
def coordinates(disk: FakeDisk) -> FileCoordinates:
    return FileCoordinates(disk, "data")


def test_rows_are_read_from_anywhere_in_the_file(disk, coordinates):
    coordinates.write(KEY, 1, 0, [rows(0, 3), rows(3, 2)])
    coordinates.write(KEY, 1, 5, [rows(5, 1)])
    assert coordinates.read(KEY, 1, 2, 4) == rows(2, 4)
    assert disk.size(PATH) == 6 * ROW_BYTES


def test_what_is_written_over_ends_the_file(disk, coordinates):
    coordinates.write(KEY, 1, 0, [rows(0, 9)])
    coordinates.write(KEY, 1, 2, [rows(7, 1)])
    assert coordinates.read(KEY, 1, 0, 3) == rows(0, 2) + rows(7, 1)
    assert disk.size(PATH) == 3 * ROW_BYTES


@pytest.mark.parametrize("seed", range(5))
def test_synced_rows_survive_a_power_cut(disk, coordinates, seed):
    coordinates.write(KEY, 1, 0, [rows(0, 30)])
    coordinates.write(OTHER, 2, 0, [rows(4, 1)])
    coordinates.sync()
    coordinates.write(KEY, 1, 30, [rows(30, 30)])
    disk.crash(Random(seed))
    again = FileCoordinates(disk, "data")
    again.cut(KEY, 1, 30)
    assert again.read(KEY, 1, 0, 30) == rows(0, 30)
    assert again.read(OTHER, 2, 0, 1) == rows(4, 1)
    assert disk.size(PATH) == 30 * ROW_BYTES


def test_fewer_rows_than_are_asked_for_are_corrupt(coordinates):
    coordinates.write(KEY, 1, 0, [rows(0, 3)])
    with pytest.raises(CorruptDataError, match="no 2 rows from 2 on"):
        coordinates.read(KEY, 1, 2, 2)
    with pytest.raises(CorruptDataError, match="names 264: restore"):
        coordinates.cut(KEY, 1, 4)
    with pytest.raises(CorruptDataError, match="missing, but the metadata snapshot names it: restore"):
        coordinates.cut(OTHER, 1, 4)


def test_disk_that_refuses_is_named(disk, coordinates):
    with pytest.raises(StorageError, match="cannot be read"):
        coordinates.read(KEY, 1, 0, 1)
    disk.fail_next("write", errno.ENOSPC)
    with pytest.raises(StorageError, match=r"rows cannot be written: No space"):
        coordinates.write(KEY, 1, 0, [rows(0, 1)])
    coordinates.write(KEY, 1, 0, [rows(0, 1)])
    disk.fail_next("sync")
    with pytest.raises(StorageError, match="cannot be synced"):
        coordinates.sync()


def test_a_new_version_is_one_that_no_file_has(coordinates):
    assert coordinates.next_version() == 1
    coordinates.write(KEY, 1, 0, [rows(0, 1)])
    coordinates.write(OTHER, 12, 0, [rows(0, 1)])
    assert coordinates.next_version() == 13


def test_only_our_own_files_that_nobody_names_are_removed(disk, coordinates):
    for key, version in [(KEY, 1), (KEY, 2), (OTHER, 1)]:
        coordinates.write(key, version, 0, [rows(version, 1)])
    disk.write("data/objects/notes.txt", b"a user's")
    coordinates.read(KEY, 1, 0, 1)
    coordinates.remove_others([(KEY, 2)])
    assert disk.list("data/objects") == [f"{0xABC:032x}-3.2.rows", "notes.txt"]
    assert coordinates.read(KEY, 2, 0, 1) == rows(2, 1)


def test_file_that_cannot_be_deleted_harms_nobody(disk, coordinates, caplog):
    coordinates.write(KEY, 1, 0, [rows(0, 1)])
    disk.fail_next("unlink", errno.EACCES)
    coordinates.remove_others([])
    assert "cannot be deleted" in caplog.text
    coordinates.remove_others([])
    assert disk.list("data/objects") == []


def test_a_node_without_objects_gets_no_folder(disk, coordinates):
    coordinates.remove_others([])
    assert disk.list("data") == []
