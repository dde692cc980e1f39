"""Record batches as Arrow columns, in both forms: the same rows as the careful reader's, or the same refusal."""

import subprocess
import sys
from struct import pack_into
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.errors import (
    BatchTooLargeError,
    CorruptDataError,
    InvalidRecordError,
    InvalidRequestError,
    UnsupportedCompressionError,
    UnsupportedRecordFormatError,
)
from anabranch.record.batch import batch_spans, read_header, seal, with_log_append_time
from anabranch.record.builder import BatchBuilder, control_batch, emptied_batch
from anabranch.record.columns import columns as module
from anabranch.record.columns.columns import FIELDS, schema_of, whole_bytes
from anabranch.record.compression import Codec
from support.column_rows import FORMS, MICROSECONDS_MAX, arrow_batches, read, rows_by_hand
from support.record_bytes import batch_of, framed, varints

pytestmark = pytest.mark.parametrize("form", FORMS)
UNHURRIED = settings(deadline=None)

MAYBE_BYTES = st.none() | st.binary(max_size=40) | st.binary(min_size=60, max_size=200)
TIMES = st.integers(-(2**63), 2**63 - 1) | st.integers(0, 2**41) | st.integers(-200, 200)
HEADER_KEYS = st.sampled_from(["", "h", "straße", "\U0001f600"]) | st.binary(max_size=5).map(
    lambda key: key.decode("utf-8", "surrogateescape")
)
HEADERS = st.just([]) | st.lists(st.tuples(HEADER_KEYS, MAYBE_BYTES), max_size=3)
GAPS = st.sampled_from([0, 0, 0, 1, 70, 9000])


@st.composite
def one_batch(draw: st.DrawFn, base_offset: int) -> bytearray:
    producer_id = draw(st.sampled_from([-1, 0, 7, 2**62]))
    builder = BatchBuilder(
        base_offset,
        draw(st.sampled_from(list(Codec))),
        producer_id=producer_id,
        producer_epoch=draw(st.integers(0, 2**15 - 1)) if producer_id >= 0 else -1,
        base_sequence=draw(st.sampled_from([0, 5, 2**31 - 2])) if producer_id >= 0 else -1,
        generation=draw(st.integers(-1, 2**31 - 1)),
        transactional=draw(st.booleans()),
        control=draw(st.integers(0, 9)) == 0,
        log_append_time=draw(st.booleans()),
        delete_horizon_ms=draw(st.none() | TIMES),
    )
    offset = base_offset
    for _ in range(draw(st.integers(1, 6))):
        offset += draw(GAPS)
        builder.add(
            draw(MAYBE_BYTES), draw(MAYBE_BYTES), draw(HEADERS), timestamp_ms=draw(TIMES), offset=offset
        )
        offset += 1
    batch = builder.build(offset - base_offset - 1 + draw(GAPS))
    return emptied_batch(read_header(batch)) if draw(st.integers(0, 9)) == 0 else batch


@st.composite
def logs(draw: st.DrawFn) -> bytes:
    base_offset = draw(st.sampled_from([0, 1, 2**31, 2**62]))
    log = bytearray()
    for _ in range(draw(st.integers(0, 4))):
        batch = draw(one_batch(base_offset))
        base_offset = read_header(batch).next_offset + draw(GAPS)
        log += batch
    return bytes(log)


def small_log(codec: int = 0, batches: int = 3, records: int = 4) -> bytes:
    log = bytearray()
    for number in range(batches):
        builder = BatchBuilder(number * records, codec)
        for _ in range(records):
            builder.add(b"key", b"value", [("h", b"1")], timestamp_ms=1000 + number)
        log += builder.build()
    return bytes(log)


# --- the rows


@UNHURRIED
@given(log=logs())
def test_rows_are_those_of_the_careful_reader(form: str, log: bytes) -> None:
    assert read(form, log) == rows_by_hand(log)


@UNHURRIED
@given(log=logs(), places=st.tuples(st.integers(0, 60), st.integers(0, 60)))
def test_rows_lie_within_the_bounds(form: str, log: bytes, places: tuple[int, int]) -> None:
    offsets = [row[3] for row in rows_by_hand(log)] or [0]
    start, end = offsets[places[0] % len(offsets)], offsets[places[1] % len(offsets)]
    assert read(form, log, start=start, end=end) == rows_by_hand(log, start, end)
    assert read(form, log, start=start + 1, end=end + 1) == rows_by_hand(log, start + 1, end + 1)


