"""A cluster comes back from its bucket: everything but its processes."""

import asyncio
import uuid
from typing import Any

import pytest

from anabranch.broker.metadata.quorum_store import read_records
from anabranch.broker.restore.restore_report import RestoreReport
from anabranch.broker.restore.restoring import RestoreWish, Restoring
from anabranch.cluster.metadata.entries import keep_entry, topic_config_entry
from anabranch.cluster.metadata.table import MetadataTable
from anabranch.cluster.objects.entries import Key
from anabranch.coordination.groups.records import CommittedOffset
from anabranch.coordination.groups.stored_offsets import StoredGroup, StoredGroups, StoredOffset, groups_of
from anabranch.errors import RestoreRefusedError, StoreUnavailableError
from anabranch.log.disk.checkpoint import read_checkpoint
from anabranch.log.log import Log
from anabranch.log.settings import LogConfig
from anabranch.objects.layout.format import Span
from anabranch.objects.layout.merge import build_copied_object
from anabranch.objects.layout.names import Row
from anabranch.objects.layout.snapshots import FenceId, unpack_snapshot
from anabranch.record.batch import batch_spans
from anabranch.record.records import records_of
from anabranch.testing.fakes.disk import FakeDisk
from anabranch.values import BrokerId, Offset
from support.broker_bench import batch_of, in_loop
from support.old_cluster import LIFE, OldCluster

NEW = "new"


class Restored:
    """What a restore has left, and ways to look at it."""

    def __init__(self, old: OldCluster, disk: FakeDisk, report: RestoreReport) -> None:
        self.old, self.disk, self.report = old, disk, report

    @property
    def table(self) -> MetadataTable:
        table = MetadataTable()
        value = read_checkpoint(self.disk, f"{NEW}/metadata-snapshot").value
        table.restore(value["table"])
        return table

    def line(self, key: Key) -> dict[int, bytes]:
        """The values of a partition by their offsets, read as a consumer's broker would."""
        found: dict[int, bytes] = {}
        for row in self.table.objects.rows(key, Offset(0), 1000):
            found.update(self._values(row))
        return found

    def _values(self, row: Row) -> dict[int, bytes]:
        content = self.old.store.content(row.object_id.name)[row.position : row.position + row.length]
        values = [
            bytes(record.value)
            for first, last in batch_spans(content)
            for record in records_of(memoryview(content)[first:last])
        ]
        assert len(values) == row.next_offset - row.base_offset
        return dict(enumerate(values, row.base_offset))

    def committed(self, partition: int) -> int:
        """How many records the log of groups has in this partition."""
        log = Log.open(self.disk, f"{NEW}/__consumer_offsets-{partition}", LogConfig(), clean=True)
        return len(list(read_records(log, Offset(0))))


async def restored(old: OldCluster, disk: FakeDisk | None = None, **wish: Any) -> Restored:
    disk = disk if disk is not None else FakeDisk()
    restoring = Restoring(old.store, disk, old.clock, "boot", uuid.uuid4)
    report = await restoring.run(RestoreWish(NEW, **wish))
    return Restored(old, disk, report)


def orders(old: OldCluster) -> Key:
    return old.topic("orders"), 0


# --- records --------------------------------------------------------------------------------------------------------


@in_loop
async def test_records_of_the_snapshot_keep_their_offsets() -> None:
    old = OldCluster()
    key = orders(old)
    old.write(0, key, b"a", b"b")
    old.write(1, key, b"c")
    old.snapshot()
    new = await restored(old)
    assert new.line(key) == {0: b"a", 1: b"b", 2: b"c"}
    assert new.report.records_appended == 0
    assert new.table.objects.head(key).end == 3


@in_loop
async def test_newer_records_are_appended_again_behind_a_gap() -> None:
    old = OldCluster()
    key = orders(old)
    old.write(0, key, b"a")
    old.snapshot()
    old.write(0, key, b"b", b"c")
    old.put(1, [(key, batch_of(b"d"))])
    new = await restored(old)
    assert new.line(key) == {0: b"a", 4: b"b", 5: b"c", 6: b"d"}
    assert new.table.objects.head(key).end == 7
    (appended,) = new.report.appended
    assert (appended.gap_start, appended.start, appended.end) == (1, 4, 7)


