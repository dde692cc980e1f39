"""An agreed table that is written elsewhere, later, while it goes on."""

from anabranch.cluster.metadata.table import MetadataTable
from support.old_cluster import LIFE, OldCluster


def written() -> tuple[OldCluster, MetadataTable]:
    old = OldCluster()
    key = old.topic("orders"), 0
    for value in (b"a", b"b", b"c"):
        old.write(
            0, key, value, producer_id=7, producer_epoch=0, base_sequence=old.table.objects.head(key).end
        )
    return old, old.table


def go_on(old: OldCluster) -> None:
    key = old.table.topics["orders"].topic_id, 0
    old.write(1, key, b"later", producer_id=7, producer_epoch=0, base_sequence=3)
    old.topic("another")


def test_what_is_applied_meanwhile_is_not_in_it() -> None:
    old, table = written()
    then, later = table.snapshot(), table.snapshot_later()
    go_on(old)
    assert later() == then
    assert table.snapshot() != then


def test_rows_that_wait_for_the_disk_are_in_it() -> None:
    old, table = written()
    frozen = table.freeze()
    then, later = table.snapshot(), table.snapshot_later()
    frozen.write()
    frozen.kept()
    go_on(old)
    assert later() == then


def test_rows_in_files_are_in_it() -> None:
    old, table = written()
    frozen = table.freeze()
    frozen.write()
    frozen.kept()
    go_on(old)
    then, later = table.snapshot(), table.snapshot_later()
    old.write(0, (table.topics["orders"].topic_id, 0), b"d")
    again = MetadataTable()
    again.restore(later())
    assert again.snapshot() == then
    assert again.objects.incarnation == LIFE
