"""Rows of objects to chunks, with a store that is a dictionary."""

from collections.abc import Sequence
from typing import Any, cast
from uuid import UUID

import pytest

from anabranch.errors import CorruptDataError, ObjectGoneError, StoreError, StoreUnavailableError
from anabranch.objects.layout.names import ObjectId, Row
from anabranch.pipeline.source import object_reading, row_loader
from anabranch.pipeline.source.object_plan import object_stretches
from anabranch.pipeline.source.object_reading import ObjectReader, in_turns
from anabranch.pipeline.source.object_store import JobStore, Span
from anabranch.pipeline.source.plan import Range
from anabranch.pipeline.source.row_loader import RowLoader
from anabranch.record.batch import batch_spans, read_header
from anabranch.record.builder import BatchBuilder
from anabranch.record.columns.columns import columns
from anabranch.values import Offset, TopicPartition

PLACE, TOPIC_ID = TopicPartition("orders", 0), UUID(int=7)


class FakeStore:
    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.asked: list[Span] = []
        self.failures: list[StoreError] = []

    def get_all(self, spans: Sequence[Span]) -> list[bytes | StoreError]:
        self.asked += spans
        return [self._get(span) for span in spans]

    def _get(self, span: Span) -> bytes | StoreError:
        if self.failures:
            return self.failures.pop()
        if span.name not in self.objects:
            return ObjectGoneError(f"{span.name} is gone.")
        return self.objects[span.name][span.start : span.end]

    def add(self, number: int, base_offset: int, batches: Sequence[bytes], before: bytes = b"") -> Row:
        """A row of a broker's object, behind what is of other partitions."""
        object_id = ObjectId(1, 1, number)
        data = b"".join(batches)
        start = len(self.objects.get(object_id.name, b"") + before)
        self.objects[object_id.name] = self.objects.get(object_id.name, b"") + before + data
        count = sum(read_header(batch).record_count for batch in batches)
        end = Offset(base_offset + count)
        return Row(Offset(base_offset), end, object_id, start, len(data), -1, len(batches))


def batch(count: int, value_bytes: int = 10, **fields: Any) -> bytes:
    builder = BatchBuilder(**fields)
    for _ in range(count):
        builder.add(b"key", b"v" * value_bytes, timestamp_ms=1_700_000_000_000)
    return bytes(builder.build())


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> FakeStore:
    monkeypatch.setattr(row_loader, "PAUSES_SECONDS", (0.0, 0.0))
    return FakeStore()


def loader_of(store: FakeStore, rows: Sequence[Row]) -> RowLoader:
    return RowLoader(cast(JobStore, store), rows)


def reader(
    store: FakeStore, rows: Sequence[Row], start: int, end: int, loader: RowLoader | None = None
) -> ObjectReader:
    (stretch,) = object_stretches(start, end, "file:///store", 0, end, rows)
    wanted = Range(PLACE, TOPIC_ID, start, end, (stretch,))
    nobody = cast(Any, None)
    return ObjectReader(loader or loader_of(store, rows), nobody, wanted, stretch)


def offsets(reading: ObjectReader) -> list[int]:
    return [
        at
        for chunk in reading.chunks()
        for each in columns(chunk.data, start=chunk.start, end=chunk.end, fields=["offset"])
        for at in each.column("offset").to_pylist()
    ]


def test_batches_get_the_offsets_of_their_row(store: FakeStore) -> None:
    rows = [
        store.add(1, 100, [batch(3), batch(2)], before=b"others"),
        store.add(2, 105, [batch(4)], before=b"more"),
    ]
    reading = reader(store, rows, 100, 109)
    assert offsets(reading) == list(range(100, 109))
    assert reading.next_offset == 109


def test_only_what_is_wanted_is_handed_out(store: FakeStore) -> None:
    row = store.add(1, 0, [batch(3), batch(3), batch(3)])
    chunks = list(reader(store, [row], 4, 5).chunks())
    assert [len(list(batch_spans(chunk.data))) for chunk in chunks] == [2]
    assert offsets(reader(store, [row], 4, 5)) == [4]


def test_a_long_row_comes_piece_by_piece_and_no_further_than_wanted(
    store: FakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_loader, "CHUNK_BYTES", 1000)
    monkeypatch.setattr(object_reading, "CHUNK_BYTES", 1000)
    batches = [batch(2, value_bytes=300) for _ in range(20)]
    batches[3] = batch(2, value_bytes=3000)
    row = store.add(1, 50, batches, before=b"others")
    assert offsets(reader(store, [row], 51, 90)) == list(range(51, 90))
    assert max(span.end - span.start for span in store.asked) < row.length / 2
    store.asked.clear()
    assert offsets(reader(store, [row], 50, 52)) == [50, 51]
    assert len(store.asked) == 1


def test_a_row_that_is_stamped_keeps_its_gaps(store: FakeStore) -> None:
    batches = [batch(2, base_offset=7), batch(1, base_offset=20)]
    row = store.add(1, 5, batches)._replace(next_offset=Offset(30), is_stamped=True)
    reading = reader(store, [row], 5, 30)
    assert offsets(reading) == [7, 8, 20]
    assert reading.next_offset == 30


