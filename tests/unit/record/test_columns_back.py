"""Arrow columns as record batches, in both forms: what comes out is sound, small enough, and comes back as it was."""

from typing import Any

import pyarrow as pa
import pytest
from aiokafka.record.default_records import DefaultRecordBatch as AioBatch
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AioBuilder
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch

from anabranch.errors import InvalidRecordError, UnsupportedCompressionError
from anabranch.record.batch import HEADER_BYTES, check_batch, read_header
from anabranch.record.columns.columns import columns, schema_of
from anabranch.record.compression import Codec
from anabranch.record.record_check import check_records
from anabranch.record.records import payload_of, records_of
from support.column_rows import FORMS, read, record_batches, rows

pytestmark = pytest.mark.parametrize("form", FORMS)
UNHURRIED = settings(deadline=None)

CONTENTS = ("key", "value", "headers", "timestamp")
MAYBE_BYTES = st.none() | st.binary(max_size=40) | st.binary(min_size=60, max_size=200)
HEADERS = st.none() | st.lists(
    st.fixed_dictionaries({"key": st.sampled_from(["", "h", "straße"]), "value": MAYBE_BYTES}),
    max_size=3,
)
TIMES_MS = st.integers(-(2**52), 2**52) | st.integers(-1000, 1000)


@st.composite
def tables(draw: st.DrawFn) -> pa.RecordBatch:
    """Rows of which some are cut away in front: their arrays do not begin where their memory does."""
    count = draw(st.integers(1, 12))

    def drawn(what: st.SearchStrategy[Any]) -> list[Any]:
        return draw(st.lists(what, min_size=count, max_size=count))

    offsets = sorted(
        draw(st.sets(st.integers(0, 2**40) | st.integers(0, 90), min_size=count, max_size=count))
    )
    made = {
        "key": drawn(MAYBE_BYTES),
        "value": drawn(MAYBE_BYTES),
        "headers": drawn(HEADERS),
        "offset": offsets,
        "timestamp": [time * 1000 for time in drawn(TIMES_MS)],
    }
    schema = schema_of(list(made))
    arrays = [pa.array(values, schema.field(name).type) for name, values in made.items()]
    return pa.RecordBatch.from_arrays(arrays, schema=schema).slice(draw(st.integers(0, count - 1)))


def contents(table: pa.RecordBatch) -> list[Any]:
    """The rows with null for an empty list of headers: a record knows no difference."""
    return [(*row[:2], row[2] or None, *row[3:]) for row in rows([table.select(CONTENTS)])]


def read_back(made: list[bytes], fields: tuple[str, ...] = CONTENTS) -> list[Any]:
    return rows(columns(b"".join(made), fields=fields))


@UNHURRIED
@given(table=tables(), codec=st.sampled_from(list(Codec)), bytes_max=st.sampled_from([1, 300, 2**16]))
def test_what_was_written_comes_back(form: str, table: pa.RecordBatch, codec: int, bytes_max: int) -> None:
    made = record_batches(form, table, codec=codec, batch_bytes_max=bytes_max)
    assert read_back(made) == contents(table)
    for batch in made:
        header = check_batch(batch, 0, len(batch), fresh=True)
        assert (header.base_offset, header.codec, header.producer_id) == (0, codec, -1)
        newest = check_records(payload_of(batch, 2**20), header.record_count)
        assert header.max_timestamp == max(header.base_timestamp + newest, -1)


@UNHURRIED
@given(table=tables(), bytes_max=st.sampled_from([1, 300, 2**16]))
def test_kept_offsets_are_where_they_were(form: str, table: pa.RecordBatch, bytes_max: int) -> None:
    made = record_batches(form, table, keep_offsets=True, batch_bytes_max=bytes_max, generation=7)
    assert read_back(made, ("offset",)) == [(offset,) for offset in table.column("offset").to_pylist()]
    assert read_back(made) == contents(table)
    for batch in made:
        header = check_batch(batch, 0, len(batch), fresh=False)
        assert header.generation == 7
        offsets = [record.offset for record in records_of(batch)]
        assert (header.base_offset, header.last_offset) == (offsets[0], offsets[-1])


@UNHURRIED
@given(table=tables(), keep_offsets=st.booleans(), bytes_max=st.sampled_from([1, 300, 2**16]))
def test_both_forms_write_the_same_bytes(
    form: str, table: pa.RecordBatch, keep_offsets: bool, bytes_max: int
) -> None:
    options: dict[str, Any] = {"keep_offsets": keep_offsets, "batch_bytes_max": bytes_max}
    assert record_batches(form, table, **options) == record_batches("numpy", table, **options)


def plain_table(count: int, size: int = 100, **more: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"value": pa.array([bytes(size)] * count, pa.binary()), **more})


def test_a_batch_is_nearly_full_and_never_more(form: str) -> None:
    made = record_batches(form, plain_table(10_000), batch_bytes_max=2**14)
    assert all(2**14 - 600 < len(batch) <= 2**14 for batch in made[:-1])
    assert sum(read_header(batch).record_count for batch in made) == 10_000


def test_a_record_larger_than_a_batch_is_one_of_its_own(form: str) -> None:
    made = record_batches(form, plain_table(3, 5000), batch_bytes_max=1000)
    assert [read_header(batch).record_count for batch in made] == [1, 1, 1]