@in_loop
async def test_objects_keep_their_names_and_new_ones_get_others() -> None:
    old = OldCluster()
    key = orders(old)
    old.write(0, key, b"a")
    old.snapshot()
    before = [name for name in old.store.names if name.startswith("segments/")]
    new = await restored(old)
    assert [name for name in old.store.names if name.startswith("segments/")] == before
    assert f"{new.table.objects.incarnation:016x}" == new.report.successor
    assert new.table.objects.incarnation != LIFE
    assert new.table.objects.last_number(0, old.epochs[0]) == -1


@in_loop
async def test_what_a_broker_stored_in_an_earlier_registration_is_nobody_s() -> None:
    old = OldCluster()
    key = orders(old)
    old.put(0, [(key, batch_of(b"never committed"))])
    old.register(0)
    old.snapshot()
    assert (await restored(old)).line(key) == {}


@in_loop
async def test_a_broker_that_registered_after_the_snapshot_is_heard() -> None:
    old = OldCluster()
    key = orders(old)
    old.snapshot()
    old.register(0)
    old.write(0, key, b"a")
    assert list((await restored(old)).line(key).values()) == [b"a"]


@in_loop
async def test_repeats_of_idempotent_producers_are_left_out_and_later_ones_known() -> None:
    old = OldCluster()
    key = orders(old)
    fields = {"producer_id": 7, "producer_epoch": 0}
    old.write(0, key, b"a", **fields, base_sequence=0)
    old.snapshot()
    old.put(1, [(key, batch_of(b"a", **fields, base_sequence=0))])
    old.put(0, [(key, batch_of(b"b", **fields, base_sequence=1))])
    new = await restored(old)
    assert new.line(key) == {0: b"a", 3: b"b"}
    assert new.report.appended[0].repeats == 1
    assert new.table.objects.producers(key).producers[7].batches[-1].base_offset == 3


# --- what was copied from brokers -------------------------------------------------------------------------------------


@in_loop
async def test_copied_records_keep_their_offsets_though_no_snapshot_knows_of_them() -> None:
    old = OldCluster()
    key = old.topic("orders", mode="ring"), 0
    old.snapshot()
    old.copy(0, key, 0, [b"a", b"b"])
    old.copy(1, key, 2, [b"c"])
    old.put(0, [(key, batch_of(b"d"))])
    new = await restored(old)
    assert new.line(key) == {0: b"a", 1: b"b", 2: b"c", 4: b"d"}
    assert (new.report.topics, new.report.partly, new.report.losses) == (["orders"], ["orders"], [])
    assert new.table.topics["orders"].topic_id == key[0]


@in_loop
async def test_of_two_copies_of_the_same_offsets_the_later_counts() -> None:
    old = OldCluster()
    key = old.topic("orders", mode="ring"), 0
    old.snapshot()
    old.copy(0, key, 0, [b"a", b"gone"])
    old.copy(1, key, 0, [b"a", b"b", b"c"])
    assert (await restored(old)).line(key) == {0: b"a", 1: b"b", 2: b"c"}


@in_loop
async def test_offsets_of_which_a_copy_had_no_records_are_not_given_out_again() -> None:
    old = OldCluster()
    key = old.topic("orders", mode="ring"), 0
    old.snapshot()
    empty = old.copy(0, key, 0, [])
    pieces, _ = build_copied_object(key, [], Span(Offset(0), Offset(70)), empty)
    old.store.delete_now([empty.name])
    old.store.put_now(empty.name, pieces)
    old.put(0, [(key, batch_of(b"d"))])
    new = await restored(old)
    assert new.line(key) == {71: b"d"}
    assert new.report.losses == []


