"""Chunks: batches become messages that are made once, and cut where a subscriber has no more room."""

import json
from itertools import pairwise

import pytest

from anabranch.errors import CorruptDataError
from anabranch.gateway.read import chunks, reading
from anabranch.gateway.read.chunks import CHUNK_BYTES_MAX, LOAD_BYTES_MAX, Chunk, chunks_of
from anabranch.gateway.read.header_filter import header_filter
from anabranch.record.builder import BatchBuilder, build_batch, control_batch
from anabranch.record.compression import Codec
from anabranch.record.records import Record
from anabranch.values import Offset


def encoded(record: Record) -> bytes:
    return json.dumps({"offset": str(record.offset), "value": (record.value or b"").decode()}).encode()


def record(offset: int, value: bytes = b"v", kind: bytes = b"a") -> Record:
    return Record(Offset(offset), 0, None, value, (("kind", kind),))


def chunk_of(*records: Record) -> Chunk:
    (chunk,) = chunks_of(build_batch(records), 0, records[0].offset, encoded)
    return chunk


def offsets_in(text: bytes | None) -> list[int]:
    assert text is not None
    return [int(each["offset"]) for each in json.loads(text)["records"]]


def test_a_chunk_is_one_message_with_its_records_in_order() -> None:
    cut = chunk_of(record(5, b"one"), record(6, b"two")).cut(5, 100, 10**6, 'a"b', None)
    assert json.loads(cut.text or b"") == {
        "type": "records",
        "id": 'a"b',
        "partition": 0,
        "next": "7",
        "records": [{"offset": "5", "value": "one"}, {"offset": "6", "value": "two"}],
    }
    assert (cut.records, cut.last, cut.next) == (2, 6, 7)


def test_the_same_message_is_made_once_for_all() -> None:
    chunk = chunk_of(record(0), record(1))
    assert chunk.cut(0, 9, 10**6, "s", None).text is chunk.cut(0, 9, 10**6, "s", None).text


def test_what_is_remembered_is_bounded_however_many_ask_in_their_own_way() -> None:
    chunk = chunk_of(*(record(offset, b"x" * 1000) for offset in range(50)))
    texts = {number: chunk.cut(0, 99, 10**6, number, None).text for number in range(100)}
    remembered = [number for number in texts if chunk.cut(0, 99, 10**6, number, None).text is texts[number]]
    total_bytes = sum(len(texts[number] or b"") for number in remembered)
    assert 0 < total_bytes <= chunk.size_bytes_max - chunk.size_bytes
    assert all(offsets_in(text) == list(range(50)) for text in texts.values())


def test_a_cut_ends_where_credit_ends_and_goes_on_there() -> None:
    chunk = chunk_of(*(record(offset) for offset in range(5)))
    first = chunk.cut(0, 2, 10**6, "s", None)
    assert (offsets_in(first.text), first.next) == ([0, 1], 2)
    rest = chunk.cut(first.next, 9, 10**6, "s", None)
    assert (offsets_in(rest.text), rest.next) == ([2, 3, 4], 5)


def test_a_cut_stays_within_its_bytes_but_for_a_single_record() -> None:
    chunk = chunk_of(*(record(offset, b"x" * 1000) for offset in range(3)))
    assert offsets_in(chunk.cut(0, 9, 2500, "s", None).text) == [0, 1]
    assert offsets_in(chunk.cut(0, 9, 10, "s", None).text) == [0]


def test_what_a_filter_drops_is_passed_over() -> None:
    wanted = header_filter({"header": "kind", "equals": "b"})
    chunk = chunk_of(record(0), record(1, kind=b"b"), record(2), record(3, kind=b"b"), record(4))
    cut = chunk.cut(0, 9, 10**6, "s", wanted)
    assert (offsets_in(cut.text), cut.last, cut.next) == ([1, 3], 3, 5)
    one = chunk.cut(0, 1, 10**6, "s", wanted)
    assert (offsets_in(one.text), one.next) == ([1], 3)
    none = chunk.cut(4, 9, 10**6, "s", wanted)
    assert (none.text, none.records, none.next) == (None, 0, 5)


