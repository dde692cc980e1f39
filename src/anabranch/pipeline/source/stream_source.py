"""A topic as an endless stream: offsets for Spark's checkpoint, a limit per trigger, an end for AvailableNow.

Spark asks on the driver, in one process per query: where to begin, how far the next trigger may read, which tasks
that makes. What was read is committed as a consumer group, for people and tools to see the lag. Spark tells a source
of a finished trigger only once there is something new to read; but it asks before that how far to go from where the
last trigger ended, and so we learn it then. Spark's own checkpoint is what a restart goes by, and a commit that fails
is a warning.
"""

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from anabranch.errors import AnabranchError
from anabranch.pipeline.source.offsets import Progress
from anabranch.pipeline.source.options import ReaderOptions
from anabranch.pipeline.source.planner import Planner
from anabranch.pipeline.source.source import RangePartition, partitions_of, read_partition

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

logger = logging.getLogger(__name__)

Json = dict[str, Any]


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    def __init__(self, options: ReaderOptions, schema: "StructType") -> None:
        self.options = options
        self.schema = schema
        self._planner: Planner | None = None
        self._target: Progress | None = None
        self._committed: Json | None = None

    # --- on the driver --------------------------------------------------------------------------------------------

    def initialOffset(self) -> Json:
        return self._driver().initial().to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        rows_max = self.options.offsets_per_trigger_max
        return ReadAllAvailable() if rows_max is None else ReadMaxRows(rows_max)

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._driver().look(must_exist=False).ends

    def reportLatestOffset(self) -> Json:
        return self._driver().look(must_exist=False).ends.to_json()

    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:
        self.commit(start)
        rows_max = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return self._driver().latest(Progress.from_json(start), self._target, rows_max).to_json()

    def partitions(self, start: Json, end: Json) -> list[RangePartition]:
        ranges = self._driver().stream_ranges(Progress.from_json(start), Progress.from_json(end))
        return partitions_of(self.options, ranges)

    def commit(self, end: Json) -> None:
        if end == self._committed:
            return
        self._committed = end
        try:
            self._driver().commit(Progress.from_json(end))
        except AnabranchError as error:
            logger.warning("the progress of group %s cannot be committed: %s", self.options.group, error)

    def stop(self) -> None:
        if self._planner is not None:
            self._planner.close()

    def _driver(self) -> Planner:
        """Made at the first question: the same reader is also made where only its options are wanted."""
        if self._planner is None:
            self._planner = Planner(self.options)
        return self._planner

    # --- on executors ---------------------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        return read_partition(self.options, self.schema, partition)