@in_loop
async def test_a_copy_that_is_missing_is_a_loss() -> None:
    old = OldCluster()
    key = old.topic("orders", mode="ring"), 0
    old.snapshot()
    gone = old.copy(0, key, 0, [b"a", b"b"])
    old.copy(0, key, 2, [b"c"])
    old.store.delete_now([gone.name])
    with pytest.raises(RestoreRefusedError, match=r"2 records of orders-0 \(offsets 0 to 1\)"):
        await restored(old)
    assert (await restored(old, accepts_loss=True)).line(key) == {2: b"c"}


@in_loop
async def test_a_damaged_copy_is_a_loss_and_its_offsets_are_not_given_out_again() -> None:
    old = OldCluster()
    key = old.topic("orders", mode="ring"), 0
    old.snapshot()
    old.copy(0, key, 0, [b"a"])
    damaged = old.copy(0, key, 1, [b"b", b"c"])
    old.damage(damaged.name)
    old.put(0, [(key, batch_of(b"d"))])
    with pytest.raises(RestoreRefusedError, match="up to 2 records"):
        await restored(old)
    assert (await restored(old, accepts_loss=True)).line(key) == {0: b"a", 4: b"d"}


@in_loop
async def test_a_producer_goes_on_behind_what_was_copied() -> None:
    old = OldCluster()
    key = old.topic("orders", mode="ring"), 0
    fields = {"producer_id": 7, "producer_epoch": 0}
    old.snapshot()
    old.copy(0, key, 0, [b"a", b"b"], **fields, base_sequence=0)
    old.put(0, [(key, batch_of(b"c", **fields, base_sequence=2))])
    old.put(1, [(key, batch_of(b"b", **fields, base_sequence=1))])
    new = await restored(old)
    assert list(new.line(key).values()) == [b"a", b"b", b"c"]
    assert new.report.appended[0].repeats == 1
    assert new.table.objects.producers(key).producers[7].batches[-1].last_sequence == 2


@in_loop
async def test_a_topic_that_no_snapshot_knows_comes_back_with_what_was_copied() -> None:
    old = OldCluster()
    old.snapshot()
    key = old.topic("late", mode="ring"), 0
    old.copy(0, key, 0, [b"a"])
    new = await restored(old)
    assert new.report.named_anew == [f"restored-{key[0].hex[:8]}"]
    assert new.line(key) == {0: b"a"}


# --- topics and the rest of the table ---------------------------------------------------------------------------------


@in_loop
async def test_topics_of_other_modes_come_back_empty_with_their_configs() -> None:
    old = OldCluster()
    key = orders(old)
    ring_id = old.topic("payments", 3, None, **{"retention.ms": "1000"})
    old.snapshot()
    new = await restored(old)
    topic = new.table.topics["payments"]
    assert (topic.partition_count, topic.overrides, topic.placements) == (3, {"retention.ms": "1000"}, ())
    assert topic.topic_id != ring_id
    assert new.table.topics["orders"].topic_id == key[0]
    assert new.report.emptied == ["payments"]
    assert any("payments is empty" in line for line in new.report.lines())


@in_loop
async def test_nobody_is_registered_and_no_producer_id_comes_twice() -> None:
    old = OldCluster()
    key = orders(old)
    old.snapshot()
    old.put(0, [(key, batch_of(b"x", producer_id=123_456, producer_epoch=0, base_sequence=0))])
    table = (await restored(old, broker_id=4)).table
    assert (table.brokers, table.founder) == ({}, 4)
    assert table.producer_id_next > 123_456 + 1_000_000


@in_loop
async def test_a_topic_that_no_snapshot_knows_comes_back_under_another_name() -> None:
    old = OldCluster()
    old.snapshot()
    topic_id = old.topic("late", partitions=3)
    old.write(0, (topic_id, 2), b"a")
    new = await restored(old)
    (name,) = new.report.named_anew
    topic = new.table.topics[name]
    assert (topic.topic_id, topic.partition_count, topic.mode) == (topic_id, 3, "object")
    assert list(new.line((topic_id, 2)).values()) == [b"a"]


# --- snapshots ------------------------------------------------------------------------------------------------------