def test_offsets_too_far_apart_for_one_batch_are_in_two(form: str) -> None:
    offsets = [0, 2**31 - 1, 2**31, 2**63 - 1]
    made = record_batches(form, plain_table(4, offset=pa.array(offsets)), keep_offsets=True)
    assert [read_header(batch).base_offset for batch in made] == [0, 2**31, 2**63 - 1]


def test_no_rows_are_no_batches(form: str) -> None:
    assert record_batches(form, plain_table(0)) == []


def test_columns_that_are_missing_are_null_and_without_time(form: str) -> None:
    (batch,) = record_batches(form, pa.RecordBatch.from_pydict({"colour": ["red"]}))
    (record,) = records_of(batch)
    assert record == (0, -1, None, None, ())
    assert len(batch) == HEADER_BYTES + 7


def test_text_and_wider_types_are_written_as_bytes(form: str) -> None:
    table = pa.RecordBatch.from_pydict(
        {
            "key": pa.array(["ä", None], pa.large_string()),
            "value": pa.array([b"1", b"2"]).dictionary_encode(),
            "timestamp": pa.array([1_234_567_899, None], pa.timestamp("ns")),
        }
    )
    (batch,) = record_batches(form, table)
    assert [(record.key, record.value, record.timestamp) for record in records_of(batch)] == [
        ("ä".encode(), b"1", 1234),
        (None, b"2", -1),
    ]


def test_times_between_milliseconds_are_cut_to_the_one_before(form: str) -> None:
    (batch,) = record_batches(form, plain_table(2, timestamp=pa.array([1999, -1], pa.timestamp("us"))))
    assert [record.timestamp for record in records_of(batch)] == [1, -1]


def test_a_null_list_of_headers_may_hide_some(form: str) -> None:
    """Arrow allows memory behind what is null."""
    flat = pa.array([{"key": "a", "value": b"1"}, {"key": "b", "value": None}])
    headers = pa.ListArray.from_arrays(pa.array([0, 1, 2]), flat, mask=pa.array([True, False]))
    (batch,) = record_batches(form, plain_table(2, headers=headers))
    assert [record.headers for record in records_of(batch)] == [(), (("b", None),)]


@pytest.mark.parametrize(
    ("column", "complaint"),
    [
        ({"headers": pa.array([[{"key": None, "value": b""}]])}, "no key"),
        ({"headers": pa.array(["text"])}, "'headers'"),
        ({"key": pa.array([1.5])}, "'key'"),
        ({"timestamp": pa.array([b"noon"])}, "'timestamp'"),
    ],
)
def test_what_cannot_be_written_is_refused_by_name(form: str, column: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InvalidRecordError, match=complaint):
        record_batches(form, pa.RecordBatch.from_pydict(column))


@pytest.mark.parametrize("offsets", [[1, 1], [2, 1], [-1, 0], [None, 1]])
def test_offsets_that_do_not_grow_cannot_be_kept(form: str, offsets: list[int | None]) -> None:
    with pytest.raises(InvalidRecordError, match="Offsets"):
        record_batches(form, plain_table(2, offset=pa.array(offsets, pa.int64())), keep_offsets=True)


def test_an_unknown_codec_is_refused(form: str) -> None:
    with pytest.raises(UnsupportedCompressionError):
        record_batches(form, plain_table(1), codec=5)


# --- other clients


CLIENT_ROWS = [
    (b"key", b"value", None, 1_700_000_000_000),
    (None, b"no key", [("h", b"1"), ("h", None), ("é", b"")], 1_700_000_000_005),
    (b"gone", None, None, 1_699_999_999_999),
    (b"", b"x" * 300, None, 1_700_000_000_001),
]


def client_table() -> pa.RecordBatch:
    schema = schema_of(CONTENTS)
    keys, values, headers, times = zip(*CLIENT_ROWS * 20, strict=True)
    entries = [pairs and [{"key": key, "value": value} for key, value in pairs] for pairs in headers]
    made = (keys, values, entries, [time * 1000 for time in times])
    return pa.RecordBatch.from_arrays(
        [pa.array(column, kind.type) for column, kind in zip(made, schema, strict=True)], schema=schema
    )


@pytest.mark.parametrize("codec", list(Codec))
def test_aiokafka_reads_what_we_write(form: str, codec: Codec) -> None:
    (batch,) = record_batches(form, client_table(), codec=codec)
    theirs = AioBatch(batch)
    assert theirs.validate_crc()
    assert [(r.key, r.value, list(r.headers) or None, r.timestamp) for r in theirs] == CLIENT_ROWS * 20


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP, Codec.LZ4])
def test_kafka_python_reads_what_we_write(form: str, codec: Codec) -> None:
    (batch,) = record_batches(form, client_table(), codec=codec)
    theirs = DefaultRecordBatch(batch)
    assert theirs.validate_crc()
    assert [(r.key, r.value, list(r.headers) or None, r.timestamp) for r in theirs] == CLIENT_ROWS * 20


@pytest.mark.parametrize("codec", list(Codec))
def test_what_aiokafka_writes_becomes_columns(form: str, codec: Codec) -> None:
    builder = AioBuilder(2, codec, 0, 11, 2, 30, 2**30)
    for offset, (key, value, headers, time) in enumerate(CLIENT_ROWS):
        builder.append(offset, time, key, value, headers or [])
    found = read(form, bytes(builder.build()), fields=CONTENTS)
    assert found == [(*row[:3], row[3] * 1000) for row in CLIENT_ROWS]
