"""What a commit says: plain values that travel between executors, driver and the table formats."""

import json
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from anabranch.errors import TableError

NO_TOPIC_ID = UUID(int=0)
"""What a broker says that does not give topics an identity."""


def known_id(topic_id: UUID) -> UUID | None:
    return None if topic_id == NO_TOPIC_ID else topic_id


def are_different(one: UUID | None, other: UUID | None) -> bool:
    """Two topics of one name? No, as long as one of them is not known."""
    return None not in (one, other) and one != other


@dataclass(frozen=True)
class DataFile:
    """One Parquet file of a table, with its address and the values it is partitioned by."""

    path: str
    rows: int
    bytes: int
    partition: tuple[str | None, ...] = ()
    """As text, in the order of the table's partition fields."""

    def to_json(self) -> str:
        return json.dumps([self.path, self.rows, self.bytes, list(self.partition)])

    @classmethod
    def from_json(cls, text: str) -> "DataFile":
        path, rows, size, partition = json.loads(text)
        return cls(path, rows, size, tuple(partition))


@dataclass(frozen=True)
class BatchEnd:
    """Where a batch ends, and of which topic that is."""

    offsets: dict[int, int] = field(default_factory=dict)
    """By partition: the one after the last."""
    topic_id: UUID | None = None


@dataclass(frozen=True)
class SourceState:
    """How far a pipeline has come, as its table knows it: part of every commit."""

    owner: int
    """The pipeline: a random number kept in its checkpoint folder."""
    batch: int
    offsets: dict[int, int] = field(default_factory=dict)
    """By partition of the topic: where to go on."""
    rows: int = 0
    """Written by all batches so far."""
    dlq: int = 0
    """Sent to the dead letter topic by all batches so far."""
    read: int | None = None
    """Read by all batches so far, counted on its own; None: by whoever did not keep it yet."""
    topic_id: UUID | None = None
    """Of the topic that the offsets are of: another one may come by its name. None: nobody knows."""

    @property
    def records_read(self) -> int:
        return self.rows + self.dlq if self.read is None else self.read

    def is_of_another(self, topic_id: UUID | None) -> bool:
        """Are the offsets those of another topic than this? No, as long as one of the two is not known."""
        return are_different(self.topic_id, topic_id)

    def to_json(self) -> str:
        return json.dumps(
            {
                "owner": self.owner,
                "batch": self.batch,
                "offsets": {str(partition): offset for partition, offset in sorted(self.offsets.items())},
                "rows": self.rows,
                "dlq": self.dlq,
                "read": self.read,
                "topic_id": None if self.topic_id is None else str(self.topic_id),
            }
        )

    @classmethod
    def from_json(cls, text: str) -> "SourceState":
        try:
            value: dict[str, Any] = json.loads(text)
            offsets = {int(partition): int(offset) for partition, offset in value["offsets"].items()}
            read, topic_id = value.get("read"), value.get("topic_id")
            return cls(
                int(value["owner"]),
                int(value["batch"]),
                offsets,
                int(value["rows"]),
                int(value["dlq"]),
                None if read is None else int(read),
                None if topic_id is None else UUID(topic_id),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise TableError(
                f"The table's note of how far the pipeline came cannot be read: {text!r}."
            ) from error


@dataclass(frozen=True)
class Change:
    """Files to add and to take away in one commit; `state` says for whom, unless it only rearranges rows."""

    add: tuple[DataFile, ...] = ()
    remove: tuple[DataFile, ...] = ()
    state: SourceState | None = None