def test_filters_do_not_see_each_other() -> None:
    chunk = chunk_of(record(0), record(1, kind=b"b"))
    wanted = header_filter({"header": "kind", "equals": "b"})
    assert offsets_in(chunk.cut(0, 9, 10**6, "s", None).text) == [0, 1]
    assert offsets_in(chunk.cut(0, 9, 10**6, "s", wanted).text) == [1]
    assert offsets_in(chunk.cut(0, 9, 10**6, "s", None).text) == [0, 1]


def test_a_batch_that_begins_earlier_is_read_from_the_offset_asked_for() -> None:
    data = build_batch([record(offset) for offset in range(10)], codec=Codec.LZ4)
    (chunk,) = chunks_of(data, 3, 7, encoded)
    assert (chunk.partition, chunk.first, chunk.next, list(chunk.offsets)) == (3, 7, 10, [7, 8, 9])


def test_control_batches_and_gaps_are_covered_without_records() -> None:
    marker = control_batch(
        committed=True, producer_id=1, producer_epoch=0, coordinator_epoch=0, timestamp_ms=0, base_offset=0
    )
    builder = BatchBuilder(1)
    builder.add(None, b"v", timestamp_ms=0, offset=4)
    (chunk,) = chunks_of(marker + builder.build(last_offset_delta=9), 0, 0, encoded)
    assert (chunk.first, chunk.next, list(chunk.offsets)) == (0, 11, [4])
    (bare,) = chunks_of(marker, 0, 0, encoded)
    assert (bare.next, bare.cut(0, 9, 9, "s", None).text) == (1, None)


def test_much_becomes_several_chunks_without_gap_and_too_much_is_left_for_later() -> None:
    data = build_batch([record(offset, b"x" * 10_000) for offset in range(900)])
    chunks = chunks_of(data, 0, 0, encoded)
    assert all(one.next == other.first for one, other in pairwise(chunks))
    assert all(chunk.size_bytes < CHUNK_BYTES_MAX + 11_000 for chunk in chunks)
    assert LOAD_BYTES_MAX <= sum(chunk.size_bytes for chunk in chunks) < LOAD_BYTES_MAX + 2 * CHUNK_BYTES_MAX
    rest = chunks_of(data, 0, chunks[-1].next, encoded)
    assert rest[0].first == chunks[-1].next


def test_damaged_batches_are_an_error() -> None:
    with pytest.raises(CorruptDataError):
        chunks_of(build_batch([record(0)])[:-3], 0, 0, encoded)


def test_a_record_that_is_too_long_is_told_of_and_those_around_it_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in (chunks, reading):
        monkeypatch.setattr(module, "JSON_BYTES_MAX", 1000)
    longer_as_json = b"\n" * 990
    chunk = chunk_of(record(0), record(1, b"x" * 2000), record(2, longer_as_json), record(3))
    texts = json.loads(chunk.cut(0, 9, 10**6, "s", None).text or b"")["records"]
    assert [each["offset"] for each in texts] == ["0", "1", "2", "3"]
    assert [each.get("omitted_bytes") for each in texts] == [None, 2005, 995, None]


def test_batches_that_unpack_to_much_are_read_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (chunks, reading):
        monkeypatch.setattr(module, "JSON_BYTES_MAX", 1000)
    monkeypatch.setattr(chunks, "UNPACKED_BYTES_MAX", 5000)
    batches = b"".join(bytes(build_batch([record(offset, b"x" * 2000)])) for offset in range(9))
    first = chunks_of(batches, 0, 0, encoded)
    assert (first[0].first, first[-1].next) == (0, 3)
    assert chunks_of(batches, 0, 3, encoded)[-1].next == 6


def test_headers_count_for_what_they_take() -> None:
    many = tuple(("", b"") for _ in range(10_000))
    chunk = chunk_of(Record(Offset(0), 0, None, b"v", many))
    assert chunk.size_bytes > 10_000 * 100
