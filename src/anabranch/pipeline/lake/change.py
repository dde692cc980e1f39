"""What a commit says: plain values that travel between executors, driver and the table formats."""

import json
from dataclasses import dataclass, field
from typing import Any

from anabranch.errors import TableError


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

    def to_json(self) -> str:
        return json.dumps(
            {
                "owner": self.owner,
                "batch": self.batch,
                "offsets": {str(partition): offset for partition, offset in sorted(self.offsets.items())},
                "rows": self.rows,
                "dlq": self.dlq,
            }
        )

    @classmethod
    def from_json(cls, text: str) -> "SourceState":
        try:
            value: dict[str, Any] = json.loads(text)
            offsets = {int(partition): int(offset) for partition, offset in value["offsets"].items()}
            return cls(
                int(value["owner"]), int(value["batch"]), offsets, int(value["rows"]), int(value["dlq"])
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
