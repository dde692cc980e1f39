"""RowLoader: the bytes of rows on their way out of a store, several at once and every object as seldom as possible.

Whoever reads says once which rows it will want, and in which order. With the first that is not there yet come those
after it, up to `WINDOW_BYTES`, at the same time; and with each of them come the other rows of its object, in one
request where they lie near each other. Rows longer than a chunk are not kept: they come piece by piece.
"""

import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from anabranch.errors import CorruptDataError, StoreError, StoreUnavailableError
from anabranch.pipeline.chunks import CHUNK_BYTES
from anabranch.pipeline.object_store import JobStore, Span
from anabranch.record.object_names import ObjectId, Row

WINDOW_BYTES = 16 * 2**20
WINDOW_ROWS_MAX = 256
GAP_BYTES_MAX = 2**20
"""To read what nobody wants is cheaper than another request, up to here."""
PAUSES_SECONDS = (0.1, 0.5, 2.0)
"""Before a store that is away is asked again."""


class _Request(NamedTuple):
    span: Span
    rows: Sequence[Row]


class RowLoader:
    """Of one task; for rows of any partitions."""

    def __init__(self, store: JobStore, rows: Iterable[Row]) -> None:
        self._store = store
        self._held: dict[Row, bytearray | StoreError] = {}
        self._waiting: set[Row] = set()
        """Not loaded yet."""
        self._order: deque[Row] = deque()
        """Those and perhaps others, as they will be wanted."""
        self._by_object: dict[ObjectId, list[Row]] = {}
        self.replan((), rows)

    def replan(self, old: Iterable[Row], new: Iterable[Row]) -> None:
        """The old ones are not wanted any more, but the new ones are, and before all others."""
        wanted = list(new)
        for row in set(old).difference(wanted):
            self._waiting.discard(row)
            self._held.pop(row, None)
        missing = [row for row in wanted if row not in self._held]
        self._order.extendleft(reversed(missing))
        self._waiting.update(missing)
        for row in missing:
            self._by_object.setdefault(row.object_id, []).append(row)

    def bytes_of(self, row: Row, start: int, end: int) -> bytearray:
        """These bytes of the object, to be changed at will; those of a row that is no longer than a chunk are lent out
        once and as a whole. Raises StoreError, ObjectGoneError among them."""
        if row.length > CHUNK_BYTES:
            self._waiting.discard(row)
            (data,) = self._patiently([Span(row.object_id.name, start, end)])
            return _whole(data, row, end - start)
        if row not in self._held:
            self._load(row)
        return _whole(self._held.pop(row), row, row.length)

    def _load(self, first: Row) -> None:
        requests = list(_requests(self._window(first)))
        answers = self._patiently([request.span for request in requests])
        for request, answer in zip(requests, answers, strict=True):
            for row in request.rows:
                self._waiting.discard(row)
                self._held[row] = _part(answer, row, request.span.start)

    def _window(self, first: Row) -> dict[ObjectId, list[Row]]:
        """What to load now, by object."""
        while self._order and self._order[0] not in self._waiting:
            self._order.popleft()
        wanted = {first.object_id: [first]}
        size = 0
        for row in islice(self._order, WINDOW_ROWS_MAX):
            size += row.length
            if size > WINDOW_BYTES:
                break
            wanted.setdefault(row.object_id, [])
        for object_id, rows in wanted.items():
            rows += [
                row
                for row in self._by_object.pop(object_id, ())
                if row in self._waiting and row.length <= CHUNK_BYTES and row != first
            ]
        return wanted

    def _patiently(self, spans: Sequence[Span]) -> list[bytes | StoreError]:
        """Those that fail because the store is away are asked for again, a few times."""
        answers = self._store.get_all(spans)
        for pause in PAUSES_SECONDS:
            away = [at for at, each in enumerate(answers) if isinstance(each, StoreUnavailableError)]
            if not away:
                break
            time.sleep(pause)
            for at, answer in zip(away, self._store.get_all([spans[at] for at in away]), strict=True):
                answers[at] = answer
        return answers


def _requests(wanted: dict[ObjectId, list[Row]]) -> Iterator[_Request]:
    for object_id, rows in wanted.items():
        near: list[Row] = []
        end = 0
        for row in sorted(rows, key=lambda row: row.position):
            if near and row.position > end + GAP_BYTES_MAX:
                yield _Request(Span(object_id.name, near[0].position, end), near)
                near = []
            near.append(row)
            end = row.position + row.length
        if near:
            yield _Request(Span(object_id.name, near[0].position, end), near)


def _part(answer: bytes | StoreError, row: Row, start: int) -> bytearray | StoreError:
    if isinstance(answer, StoreError):
        return answer
    return bytearray(memoryview(answer)[row.position - start :][: row.length])


def _whole(data: bytes | bytearray | StoreError, row: Row, size: int) -> bytearray:
    if isinstance(data, StoreError):
        raise data
    if len(data) != size:
        raise CorruptDataError(
            f"{row.object_id.name} has {len(data)} bytes at a place where there should be {size}: it was cut."
        )
    return data if isinstance(data, bytearray) else bytearray(data)
