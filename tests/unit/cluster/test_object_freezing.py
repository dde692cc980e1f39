"""A table of objects is the same after any snapshot and the entries behind it, whatever came meanwhile."""

import json
import uuid
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from anabranch.cluster.metadata.entries import (
    broker_entry,
    broker_fenced_entry,
    topic_entry,
    topic_removed_entry,
)
from anabranch.cluster.metadata.rows import BrokerRow, Topic
from anabranch.cluster.metadata.table import FrozenTable, MetadataTable, carried
from anabranch.cluster.objects import freezing as object_freezing
from anabranch.cluster.objects import rows as object_rows
from anabranch.cluster.objects import state as object_state
from anabranch.cluster.objects.entries import (
    Commit,
    Entry,
    Item,
    Key,
    Replacement,
    commit_entry,
    forget_entry,
    incarnation_entry,
    removed_entry,
    replace_entry,
    start_entry,
    tombstone_entry,
)
from anabranch.cluster.objects.rows import MemoryCoordinates
from anabranch.cluster.objects.state import Record, pack_state, unpack_state
from anabranch.errors import CorruptDataError
from anabranch.objects.layout.names import ROW_BYTES, ObjectId, ObjectKind, Row
from anabranch.values import BrokerId, Offset
from support.object_cluster import INCARNATION, TOPIC, A, ObjectCluster, item, merged, sent, written

KEYS: list[Key] = [(uuid.UUID(int=topic), partition) for topic in (1, 2) for partition in (0, 1)]
BROKERS = [BrokerId(1), BrokerId(2)]


