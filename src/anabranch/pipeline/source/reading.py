"""What a task does: one range of one partition, as Arrow batches in the order of offsets.

Each stretch comes out of its file, out of objects, or by the protocol. A file that is not what was planned with, ends
early, or holds transactions is no reason to fail unless `direct=require` was said: the rest of its stretch comes by the
protocol. So it is with a store that cannot be reached from here. A task has several ranges where they share objects.
"""

import logging
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING

from anabranch.errors import SegmentChangedError, StoreError
from anabranch.pipeline.client.client import Client
from anabranch.pipeline.source.chunks import Chunk
from anabranch.pipeline.source.fetch import PartitionFetch
from anabranch.pipeline.source.loss import LossPolicy
from anabranch.pipeline.source.object_plan import is_stored
from anabranch.pipeline.source.object_reading import ObjectReader, TaskObjects, in_turns
from anabranch.pipeline.source.options import Direct, ReaderOptions
from anabranch.pipeline.source.plan import Range, SegmentFile, Stretch
from anabranch.pipeline.source.segment_files import SegmentReader
from anabranch.values import LANE_BITS

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

BRANCH = "_branch"


def read_range(options: ReaderOptions, wanted: Range, schema: "pa.Schema") -> "Iterator[pa.RecordBatch]":
    """The records of the range, with the columns of the schema."""
    return read_ranges(options, [wanted], schema)


def read_ranges(
    options: ReaderOptions, ranges: Sequence[Range], schema: "pa.Schema"
) -> "Iterator[pa.RecordBatch]":
    """The records of one range after the other."""
    from anabranch.record.columns.columns import FIELDS, columns

    fields = [name for name in schema.names if name in FIELDS] or ["offset"]
    if BRANCH in schema.names and "offset" not in fields and any(each.line is not None for each in ranges):
        fields.append("offset")
    for wanted, chunk in _all_chunks(options, ranges):
        found = columns(
            chunk.data,
            start=chunk.start,
            end=chunk.end,
            fields=fields,
            verify=options.verify,
            aborted=chunk.aborted,
        )
        for batch in found:
            yield _rows(batch, wanted, schema)


def chunks_of(options: ReaderOptions, wanted: Range) -> Iterator[Chunk]:
    """Whole batches that hold the range; the first and the last may reach beyond it."""
    return (chunk for _, chunk in _all_chunks(options, [wanted]))


def _all_chunks(options: ReaderOptions, ranges: Sequence[Range]) -> Iterator[tuple[Range, Chunk]]:
    # Whoever planned these ranges has met the broker: if it is away now, it is coming back.
    patience = options.broker_seconds_max
    client = Client(options.bootstrap, patience_seconds=patience, first_contact_seconds=patience)
    is_hasty = options.direct is not Direct.REQUIRE
    with (
        closing(client),
        TaskObjects(ranges, options.credentials_file, is_hasty=is_hasty) as objects,
    ):
        task = _Task(options, client, objects)
        if len(ranges) > 1 and all(map(is_stored, ranges)):
            ranges = yield from task.shared_chunks(ranges)
        for wanted in ranges:
            for stretch in wanted.stretches or (Stretch(wanted.start, wanted.end),):
                for chunk in task.chunks(wanted, stretch):
                    yield wanted, chunk


class _Task:
    def __init__(self, options: ReaderOptions, client: Client, objects: TaskObjects) -> None:
        self._options = options
        self._client = client
        self._objects = objects

    def shared_chunks(self, ranges: Sequence[Range]) -> Generator[tuple[Range, Chunk], None, Sequence[Range]]:
        """Of ranges that share objects, by turns. Returns what is left for the protocol."""
        stretches = [wanted.stretches[0] for wanted in ranges]
        assert stretches[0].objects is not None
        store_url = stretches[0].objects.store_url
        reached = [wanted.start for wanted in ranges]
        try:
            loader = self._objects.loader(store_url)
            readers = [
                ObjectReader(loader, self._client, wanted, stretch)
                for wanted, stretch in zip(ranges, stretches, strict=True)
            ]
            for number, chunk in in_turns(readers, loader):
                reached[number] = readers[number].next_offset
                yield ranges[number], chunk
            reached = [reader.next_offset for reader in readers]
        except StoreError as error:
            self._do_without(store_url, error)
        left = zip(ranges, reached, strict=True)
        return [wanted._replace(start=at, stretches=()) for wanted, at in left if at < wanted.end]

    def chunks(self, wanted: Range, stretch: Stretch) -> Iterator[Chunk]:
        """The chosen way first, as far as it goes; the rest by the protocol."""
        start = stretch.start
        if stretch.file is not None:
            start = yield from self._file_chunks(wanted, stretch, stretch.file)
        elif stretch.objects is not None:
            start = yield from self._object_chunks(wanted, stretch, stretch.objects.store_url)
        loss = LossPolicy(self._options.fail_on_data_loss)
        fetch = PartitionFetch(self._client, wanted.place, wanted.topic_id, start, stretch.end, loss)
        yield from fetch.chunks()

    def _file_chunks(self, wanted: Range, stretch: Stretch, file: SegmentFile) -> Generator[Chunk, None, int]:
        """Returns the offset it did not reach."""
        reader = SegmentReader(file, stretch.start, stretch.end, verify=self._options.verify)
        try:
            yield from reader.chunks()
        except SegmentChangedError as error:
            if self._options.direct is Direct.REQUIRE:
                raise
            logger.info("the rest of %s comes by the protocol: %s", wanted.place, error)
        return reader.next_offset

    def _object_chunks(self, wanted: Range, stretch: Stretch, store_url: str) -> Generator[Chunk, None, int]:
        """Returns the offset it did not reach."""
        reader = None
        try:
            reader = ObjectReader(self._objects.loader(store_url), self._client, wanted, stretch)
            yield from reader.chunks()
        except StoreError as error:
            self._do_without(store_url, error)
        return stretch.start if reader is None else reader.next_offset

    def _do_without(self, store_url: str, error: StoreError) -> None:
        if self._options.direct is Direct.REQUIRE:
            raise error
        self._objects.give_up(store_url, error)


def _rows(batch: "pa.RecordBatch", wanted: Range, schema: "pa.Schema") -> "pa.RecordBatch":
    """The columns of the schema: what the records have, and what all of them have in common."""
    import pyarrow as pa

    count, place = batch.num_rows, wanted.place
    arrays = []
    for field in schema:
        if field.name == "topic":
            arrays.append(pa.repeat(pa.scalar(place.topic, field.type), count))
        elif field.name == "partition":
            arrays.append(pa.repeat(pa.scalar(place.partition, field.type), count))
        elif field.name == BRANCH:
            arrays.append(_branches(batch, wanted, field.type))
        else:
            column = batch.column(field.name)
            arrays.append(column if column.type == field.type else column.cast(field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _branches(batch: "pa.RecordBatch", wanted: Range, kind: "pa.DataType") -> "pa.Array":
    """Which branch each record was written to, of a topic that has branches."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if wanted.line is None:
        return pa.nulls(batch.num_rows, kind)
    return pc.shift_right(batch.column("offset").cast(pa.int64()), LANE_BITS).cast(kind)
