"""How a pipeline stands: what its table says it has taken, how far its topic and its consumer group are.

Asked of the table, of the checkpoint and of the broker; Spark is not needed, and the pipeline may be running. The
counts are part of the table's own commits, so they are right after any crash.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from anabranch.pipeline.client.client import EARLIEST, LATEST, Client, Topic
from anabranch.pipeline.jobs.group_progress import group_of
from anabranch.pipeline.lake.settings import PipelineSettings
from anabranch.pipeline.source.branches import lines, may_have_gaps
from anabranch.pipeline.source.plan import Line, count
from anabranch.pipeline.source.same_topic import id_of
from anabranch.values import TopicPartition

_NO_BATCH = -1


@dataclass(frozen=True)
class PartitionStatus:
    """One partition of the topic. None: nothing is known of it."""

    partition: int
    table_offset: int | None
    group_offset: int | None
    end_offset: int | None
    start_offset: int | None = None
    """The first one that the log still has."""
    line: Line | None = None
    """Of a topic that is in mode branch, or was: which offsets have records."""

    @property
    def lag(self) -> int | None:
        """Records the table has yet to take."""
        if self.end_offset is None:
            return None
        first = self.start_offset or 0
        return count(self.line, first if self.table_offset is None else self.table_offset, self.end_offset)

    def as_json(self) -> dict[str, object]:
        said = {name: value for name, value in vars(self).items() if name != "line"}
        return {**said, "lag": self.lag}


@dataclass(frozen=True)
class PipelineStatus:
    topic: str
    table: str
    group: str
    batch: int
    """The last batch in the table; -1: none yet."""
    batch_begun: int
    """The last batch that Spark began, and the last that it finished, by its checkpoint."""
    batch_finished: int
    read: int
    """Counted on its own: it must be written + dlq."""
    written: int
    dlq: int
    snapshot: int | None
    """Which state of the table this is: Iceberg's snapshot, Delta's version, or ours of a Parquet table."""
    files: int
    rows: int
    size_bytes: int
    is_same_topic: bool = True
    """No: the topic was deleted and made again since the table took records of it, and none of the new one yet."""
    partitions: list[PartitionStatus] = field(default_factory=list)

    def as_json(self) -> dict[str, object]:
        partitions = [one.as_json() for one in self.partitions]
        return {**vars(self), "partitions": partitions}


def pipeline_status(settings: PipelineSettings) -> PipelineStatus:
    """TableError if there is no such table; BrokerUnreachableError if nobody answers."""
    from anabranch.pipeline.lake.formats.table import open_table
    from anabranch.pipeline.lake.offset_log import last_batch

    table = open_table(settings)
    state, files = table.state(), table.files()
    group = group_of(settings)
    with Client(settings.bootstrap) as client:
        topic = client.cluster([settings.topic]).topics.get(settings.topic)
        is_another = state is not None and state.is_of_another(id_of(topic))
        taken = {} if state is None or is_another else state.offsets
        partitions = _partitions(client, topic, settings.topic, group, taken)
    return PipelineStatus(
        topic=settings.topic,
        table=settings.table_name,
        group=group,
        batch=_NO_BATCH if state is None else state.batch,
        batch_begun=last_batch(settings.checkpoint_uri),
        batch_finished=last_batch(settings.checkpoint_uri, "commits"),
        read=0 if state is None else state.records_read,
        written=0 if state is None else state.rows,
        dlq=0 if state is None else state.dlq,
        snapshot=table.version(),
        files=len(files),
        rows=sum(file.rows for file in files),
        size_bytes=sum(file.bytes for file in files),
        is_same_topic=not is_another,
        partitions=partitions,
    )


def _partitions(
    client: Client, there: Topic | None, topic: str, group: str, taken: Mapping[int, int]
) -> list[PartitionStatus]:
    places = [] if there is None else there.partitions
    starts = client.offsets_at(dict.fromkeys(places, EARLIEST))
    ends = client.offsets_at(dict.fromkeys(places, LATEST))
    branched = lines(client, (place for place, end in ends.items() if may_have_gaps(end)))
    committed = client.committed_offsets(group, places) if places else {}
    numbers = sorted({place.partition for place in places} | set(taken))
    return [
        PartitionStatus(
            number,
            taken.get(number),
            committed.get(TopicPartition(topic, number)),
            ends.get(TopicPartition(topic, number)),
            starts.get(TopicPartition(topic, number)),
            branched.get(TopicPartition(topic, number)),
        )
        for number in numbers
    ]
