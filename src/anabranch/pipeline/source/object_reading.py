"""Records read out of an object store by a task: the broker has said where they lie, and is asked for nothing else.

Objects are merged into others, and deleted some time later. Where one is gone, the broker is asked again where the rest
lies. What else keeps a task from reading an object (the store is away, or cannot be reached from here; records of
transactions, for only the broker knows which were aborted) is no reason to fail: whoever reads goes on by the protocol
from `next_offset`. A store that failed once is not tried again in the same task, and one that was away not for a while.
"""

import logging
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack

from anabranch.errors import (
    InvalidConfigError,
    ObjectGoneError,
    PipelineError,
    StoreError,
    StoreRefusedError,
    StoreUnavailableError,
    UnknownTopicOrPartitionError,
)
from anabranch.objects.layout.batch_walk import Walk, place_batches, walk_on
from anabranch.objects.layout.names import Row, unpack_rows
from anabranch.pipeline.client.client import Client
from anabranch.pipeline.source.chunks import CHUNK_BYTES, Chunk, survey
from anabranch.pipeline.source.coordinates import coordinates
from anabranch.pipeline.source.object_plan import rows_of
from anabranch.pipeline.source.object_store import JobStore
from anabranch.pipeline.source.plan import Range, Stretch
from anabranch.pipeline.source.row_loader import RowLoader
from anabranch.values import Offset

logger = logging.getLogger(__name__)

ASKED_AGAIN_MAX = 5
"""So often in a row, with nothing read in between, an object may be gone."""

AWAY_SECONDS = 60.0
"""So long the tasks after one for which a store was away do not wait for it again."""

_said: set[str] = set()
"""The stores of which this process has said something: many tasks have the same to say."""
_away_since: dict[str, float] = {}
"""Stores that were away, and when."""


class TaskObjects:
    """The objects that the ranges of one task lie in. Use it as a context manager."""

    def __init__(self, ranges: Sequence[Range], credentials_file: str | None, *, is_hasty: bool) -> None:
        """`is_hasty`: there is another way, so that a store that was away a moment ago is not waited for."""
        self._ranges = ranges
        self._is_hasty = is_hasty
        self._credentials_file = credentials_file
        self._loaders: dict[str, RowLoader] = {}
        self._failures: dict[str, StoreError] = {}
        self._open = ExitStack()

    def __enter__(self) -> "TaskObjects":
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def loader(self, store_url: str) -> RowLoader:
        """Raises StoreError: what this store could not do before, it is not asked again."""
        if store_url in self._failures:
            raise self._failures[store_url]
        if self._is_hasty and _was_away(store_url):
            raise StoreUnavailableError("It was away less than a minute ago.")
        if store_url not in self._loaders:
            store = self._open.enter_context(_opened(store_url, self._credentials_file))
            rows = (row for wanted in self._ranges for row in rows_of(wanted))
            self._loaders[store_url] = RowLoader(store, rows)
        return self._loaders[store_url]

    def give_up(self, store_url: str, error: StoreError) -> None:
        self._failures[store_url] = error
        if isinstance(error, StoreUnavailableError) and not _was_away(store_url):
            _away_since[store_url] = time.monotonic()
        if store_url not in _said:
            _said.add(store_url)
            logger.warning("records in %s come by the protocol: %s", store_url, error)


def _was_away(store_url: str) -> bool:
    return store_url in _away_since and time.monotonic() - _away_since[store_url] < AWAY_SECONDS


def _opened(store_url: str, credentials_file: str | None) -> JobStore:
    try:
        return JobStore(store_url, credentials_file)
    except (InvalidConfigError, PipelineError) as error:
        raise StoreRefusedError(str(error)) from error