class Pair:
    """The same entries for a table that is never written anywhere and for one that is frozen, kept, lost and read."""

    def __init__(self) -> None:
        self.plain = MetadataTable()
        self.coordinates = MemoryCoordinates()
        self.tested = self._empty()
        self.entries: list[Entry] = []
        self.frozen: FrozenTable | None = None
        self.value: Any = self.tested.snapshot()
        self.value_end = 0
        self.frozen_end = 0
        self.times = 0
        for broker in BROKERS:
            self.register(broker)
        for topic in (1, 2):
            self.make_topic(topic)
        self.apply(incarnation_entry(INCARNATION))

    def _empty(self) -> MetadataTable:
        return MetadataTable(lambda: self.coordinates)

    def apply(self, entry: Entry) -> None:
        entry = json.loads(json.dumps(entry))
        self.plain.apply(entry, len(self.entries))
        self.tested.apply(entry, len(self.entries))
        assert repr(self.plain.objects.outcome) == repr(self.tested.objects.outcome)
        self.entries.append(entry)

    def check(self) -> None:
        plain, tested = self.plain.objects, self.tested.objects
        for key in KEYS:
            assert tested.head(key) == plain.head(key)
            rows = plain.rows(key, Offset(0), 1000)
            assert tested.rows(key, Offset(0), 1000) == rows
            for offset in range(plain.head(key).end + 1):
                assert tested.rows(key, Offset(offset), 2) == plain.rows(key, Offset(offset), 2)
            for time_ms in range(8):
                assert tested.row_at_time(key, time_ms) == plain.row_at_time(key, time_ms)
        assert {each: plain.references(each) for each in plain.referenced()} == {
            each: tested.references(each) for each in tested.referenced()
        }
        assert self.tested.snapshot() == self.plain.snapshot()

    # --- entries

    def register(self, broker: BrokerId) -> None:
        self.apply(broker_entry(BrokerRow(broker, "disk", 0, "host", 9092)))

    def make_topic(self, topic: int) -> None:
        self.apply(topic_entry(Topic(f"t{topic}", uuid.UUID(int=topic), 2, {"anabranch.mode": "object"})))

    def epoch(self, broker: BrokerId) -> int:
        return self.plain.brokers[broker].epoch

    def commit(self, a: int, b: int, c: int) -> None:
        broker = BROKERS[a % 2]
        epoch = self.epoch(broker)
        number = self.plain.objects.last_number(broker, epoch) + (1, 1, 1, 1, 1, 1, 0, 2)[b]
        items = [self._item(place, a + place, b, c) for place in range(c)]
        self.times += 1
        self.apply(commit_entry(broker, epoch, self.times, [Commit(number, items)]))

    def _item(self, place: int, a: int, b: int, c: int) -> Item:
        key, count = KEYS[(a // 2) % 4], 1 + b % 3
        producer_id = (a + b) % 3 - 1
        known = self.plain.objects.producers(key).producers.get(producer_id)
        sequence = known.batches[-1].last_sequence + 1 if known is not None else 0
        position = place * 10 + (place > 1)
        if producer_id < 0:
            return Item(key, position, 10, count, -1, -1, -1, 0, (a * c) % 8, 0)
        return Item(key, position, 10, count, producer_id, 0, sequence, 0, (a * b) % 8, 0)

    def replace(self, a: int, b: int, c: int) -> None:
        key, broker = KEYS[a % 4], BROKERS[b % 2]
        rows = self.plain.objects.rows(key, Offset(0), 1000)
        old = rows[b % (len(rows) + 1) :][: 1 + c % 4]
        if old:
            object_id = ObjectId(INCARNATION, self.epoch(broker), len(self.entries), ObjectKind.MERGED)
            new = _merged(old, object_id, c)
            self.apply(replace_entry(broker, self.epoch(broker), [Replacement(key, old, new)]))

    def start(self, a: int, b: int, c: int) -> None:
        head = self.plain.objects.head(KEYS[a % 4])
        self.apply(start_entry({KEYS[a % 4]: Offset(head.start + b * c // 4)}))

    def tombstone(self, a: int, b: int, c: int) -> None:
        unreferenced = list(self.plain.objects.unreferenced())[: 1 + a]
        guessed = ObjectId(INCARNATION, self.epoch(BROKERS[b % 2]), c, ObjectKind(a % 2))
        self.apply(tombstone_entry([*unreferenced, guessed], self.times))

    def removed(self, a: int, b: int, c: int) -> None:
        self.apply(removed_entry(list(self.plain.objects.tombstones)[:a]))

    def forget(self, a: int, b: int, c: int) -> None:
        self.apply(forget_entry({KEYS[a % 4]: [b % 3]}))

    def come_and_go(self, a: int, b: int, c: int) -> None:
        broker = BROKERS[a % 2]
        match b % 4:
            case 0:
                self.register(broker)
            case 1:
                self.apply(broker_fenced_entry(broker, self.epoch(broker), is_fenced=c % 2 == 0))
            case 2:
                self.apply(topic_removed_entry(f"t{1 + a % 2}"))
            case 3:
                self.make_topic(1 + a % 2)

    # --- snapshots

    def freeze(self, a: int, b: int, c: int) -> None:
        """Another one only if the one before is through, or was refused by the disk."""
        self.frozen, self.frozen_end = self.tested.freeze(), len(self.entries)

    def keep(self, a: int, b: int, c: int) -> None:
        if self.frozen is not None:
            self.value, self.value_end = json.loads(json.dumps(self.frozen.write())), self.frozen_end
            self.frozen.kept()
            self.frozen.remove_others()
            self.frozen = None

    def fail(self, a: int, b: int, c: int) -> None:
        """The files are written, perhaps, but the snapshot is not."""
        if self.frozen is not None and a % 2:
            self.frozen.write()
        self.frozen = None

    def restart(self, a: int, b: int, c: int) -> None:
        self.frozen = None
        self.tested = self._empty()
        self.tested.restore(self.value)
        for offset in range(self.value_end, len(self.entries)):
            self.tested.apply(self.entries[offset], offset)
        self.check()

    def move(self, a: int, b: int, c: int) -> None:
        """To another broker, whose files are other ones."""
        self.frozen = None
        value = carried(self.value, lambda: self.coordinates)
        self.coordinates = MemoryCoordinates()
        for number in range(a):
            self.coordinates.write(KEYS[0], number, 0, [b"old rows"])
        fresh = self._empty()
        fresh.restore(value)
        self.value = fresh.freeze().write()
        self.tested = self._empty()
        self.tested.adopt(fresh)
        for offset in range(self.value_end, len(self.entries)):
            self.tested.apply(self.entries[offset], offset)
        self.check()


def _merged(old: Sequence[Row], object_id: ObjectId, c: int) -> list[Row]:
    start, end = old[0].base_offset, old[-1].next_offset
    if c == 7:
        return []
    if c == 6 and end - start > 2:
        half = Offset(start + 1)
        return [
            Row(start, half, object_id, 0, 5, 3, 1, True),
            Row(Offset(end - 1), end, object_id, 5, 5, 4, 1, True, True),
        ]
    return [Row(start, end, object_id, 0, 10 * len(old), max(row.max_timestamp for row in old), 1, True)]


STEPS = {
    "commit": 8,
    "replace": 3,
    "start": 2,
    "tombstone": 1,
    "removed": 1,
    "forget": 1,
    "come_and_go": 1,
    "freeze": 3,
    "keep": 3,
    "fail": 1,
    "restart": 1,
    "move": 1,
}
KINDS = [name for name, weight in STEPS.items() for _ in range(weight)]
STEPS_PER_PLAN = 60


def plan_of(seed: int) -> list[tuple[str, int, int, int]]:
    """Long enough for snapshots to build on each other, which lists that hypothesis draws rarely are."""
    chance = Random(seed)
    numbers = chance.randrange
    return [(chance.choice(KINDS), numbers(8), numbers(8), numbers(8)) for _ in range(STEPS_PER_PLAN)]


plans = st.integers(0, 2**32).map(plan_of)
A_FAILED_ONE = [
    *[("commit", 0, 0, 4)] * 5,
    ("freeze", 0, 0, 0),
    ("keep", 0, 0, 0),
    *[("commit", 0, 0, 4)] * 5,
    ("freeze", 0, 0, 0),
    ("replace", 0, 1, 3),
    ("fail", 1, 0, 0),
    ("replace", 1, 3, 6),
    ("freeze", 0, 0, 0),
    ("start", 0, 3, 7),
    ("commit", 1, 1, 5),
    ("keep", 0, 0, 0),
    ("restart", 0, 0, 0),
    ("move", 3, 0, 0),
]


@settings(deadline=None)
@given(plans)
@example(A_FAILED_ONE)
def test_a_table_read_from_any_snapshot_and_the_entries_behind_it_is_the_same(
    plan: list[tuple[str, int, int, int]],
) -> None:
    pair = Pair()
    for name, a, b, c in plan:
        getattr(pair, name)(a, b, c)
    pair.check()
    pair.restart(0, 0, 0)
    pair.move(1, 0, 0)


def test_what_the_steps_do_is_worth_it() -> None:
    """The property is no use if the steps mostly do nothing."""
    pair = Pair()
    for name, a, b, c in A_FAILED_ONE:
        getattr(pair, name)(a, b, c)
    assert any(
        row.object_id.kind is ObjectKind.MERGED
        for key in KEYS
        for row in pair.plain.objects.rows(key, Offset(0), 99)
    )
    assert len(pair.entries) > 10
    assert len(pair.coordinates.files) > 1


# --- what is written ------------------------------------------------------------------------------------------


class Watched(MemoryCoordinates):
    def __init__(self) -> None:
        super().__init__()
        self.written: list[tuple[int, int]] = []

    def write(self, key, version, first, data) -> None:
        super().write(key, version, first, data)
        self.written.append((version, first))


class FrozenCluster(ObjectCluster):
    def __init__(self) -> None:
        super().__init__()
        self.coordinates = Watched()
        self.table.__init__(lambda: self.coordinates)
        self.end = 0
        self.register(BrokerId(1))
        self.register(BrokerId(2))
        self.add_topic("events", A[0], mode="object")
        self.apply(incarnation_entry(INCARNATION))

    def keep(self) -> None:
        frozen = self.table.freeze()
        frozen.write()
        frozen.kept()
        frozen.remove_others()

    def rows_in_memory(self) -> int:
        partition = self.objects._partitions[A]
        return sum(len(piece) for piece in partition.rows.pieces if isinstance(piece, list))


def test_rows_that_were_kept_are_not_in_memory() -> None:
    cluster = FrozenCluster()
    for number in range(5):
        cluster.commit(number, item())
    assert cluster.rows_in_memory() == 5
    cluster.keep()
    assert cluster.rows_in_memory() == 0
    assert [
        held for piece in cluster.objects._partitions[A].rows.pieces if (held := piece.held) and held.pieces
    ] == []
    assert len(cluster.all_rows()) == 5


def test_new_rows_are_appended_to_the_file_there_is() -> None:
    cluster = FrozenCluster()
    for number in range(3):
        cluster.commit(number, item())
        cluster.keep()
    cluster.keep()
    assert cluster.coordinates.written == [(1, 0), (1, 1), (1, 2)]
    assert len(cluster.objects._partitions[A].rows.pieces) == 1


def test_a_partition_whose_rows_were_replaced_gets_a_file_of_a_new_version() -> None:
    cluster = FrozenCluster()
    for number in range(3):
        cluster.commit(number, item())
    cluster.keep()
    rows = cluster.all_rows()
    cluster.replace(rows[:2], [Row(Offset(0), Offset(20), merged(0), 0, 100, 0, 2, True)])
    cluster.keep()
    assert cluster.coordinates.written == [(1, 0), (2, 0)]
    assert list(cluster.coordinates.files) == [(A, 2)]


def test_rows_gone_from_the_start_stay_in_the_file_until_they_are_the_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(object_freezing, "DEAD_ROWS_MAX", 2)
    cluster = FrozenCluster()
    for number in range(10):
        cluster.commit(number, item())
    cluster.keep()
    for number, start in [(10, 50), (11, 110)]:
        cluster.commit(number, item())
        cluster.apply(start_entry({A: Offset(start)}))
        cluster.keep()
    assert cluster.coordinates.written == [(1, 0), (1, 10), (3, 0)]
    assert [row.base_offset for row in cluster.all_rows()] == [110]


def test_a_partition_without_rows_has_no_file() -> None:
    cluster = FrozenCluster()
    cluster.commit(0, sent(0))
    cluster.keep()
    cluster.apply(start_entry({A: Offset(10)}))
    cluster.keep()
    assert cluster.coordinates.files == {}
    assert cluster.objects.head(A) == (10, 10, 0)
    assert list(cluster.objects.producers(A).producers) == [5]


def test_a_refused_snapshot_is_not_appended_to() -> None:
    cluster = FrozenCluster()
    cluster.commit(0, item())
    cluster.keep()
    cluster.commit(1, item())
    cluster.table.freeze().write()  # And the snapshot that was to name it was not written.
    cluster.keep()
    assert cluster.coordinates.written == [(1, 0), (1, 1), (3, 0)]
    assert [row.object_id for row in cluster.all_rows()] == [written(0), written(1)]


def test_long_partitions_are_written_and_read_some_rows_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_rows, "ROWS_PER_READ", 3)
    monkeypatch.setattr(object_state, "ROWS_PER_READ", 3)
    monkeypatch.setattr(object_state, "BLOCK_BYTES", 100)
    cluster = FrozenCluster()
    for number in range(10):
        cluster.commit(number, item())
    rows = cluster.all_rows()
    cluster.keep()
    value = cluster.table.freeze().write()
    again = MetadataTable(lambda: cluster.coordinates)
    again.restore(value)
    assert again.objects.rows(A, Offset(0), 100) == rows
    other = MetadataTable()
    other.restore(carried(value, lambda: cluster.coordinates))
    assert other.objects.rows(A, Offset(0), 100) == rows
    assert other.snapshot() == again.snapshot() == cluster.table.snapshot()


# --- what does not fit ----------------------------------------------------------------------------------------


def test_other_rows_than_those_that_were_written_are_noticed() -> None:
    cluster = FrozenCluster()
    cluster.commit(0, item())
    value = cluster.table.freeze().write()
    data = bytearray(cluster.coordinates.files[A, 1])
    data[50] ^= 1
    cluster.coordinates.files[A, 1] = bytes(data)
    with pytest.raises(CorruptDataError, match=r"partition 0 of topic .* are not those"):
        MetadataTable(lambda: cluster.coordinates).restore(value)


def test_a_file_with_fewer_rows_is_noticed() -> None:
    cluster = FrozenCluster()
    cluster.commit(0, item())
    value = cluster.table.freeze().write()
    cluster.coordinates.files[A, 1] = b""
    with pytest.raises(CorruptDataError, match="no 1 rows"):
        MetadataTable(lambda: cluster.coordinates).restore(value)


def test_a_file_with_more_rows_is_cut() -> None:
    cluster = FrozenCluster()
    cluster.commit(0, item())
    value = cluster.table.freeze().write()
    cluster.coordinates.files[A, 1] += b"x" * ROW_BYTES
    again = MetadataTable(lambda: cluster.coordinates)
    again.restore(value)
    assert len(cluster.coordinates.files[A, 1]) == ROW_BYTES
    assert again.snapshot() == cluster.table.snapshot()


def test_a_state_that_was_cut_short_is_noticed() -> None:
    state = pack_state([Record({"table": {}}), Record({"rows": 1}, b"x" * 100)])
    assert list(unpack_state(state)) == [({"table": {}}, b""), ({"rows": 1}, b"x" * 100)]
    for end in range(1, len(state)):
        with pytest.raises(CorruptDataError):
            list(unpack_state(state[:end]))


A_PARTITION = Record({"partition": [TOPIC.hex, 0], "head": [0, 0, 0], "file": None})


@pytest.mark.parametrize(
    ("records", "reason"),
    [
        ([Record({"unheard-of": 1})], "newer version"),
        ([Record({"unreferenced": ["metadata/1"]})], "no object's name"),
        ([Record({"producers": []})], "of no partition"),
        ([Record({"rows": 1}, b"x" * ROW_BYTES)], "of no partition"),
        ([A_PARTITION, Record({"rows": 1}, b"x" * (ROW_BYTES - 1))], "65 bytes of coordinate rows"),
        ([A_PARTITION, Record({"rows": 1}, b"x" * ROW_BYTES)], "unknown kind"),
    ],
)
def test_records_that_make_no_sense_are_refused(records: list[Record], reason: str) -> None:
    with pytest.raises(CorruptDataError, match=reason):
        MetadataTable().objects.import_(pack_state(records))


def test_a_table_restored_from_a_snapshot_without_objects_has_none() -> None:
    cluster = ObjectCluster()
    cluster.commit(0, item())
    objects = cluster.objects
    cluster.table.restore(MetadataTable().snapshot())
    assert cluster.objects is objects
    assert objects.head(A) == (0, 0, 0)
    assert not cluster.table.has_objects
    assert "objects" not in cluster.table.snapshot()