@in_loop
async def test_a_damaged_snapshot_is_passed_over_aloud() -> None:
    old = OldCluster()
    key = orders(old)
    old.write(0, key, b"a")
    old.snapshot()
    old.write(0, key, b"b")
    damaged = old.snapshot()
    old.damage(damaged)
    new = await restored(old)
    assert new.line(key) == {0: b"a", 2: b"b"}
    assert any(line.startswith(f"{damaged} is passed over") for line in new.report.lines())


@in_loop
async def test_without_any_readable_snapshot_what_is_left_comes_back_if_the_loss_is_accepted() -> None:
    old = OldCluster()
    key = orders(old)
    old.write(0, key, b"a")
    old.damage(old.snapshot())
    with pytest.raises(RestoreRefusedError, match="no snapshot can be read"):
        await restored(old)
    assert not any(name.startswith("fences/") for name in old.store.names)
    new = await restored(old, accepts_loss=True)
    assert list(new.line(key).values()) == [b"a"]
    assert any("no snapshot can be read" in line for line in new.report.losses)


@in_loop
async def test_with_the_two_newest_damaged_a_loss_has_to_be_accepted() -> None:
    old = OldCluster()
    key = orders(old)
    old.write(0, key, b"a")
    old.snapshot()
    for value in (b"b", b"c"):
        old.write(0, key, value)
        old.damage(old.snapshot())
    with pytest.raises(RestoreRefusedError, match="the 2 newest snapshots cannot be read"):
        await restored(old)
    new = await restored(old, accepts_loss=True)
    assert set(new.line(key).values()) == {b"a", b"b", b"c"}


@in_loop
async def test_the_new_life_does_not_hang_on_one_snapshot() -> None:
    old = OldCluster()
    key = orders(old)
    old.write(0, key, b"a")
    old.snapshot()
    first = await restored(old)
    names = [name for name in old.store.names if name.startswith(f"metadata/{first.report.successor}")]
    assert len(names) == 2
    old.damage(max(names, key=lambda name: int(name.rpartition("-")[2])))
    second = await restored(old, disk=FakeDisk())
    assert second.report.incarnation == first.report.successor
    assert second.line(key) == {0: b"a"}
    assert second.report.losses == []


@in_loop
async def test_a_cluster_that_ended_before_its_first_snapshot_comes_back_from_its_objects() -> None:
    old = OldCluster()
    key = orders(old)
    old.write(0, key, b"a")
    old.write(1, key, b"b", producer_id=3, producer_epoch=0, base_sequence=0)
    new = await restored(old, accepts_loss=True)
    assert new.line(key) == {2**32 + 2: b"a", 2**32 + 3: b"b"}
    assert new.report.snapshot is None
    assert new.report.named_anew == [f"restored-{key[0].hex[:8]}"]
    assert (await restored(old, FakeDisk())).line(key) == new.line(key)


@in_loop
@pytest.mark.parametrize("are_deleted", [False, True])
async def test_names_that_no_snapshot_has_are_a_loss_however_it_came_to_that(are_deleted: bool) -> None:
    old = OldCluster()
    key = orders(old)
    old.write(0, key, b"a")
    snapshot = old.snapshot()
    if are_deleted:
        old.store.delete_now([snapshot])
    else:
        old.cut(snapshot, 0)
    with pytest.raises(RestoreRefusedError, match=r"--accept-loss .* names and configs of topics are lost"):
        await restored(old)
    new = await restored(old, accepts_loss=True)
    assert list(new.line(key).values()) == [b"a"]
    assert new.report.named_anew == [f"restored-{key[0].hex[:8]}"]


@in_loop
async def test_a_life_that_has_lost_its_snapshots_is_not_passed_over_for_the_one_before_it() -> None:
    old = OldCluster()
    key = orders(old)
    written = old.write(0, key, b"a")
    old.snapshot()
    first = await restored(old)
    of_first = [name for name in old.store.names if name.startswith(f"metadata/{first.report.successor}")]
    old.store.delete_now(of_first)
    later = written._replace(incarnation=int(first.report.successor, 16))
    old.store.put_now(later.name, [old.store.content(written.name)])
    with pytest.raises(RestoreRefusedError, match=rf"2 clusters.*{first.report.successor}"):
        await restored(old, FakeDisk())


