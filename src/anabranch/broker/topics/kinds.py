"""PartitionKind: what a broker does for partitions whose records lie in one kind of place.

`cluster/metadata/residence.py` names the places: logs of brokers, the object store, branches. `Kinds` is the table of
them, by the `residence` of a partition. What a partition cannot do by itself, because others have to agree or files of
the broker are to be written, its kind does for it.
"""

from collections.abc import Iterator
from typing import Protocol

from anabranch.broker.topics.partition import Partition
from anabranch.log.disk.checkpoint import RecoveryMark
from anabranch.values import Offset


class PartitionKind(Protocol):
    async def delete_before(self, partition: Partition, offset: Offset) -> None:
        """Move its start, durably before that shows. Raises StorageError, NotControllerError, QuorumBusyError."""
        ...

    async def retain(self, partition: Partition, now_ms: int) -> None:
        """Drop what is too old, or too much. Raises as `delete_before`."""
        ...

    async def save_producers(self, partition: Partition) -> None:
        """Write down who has written to it, so that the next start reads less. Raises StorageError."""
        ...

    def recovery_marks(self) -> dict[str, RecoveryMark]:
        """For the recovery points: those of logs that are no partition's."""
        ...


class Kinds:
    """By residence. A kind that few nodes need is added before its first partition opens."""

    def __init__(self) -> None:
        self._kinds: dict[str, PartitionKind] = {}

    def add(self, residence: str, kind: PartitionKind) -> None:
        self._kinds[residence] = kind

    def of(self, partition: Partition) -> PartitionKind:
        return self._kinds[partition.residence]

    def __iter__(self) -> Iterator[PartitionKind]:
        return iter(self._kinds.values())
