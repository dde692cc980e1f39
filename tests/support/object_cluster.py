"""An agreed table with objects in it, and short words for what is committed to it."""

import uuid
from collections.abc import Sequence

from anabranch.cluster.metadata.entries import broker_entry, topic_entry
from anabranch.cluster.metadata.rows import BrokerRow, Topic
from anabranch.cluster.metadata.table import MetadataTable
from anabranch.cluster.objects.entries import (
    Commit,
    Entry,
    Item,
    Key,
    Replacement,
    commit_entry,
    incarnation_entry,
    replace_entry,
)
from anabranch.cluster.objects.table import ObjectTable, Result
from anabranch.objects.layout.names import ObjectId, ObjectKind, Row
from anabranch.values import BrokerId, Offset

INCARNATION = 0xABCDEF
TOPIC = uuid.UUID(int=7)
A: Key = (TOPIC, 0)
B: Key = (TOPIC, 1)
ONE, TWO = BrokerId(1), BrokerId(2)
NOW_MS = 5000


class ObjectCluster:
    """A table with two brokers (epochs 0 and 1) and a topic of two partitions."""

    def __init__(self) -> None:
        self.table = MetadataTable()
        self.end = 0
        self.register(ONE)
        self.register(TWO)
        self.add_topic("events", TOPIC, mode="object")
        self.apply(incarnation_entry(INCARNATION))

    @property
    def objects(self) -> ObjectTable:
        return self.table.objects

    def apply(self, entry: Entry) -> None:
        self.table.apply(entry, self.end)
        self.end += 1

    def register(self, broker: BrokerId) -> int:
        epoch = self.end
        self.apply(broker_entry(BrokerRow(broker, "disk", 0, "host", 9092)))
        return epoch

    def add_topic(self, name: str, topic_id: uuid.UUID, mode: str, partition_count: int = 2) -> None:
        self.apply(topic_entry(Topic(name, topic_id, partition_count, {"anabranch.mode": mode})))

    def commit(
        self, number: int, *items: Item, broker: BrokerId = ONE, epoch: int = 0, now_ms: int = NOW_MS
    ) -> Sequence[Result]:
        self.apply(commit_entry(broker, epoch, now_ms, [Commit(number, items)]))
        assert self.objects.outcome is not None
        return self.objects.outcome.results[0]

    def replace(
        self,
        old: Sequence[Row],
        new: Sequence[Row],
        *,
        key: Key = A,
        broker: BrokerId = ONE,
        epoch: int = 0,
    ) -> None:
        self.apply(replace_entry(broker, epoch, [Replacement(key, old, new)]))

    def all_rows(self, key: Key = A) -> list[Row]:
        return self.objects.rows(key, Offset(0), 1000)


def item(key: Key = A, position: int = 0, length: int = 100, count: int = 10, **more: int) -> Item:
    fields = {
        "producer_id": -1,
        "producer_epoch": -1,
        "base_sequence": -1,
        "attributes": 0,
        "max_timestamp": 1000,
        "crc": 0,
    } | more
    return Item(key, position, length, count, **fields)


def sent(sequence: int, count: int = 10, producer_id: int = 5, producer_epoch: int = 0, **more: int) -> Item:
    """Of an idempotent producer."""
    more = {"producer_id": producer_id, "producer_epoch": producer_epoch, "base_sequence": sequence} | more
    return item(count=count, **more)


def written(number: int, epoch: int = 0) -> ObjectId:
    return ObjectId(INCARNATION, epoch, number)


def merged(number: int, epoch: int = 0) -> ObjectId:
    return ObjectId(INCARNATION, epoch, number, ObjectKind.MERGED)


def row(object_id: ObjectId, start: int, end: int, length: int = 100, **more: int) -> Row:
    fields = {"position": 0, "max_timestamp": 1000, "batch_count": 1, "is_stamped": True} | more
    return Row(Offset(start), Offset(end), object_id, length=length, **fields)
