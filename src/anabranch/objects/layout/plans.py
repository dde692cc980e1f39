"""What is asked of rows by whoever plans to change them: a broker over the agreed table, a job on Spark over a client.

A plan names the rows it was made from. It counts only if they are still there when its result is agreed on.
"""

from collections.abc import Iterator
from typing import NamedTuple, Protocol

from anabranch.objects.layout.names import Key, Row
from anabranch.values import Offset

ROWS_PER_PAGE = 256
LAG_MS_UNLIMITED = 2**63 - 1
ROWS_PER_LOOK = 4096
"""So many rows of one partition are looked at in one go; the rest has its turn later."""
ROWS_PER_REPLACEMENT = 2048
"""So many are replaced at once in one partition, so that an entry stays small."""


class Span(Protocol):
    """Where a partition begins and ends, and what its rows take."""

    @property
    def start(self) -> Offset: ...

    @property
    def end(self) -> Offset: ...

    @property
    def size_bytes(self) -> int: ...


class Rows(Protocol):
    """Where the records of partitions lie."""

    def head(self, key: Key) -> Span: ...

    def rows(self, key: Key, start: Offset, count_max: int) -> list[Row]: ...


class Keeping(NamedTuple):
    """How long a topic keeps its records."""

    is_deleted: bool
    """Whether retention by time and size applies."""
    retention_ms: int
    retention_bytes: int
    is_compacted: bool
    delete_retention_ms: int = 86_400_000
    dirty_ratio_min: float = 0.5
    compaction_lag_ms_min: int = 0
    compaction_lag_ms_max: int = LAG_MS_UNLIMITED

    @property
    def kind(self) -> tuple[bool, bool, int, int]:
        """What partitions have in common that keep their records for the same time."""
        limits = (self.retention_ms, self.retention_bytes) if self.is_deleted else (-1, -1)
        return self.is_deleted, self.is_compacted, *limits

    @property
    def is_compacted_by_age(self) -> bool:
        """Whether the passing of time alone may make a compaction due."""
        return self.compaction_lag_ms_min > 0 or self.compaction_lag_ms_max < LAG_MS_UNLIMITED


def rows_from(objects: Rows, key: Key, start: Offset, count_max: int = ROWS_PER_LOOK) -> Iterator[Row]:
    """The rows of a partition from the one that holds `start` on, page by page."""
    while count_max > 0:
        page = objects.rows(key, start, min(ROWS_PER_PAGE, count_max))
        yield from page
        count_max -= len(page)
        if not page:
            return
        start = page[-1].next_offset