@in_loop
async def test_an_empty_bucket_is_refused() -> None:
    with pytest.raises(RestoreRefusedError, match="no snapshot"):
        await restored(OldCluster())


@in_loop
async def test_the_new_life_is_restored_next_and_the_old_one_is_over() -> None:
    old = OldCluster()
    key = orders(old)
    old.write(0, key, b"a")
    old.snapshot()
    old.write(0, key, b"b")
    first = await restored(old)
    second = await restored(old, disk=FakeDisk())
    assert second.report.incarnation == first.report.successor
    assert second.line(key) == first.line(key) == {0: b"a", 2: b"b"}
    assert second.report.records_appended == 0


@in_loop
async def test_two_clusters_in_one_bucket_are_told_apart_by_whoever_asks() -> None:
    old = OldCluster()
    old.snapshot()
    name = old.store.names[0]
    other = name.replace(f"{LIFE:016x}", "0" * 15 + "1")
    old.store.put_now(other, [old.store.content(name)])
    with pytest.raises(RestoreRefusedError, match="--incarnation"):
        await restored(old)
    assert (await restored(old, incarnation=LIFE)).report.incarnation == f"{LIFE:016x}"


@in_loop
async def test_a_dry_run_writes_nothing() -> None:
    old = OldCluster()
    key = orders(old)
    old.snapshot()
    old.write(0, key, b"a")
    before = list(old.store.names)
    disk = FakeDisk()
    new = await restored(old, disk, is_dry_run=True)
    assert list(old.store.names) == before
    assert not disk.exists(NEW)
    assert new.report.records_appended == 1


# --- loss -----------------------------------------------------------------------------------------------------------


@in_loop
async def test_a_damaged_newer_object_is_a_loss_that_has_to_be_accepted() -> None:
    old = OldCluster()
    key = orders(old)
    old.write(0, key, b"a")
    old.snapshot()
    broken = old.write(0, key, b"b", b"c")
    old.damage(broken.name)
    old.write(0, key, b"d")
    with pytest.raises(RestoreRefusedError, match="--accept-loss"):
        await restored(old)
    new = await restored(old, accepts_loss=True)
    assert new.line(key) == {0: b"a", 4: b"d"}, "the offsets of what is lost are not given out again"
    assert any(broken.name in line for line in new.report.losses)


@in_loop
async def test_an_object_whose_index_is_gone_leaves_room_for_all_it_may_have_held() -> None:
    old = OldCluster()
    key = orders(old)
    old.write(0, key, b"a")
    old.snapshot()
    broken = old.write(0, key, b"b")
    old.damage(broken.name, -1)
    new = await restored(old, accepts_loss=True)
    assert new.table.objects.head(key).end > 2**32


@in_loop
async def test_rows_whose_objects_are_gone_are_a_loss() -> None:
    old = OldCluster()
    key = orders(old)
    gone = old.write(0, key, b"a", b"b")
    old.write(0, key, b"c")
    old.snapshot()
    old.store.delete_now([gone.name])
    with pytest.raises(RestoreRefusedError, match="2 records of orders-0"):
        await restored(old)
    new = await restored(old, accepts_loss=True)
    assert new.line(key) == {2: b"c"}


@in_loop
@pytest.mark.parametrize("size", [0, 30, -150])
async def test_an_object_of_the_snapshot_that_was_cut_is_a_loss(size: int) -> None:
    old = OldCluster()
    key = orders(old)
    broken = old.write(0, key, b"a", b"b")
    old.write(0, key, b"c")
    old.snapshot()
    old.cut(broken.name, size)
    lost = rf"2 records of orders-0 \(offsets 0 to 1\): .* damaged, the first is {broken.name}"
    for verified_bytes_max in (0, 2**30):
        with pytest.raises(RestoreRefusedError, match=lost):
            await restored(old, verified_bytes_max=verified_bytes_max)
        dry = await restored(old, is_dry_run=True, verified_bytes_max=verified_bytes_max)
        assert len(dry.report.losses) == 1
    new = await restored(old, accepts_loss=True)
    assert new.line(key) == {2: b"c"}
    assert new.table.objects.head(key).end == 3
    assert [line for line in new.report.damaged if line.startswith(broken.name)]