@UNHURRIED
@given(log=logs(), fields=st.lists(st.sampled_from(FIELDS), unique=True, min_size=1))
def test_only_the_wanted_columns_are_made_and_in_their_order(
    form: str, log: bytes, fields: list[str]
) -> None:
    chosen = [tuple(row[FIELDS.index(name)] for name in fields) for row in rows_by_hand(log)]
    assert read(form, log, fields=fields) == chosen
    for batch in arrow_batches(form, log, fields=fields):
        assert batch.schema == schema_of(fields)


@UNHURRIED
@given(log=logs(), chunk_bytes=st.sampled_from([0, 1, 100, 1000]))
def test_small_chunks_have_the_same_rows(form: str, log: bytes, chunk_bytes: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "CHUNK_BYTES", chunk_bytes)
        assert read(form, log) == rows_by_hand(log)


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("verify", [True, False])
def test_every_codec_is_read(form: str, codec: Codec, verify: bool) -> None:
    log = small_log(codec)
    assert read(form, log, verify=verify) == rows_by_hand(log)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, lambda data: memoryview(b"xyz" + data)[3:]])
def test_every_kind_of_buffer_is_read(form: str, kind: Any) -> None:
    log = small_log()
    assert read(form, kind(log)) == rows_by_hand(log)


def test_a_buffer_may_be_used_again_once_its_rows_are_out(form: str) -> None:
    log = bytearray(small_log())
    expected = rows_by_hand(bytes(log))
    found = list(arrow_batches(form, log))
    log[:] = bytes(len(log))
    assert [row for batch in found for row in batch.column("key").to_pylist()] == [row[0] for row in expected]


def test_nothing_has_no_rows(form: str) -> None:
    assert list(arrow_batches(form, b"")) == []
    assert whole_bytes(b"") == 0


def test_a_log_of_emptied_batches_has_no_rows(form: str) -> None:
    log = b"".join(emptied_batch(read_header(small_log(codec, 1))) for codec in Codec)
    assert list(arrow_batches(form, log)) == []


def test_a_torn_batch_at_the_end_is_ignored(form: str) -> None:
    log = small_log()
    *_, (last, _end) = batch_spans(log)
    for end in range(last, len(log)):
        assert read(form, log[:end]) == rows_by_hand(log[:last])
        assert whole_bytes(log[:end]) == last
    assert whole_bytes(log) == len(log)


def test_log_append_time_is_the_time_of_every_record(form: str) -> None:
    log = with_log_append_time(small_log(batches=1), 5000)
    found = read(form, log, fields=("timestamp", "timestampType"))
    assert found == [(5_000_000, 1)] * 4


