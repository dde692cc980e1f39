"""A cluster's agreed table and a store's objects, without brokers: what is written here is committed at once.

Beside them stands what was written, so that a test may say what ought to be read.
"""

import uuid
from collections.abc import Iterable, Mapping, Sequence

from anabranch.cluster.metadata.entries import Entry, broker_entry, topic_entry
from anabranch.cluster.metadata.rows import BrokerRow, Topic
from anabranch.cluster.metadata.table import MetadataTable
from anabranch.cluster.objects.entries import Commit, Key, commit_entry, incarnation_entry
from anabranch.objects.layout.format import ObjectBuilder
from anabranch.objects.layout.merge import stamped_batches
from anabranch.objects.layout.names import ObjectId, Row
from anabranch.record.batch import read_header, stamp
from anabranch.record.builder import BatchBuilder
from anabranch.record.records import Record, records_of
from anabranch.values import BrokerId, Generation, Offset

INCARNATION = 0xA
BROKER = BrokerId(1)
Pair = tuple[bytes | None, bytes | None]


def a_batch(pairs: Iterable[Pair], timestamp_ms: int = 0, codec: int = 0) -> bytes:
    builder = BatchBuilder(0, codec)
    for key, value in pairs:
        builder.add(key, value, timestamp_ms=timestamp_ms)
    return bytes(builder.build())


class ObjectWorld:
    def __init__(self, partition_count: int = 1, overrides: Mapping[str, str] | None = None) -> None:
        self.table = MetadataTable()
        self.stored: dict[str, bytes] = {}
        self.written: dict[Key, list[Record]] = {}
        self._entry_count = 0
        self.register(BROKER)
        self.apply(incarnation_entry(INCARNATION))
        self.topic = self.add_topic("orders", partition_count, overrides)

    @property
    def objects(self):  # type: ignore[no-untyped-def]
        return self.table.objects

    def key(self, partition: int = 0) -> Key:
        return self.topic.topic_id, partition

    def apply(self, entry: Entry) -> Offset:
        self.table.apply(entry, self._entry_count)
        self._entry_count += 1
        return Offset(self._entry_count - 1)

    def register(self, broker: BrokerId) -> None:
        self.apply(broker_entry(BrokerRow(broker, "disk", 0, "host", 9092)))

    def add_topic(self, name: str, partition_count: int, overrides: Mapping[str, str] | None = None) -> Topic:
        topic_id = uuid.UUID(int=len(self.table.topics) + 1)
        configs = {"anabranch.mode": "object", **(overrides or {})}
        self.apply(topic_entry(Topic(name, topic_id, partition_count, configs)))
        return self.table.topics[name]

    # --- writing

    def built(self, batches: Iterable[tuple[Key, bytes]]) -> tuple[bytes, Commit]:
        """An object that is nowhere yet, and what commits it."""
        builder = ObjectBuilder()
        for key, batch in batches:
            builder.add(key, batch)
        pieces, items = builder.build()
        epoch = self.table.brokers[BROKER].epoch
        return b"".join(pieces), Commit(self.objects.last_number(BROKER, epoch) + 1, items)

    def write(self, batches: Sequence[tuple[Key, bytes]], now_ms: int = 0) -> ObjectId:
        """One object, stored and committed."""
        data, commit = self.built(batches)
        object_id = self.object_id(commit.number)
        self.stored[object_id.name] = data
        self.commit(batches, commit, now_ms)
        return object_id

    def object_id(self, number: int) -> ObjectId:
        return ObjectId(INCARNATION, self.table.brokers[BROKER].epoch, number)

    def commit(self, batches: Sequence[tuple[Key, bytes]], commit: Commit, now_ms: int = 0) -> None:
        ends = {key: self.objects.head(key).end for key, _ in batches}
        for key, batch in batches:
            copy = bytearray(batch)
            stamp(copy, 0, ends[key], Generation(0))
            ends[key] = read_header(copy).next_offset
            self.written.setdefault(key, []).extend(records_of(copy))
        self.apply(commit_entry(BROKER, self.table.brokers[BROKER].epoch, now_ms, [commit]))
        assert ends == {key: self.objects.head(key).end for key in ends}

    # --- reading

    def rows(self, key: Key) -> list[Row]:
        return list(self.objects.rows(key, Offset(0), 1_000_000))

    def read(self, key: Key) -> list[Record]:
        """As a reader would who begins at the start."""
        start = self.objects.head(key).start
        found = [
            record
            for row in self.rows(key)
            for batch in stamped_batches(row, self.bytes_of(row))
            for record in records_of(batch)
        ]
        return [record for record in found if record.offset >= start]

    def bytes_of(self, row: Row) -> bytes:
        return self.stored[row.object_id.name][row.position : row.position + row.length]

    def expected(self, key: Key) -> list[Record]:
        start = self.objects.head(key).start
        return [record for record in self.written.get(key, []) if record.offset >= start]
