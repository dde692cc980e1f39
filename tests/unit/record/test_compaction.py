"""Compaction of one batch: the latest of each key stays, tombstones go in time, sequences are kept."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.errors import BatchTooLargeError
from anabranch.record.batch import check_batch, read_header, with_log_append_time
from anabranch.record.builder import BatchBuilder, control_batch
from anabranch.record.compaction.batches import Keep, compacted, keep_latest, without_below
from anabranch.record.compression import Codec
from anabranch.record.records import records_of
from anabranch.values import Offset

HORIZON_MS = 1_000


def a_batch(*pairs: tuple[bytes | None, bytes | None], codec: int = 0, producer_id: int = 3) -> bytes:
    sequence = -1 if producer_id < 0 else 40
    builder = BatchBuilder(100, codec, producer_id=producer_id, producer_epoch=0, base_sequence=sequence)
    for i, (key, value) in enumerate(pairs):
        builder.add(key, value, [("h", None)], timestamp_ms=10 + i)
    return bytes(builder.build())


def keys(*kept: bytes) -> Keep:
    return lambda offset, key: key in kept


def clean(
    batch: bytes, keep: Keep, now_ms: int = 0, last_of_producer: bool = False
) -> bytes | bytearray | None:
    return compacted(
        batch, keep, now_ms=now_ms, delete_retention_ms=HORIZON_MS, last_of_producer=last_of_producer
    )


def cleaned(batch: bytes | bytearray, keep: Keep, now_ms: int = 0) -> bytes:
    result = clean(bytes(batch), keep, now_ms)
    assert result is not None
    return bytes(result)


@pytest.mark.parametrize("codec", list(Codec))
def test_what_stays_keeps_offset_time_headers_and_the_batch_its_reach(codec: Codec) -> None:
    batch = a_batch((b"a", b"1"), (b"b", b"2"), (b"c", b"3"), codec=codec)
    result = cleaned(batch, keys(b"b"))
    header = check_batch(result, 0, len(result), fresh=False)
    assert list(records_of(result)) == [record for record in records_of(batch) if record.key == b"b"]
    before = read_header(batch)
    assert (header.base_offset, header.last_offset) == (before.base_offset, before.last_offset)
    assert header.last_sequence == before.last_sequence
    assert header.codec == codec


@pytest.mark.parametrize("codec", list(Codec))
def test_a_batch_without_its_first_records_keeps_its_reach(codec: Codec) -> None:
    batch = a_batch((b"a", b"1"), (b"b", b"2"), (None, None), codec=codec)
    for start in (101, 103):
        result = without_below(batch, Offset(start))
        header = check_batch(result, 0, len(result), fresh=False)
        assert list(records_of(result)) == list(records_of(batch))[start - 100 :]
        before = read_header(batch)
        assert (header.base_offset, header.last_offset) == (before.base_offset, before.last_offset)
        assert (header.base_sequence, header.last_sequence) == (before.base_sequence, before.last_sequence)


def test_a_batch_of_which_everything_stays_is_the_same_object() -> None:
    batch = a_batch((b"a", b"1"), (b"b", b"2"))
    assert clean(batch, keys(b"a", b"b")) is batch


def test_a_batch_of_which_nothing_stays_goes() -> None:
    assert clean(a_batch((b"a", b"1")), keys()) is None


def test_the_last_batch_of_a_producer_stays_without_records() -> None:
    batch = a_batch((b"a", b"1"), (b"b", b"2"))
    emptied = clean(batch, keys(), last_of_producer=True)
    assert emptied is not None
    header = check_batch(emptied, 0, len(emptied), fresh=False)
    assert (header.record_count, header.last_sequence, header.last_offset) == (0, 41, 101)
    assert clean(bytes(emptied), keys(), last_of_producer=False) is None
    again = bytes(emptied)
    assert clean(again, keys(), last_of_producer=True) is again


def test_a_batch_without_a_producer_is_nobodys_last() -> None:
    assert clean(a_batch((b"a", b"1"), producer_id=-1), keys(), last_of_producer=True) is None


def test_the_first_cleaning_that_leaves_a_tombstone_sets_its_horizon() -> None:
    batch = a_batch((b"a", None), (b"b", b"2"))
    result = cleaned(batch, keys(b"a", b"b"), now_ms=500)
    header = read_header(result)
    assert header.has_delete_horizon
    assert header.base_timestamp == 500 + HORIZON_MS
    assert list(records_of(result)) == list(records_of(batch))


def test_a_tombstone_stays_until_its_horizon_and_goes_at_it() -> None:
    marked = cleaned(a_batch((b"a", None), (b"b", b"2")), keys(b"a", b"b"), now_ms=500)
    assert clean(marked, keys(b"a", b"b"), now_ms=1_499) is marked
    result = cleaned(marked, keys(b"a", b"b"), now_ms=1_500)
    assert [record.key for record in records_of(result)] == [b"b"]


def test_a_horizon_is_set_once_and_survives_a_rewrite() -> None:
    marked = cleaned(a_batch((b"a", None), (b"b", b"2"), (b"c", None)), keys(b"a", b"b", b"c"), now_ms=500)
    result = cleaned(marked, keys(b"a", b"c"), now_ms=1_000)
    assert read_header(result).base_timestamp == 1_500
    assert [record.timestamp for record in records_of(result)] == [10, 12]


def test_a_tombstone_that_a_later_record_replaced_goes_at_once() -> None:
    result = cleaned(a_batch((b"a", None), (b"b", b"2")), keys(b"b"))
    assert not read_header(result).has_delete_horizon


def test_a_control_batch_stays_whole() -> None:
    marker = bytes(
        control_batch(committed=True, producer_id=1, producer_epoch=0, coordinator_epoch=0, timestamp_ms=0)
    )
    assert clean(marker, keys()) is marker


def test_log_append_time_survives() -> None:
    batch = with_log_append_time(a_batch((b"a", b"1"), (b"b", b"2")), 777)
    result = cleaned(batch, keys(b"b"))
    assert read_header(result).is_log_append_time
    assert [record.timestamp for record in records_of(result)] == [777]


def test_a_batch_that_unpacks_beyond_the_limit_is_not_cleaned() -> None:
    batch = a_batch((b"a", bytes(10_000)), codec=Codec.ZSTD)
    with pytest.raises(BatchTooLargeError):
        compacted(batch, keys(), now_ms=0, delete_retention_ms=0, bytes_max=1_000)


def test_only_the_latest_of_a_key_is_kept_below_the_end_of_the_map() -> None:
    latest = {b"a": 102, b"b": 101}
    keep = keep_latest(latest.get, Offset(104))
    batch = a_batch(
        (b"a", b"old"), (b"b", b"1"), (b"a", b"new"), (None, b"lost"), (None, b"beyond"), (b"a", b"x")
    )
    assert [record.offset for record in records_of(batch) if keep(record.offset, record.key)] == [
        101,
        102,
        104,
        105,
    ]


def test_a_key_the_map_does_not_know_is_kept() -> None:
    keep = keep_latest({}.get, Offset(1_000))
    batch = a_batch((b"a", b"1"))
    assert clean(batch, keep) is batch


@given(
    st.lists(st.tuples(st.sampled_from([b"a", b"b", b"c"]), st.none() | st.binary(max_size=3)), min_size=1)
)
def test_the_last_value_of_every_key_survives_any_number_of_cleanings(
    pairs: list[tuple[bytes, bytes | None]],
) -> None:
    batch = a_batch(*pairs)
    latest: dict[bytes, int] = {key: 100 + i for i, (key, _) in enumerate(pairs)}
    keep = keep_latest(latest.get, Offset(100 + len(pairs)))
    expected = {key: value for key, value in pairs if value is not None and dict(pairs)[key] is not None}
    result: bytes | bytearray | None = batch
    for now_ms in (0, HORIZON_MS - 1, HORIZON_MS, 5 * HORIZON_MS):
        result = clean(bytes(result), keep, now_ms) if result is not None else None
        found = {record.key: record.value for record in records_of(result)} if result is not None else {}
        assert {key: value for key, value in found.items() if value is not None} == {
            key: dict(pairs)[key] for key in expected
        }
    assert None not in found.values()
