"""After a restore there are offsets without records. Whoever has a position among them reads on behind them, and is
never told that it is out of range."""

from collections.abc import Iterator
from random import Random

import pytest

from anabranch.wire.error_codes import ErrorCode
from support.broker_cluster import close_all
from support.restore_world import RestoreCluster, is_named


@pytest.fixture(autouse=True)
def clusters_end() -> Iterator[None]:
    yield
    close_all()


def without_snapshots(cluster: RestoreCluster) -> None:
    cluster.steps.fails = lambda what, name: what == "put" and name.startswith("metadata/")


def back(cluster: RestoreCluster, *, accepts_loss: bool = False) -> RestoreCluster:
    cluster.restore(Random(1), accepts_loss=accepts_loss)
    cluster.restart()
    return cluster


def check_every_position(cluster: RestoreCluster, upto: int) -> None:
    """From each offset that anybody may have come to, the next record that there is comes first."""
    line = cluster.lines()[0]
    for at in range(upto + 1):
        row = cluster.fetch(at)
        assert row["error_code"] == ErrorCode.NONE, f"{at}: {ErrorCode(row['error_code']).name}"
        following = [offset for offset in line if offset >= at]
        found = int.from_bytes(row["records"][:8], "big") if row["records"] else None
        assert found == (min(following) if following else None), at


def written(cluster: RestoreCluster, count: int) -> None:
    for _ in range(count):
        while not cluster.try_produce(0):
            cluster.run(20)


def test_between_the_snapshot_and_what_came_after_it() -> None:
    cluster = RestoreCluster("object", 1, partitions=1)
    written(cluster, 5)
    cluster.run(12_000)
    without_snapshots(cluster)
    written(cluster, 5)
    cluster.vanish()
    check_every_position(back(cluster), 10)


def test_below_the_first_record_of_a_topic_that_no_snapshot_knew_in_the_store() -> None:
    cluster = RestoreCluster("ring", 1, partitions=1)
    without_snapshots(cluster)
    cluster.change("object", "stored")
    written(cluster, 5)
    end = len(cluster.written[0])
    cluster.vanish()
    check_every_position(back(cluster), end)


@pytest.mark.parametrize("lost", [0, 2, 4])
def test_where_objects_were_lost(lost: int) -> None:
    """Wherever among the others they were."""
    cluster = RestoreCluster("object", 1, partitions=1)
    written(cluster, 5)
    cluster.run(12_000)
    cluster.vanish()
    names = [name for name in cluster.steps.names if name.startswith("segments/")]
    cluster.steps.delete_now([sorted(names, key=lambda name: int(name.rpartition("-")[2]))[lost]])
    check_every_position(back(cluster, accepts_loss=True), 5)


def test_where_nobody_can_say_how_many_records_were_lost() -> None:
    cluster = RestoreCluster("object", 1, partitions=1)
    written(cluster, 3)
    cluster.run(12_000)
    without_snapshots(cluster)
    known = set(cluster.steps.names)
    written(cluster, 3)
    cluster.vanish()
    (name, *_) = [each for each in cluster.steps.names if each not in known]
    content, modified_ms = cluster.steps._objects[name]
    cluster.steps._objects[name] = content[:-1], modified_ms
    back(cluster, accepts_loss=True)
    check_every_position(cluster, 6)


def test_copied_records_whose_object_is_gone_are_named_however_much_was_written_later() -> None:
    """What was stored after all copies cannot have had the offsets that are missing before them."""
    cluster = RestoreCluster("ring", 1, partitions=1)
    written(cluster, 5)
    without_snapshots(cluster)
    cluster.change("object", "stored")
    copies = [name for name in cluster.steps.names if name.startswith("merged/")]
    copied = len(cluster.written[0])
    cluster.run(1000)
    written(cluster, copied + 5)
    cluster.vanish()
    cluster.steps.delete_now(copies[:1])
    report = cluster.restore(Random(1), accepts_loss=True)
    cluster.restart()
    lost = set(cluster.written[0]) - set(cluster.lines()[0].values())
    assert lost
    assert is_named(report, 0, len(lost)), f"{len(lost)} are lost, and what is said is {report.losses}"


def test_what_follows_records_that_were_deleted_on_brokers_comes_back_behind_their_offsets() -> None:
    """Only a copy without records is left of them: that sequences of their producer are missing proves nothing."""
    cluster = RestoreCluster("object", 1, partitions=1)
    written(cluster, 4)
    cluster.run(12_000)
    without_snapshots(cluster)
    cluster.change("ring", "kept")
    written(cluster, 6)
    gone = len(cluster.written[0])
    assert cluster.delete_below(gone) == gone
    cluster.alter("object")
    cluster.until(lambda: cluster.is_done("stored"), 60_000)
    written(cluster, 3)
    cluster.vanish()
    line = back(cluster).lines()[0]
    later = set(cluster.written[0][gone:])
    assert later <= set(line.values()), "acknowledged records are lost"
    assert min(offset for offset, value in line.items() if value in later) >= gone, "offsets are given again"


def test_offsets_are_not_given_again_where_the_first_records_of_a_partition_may_have_been_lost() -> None:
    """The snapshot knew nothing of the partition yet."""
    cluster = RestoreCluster("object", 1, partitions=2)
    written(cluster, 3)
    cluster.run(12_000)
    without_snapshots(cluster)
    known = set(cluster.steps.names)
    while not cluster.try_produce(1):
        cluster.run(20)
    cluster.vanish()
    (name,) = [each for each in cluster.steps.names if each not in known and each.startswith("segments/")]
    content, modified_ms = cluster.steps._objects[name]
    cluster.steps._objects[name] = content[:-1], modified_ms
    back(cluster, accepts_loss=True)
    table = cluster.leader.metadata.table
    assert table.objects.head((table.topics["t"].topic_id, 1)).end > 0


def test_a_gap_is_read_over_when_the_topic_has_left_the_store_again() -> None:
    cluster = RestoreCluster("object", 1, partitions=1)
    written(cluster, 5)
    cluster.run(12_000)
    without_snapshots(cluster)
    written(cluster, 5)
    cluster.vanish()
    back(cluster)
    line = cluster.lines()[0]
    cluster.start(2, 3)
    cluster.settle()
    cluster.alter("ring")
    cluster.until(lambda: cluster.is_done("kept"), 60_000)
    for at in range(11):
        row = cluster.fetch(at)
        assert row["error_code"] == ErrorCode.NONE
        assert int.from_bytes(row["records"][:8], "big") == min(offset for offset in line if offset >= at)