@in_loop
async def test_a_flipped_bit_in_an_object_of_the_snapshot_costs_its_batch_alone() -> None:
    old = OldCluster()
    key = orders(old)
    batches = [batch_of(b"a"), batch_of(b"b", b"c"), batch_of(b"d")]
    broken = old.put(0, [(key, batch) for batch in batches])
    old.commit(0, broken)
    old.write(0, key, b"e")
    old.snapshot()
    old.damage(broken.name, len(batches[0]) + 70)
    with pytest.raises(RestoreRefusedError, match=r"2 records of orders-0 \(offsets 1 to 2\)"):
        await restored(old)
    new = await restored(old, accepts_loss=True)
    assert new.line(key) == {0: b"a", 3: b"d", 4: b"e"}


@in_loop
async def test_an_object_whose_index_alone_is_damaged_loses_nothing_and_is_named() -> None:
    old = OldCluster()
    key = orders(old)
    broken = old.write(0, key, b"a")
    old.snapshot()
    old.damage(broken.name, -1)
    new = await restored(old)
    assert new.line(key) == {0: b"a"}
    assert new.report.losses == []
    assert any(line.startswith(f"Damaged: {broken.name}") for line in new.report.lines())


@in_loop
async def test_what_was_damaged_on_its_way_is_no_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    old = OldCluster()
    key = orders(old)
    old.write(0, key, b"a")
    old.snapshot()
    real, asked = old.store.get, set()

    async def get(name: str, start: int = 0, end: int | None = None) -> bytes:
        data = await real(name, start, end)
        if name in asked or not name.startswith("segments/"):
            return data
        asked.add(name)
        return data[:-1] if len(data) < 2 else bytes([data[0], data[1] ^ 1]) + data[2:70] + b"!" + data[71:]

    monkeypatch.setattr(old.store, "get", get)
    new = await restored(old)
    assert asked
    assert (new.report.losses, new.report.damaged) == ([], [])


@in_loop
async def test_what_was_not_read_is_said() -> None:
    old = OldCluster()
    key = orders(old)
    objects = [old.write(0, key, b"%d" % number) for number in range(3)]
    old.snapshot()
    sizes = [len(old.store.content(each.name)) for each in objects]
    some = (await restored(old, is_dry_run=True, verified_bytes_max=sizes[2] + sizes[1])).report
    assert (some.objects_verified, some.objects_unverified, some.bytes_unverified) == (2, 1, sizes[0])
    assert any(f"Not verified: 1 objects, {sizes[0]} bytes" in line for line in some.lines())
    whole = (await restored(old, is_dry_run=True, verified_bytes_max=None)).report
    assert (whole.objects_verified, whole.bytes_verified) == (3, sum(sizes))
    assert not any("Not verified" in line for line in whole.lines())


@in_loop
async def test_what_follows_a_lost_object_of_its_producer_comes_back() -> None:
    old = OldCluster()
    key = orders(old)
    fields = {"producer_id": 7, "producer_epoch": 0}
    old.write(0, key, b"a", **fields, base_sequence=0)
    old.snapshot()
    broken = old.write(0, key, b"b", **fields, base_sequence=1)
    old.damage(broken.name)
    old.write(0, key, b"c", **fields, base_sequence=2)
    new = await restored(old, accepts_loss=True)
    assert list(new.line(key).values()) == [b"a", b"c"]


@in_loop
async def test_a_refused_restore_leaves_no_fence() -> None:
    old = OldCluster()
    key = orders(old)
    gone = old.write(0, key, b"a")
    old.snapshot()
    old.store.delete_now([gone.name])
    with pytest.raises(RestoreRefusedError):
        await restored(old)
    assert not any(name.startswith("fences/") for name in old.store.names)


