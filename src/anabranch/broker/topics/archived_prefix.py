"""ArchivedPrefix: the records of a partition that stayed in the object store when it came back from there.

They lie below its *floor*; brokers keep what was written since. Most partitions have none: this class is that empty
prefix, and `broker/object/archived_prefix.py` has the one with records.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from anabranch.values import Offset

if TYPE_CHECKING:
    from anabranch.broker.read.reading import Reading
    from anabranch.log.segment.slice import Slice
    from anabranch.record.producer_table import Producer

Moment = tuple[Offset, int]
"""An offset, and the timestamp of its record."""


class ArchivedPrefix:
    """A prefix without records."""

    floor = Offset(-1)
    """Below are the records of the prefix."""
    start_offset = Offset(-1)
    readable_end = Offset(-1)
    """Behind the last record, if a gap between lanes follows that; else the floor."""

    @property
    def exists(self) -> bool:
        """The partition was in the object store once, though nothing may be left of that."""
        return self.floor >= 0

    def producers(self) -> "Mapping[int, Producer]":
        """What producers had written last when the partition left the store. Any thread."""
        return {}

    def producers_below(self) -> "Mapping[int, Producer]":
        """`producers`, without what was copied to the store later and taken back: that is in logs. Any thread."""
        return {}

    def is_read(self, start: Offset) -> bool:
        """No record follows from there on, up to the floor."""
        return True

    def runs(self, start: Offset) -> list[tuple[Offset, Offset]]:
        """Where there are records from `start` on."""
        return []

    def read(self, start: Offset, bytes_max: int, upto: Offset, reading: "Reading") -> "Slice | None":
        """Records from `start` on; None: they have to be loaded first. Raises StorageError, StoreError."""
        raise AssertionError("an empty prefix is not read")

    async def offset_for_time(self, timestamp_ms: int) -> Moment | None:
        """The first record of that time or later. Raises CorruptDataError, StoreError, StorageError."""
        return None

    async def max_timestamp(self) -> Moment | None:
        """The first record of the newest time. Raises as `offset_for_time` does."""
        return None


NOTHING_ARCHIVED = ArchivedPrefix()
