"""A cluster of the past, as its bucket remembers it: brokers that store objects and commit them, a snapshot now and
then, and an end."""

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from anabranch.cluster.metadata.entries import broker_entry, producer_ids_entry, topic_entry
from anabranch.cluster.metadata.rows import MODE_CONFIG, BrokerRow, Topic
from anabranch.cluster.metadata.table import MetadataTable
from anabranch.cluster.objects.entries import Commit, Item, Key, commit_entry, incarnation_entry
from anabranch.coordination.groups.stored_offsets import StoredGroups
from anabranch.objects.layout.format import ObjectBuilder, Span
from anabranch.objects.layout.merge import build_copied_object, kept_ranges
from anabranch.objects.layout.names import ObjectId, ObjectKind
from anabranch.objects.layout.snapshots import (
    GroupsId,
    MetadataId,
    groups_value,
    metadata_value,
    pack_snapshot,
)
from anabranch.objects.memory_store import MemoryStore
from anabranch.record.batch import stamp
from anabranch.testing.fakes.clock import FakeClock
from anabranch.values import BrokerId, Generation, Offset
from support.broker_bench import batch_of

LIFE = 0xABCDEF0123456789
SILENCE_MS = 86_400_000


class OldCluster:
    def __init__(self, brokers: int = 2) -> None:
        self.clock = FakeClock()
        self.store = MemoryStore(self.clock.wall_ms)
        self.table = MetadataTable()
        self.end = 0
        self.epochs: dict[int, int] = {}
        self._numbers: dict[int, int] = {}
        self._copies = 0
        self._stored: dict[ObjectId, Sequence[Item]] = {}
        self.agree(incarnation_entry(LIFE))
        self.agree(producer_ids_entry(5000))
        for broker in range(brokers):
            self.register(broker)

    def agree(self, entry: Mapping[str, Any]) -> int:
        self.table.apply(entry, self.end)
        self.end += 1
        return self.end - 1

    def register(self, broker: int) -> None:
        self.epochs[broker] = self.agree(
            broker_entry(BrokerRow(BrokerId(broker), f"disk{broker}", 0, "old", 9092, "old", 9192))
        )
        self._numbers[broker] = 0

    def topic(self, name: str, partitions: int = 1, mode: str | None = "object", **configs: str) -> uuid.UUID:
        overrides = {**configs, **({MODE_CONFIG: mode} if mode else {})}
        topic_id = uuid.uuid5(uuid.NAMESPACE_OID, name)
        self.agree(topic_entry(Topic(name, topic_id, partitions, overrides)))
        return topic_id

    def put(self, broker: int, batches: Sequence[tuple[Key, bytearray]]) -> ObjectId:
        """Stored, and not committed."""
        self.clock.advance(10)
        builder = ObjectBuilder()
        for key, batch in batches:
            builder.add(key, batch)
        pieces, items = builder.build()
        object_id = ObjectId(LIFE, self.epochs[broker], self._numbers[broker])
        self._numbers[broker] += 1
        self.store.put_now(object_id.name, pieces)
        self._stored[object_id] = items
        return object_id

    def commit(self, broker: int, object_id: ObjectId) -> None:
        commit = Commit(object_id.number, self._stored[object_id])
        now_ms = self.clock.wall_ms()
        self.agree(commit_entry(BrokerId(broker), object_id.epoch, now_ms, [commit]))
        outcome = self.table.objects.outcome
        assert outcome is not None
        assert all(result.error is None for results in outcome.results for result in results), outcome

    def write(self, broker: int, key: Key, *values: bytes, **fields: Any) -> ObjectId:
        object_id = self.put(broker, [(key, batch_of(*values, **fields))])
        self.commit(broker, object_id)
        return object_id

    def copy(self, broker: int, key: Key, start: int, values: Sequence[bytes], **fields: Any) -> ObjectId:
        """Stored as it is when a topic goes over to the store, one batch for each value; not agreed on."""
        self.clock.advance(10)
        data = bytearray()
        for number, value in enumerate(values):
            batch = batch_of(value, **{**fields, **_sequence(fields, number)})
            stamp(batch, 0, Offset(start + number), Generation(0))
            data += batch
        object_id = ObjectId(LIFE, self.epochs[broker], self._copies, ObjectKind.MERGED)
        self._copies += 1
        span = Span(Offset(start), Offset(start + len(values)))
        made = kept_ranges(data) if values else []
        pieces, _ = build_copied_object(key, made, span, object_id)
        self.store.put_now(object_id.name, pieces)
        return object_id

    def snapshot(self) -> str:
        snapshot = MetadataId(LIFE, self.end)
        value = metadata_value(
            snapshot,
            self.table.snapshot(),
            time_ms=self.clock.wall_ms(),
            producer_silence_ms=SILENCE_MS,
        )
        self.store.put_now(snapshot.name, [pack_snapshot(value)])
        return snapshot.name

    def groups(self, partition: int, stored: StoredGroups, *, number: int = 0, end: int = 1) -> str:
        value = groups_value(
            stored.json(), time_ms=self.clock.wall_ms(), partition_count=50, generation=0, end=end
        )
        groups_id = GroupsId(LIFE, partition, number)
        self.store.put_now(groups_id.name, [pack_snapshot(value)])
        return groups_id.name

    def damage(self, name: str, position: int = 30) -> None:
        content, modified_ms = self.store._objects[name]
        changed = bytearray(content)
        changed[position] ^= 0xFF
        self.store._objects[name] = bytes(changed), modified_ms

    def cut(self, name: str, size: int) -> None:
        content, modified_ms = self.store._objects[name]
        self.store._objects[name] = content[:size], modified_ms


def _sequence(fields: Mapping[str, Any], number: int) -> dict[str, Any]:
    first = fields.get("base_sequence")
    return {} if first is None else {"base_sequence": first + number}