@in_loop
async def test_a_store_that_fails_is_no_loss_and_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    old = OldCluster()
    key = orders(old)
    old.snapshot()
    newer = old.put(0, [(key, batch_of(b"a"))])
    real = old.store.get

    async def fail(name: str, start: int = 0, end: int | None = None) -> bytes:
        if name == newer.name:
            raise StoreUnavailableError("It is away.")
        return await real(name, start, end)

    monkeypatch.setattr(old.store, "get", fail)
    with pytest.raises(StoreUnavailableError):
        await restored(old, accepts_loss=True)
    assert not any(name.startswith("fences/") for name in old.store.names)


@in_loop
async def test_a_store_that_fails_though_it_has_done_it_leaves_one_cluster_to_bring_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    old = OldCluster()
    key = orders(old)
    old.write(0, key, b"a")
    old.snapshot()
    real = old.store.put

    async def fail(name: str, pieces: Any) -> None:
        await real(name, pieces)
        if name.startswith("metadata/"):
            raise StoreUnavailableError("It timed out.")

    monkeypatch.setattr(old.store, "put", fail)
    with pytest.raises(StoreUnavailableError):
        await restored(old)
    monkeypatch.undo()
    new = await restored(old)
    assert new.report.incarnation != f"{LIFE:016x}"
    assert new.line(key) == {0: b"a"}


# --- the folder and the fence -----------------------------------------------------------------------------------------


@in_loop
async def test_a_folder_that_is_not_empty_is_refused() -> None:
    old = OldCluster()
    old.snapshot()
    disk = FakeDisk()
    disk.make_folder(NEW)
    disk.write(f"{NEW}/something", b"x")
    with pytest.raises(RestoreRefusedError, match="not empty"):
        await restored(old, disk)


@in_loop
async def test_what_an_interrupted_restore_has_left_is_removed() -> None:
    old = OldCluster()
    old.snapshot()
    disk = FakeDisk()
    disk.make_folder(f"{NEW}.restoring/t-0")
    disk.write(f"{NEW}.restoring/t-0/half", b"x")
    await restored(old, disk)
    assert not disk.exists(f"{NEW}.restoring")