class ObjectReader:
    """One stretch of a partition. `next_offset` says how far it came, whyever it stopped."""

    def __init__(self, loader: RowLoader, client: Client, wanted: Range, stretch: Stretch) -> None:
        assert stretch.objects is not None
        self._loader = loader
        self._client = client
        self._range = wanted
        self._end = stretch.end
        self._rows = deque(unpack_rows(stretch.objects.rows))
        self._is_stopped = self._is_begun = False
        self.next_offset = stretch.start

    @property
    def is_ready(self) -> bool:
        """Whether its next chunk is here already, or it needs none."""
        ahead = 1 if self._is_begun else 0
        return len(self._rows) <= ahead or self._loader.has(self._rows[ahead])

    def waits_for(self, row: Row) -> bool:
        """Whether this row is one of its own, and still to come."""
        return row in self._rows

    def chunks(self) -> Iterator[Chunk]:
        """Raises StoreError if the store cannot serve; ends early where only the broker can."""
        asked, reached = 0, self.next_offset
        while True:
            try:
                yield from self._every_row()
            except ObjectGoneError as error:
                self._is_begun = False
                asked = asked + 1 if self.next_offset == reached else 1
                reached = self.next_offset
                if asked > ASKED_AGAIN_MAX:
                    raise
                self._look_again(error)
            else:
                return

    def _every_row(self) -> Iterator[Chunk]:
        """Coordinates are whole: where no row has an offset, there is no record of it any more."""
        while self._rows and not self._is_stopped:
            yield from self._row_chunks(self._rows[0])
            self._rows.popleft()
            self._is_begun = False
        if not self._is_stopped:
            self.next_offset = self._end

    def _row_chunks(self, row: Row) -> Iterator[Chunk]:
        self._is_begun = True
        walk = Walk(row)
        row_end = row.position + row.length
        while not walk.is_whole and self.next_offset < self._end:
            start, first = walk.frontier, len(walk.next_offsets)
            wanted_end = min(row_end, max(start + CHUNK_BYTES, walk.wanted_end))
            data = self._loader.bytes_of(row, start, wanted_end)
            walk.grow(walk_on(row, data, start, start, walk.next_offset, check_crc=False))
            yield from self._placed(data, start, walk, first)
            if self._is_stopped:
                return
        if walk.is_whole:
            self.next_offset = max(self.next_offset, min(row.next_offset, self._end))

    def _placed(self, data: bytearray, start: int, walk: Walk, first: int) -> Iterator[Chunk]:
        """The batches from number `first` on, which lie in `data` as far as it reaches, with their offsets."""
        last = len(walk.next_offsets)
        if not walk.row.is_stamped:
            place_batches(data, -start, walk, first, last)
        first = max(first, walk.batch_of(Offset(self.next_offset)))
        view = memoryview(data)[walk.positions[first] - start : walk.positions[last] - start]
        found = survey(view, stop_at_transactions=True)
        self._is_stopped = found.is_transactional
        if found.whole_bytes:
            begins, self.next_offset = self.next_offset, max(self.next_offset, found.next_offset)
            yield Chunk(view[: found.whole_bytes], begins, self._end)

    def _look_again(self, error: ObjectGoneError) -> None:
        """Where the rest lies by now. Raises what was said if the broker still names the same object: then it is not
        gone, but out of our reach."""
        wanted, old = self._range, self._rows
        try:
            found = coordinates(self._client, wanted.place, wanted.topic_id, self.next_offset, self._end)
        except UnknownTopicOrPartitionError:
            self._is_stopped = True  # The protocol finds out what is left, and says so.
            return
        if found.rows and found.rows[0] == old[0]:
            raise error
        logger.info("%s lies elsewhere by now, from offset %d on", wanted.place, self.next_offset)
        self._rows = deque(found.rows)
        self._is_stopped = found.start > self.next_offset or found.end < self._end
        self._loader.replan(old, self._rows)


def in_turns(readers: Sequence[ObjectReader], loader: RowLoader) -> Iterator[tuple[int, Chunk]]:
    """The chunks of all readers, each with its reader's number; who has something here goes first, so that what was
    loaded for all of them is used before more is loaded."""
    going = {number: reader.chunks() for number, reader in enumerate(readers)}
    while going:
        ready = [number for number in going if readers[number].is_ready]
        for number in ready or [_most_needed(readers, going, loader)]:
            chunk = next(going[number], None)
            if chunk is None:
                del going[number]
            else:
                yield number, chunk


def _most_needed(readers: Sequence[ObjectReader], going: Iterable[int], loader: RowLoader) -> int:
    """Who keeps bytes waiting because something before them is missing; else anybody."""
    oldest = loader.oldest
    waiting = (number for number in going if oldest is not None and readers[number].waits_for(oldest))
    return next(waiting, next(iter(going)))