@pytest.mark.parametrize(
    ("time_ms", "time_us"),
    [
        (-1, -1000),
        (2**63 - 1, MICROSECONDS_MAX),
        (-(2**63), -MICROSECONDS_MAX),
        ((2**63 - 1) // 1000, MICROSECONDS_MAX),
        ((2**63 - 1) // 1000 - 1, MICROSECONDS_MAX - 1000),
    ],
)
def test_a_time_that_microseconds_cannot_hold_is_the_furthest_they_can(
    form: str, time_ms: int, time_us: int
) -> None:
    builder = BatchBuilder()
    builder.add(None, None, timestamp_ms=0)
    builder.add(None, None, timestamp_ms=time_ms)
    assert read(form, builder.build(), fields=["timestamp"]) == [(0,), (time_us,)]


def test_header_keys_that_are_not_utf8_are_repaired_and_others_kept(form: str) -> None:
    builder = BatchBuilder()
    keys = ["plain", "straße", b"a\xff\xfeb\xe2\x82".decode("utf-8", "surrogateescape"), "plain"]
    builder.add(None, None, [(key, b"1") for key in keys], timestamp_ms=0)
    ((headers,),) = read(form, builder.build(), fields=["headers"])
    assert [key for key, _ in headers] == ["plain", "straße", "a��b�", "plain"]


def test_a_record_without_headers_has_none_rather_than_an_empty_list(form: str) -> None:
    builder = BatchBuilder()
    for headers in ([("a", None)], [], [("b", b""), ("b", b"2")]):
        builder.add(None, None, headers, timestamp_ms=0)
    found = read(form, builder.build(), fields=["headers"])
    assert found == [([("a", None)],), (None,), ([("b", b""), ("b", b"2")],)]


def test_an_unknown_column_is_refused_by_name_before_anything_is_read(form: str) -> None:
    with pytest.raises(InvalidRequestError, match="colour"):
        arrow_batches(form, b"not a batch", fields=["key", "colour"])


# --- bounded


@pytest.mark.parametrize("codec", list(Codec))
def test_an_arrow_batch_holds_no_more_than_a_chunk(form: str, codec: Codec) -> None:
    builder = BatchBuilder(0, codec)
    for _ in range(100):
        builder.add(None, bytes(10_000), timestamp_ms=0)
    log = bytes(builder.build()) * 20
    sizes = [batch.num_rows for batch in arrow_batches(form, log, fields=["value"])]
    assert sizes == [800, 800, 400]


def test_a_batch_larger_than_a_chunk_is_one_of_its_own(form: str) -> None:
    large = BatchBuilder(4)
    large.add(None, bytes(9 * 2**20), timestamp_ms=0)
    log = small_log(batches=1) + large.build() + small_log(batches=1)
    assert [batch.num_rows for batch in arrow_batches(form, log)] == [4, 1, 4]


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec])
def test_a_batch_that_unpacks_to_too_much_is_refused(form: str, codec: Codec) -> None:
    builder = BatchBuilder(7, codec)
    builder.add(None, bytes(100_000), timestamp_ms=0)
    with pytest.raises(BatchTooLargeError, match="offset 7 "):
        read(form, builder.build(), bytes_max=99_999)


# --- transactions


def transaction(producer_id: int, base_offset: int, value: bytes) -> bytearray:
    builder = BatchBuilder(
        base_offset, producer_id=producer_id, producer_epoch=0, base_sequence=0, transactional=True
    )
    builder.add(None, value, timestamp_ms=0)
    return builder.build()


def marker(producer_id: int, base_offset: int, committed: bool) -> bytearray:
    return control_batch(
        committed=committed,
        producer_id=producer_id,
        producer_epoch=0,
        coordinator_epoch=0,
        timestamp_ms=0,
        base_offset=base_offset,
    )


def interleaved() -> bytes:
    """Producers 1 and 2 abort and commit in turns, producer 3 has no transactions."""
    plain = BatchBuilder(4, producer_id=3, producer_epoch=0, base_sequence=0)
    plain.add(None, b"plain", timestamp_ms=0)
    parts = [
        transaction(1, 0, b"1 aborted"),
        transaction(2, 1, b"2 committed"),
        transaction(1, 2, b"1 aborted too"),
        marker(2, 3, committed=True),
        plain.build(),
        marker(1, 5, committed=False),
        transaction(2, 6, b"2 aborted"),
        transaction(1, 7, b"1 committed"),
        marker(1, 8, committed=True),
        marker(2, 9, committed=False),
        transaction(2, 10, b"2 committed at last"),
        marker(2, 11, committed=True),
        transaction(1, 12, b"1 aborted, end not seen"),
    ]
    return b"".join(parts)


def values_of(form: str, log: bytes, **options: Any) -> list[bytes]:
    return [value for (value,) in read(form, log, fields=["value"], **options)]


def test_aborted_transactions_are_left_out_and_no_others(form: str) -> None:
    found = values_of(form, interleaved(), aborted=[(1, 12), (1, 0), (2, 6)])
    assert found == [b"2 committed", b"plain", b"1 committed", b"2 committed at last"]


def test_an_end_marker_before_the_start_counts(form: str) -> None:
    found = values_of(form, interleaved(), aborted=[(1, 0), (2, 6)], start=7)
    assert found == [b"1 committed", b"2 committed at last", b"1 aborted, end not seen"]


def test_without_aborted_transactions_all_but_markers_are_rows(form: str) -> None:
    assert len(values_of(form, interleaved())) == 8


def test_a_control_batch_that_was_spoiled_is_refused(form: str) -> None:
    log = bytearray(marker(1, 5, committed=False))
    log[-1] ^= 1
    with pytest.raises(CorruptDataError, match="offset 5 "):
        read(form, log)


# --- refusals