@in_loop
async def test_a_restore_that_is_interrupted_anywhere_can_be_run_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As by Ctrl-C before and after each request, and by a kill, which removes nothing."""
    is_over, number = False, 0
    while not is_over:
        for is_killed in (False, True):
            old = OldCluster()
            key = orders(old)
            old.write(0, key, b"a")
            old.snapshot()
            old.write(0, key, b"b")
            is_over = not await interrupted(old, number, monkeypatch, is_killed=is_killed)
            new = await restored(old, FakeDisk())
            assert new.line(key) == {0: b"a", 2: b"b"}
        number += 1
    assert number > 5, "nothing was interrupted"


async def interrupted(
    old: OldCluster, after: int, monkeypatch: pytest.MonkeyPatch, *, is_killed: bool
) -> bool:
    """Restore until so many requests were made; whether it got that far."""
    left = after

    def interrupt() -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise asyncio.CancelledError

    async def put(name: str, pieces: Any) -> None:
        interrupt()
        old.store.put_now(name, pieces)

    async def get(name: str, start: int = 0, end: int | None = None) -> bytes:
        interrupt()
        return old.store.content(name)[start:end]

    async def delete(names: Any) -> None:
        if not is_killed:
            old.store.delete_now(names)

    monkeypatch.setattr(old.store, "put", put)
    monkeypatch.setattr(old.store, "get", get)
    monkeypatch.setattr(old.store, "delete", delete)
    try:
        await restored(old, FakeDisk())
    except asyncio.CancelledError:
        return True
    finally:
        monkeypatch.undo()
    return False


@in_loop
async def test_the_old_life_is_fenced_and_the_new_one_has_a_snapshot() -> None:
    old = OldCluster()
    old.snapshot()
    new = await restored(old)
    successor = int(new.report.successor, 16)
    assert FenceId(LIFE, successor).name in old.store.names
    assert any(name.startswith(f"metadata/{new.report.successor}-") for name in old.store.names)


@in_loop
async def test_what_is_stored_meanwhile_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    old = OldCluster()
    key = orders(old)
    old.snapshot()
    real = old.store.list
    listings = []

    def listing(prefix: str, after: str = "") -> Any:
        if prefix == "segments/":
            listings.append(prefix)
            if len(listings) == 2:
                old.put(0, [(key, batch_of(b"late"))])
        return real(prefix, after)

    monkeypatch.setattr(old.store, "list", listing)
    new = await restored(old)
    assert new.report.stored_meanwhile == 1
    assert "Stop it" in new.report.lines()[-1]


# --- groups ---------------------------------------------------------------------------------------------------------


def groups(*offsets: StoredOffset) -> StoredGroups:
    return StoredGroups([StoredGroup("billing", "consumer", 3)], list(offsets))


def at(offset: int, topic: str = "orders", partition: int = 0) -> StoredOffset:
    return StoredOffset("billing", topic, partition, CommittedOffset(offset, 0, "", 1))


@in_loop
async def test_committed_offsets_come_back_with_their_age() -> None:
    old = OldCluster()
    key = orders(old)
    old.write(0, key, b"a", b"b")
    old.snapshot()
    old.groups(7, groups(at(1)))
    old.clock.advance(90_000)
    new = await restored(old)
    assert (new.report.groups, new.report.offsets) == (1, 1)
    assert new.committed(7) == 2, "the group and its offset"
    assert any("1 committed offsets of 1 groups, 90 s old" in line for line in new.report.lines())
    assert new.table.topics["__consumer_offsets"].partition_count == 50


@in_loop
async def test_a_committed_offset_knows_no_generation_of_the_old_cluster() -> None:
    """Who asked about one would be told that the log was cut there, and would begin anew."""
    old = OldCluster()
    key = orders(old)
    old.write(0, key, b"a", b"b")
    old.snapshot()
    old.groups(7, groups(at(1)))
    new = await restored(old)
    name = next(each for each in old.store.names if each.startswith(f"groups/{new.report.successor}"))
    (found,) = groups_of(unpack_snapshot(old.store.content(name))).offsets
    assert (found.committed.offset, found.committed.leader_epoch) == (1, -1)


@in_loop
async def test_the_furthest_of_several_snapshots_of_groups_counts() -> None:
    old = OldCluster()
    key = orders(old)
    old.write(0, key, b"a", b"b")
    old.snapshot()
    old.groups(7, groups(at(2)), number=0, end=9)
    old.groups(7, groups(at(1)), number=1, end=5)
    damaged = old.groups(7, groups(at(0)), number=2, end=99)
    old.damage(damaged)
    report = (await restored(old)).report
    assert report.offsets == 1
    assert any(damaged in line for line in report.passed_over)


@in_loop
async def test_an_offset_beyond_the_end_becomes_the_first_record_that_comes_again() -> None:
    old = OldCluster()
    key = orders(old)
    old.topic("payments", 1, None)
    old.write(0, key, b"a")
    old.snapshot()
    old.write(0, key, b"b", b"c")
    old.groups(7, groups(at(2), at(99, partition=0), at(500, "payments"), at(5, "deleted")))
    report = (await restored(old)).report
    moved = {(each.topic, each.before): each.after for each in report.offsets_moved}
    assert moved == {("orders", 99): 3, ("payments", 500): 0}
    assert report.offsets_dropped == 1


@in_loop
async def test_a_topic_that_had_left_the_store_comes_back_with_what_it_left_there() -> None:
    old = OldCluster()
    topic = old.topic("orders")
    old.write(0, (topic, 0), b"a", b"b")
    old.agree(topic_config_entry("orders", {"anabranch.mode": "ring"}))
    old.agree(keep_entry(topic, 0, [BrokerId(0), BrokerId(1)]))
    old.snapshot()
    new = await restored(old)
    back = new.table.topics["orders"]
    assert (back.topic_id, back.mode, back.forms, back.placements) == (topic, "object", (), ())
    assert new.line((topic, 0)) == {0: b"a", 1: b"b"}
    assert new.report.emptied == []
    assert new.report.partly == ["orders"]
    assert any("what came after was on the brokers" in line for line in new.report.lines())
