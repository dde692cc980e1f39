"""What somebody else compacted is believed exactly when our own rules would have kept the same."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.errors import OfferRefusedError
from anabranch.record.batch import (
    DELETE_HORIZON,
    HEADER,
    HEADER_BYTES,
    read_header,
    seal,
    with_log_append_time,
)
from anabranch.record.builder import BatchBuilder, control_batch, emptied_batch
from anabranch.record.compaction.check import OFFER_MS_MAX, check_compacted
from anabranch.record.compaction.offset_map import OffsetMap
from anabranch.record.compaction.run import CompactionRun
from anabranch.record.compression import Codec
from anabranch.record.records import Record, records_of
from anabranch.values import Offset

NOW_MS = 1_000_000
RETENTION_MS = 5_000


def a_run(
    latest: dict[bytes, int], *, upto: int = 1000, now_ms: int = NOW_MS, last: dict[int, int] | None = None
) -> CompactionRun:
    known = OffsetMap(100)
    for key, offset in latest.items():
        known.put(key, offset)
    return CompactionRun(known, Offset(upto), last or {}, now_ms, RETENTION_MS)


def by_a_job(run: CompactionRun) -> CompactionRun:
    """The same run as a job does it, a while before: it cannot know when the broker will look."""
    retention_ms = run.delete_retention_ms + OFFER_MS_MAX
    return CompactionRun(run.latest, run.upto, run.last_offsets, run.now_ms - 1000, retention_ms)


def a_batch(*pairs: tuple[bytes | None, bytes | None], base: int = 100, **fields: int | bool) -> bytes:
    options = {"producer_id": 3, "producer_epoch": 0, "base_sequence": 40, **fields}
    builder = BatchBuilder(base, **options)
    for number, (key, value) in enumerate(pairs):
        builder.add(key, value, [("h", b"x")], timestamp_ms=10 + number)
    return bytes(builder.build())


def refused(source: bytes, offered: bytes | bytearray | None, run: CompactionRun) -> str:
    with pytest.raises(OfferRefusedError) as error:
        check_compacted(source, offered, run)
    return str(error.value)


def job_made(source: bytes, run: CompactionRun) -> bytes:
    stays = by_a_job(run).stays(source)
    assert stays is not None
    return bytes(stays)


KEYS = st.sampled_from([b"a", b"b", b"c", None])
PAIRS = st.lists(st.tuples(KEYS, st.sampled_from([None, b"", b"v", b"w" * 30])), min_size=1, max_size=6)


@given(
    PAIRS,
    st.dictionaries(st.sampled_from([b"a", b"b", b"c"]), st.integers(95, 110)),
    st.sampled_from(list(Codec)),
    st.booleans(),
    st.booleans(),
)
def test_what_the_job_makes_of_a_batch_is_always_taken(
    pairs: list[tuple[bytes | None, bytes | None]],
    latest: dict[bytes, int],
    codec: Codec,
    is_last: bool,
    is_stamped: bool,
) -> None:
    source = a_batch(*pairs, codec=codec)
    if is_stamped:
        source = with_log_append_time(source, 77)
    run = a_run(latest, last={3: 100 + len(pairs) - 1} if is_last else None)
    once = by_a_job(run).stays(source)
    check_compacted(source, once, run)
    if once is not None:  # And what was compacted once, when it is compacted again.
        later = a_run(latest, now_ms=NOW_MS + 3 * (RETENTION_MS + OFFER_MS_MAX), last=dict(run.last_offsets))
        again = by_a_job(later).stays(bytes(once))
        check_compacted(bytes(once), again, later)


@given(PAIRS, st.dictionaries(st.sampled_from([b"a", b"b", b"c"]), st.integers(95, 110)), st.data())
def test_any_other_choice_of_records_is_refused(
    pairs: list[tuple[bytes | None, bytes | None]], latest: dict[bytes, int], data: st.DataObject
) -> None:
    source, run = a_batch(*pairs), a_run(latest)
    right = by_a_job(run).stays(source)
    kept = [] if right is None else list(records_of(right))
    chosen = [record for record in records_of(source) if data.draw(st.booleans())]
    horizon_ms = NOW_MS + RETENTION_MS + 1 if any(record.value is None for record in chosen) else None
    offered = rebuilt(source, chosen, delete_horizon_ms=horizon_ms) if chosen else None
    if chosen == kept:
        check_compacted(source, offered, run)
    else:
        refused(source, offered, run)


def rebuilt(source: bytes, records: list[Record], **fields: int | bool | None) -> bytes:
    header = read_header(source)
    options = {
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "generation": header.generation,
        **fields,
    }
    builder = BatchBuilder(header.base_offset, header.codec, **options)
    for record in records:
        builder.add(
            record.key, record.value, record.headers, timestamp_ms=record.timestamp, offset=record.offset
        )
    return bytes(builder.build(header.last_offset_delta))


SOURCE = a_batch((b"a", b"1"), (b"b", b"2"), (b"c", b"3"))
RUN = a_run({b"a": 200})
KEPT = list(records_of(SOURCE))[1:]


def with_header(batch: bytes, **changes: int) -> bytes:
    """The batch with another header, its checksum made to fit."""
    changed = bytearray(HEADER.pack(*read_header(batch)._replace(**changes)) + batch[HEADER_BYTES:])
    seal(changed)
    return bytes(changed)


SPOILED: dict[str, Callable[[bytes], bytes]] = {
    "another value": lambda good: rebuilt(SOURCE, [KEPT[0]._replace(value=b"X"), KEPT[1]]),
    "another key": lambda good: rebuilt(SOURCE, [KEPT[0]._replace(key=b"X"), KEPT[1]]),
    "a null value": lambda good: rebuilt(SOURCE, [KEPT[0]._replace(value=None), KEPT[1]]),
    "other headers": lambda good: rebuilt(SOURCE, [KEPT[0]._replace(headers=()), KEPT[1]]),
    "another time": lambda good: rebuilt(SOURCE, [KEPT[0]._replace(timestamp=1), KEPT[1]]),
    "a record less": lambda good: rebuilt(SOURCE, KEPT[:1]),
    "a record that should go": lambda good: rebuilt(SOURCE, list(records_of(SOURCE))),
    "another offset": lambda good: rebuilt(SOURCE, [KEPT[0]._replace(offset=Offset(100)), KEPT[1]]),
    "a shorter reach": lambda good: with_header(good, last_offset_delta=1),
    "a longer reach": lambda good: with_header(good, last_offset_delta=9),
    "another producer": lambda good: with_header(good, producer_id=4),
    "another epoch": lambda good: with_header(good, producer_epoch=1),
    "another sequence": lambda good: with_header(good, base_sequence=41),
    "another generation": lambda good: with_header(good, generation=9),
    "another codec bit": lambda good: with_header(good, attributes=0x10),
    "a later newest time": lambda good: with_header(good, max_timestamp=10**12),
    "an earlier newest time": lambda good: with_header(good, max_timestamp=11),
    "a horizon without a tombstone": lambda good: rebuilt(SOURCE, KEPT, delete_horizon_ms=NOW_MS * 2),
    "no record at all": lambda good: bytes(emptied_batch(read_header(SOURCE))),
    "a wrong count": lambda good: with_header(good, record_count=1),
    "bytes that are no records": lambda good: with_header(good[:-1] + b"\xff"),
}


@pytest.mark.parametrize("how", SPOILED)
def test_a_batch_that_differs_in_anything_that_matters_is_refused(how: str) -> None:
    good = job_made(SOURCE, RUN)
    check_compacted(SOURCE, good, RUN)
    assert "offset" in refused(SOURCE, SPOILED[how](good), RUN) or "record" in refused(
        SOURCE, SPOILED[how](good), RUN
    )


def test_a_batch_of_which_something_stays_cannot_be_left_out() -> None:
    assert "101" in refused(SOURCE, None, RUN)


def test_the_last_batch_of_a_producer_cannot_be_left_out_but_emptied() -> None:
    run = a_run({b"a": 200, b"b": 200, b"c": 200}, last={3: 102})
    assert "producer" in refused(SOURCE, None, run)
    check_compacted(SOURCE, bytes(emptied_batch(read_header(SOURCE))), run)
    forged = with_header(bytes(emptied_batch(read_header(SOURCE))), base_sequence=0)
    assert "emptied" in refused(SOURCE, forged, run)


def test_batches_beyond_the_map_and_of_transactions_must_be_the_very_same() -> None:
    marker = control_batch(
        committed=True, producer_id=3, producer_epoch=0, coordinator_epoch=0, timestamp_ms=0, base_offset=7
    )
    open_one = a_batch((b"a", b"1"), transactional=True)
    beyond = a_batch((b"a", b"1"), base=1000)
    for batch in (bytes(marker), open_one, beyond):
        check_compacted(batch, batch, RUN)
        refused(batch, None, RUN)
        refused(batch, with_header(batch, producer_epoch=1), RUN)


TOMBSTONE = a_batch((b"a", None), (b"b", b"2"))


@pytest.mark.parametrize(
    ("horizon_ms", "is_taken"),
    [
        (NOW_MS + RETENTION_MS - 1, False),
        (NOW_MS + RETENTION_MS, True),
        (NOW_MS + RETENTION_MS + 2 * OFFER_MS_MAX, True),
        (NOW_MS + RETENTION_MS + 2 * OFFER_MS_MAX + 1, False),
        (None, False),
    ],
)
def test_a_tombstone_never_gets_less_time_than_its_retention(horizon_ms: int | None, is_taken: bool) -> None:
    offered = rebuilt(TOMBSTONE, list(records_of(TOMBSTONE)), delete_horizon_ms=horizon_ms)
    if is_taken:
        check_compacted(TOMBSTONE, offered, a_run({}))
    else:
        assert "tombstones" in refused(TOMBSTONE, offered, a_run({}))


def test_a_horizon_once_set_is_not_moved_or_dropped() -> None:
    records = list(records_of(TOMBSTONE))
    source = rebuilt(TOMBSTONE, records, delete_horizon_ms=NOW_MS + 10)
    for wrong in (NOW_MS + 9, NOW_MS + 11, None):
        assert "tombstones" in refused(source, rebuilt(source, records, delete_horizon_ms=wrong), a_run({}))
    check_compacted(source, source, a_run({}))
    assert read_header(source).attributes & DELETE_HORIZON


def test_an_expired_tombstone_may_have_gone_or_still_be_there() -> None:
    records = list(records_of(TOMBSTONE))
    source = rebuilt(TOMBSTONE, records, delete_horizon_ms=NOW_MS)
    check_compacted(source, source, a_run({}))
    check_compacted(source, rebuilt(source, records[1:], delete_horizon_ms=NOW_MS), a_run({}))
    early = a_run({}, now_ms=NOW_MS - 1)
    assert "100" in refused(source, rebuilt(source, records[1:], delete_horizon_ms=NOW_MS), early)
