"""The agreed table: topics with their ids, partitions and configs, and the next free producer id.

The table changes only by `apply(entry)`, in log order. An entry is a flat JSON object with a `type`; unknown
types are refused so that an older program never half-understands a newer log. `snapshot()` and `restore()`
turn the whole table into one JSON object and back, so that the log below it can be dropped.
"""

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from anabranch.errors import CorruptDataError

Entry = Mapping[str, Any]

INTERNAL_NAMES = frozenset({"__consumer_offsets", "__transaction_state"})
"""Kafka's own; another name that begins with two underscores is a topic like any other."""


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic as everybody agrees on it; `overrides` are the configs that differ from the defaults."""

    name: str
    topic_id: uuid.UUID
    partition_count: int
    overrides: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_internal(self) -> bool:
        return self.name in INTERNAL_NAMES


def topic_entry(topic: Topic) -> Entry:
    return {
        "type": "topic",
        "name": topic.name,
        "id": topic.topic_id.hex,
        "partitions": topic.partition_count,
        "overrides": dict(topic.overrides),
    }


def topic_removed_entry(name: str) -> Entry:
    return {"type": "topic-removed", "name": name}


def partitions_entry(name: str, partition_count: int) -> Entry:
    return {"type": "partitions", "name": name, "partitions": partition_count}


def topic_config_entry(name: str, overrides: Mapping[str, str]) -> Entry:
    return {"type": "topic-config", "name": name, "overrides": dict(overrides)}


def producer_ids_entry(next_id: int) -> Entry:
    return {"type": "producer-ids", "next": next_id}


def encode_entry(entry: Entry) -> bytes:
    return json.dumps(entry, separators=(",", ":"), sort_keys=True).encode()


def decode_entry(data: bytes) -> Entry:
    try:
        entry = json.loads(data)
    except ValueError as error:
        raise CorruptDataError(f"A metadata entry is not JSON: {error}.") from error
    if not isinstance(entry, dict) or "type" not in entry:
        raise CorruptDataError("A metadata entry has no type.")
    return entry


class MetadataTable:
    """Topics by name and by id. Readers look up; only `apply` and `restore` change it."""

    def __init__(self) -> None:
        self.topics: dict[str, Topic] = {}
        self.topics_by_id: dict[uuid.UUID, Topic] = {}
        self.producer_id_next = 0

    def apply(self, entry: Entry, offset: int = 0) -> None:
        """`offset` is the entry's place in the log. Raises CorruptDataError for an entry that makes no sense here."""
        try:
            self._apply(entry)
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptDataError(
                f"A metadata entry of type {entry['type']!r} does not fit: {error}."
            ) from error

    def _apply(self, entry: Entry) -> None:
        match entry["type"]:
            case "topic":
                self._put(_topic_of(entry))
            case "topic-removed":
                topic = self.topics.pop(entry["name"])
                del self.topics_by_id[topic.topic_id]
            case "partitions":
                self._put(replace(self.topics[entry["name"]], partition_count=entry["partitions"]))
            case "topic-config":
                self._put(replace(self.topics[entry["name"]], overrides=dict(entry["overrides"])))
            case "producer-ids":
                self.producer_id_next = max(self.producer_id_next, entry["next"])
            case unknown:
                raise CorruptDataError(
                    f"A metadata entry of type {unknown!r}: was it written by a newer version?"
                )

    def _put(self, topic: Topic) -> None:
        self.topics[topic.name] = topic
        self.topics_by_id[topic.topic_id] = topic

    def snapshot(self) -> dict[str, Any]:
        return {
            "topics": [dict(topic_entry(topic)) for topic in self.topics.values()],
            "producer_id_next": self.producer_id_next,
        }

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        self.topics.clear()
        self.topics_by_id.clear()
        for entry in snapshot["topics"]:
            self._put(_topic_of(entry))
        self.producer_id_next = snapshot["producer_id_next"]


def _topic_of(entry: Entry) -> Topic:
    return Topic(
        name=entry["name"],
        topic_id=uuid.UUID(hex=entry["id"]),
        partition_count=entry["partitions"],
        overrides=dict(entry["overrides"]),
    )
