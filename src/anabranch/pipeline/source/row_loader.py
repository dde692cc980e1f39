"""RowLoader: the bytes of rows on their way out of a store, several at once and every object as seldom as possible.

Whoever reads says once which rows it will want, and in which order. With the first that is not there yet come those
after it, at the same time; and with each of them come the other rows of its object, in one request where they lie near
each other: `WINDOW_BYTES` in all. Rows longer than a chunk are not kept: they come piece by piece.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from anabranch.errors import CorruptDataError, StoreError, StoreUnavailableError
from anabranch.objects.layout.names import ObjectId, Row
from anabranch.pipeline.source.chunks import CHUNK_BYTES
from anabranch.pipeline.source.object_store import JobStore, Span

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
        self._order: list[Row] = []
        """All that were ever wanted: what follows one is probably wanted next."""
        self._numbers: dict[Row, int] = {}
        """Where in that order each is."""
        self._by_object: dict[ObjectId, list[Row]] = {}
        self.replan((), rows)

    def replan(self, old: Iterable[Row], new: Iterable[Row]) -> None:
        """The old ones are not wanted any more, but the new ones are, in this order."""
        wanted = list(new)
        for row in set(old).difference(wanted):
            self._waiting.discard(row)
            self._held.pop(row, None)
        missing = [row for row in wanted if row not in self._held]
        self._waiting.update(missing)
        for row in missing:
            self._numbers[row] = len(self._order)
            self._order.append(row)
            self._by_object.setdefault(row.object_id, []).append(row)

    @property
    def oldest(self) -> Row | None:
        """What has been here for longest, and nobody has taken."""
        return next(iter(self._held), None)

    def has(self, row: Row) -> bool:
        return row in self._held

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
        wanted = {first.object_id: self._neighbours(first)}
        left = WINDOW_BYTES - _extent(wanted[first.object_id])
        number = self._numbers[first]
        for row in self._order[number : number + WINDOW_ROWS_MAX]:
            if row.object_id in wanted or row not in self._waiting:
                continue
            rows = self._neighbours(row)
            left -= _extent(rows)
            if left < 0 or row.length > CHUNK_BYTES:
                break
            wanted[row.object_id] = rows
        return wanted

    def _neighbours(self, row: Row) -> list[Row]:
        """A row and the others of its object that are wanted too, as far as they fit into a window."""
        found, size = [row], row.length
        for other in self._by_object.get(row.object_id, ()):
            if other == row or other not in self._waiting or other.length > CHUNK_BYTES:
                continue
            size += other.length
            if size > WINDOW_BYTES:
                break
            found.append(other)
        return found

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


def _extent(rows: Sequence[Row]) -> int:
    """What has to be read for them at most, with all that lies between."""
    return max(row.position + row.length for row in rows) - min(row.position for row in rows)


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