def test_it_stops_before_records_of_a_transaction(store: FakeStore) -> None:
    ours = batch(2)
    row = store.add(1, 0, [ours, batch(2, transactional=True, producer_id=4, producer_epoch=0), ours])
    reading = reader(store, [row], 0, 6)
    assert offsets(reading) == [0, 1]
    assert reading.next_offset == 2


def test_what_is_no_batch_is_refused(store: FakeStore) -> None:
    row = store.add(1, 0, [batch(2)])
    store.objects[row.object_id.name] = bytes(row.length)
    with pytest.raises(CorruptDataError, match="is damaged"):
        offsets(reader(store, [row], 0, 2))
    store.objects[row.object_id.name] = bytes(row.length - 1)
    with pytest.raises(CorruptDataError, match="it was cut"):
        offsets(reader(store, [row], 0, 2))


# --- the loader -----------------------------------------------------------------------------------------------------


def test_rows_of_one_object_come_with_one_request(store: FakeStore) -> None:
    mine = [store.add(number, number * 2, [batch(2)]) for number in range(3)]
    others = [store.add(number, number * 2, [batch(2)], before=b"nobody's") for number in range(3)]
    loader = loader_of(store, [*mine, *others])
    assert offsets(reader(store, mine, 0, 6, loader)) == list(range(6))
    assert len(store.asked) == 3
    assert offsets(reader(store, others, 0, 6, loader)) == list(range(6))
    assert len(store.asked) == 3


def test_rows_that_lie_far_apart_are_asked_for_one_by_one(
    store: FakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_loader, "GAP_BYTES_MAX", 100)
    rows = [
        store.add(1, number * 2, [batch(2)], before=bytes(gap)) for number, gap in enumerate((0, 99, 101))
    ]
    assert offsets(reader(store, rows, 0, 6)) == list(range(6))
    assert len(store.asked) == 2


def test_no_more_is_held_than_a_window(store: FakeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [store.add(number, number * 2, [batch(2)]) for number in range(10)]
    monkeypatch.setattr(row_loader, "WINDOW_BYTES", 3 * rows[0].length)
    reading = reader(store, rows, 0, 20).chunks()
    next(reading)
    assert len(store.asked) == 3
    list(reading)
    assert len(store.asked) == len(set(store.asked)) == 10


def test_a_store_that_is_away_for_a_moment_is_asked_again(store: FakeStore) -> None:
    rows = [store.add(number, number * 2, [batch(2)]) for number in range(3)]
    store.failures = [StoreUnavailableError("busy")] * 2
    assert offsets(reader(store, rows, 0, 6)) == list(range(6))
    store.failures = [StoreUnavailableError("busy")] * 100
    with pytest.raises(StoreUnavailableError):
        offsets(reader(store, rows, 0, 6))


def test_an_object_that_is_gone_is_known_when_its_turn_comes(store: FakeStore) -> None:
    rows = [store.add(number, number * 2, [batch(2)]) for number in range(3)]
    del store.objects[rows[1].object_id.name]
    loader = loader_of(store, rows)
    assert len(loader.bytes_of(rows[0], 0, rows[0].length)) == rows[0].length
    with pytest.raises(ObjectGoneError):
        loader.bytes_of(rows[1], 0, rows[1].length)
    merged = store.add(7, 2, [batch(2)])
    loader.replan([rows[1], rows[2]], [merged, rows[2]])
    assert len(loader.bytes_of(merged, 0, merged.length)) == merged.length
    assert len(loader.bytes_of(rows[2], 0, rows[2].length)) == rows[2].length
    assert [span.name for span in store.asked] == [row.object_id.name for row in [*rows, merged]]


# --- several partitions -----------------------------------------------------------------------------------------------


def test_readers_that_take_turns_ask_once_and_hold_little(
    store: FakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three partitions in twenty objects, the last of them also in ten that it has for itself."""
    alone = [store.add(100 + number, number * 2, [batch(2)]) for number in range(10)]
    shared = [[store.add(number, number * 2, [batch(2)]) for number in range(20)] for _ in range(2)]
    last = [*alone, *(store.add(number, 20 + number * 2, [batch(2)]) for number in range(20))]
    monkeypatch.setattr(row_loader, "WINDOW_BYTES", 9 * alone[0].length)
    rows = [*shared, last]
    loader = loader_of(store, [row for each in rows for row in each])
    readers = [reader(store, each, 0, each[-1].next_offset, loader) for each in rows]
    found: list[list[int]] = [[], [], []]
    held = 0
    for number, chunk in in_turns(readers, loader):
        held = max(held, len(loader._held))
        for each in columns(chunk.data, start=chunk.start, end=chunk.end, fields=["offset"]):
            found[number] += each.column("offset").to_pylist()
    assert found == [list(range(each[-1].next_offset)) for each in rows]
    assert len(store.asked) == len(set(store.asked)) == 30
    assert held <= 2 * 9