def test_a_wrong_checksum_is_refused_with_the_offset_and_what_came_before_is_given(form: str) -> None:
    log = bytearray(small_log())
    log[-1] ^= 1
    found = arrow_batches(form, log)
    assert next(found).column("offset").to_pylist() == list(range(8))
    with pytest.raises(CorruptDataError, match=r"offset 8 .*checksum"):
        next(found)


def test_a_header_that_was_spoiled_does_not_pass_for_one_before_the_start(form: str) -> None:
    log = bytearray(small_log(batches=1))
    pack_into(">i", log, 23, 0)
    with pytest.raises(CorruptDataError, match="offset 0 "):
        read(form, log, start=2)


def test_the_first_of_two_wrong_batches_is_named(form: str) -> None:
    body = b"\0" + varints(0, 0, 50) + b"kkk"
    later = bytearray(small_log(batches=1))
    later[-1] ^= 1
    found = arrow_batches(form, small_log(batches=1) + batch_of(framed(body), 1) + later)
    assert next(found).num_rows == 4
    with pytest.raises(InvalidRecordError, match="field of 50 bytes"):
        next(found)


def test_without_checksums_contents_are_taken_as_they_are(form: str) -> None:
    log = bytearray(small_log(batches=1))
    log[-1] ^= 1
    assert read(form, log, verify=False) == rows_by_hand(bytes(log))


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize(("count", "last_offset_delta"), [(-1, 0), (2, 0), (2**31 - 1, 5)])
def test_counts_that_do_not_fit_are_refused(
    form: str, verify: bool, count: int, last_offset_delta: int
) -> None:
    with pytest.raises(InvalidRecordError, match="offset 0 "):
        read(form, batch_of(framed(b"\0" + varints(0, 0, 0, 0, 0)), count, last_offset_delta), verify=verify)


def test_a_count_that_no_section_could_hold_takes_no_memory(form: str) -> None:
    with pytest.raises(InvalidRecordError, match="offset 0 "):
        read(form, batch_of(framed(b"\0" + varints(0, 0, 0, 0, 0)), 2**31 - 1))


@pytest.mark.parametrize("base_offset", [-1, -(2**63), 2**63 - 2])
def test_an_impossible_offset_is_refused(form: str, base_offset: int) -> None:
    log = bytearray(small_log(batches=1))
    pack_into(">q", log, 0, base_offset)
    pack_into(">i", log, 23, 9)
    seal(log)
    with pytest.raises(CorruptDataError, match="such an offset"):
        read(form, log, start=5, end=9)


def test_an_impossible_length_is_refused(form: str) -> None:
    log = bytearray(small_log())
    second = list(batch_spans(log))[1][0]
    pack_into(">i", log, second + 8, 5)
    with pytest.raises(CorruptDataError, match="offset 4 "):
        read(form, log)
    with pytest.raises(CorruptDataError, match="offset 4 "):
        whole_bytes(log)


@pytest.mark.parametrize("magic", [0, 1])
def test_older_formats_are_refused_by_name(form: str, magic: int) -> None:
    log = bytearray(small_log(batches=1))
    log[16] = magic
    with pytest.raises(UnsupportedRecordFormatError, match=f"v{magic}"):
        read(form, log, start=100)


def test_compressed_bytes_that_are_none_are_refused(form: str) -> None:
    for codec in (codec for codec in Codec if codec):
        log = bytearray(small_log(batches=1))
        log[22] = codec
        seal(log)
        with pytest.raises(CorruptDataError, match="offset 0 "):
            read(form, log)


def test_an_unknown_codec_is_refused(form: str) -> None:
    log = bytearray(small_log(batches=1))
    log[22] = 5
    for verify in (True, False):
        seal(log)
        with pytest.raises(UnsupportedCompressionError, match=r"offset 0 .*codec 5"):
            read(form, log, verify=verify)


def test_nobody_who_starts_a_node_imports_the_libraries(form: str) -> None:
    program = "import sys, anabranch.node, anabranch.cli.main; print('pyarrow' in sys.modules, 'numpy' in sys.modules)"
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert told == "False False\n"


def test_types_are_those_that_were_promised(form: str) -> None:
    (batch,) = arrow_batches(form, small_log())
    assert batch.schema.names == list(FIELDS)
    assert batch.schema.field("headers").type == pa.list_(
        pa.struct([("key", pa.string()), ("value", pa.binary())])
    )
    assert batch.schema.field("timestamp").type == pa.timestamp("us", "UTC")
