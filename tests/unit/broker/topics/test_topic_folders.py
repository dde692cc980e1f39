"""What a start finds in the data folder besides the logs of known topics."""

from uuid import UUID

from anabranch.broker.topics.topic_folders import TopicFolders
from anabranch.cluster.metadata.rows import Topic
from anabranch.testing.fakes.disk import FakeDisk
from anabranch.values import TopicPartition

TOPIC = Topic("t", UUID(int=9), 1)


def folders_with(*paths: str) -> tuple[FakeDisk, TopicFolders]:
    disk = FakeDisk()
    for path in paths:
        disk.make_folder(path.rpartition("/")[0])
        disk.write(path, b"x")
    return disk, TopicFolders(disk, "data")


def test_sweep_finishes_deletions() -> None:
    disk, folders = folders_with("data/00-0.deleted/sub/0.log", "data/00-0.deleted/0.log")
    folders.sweep([])
    assert disk.list("data") == []


def test_sweep_goes_on_when_a_deletion_cannot_be_finished() -> None:
    disk, folders = folders_with("data/00-0.deleted/0.log", "data/11-0.deleted/0.log")
    disk.fail_next("unlink", path_contains="00-0")
    folders.sweep([])
    assert disk.list("data") == ["00-0.deleted"]


def test_sweep_leaves_known_topics_the_metadata_log_and_files_alone() -> None:
    disk, folders = folders_with(
        "data/t-0/0.log", "data/__cluster_metadata-0/0.log", "data/u-7", "data/mine/x"
    )
    folders.sweep([TOPIC])
    assert disk.list("data") == ["__cluster_metadata-0", "mine", "t-0", "u-7"]


def test_sweep_moves_a_folder_that_nobody_names_aside_with_all_that_is_in_it() -> None:
    disk, folders = folders_with("data/t-1/0.log")
    folders.sweep([TOPIC])
    assert disk.read("data/quarantine/t-1/0.log") == b"x"
    assert disk.list("data") == ["quarantine"]


def test_second_orphan_of_one_name_gets_a_number() -> None:
    disk, folders = folders_with("data/t-1/0.log", "data/quarantine/t-1/old")
    folders.sweep([TOPIC])
    assert disk.list("data/quarantine") == ["t-1", "t-1.1"]


def test_moving_away_skips_a_folder_that_is_not_there() -> None:
    disk, folders = folders_with("data/t-0/0.log")
    moved = folders.move_away([(TopicPartition("t", 0), UUID(int=9)), (TopicPartition("t", 1), UUID(int=9))])
    assert moved == [f"data/{UUID(int=9).hex}-0.deleted"]
    folders.remove(moved)
    assert disk.list("data") == []


def test_making_folders_sets_aside_only_what_is_in_the_way() -> None:
    disk, folders = folders_with("data/t-0/0.log", "data/u-0/0.log")
    folders.make([TopicPartition("t", 0), TopicPartition("t", 1)], UUID(int=9))
    assert disk.list("data") == ["quarantine", "t-0", "t-1", "u-0"]
    assert disk.list("data/t-0") == []


def test_folders_whose_logs_did_not_come_are_taken_back_unless_something_is_in_them() -> None:
    disk, folders = folders_with("data/t-0/0.log")
    folders.make([TopicPartition("t", 1)], UUID(int=9))
    folders.unmake([TopicPartition("t", index) for index in range(3)])
    assert disk.list("data") == ["t-0"]


def test_a_folder_that_says_whose_it_is_is_found_again() -> None:
    disk = FakeDisk()
    folders = TopicFolders(disk, "data", says_owners=True)
    mine, other = TopicPartition("t", 0), TopicPartition("t", 1)
    disk.make_folder("data")
    assert folders.make([mine], UUID(int=9)) == set()
    disk.write("data/t-0/0.log", b"x")
    assert folders.make([mine, other], UUID(int=9)) == {mine}
    assert disk.read("data/t-0/0.log") == b"x"
    assert folders.make([mine], UUID(int=8)) == set(), "a topic made again under an old name inherits nothing"
    assert disk.read("data/quarantine/t-0/0.log") == b"x"


def test_folders_from_before_are_told_whose_they_are() -> None:
    disk, folders = folders_with("data/t-0/0.log")
    mine, missing = TopicPartition("t", 0), TopicPartition("t", 1)
    assert folders.claim([(mine, UUID(int=9)), (missing, UUID(int=9))]) == {mine}
    assert folders.make([mine, missing], UUID(int=9)) == {mine}
    assert disk.read("data/t-0/0.log") == b"x"


def test_a_start_leaves_the_folder_of_another_topic_of_the_same_name_alone() -> None:
    disk, folders = folders_with("data/t-0/0.log")
    mine = TopicPartition("t", 0)
    assert folders.claim([(mine, UUID(int=8))]) == {mine}
    assert folders.claim([(mine, UUID(int=9))]) == set()
    assert disk.read("data/t-0/0.log") == b"x"


def test_the_folder_of_another_topic_of_the_same_name_is_not_moved_away() -> None:
    disk, _ = folders_with()
    folders = TopicFolders(disk, "data", says_owners=True)
    folders.make([TopicPartition("t", 0)], UUID(int=9))
    assert folders.move_away([(TopicPartition("t", 0), UUID(int=8))]) == []
    assert disk.list("data/t-0") == ["owner"]
    assert folders.move_away([(TopicPartition("t", 0), UUID(int=9))]) != []
