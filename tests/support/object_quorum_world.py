"""A `World` of metadata logs in which most changes are about objects.

Invariants besides those of the world: tables that have applied equally much are equal, whatever was read from files,
snapshots or entries, and commits had the same outcome everywhere. After the calm they equal a table that was never
written anywhere.
"""

import hashlib
import json
import uuid
from collections.abc import Sequence
from typing import Any

from anabranch.broker.metadata.metadata_log import MetadataLog
from anabranch.cluster.metadata.entries import Entry, broker_entry, topic_entry
from anabranch.cluster.metadata.rows import BrokerRow, Topic
from anabranch.cluster.metadata.table import MetadataTable
from anabranch.cluster.objects.entries import (
    Commit,
    Item,
    Key,
    Replacement,
    commit_entry,
    incarnation_entry,
    removed_entry,
    replace_entry,
    start_entry,
    tombstone_entry,
)
from anabranch.cluster.objects.table import ObjectTable
from anabranch.log.coordinates import FileCoordinates
from anabranch.objects.layout.names import ObjectId, ObjectKind, Row
from anabranch.values import BrokerId, Offset
from support.metadata_world import Node, World
from support.object_cluster import INCARNATION

TOPIC = uuid.UUID(int=77)
PARTITIONS = 3
WRITER = BrokerId(9)


class ObjectWorld(World):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.changes: dict[int, Entry] = {}
        self.states: dict[int, str] = {}
        self.outcomes: dict[int, str] = {}

    async def begin(self) -> None:
        """Once somebody leads."""
        leader = await self.leader()
        assert leader.metadata is not None
        topic = Topic("events", TOPIC, PARTITIONS, {"anabranch.mode": "object"})
        for entry in (registered(), topic_entry(topic), incarnation_entry(INCARNATION)):
            await leader.metadata.propose(entry)

    # --- changes

    async def commit(self, node: Node) -> int:
        assert node.metadata is not None
        if not node.metadata.table.has_objects or self.chance.random() < 0.2:
            return await super().commit(node)
        life = node.life
        offset = await node.metadata.propose(self._entry(node.metadata.table))
        if node.life == life:
            assert offset in self.changes, "a commit returned before it was applied"
            self.counts["acknowledged"] += 1
        return offset

    def _entry(self, table: MetadataTable) -> Entry:
        objects, epoch = table.objects, table.brokers[WRITER].epoch
        key = TOPIC, self.chance.randrange(PARTITIONS)
        self.counts["object entries"] += 1
        what = self.chance.random()
        if what < 0.02:
            return registered()
        if what < 0.2:
            return self._replacement(objects, key, epoch)
        if what < 0.3:
            head = objects.head(key)
            return start_entry({key: Offset(self.chance.randint(head.start, head.end))})
        if what < 0.4:
            return tombstone_entry(list(objects.unreferenced())[:3], 5)
        if what < 0.45:
            return removed_entry(list(objects.tombstones)[:2])
        items = [self._item(objects, place) for place in range(self.chance.randint(1, 4))]
        return commit_entry(WRITER, epoch, 5, [Commit(objects.last_number(WRITER, epoch) + 1, items)])

    def _item(self, objects: ObjectTable, place: int) -> Item:
        key = TOPIC, self.chance.randrange(PARTITIONS)
        producer_id = self.chance.randrange(3)
        known = objects.producers(key).producers.get(producer_id)
        sequence = known.batches[-1].last_sequence + 1 if known is not None else 0
        return Item(key, place * 10, 10, self.chance.randint(1, 3), producer_id, 0, sequence, 0, place, 0)

    def _replacement(self, objects: ObjectTable, key: Key, epoch: int) -> Entry:
        rows = objects.rows(key, Offset(0), 1000)
        start = self.chance.randint(0, len(rows))
        old = rows[start : start + self.chance.randint(1, 4)]
        new = [merged_row(old, epoch, len(self.changes))] if old else []
        return replace_entry(WRITER, epoch, [Replacement(key, old, new)])

    # --- invariants

    def note_loaded(self, node: Node) -> None:
        assert node.metadata is not None
        log, end = node.metadata.quorum.log, node.metadata.applied_end
        for offset, entry in enumerate(log.slice(log.start, end - log.start), log.start):
            if entry.data:
                self._note(offset, json.loads(entry.data))
        self.check_table(node)
        self._check_state(node, node.metadata.table, end)

    def on_change(self, node: Node, offset: int, change: Entry | None) -> None:
        if node.metadata is None:
            return
        table = node.metadata.table
        if change is None:
            super().on_change(node, offset, change)
            self._check_state(node, table, offset)
            return
        self._note(offset, change)
        self._check_disk(node.metadata, node, offset)
        outcome = repr(table.objects.outcome) if table.has_objects else ""
        if self.outcomes.setdefault(offset, outcome) != outcome:
            self.failures.append(f"{node.id} has another outcome of {offset}")
        self._check_state(node, table, offset + 1)

    def _note(self, offset: int, change: Entry) -> None:
        if self.changes.setdefault(offset, change) != change:
            self.failures.append(f"two changes at {offset}")
        if change["type"] == "topic":
            self.chosen.setdefault(offset, change["name"])

    def _check_disk(self, metadata: MetadataLog, node: Node, offset: int) -> None:
        if metadata.partition.log.synced_offset <= offset:
            self.failures.append(f"{node.id} applied {offset} before its own disk had it")

    def _check_state(self, node: Node, table: MetadataTable, end: int) -> None:
        """Entries of other kinds change nothing, so the last change counts."""
        place = max((offset for offset in self.changes if offset < end), default=-1)
        state = digest(table)
        if self.states.setdefault(place, state) != state:
            self.failures.append(f"the table of {node.id} at {end} differs from others")

    async def calm(self) -> None:
        await super().calm()
        plain = MetadataTable()
        for offset in sorted(self.changes):
            plain.apply(self.changes[offset], offset)
        for node in self.nodes.values():
            assert node.metadata is not None
            assert digest(node.metadata.table) == digest(plain), f"{node.id} is not what was agreed on"


def digest(table: MetadataTable) -> str:
    objects = table.objects
    references = sorted((each, objects.references(each)) for each in objects.referenced())
    text = json.dumps([table.snapshot(), references], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def registered() -> Entry:
    return broker_entry(BrokerRow(WRITER, "disk", 0, "host", 9092))


def merged_row(old: Sequence[Row], epoch: int, number: int) -> Row:
    object_id = ObjectId(INCARNATION, epoch, number, ObjectKind.MERGED)
    length = sum(row.length for row in old)
    return Row(old[0].base_offset, old[-1].next_offset, object_id, 0, length, 9, len(old), True)


def cut_the_log_first(patch: Any) -> None:
    """A mutant: the metadata log is cut before the coordinate files are synced."""

    real = FileCoordinates.sync
    patch(FileCoordinates, "sync", lambda self: None)
    patch(FileCoordinates, "remove_others", lambda self, named: real(self) if self._unsynced else None)
