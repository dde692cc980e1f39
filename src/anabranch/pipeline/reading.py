"""What a task does: one range of one partition, as Arrow batches in the order of offsets.

Each stretch comes out of its file or by the protocol. A file that is not what was planned with, ends early, or holds
transactions is no reason to fail unless `direct=require` was said: the rest of its stretch comes by the protocol.
"""

import logging
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING

from anabranch.errors import SegmentChangedError
from anabranch.pipeline.chunks import Chunk
from anabranch.pipeline.client import Client
from anabranch.pipeline.fetch import PartitionFetch
from anabranch.pipeline.loss import LossPolicy
from anabranch.pipeline.options import Direct, ReaderOptions
from anabranch.pipeline.plan import Range, Stretch
from anabranch.pipeline.segment_files import SegmentReader
from anabranch.values import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)


def read_range(options: ReaderOptions, wanted: Range, schema: "pa.Schema") -> "Iterator[pa.RecordBatch]":
    """The records of the range, with the columns of the schema."""
    from anabranch.record.columns import FIELDS, columns

    fields = [name for name in schema.names if name in FIELDS] or ["offset"]
    for chunk in chunks_of(options, wanted):
        found = columns(
            chunk.data,
            start=chunk.start,
            end=chunk.end,
            fields=fields,
            verify=options.verify,
            aborted=chunk.aborted,
        )
        for batch in found:
            yield _rows(batch, wanted.place, schema)


def chunks_of(options: ReaderOptions, wanted: Range) -> Iterator[Chunk]:
    """Whole batches that hold the range; the first and the last may reach beyond it."""
    # Whoever planned this range has met the broker: if it is away now, it is coming back.
    patience = options.broker_seconds_max
    client = Client(options.bootstrap, patience_seconds=patience, first_contact_seconds=patience)
    with closing(client):
        for stretch in wanted.stretches or (Stretch(wanted.start, wanted.end),):
            yield from _stretch_chunks(options, client, wanted, stretch)


def _stretch_chunks(
    options: ReaderOptions, client: Client, wanted: Range, stretch: Stretch
) -> Iterator[Chunk]:
    start = stretch.start
    if stretch.file is not None:
        reader = SegmentReader(stretch.file, stretch.start, stretch.end)
        try:
            yield from reader.chunks()
        except SegmentChangedError as error:
            if options.direct is Direct.REQUIRE:
                raise
            logger.info("the rest of %s comes by the protocol: %s", wanted.place, error)
        start = reader.next_offset
    loss = LossPolicy(options.fail_on_data_loss)
    fetch = PartitionFetch(client, wanted.place, wanted.topic_id, start, stretch.end, loss)
    yield from fetch.chunks()


def _rows(batch: "pa.RecordBatch", place: TopicPartition, schema: "pa.Schema") -> "pa.RecordBatch":
    """The columns of the schema: what the records have, and what all of them have in common."""
    import pyarrow as pa

    count = batch.num_rows
    arrays = []
    for field in schema:
        if field.name == "topic":
            arrays.append(pa.repeat(pa.scalar(place.topic, field.type), count))
        elif field.name == "partition":
            arrays.append(pa.repeat(pa.scalar(place.partition, field.type), count))
        elif field.name == "_branch":
            arrays.append(pa.nulls(count, field.type))
        else:
            column = batch.column(field.name)
            arrays.append(column if column.type == field.type else column.cast(field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
