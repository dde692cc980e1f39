"""The small files of the data folder."""

import uuid

import pytest

from anabranch.broker.topics.stored_state import StoredState, partition_key
from anabranch.errors import StorageError
from anabranch.log.disk.checkpoint import RecoveryMark
from anabranch.testing.fakes.disk import FakeDisk
from anabranch.values import Offset

ID = uuid.UUID("12345678123456781234567812345678")


def make(disk: FakeDisk, boot: str = "boot") -> StoredState:
    disk.make_folder("data")
    return StoredState(disk, "data", boot)


def loaded(disk: FakeDisk, boot: str = "boot") -> StoredState:
    state = make(disk, boot)
    state.load()
    return state


def test_partition_is_named_by_topic_id() -> None:
    assert partition_key(ID, 3) == f"{ID.hex}-3"


def test_identity_is_decided_once() -> None:
    disk = FakeDisk()
    first = make(disk).identity(1, ID)
    assert len(first.cluster_id) == 22
    assert make(disk).identity(1, uuid.uuid4()) == first


def test_folder_of_another_broker_is_refused() -> None:
    disk = FakeDisk()
    make(disk).identity(1, ID)
    with pytest.raises(StorageError, match="belongs to broker 1, not 2"):
        make(disk).identity(2, ID)


def test_identity_that_cannot_be_read_is_not_replaced_by_a_new_one() -> None:
    disk = FakeDisk()
    make(disk).identity(1, ID)
    before = disk.read("data/node")
    disk.flip_bit("data/node", 40)
    with pytest.raises(StorageError, match="checksum"):
        make(disk).identity(1, uuid.uuid4())
    disk.flip_bit("data/node", 40)
    assert disk.read("data/node") == before


def test_new_folder_was_not_closed_cleanly_and_knows_nothing() -> None:
    state = loaded(FakeDisk())
    assert (state.was_clean, state.recovery_points, state.start_offsets) == (False, {}, {})


def test_mark_of_a_clean_shutdown_counts_once() -> None:
    disk = FakeDisk()
    make(disk).mark_clean()
    assert loaded(disk).was_clean
    assert not loaded(disk).was_clean


def test_offsets_come_back() -> None:
    disk = FakeDisk()
    state = make(disk)
    state.write_start_offsets({"a": Offset(3)})
    state.write_cleaner_offsets({"a": Offset(4)})
    again = loaded(disk)
    assert (again.start_offsets, again.cleaner_offsets) == ({"a": 3}, {"a": 4})


def test_recovery_points_trust_the_page_cache_within_one_boot_only() -> None:
    disk = FakeDisk()
    make(disk).write_recovery_points({"a": RecoveryMark(Offset(3), Offset(5))})
    assert loaded(disk, "boot").recovery_points["a"].offset == 5
    assert loaded(disk, "other").recovery_points["a"].offset == 3


@pytest.mark.parametrize("is_removed", [False, True])
def test_lost_start_offsets_are_said_aloud(caplog: pytest.LogCaptureFixture, is_removed: bool) -> None:
    disk = FakeDisk()
    loaded(disk).identity(1, uuid.UUID(int=7))
    loaded(disk)
    assert caplog.text == ""
    make(disk).write_start_offsets({"a": Offset(3)})
    if is_removed:
        disk.unlink("data/log-start-offsets")
    else:
        disk.flip_bit("data/log-start-offsets", 25)
    assert loaded(disk).start_offsets == {}
    assert "deleted records may be back" in caplog.text


def test_a_folder_that_begins_another_cluster_keeps_its_start_offsets() -> None:
    disk = FakeDisk()
    loaded(disk).identity(1, uuid.UUID(int=7))
    make(disk).write_start_offsets({"a": Offset(3)})
    disk.unlink("data/node")
    loaded(disk).identity(1, uuid.UUID(int=8))
    assert loaded(disk).start_offsets == {"a": 3}
