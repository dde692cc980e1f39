"""The compiled functions against their pure twins: the same answer, or the same error with the same words.

Bytes are handed over as every kind of buffer, sound and spoiled. That nothing is read outside of them is shown by
bytes that begin and end at pages which may not be touched: a stray read ends the process.
"""

import gc
import sys
import threading
from collections.abc import Callable
from random import Random
from time import time_ns
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.record.batch import HEADER_BYTES, check_batch_pure, read_header_pure, seal
from anabranch.record.builder import BatchBuilder
from anabranch.record.compression import Codec
from anabranch.record.crc32c import crc32c_pure
from anabranch.record.record_check import check_records_pure
from anabranch.wire.codec import encode_request
from anabranch.wire.header import request_header
from support.fenced import Fenced
from support.mutations import MUTATIONS
from support.record_bytes import INTEGERS, batch_of, framed, spoiled_sections, varints

_fast = pytest.importorskip("anabranch.record._fast", reason="there is no compiled form here")

KINDS: list[Callable[[bytes], Any]] = [
    bytes,
    bytearray,
    memoryview,
    lambda data: memoryview(bytearray(b"xyz" + data + b"z"))[3:-1],
]
LONG_VALUE_BYTES = 9000  # Its length takes three bytes.
TOPIC_ID = UUID("6d0c8f6e-7c55-4c39-9a39-0d7d5b2f5c11")
MAYBE_BYTES = st.none() | st.binary(max_size=200)
TIMES = st.integers(-(2**40), 2**40) | st.integers(-200, 200)


def outcome(function: Callable[..., Any], *arguments: Any, **more: Any) -> Any:
    try:
        return function(*arguments, **more)
    except Exception as error:  # noqa: BLE001 - whatever the pure form raises, the other must raise
        return type(error), str(error)


@st.composite
def batches(draw: st.DrawFn) -> bytearray:
    builder = BatchBuilder(codec=draw(st.sampled_from([Codec.NONE, Codec.GZIP])))
    for key, value, time in draw(
        st.lists(st.tuples(MAYBE_BYTES, MAYBE_BYTES, TIMES), min_size=1, max_size=40)
    ):
        headers = (("h", b"1"), ("", None)) if time % 3 == 0 else ()
        builder.add(key, value, headers, timestamp_ms=time)
    return bytearray(builder.build())


@given(st.binary(max_size=2000), st.integers(0, 10))
def test_any_bytes_sum_to_the_same(data: bytes, start: int) -> None:
    for kind in KINDS:
        assert _fast.crc32c(memoryview(kind(data))[start:]) == crc32c_pure(data[start:])


@pytest.mark.parametrize(
    "size", [63, 192, 767, 768, 3071, 3072, 12_287, 12_288, 12_289, 49_151, 49_152, 65_536, 300_001]
)
def test_sums_of_every_width_of_lanes_are_the_same(size: int) -> None:
    data = bytes(number * number >> 3 & 255 for number in range(size + 8))
    for start in range(8):  # Words need not begin where the machine would like them to.
        view = memoryview(data)[start : start + size]
        assert _fast.crc32c(view) == crc32c_pure(view)


def test_every_sum_has_the_same_value_without_the_instructions_of_this_processor() -> None:
    data = bytes(number * number >> 3 & 255 for number in range(3000))
    for size in range(0, len(data), 7):
        assert _fast.crc32c_by_tables(data[:size]) == crc32c_pure(data[:size])


def records_judged_the_same(data: Any, counts: tuple[int, ...]) -> None:
    for count in counts:
        for keys_required in (False, True):
            assert outcome(_fast.check_records, data, count, keys_required) == outcome(
                check_records_pure, data, count, keys_required
            ), bytes(data[:100])


def test_records_with_every_kind_of_wrong_field_are_judged_the_same() -> None:
    for section in spoiled_sections(LONG_VALUE_BYTES):
        records_judged_the_same(section, (-1, 0, 1, 2, 3))


@pytest.mark.parametrize("kind", KINDS)
def test_records_in_every_kind_of_buffer_are_judged_the_same(kind: Callable[[bytes], Any]) -> None:
    section = next(spoiled_sections(LONG_VALUE_BYTES))
    records_judged_the_same(kind(section), (0, 1, 2, 3))
    records_judged_the_same(kind(section[:-1]), (0, 1, 2, 3))


@given(st.binary(max_size=200), st.integers(-1, 20), st.booleans())
def test_noise_is_judged_the_same(noise: bytes, count: int, keys_required: bool) -> None:
    assert outcome(_fast.check_records, noise, count, keys_required) == outcome(
        check_records_pure, noise, count, keys_required
    )


@given(batches(), st.integers(0, 2**30), st.integers(0, 255), st.booleans())
def test_records_with_one_byte_changed_are_judged_the_same(
    batch: bytearray, place: int, change: int, keys_required: bool
) -> None:
    count = read_header_pure(batch).record_count
    payload = batch[HEADER_BYTES:]
    payload[place % len(payload)] ^= change
    assert outcome(_fast.check_records, payload, count, keys_required) == outcome(
        check_records_pure, payload, count, keys_required
    )


def batch_judged_the_same(data: Any, start: int, end: int) -> None:
    assert outcome(_fast.read_header, data, start) == outcome(read_header_pure, data, start)
    for fresh in (True, False):
        assert outcome(_fast.check_batch, data, start, end, fresh=fresh) == outcome(
            check_batch_pure, data, start, end, fresh=fresh
        )


def test_a_batch_with_one_byte_of_its_header_changed_is_judged_the_same() -> None:
    batch = batch_of(framed(b"\0" + varints(0, 0, 0, 0, 0)), 1)
    for place in range(HEADER_BYTES):
        for change in range(256):
            spoiled = bytearray(batch)
            spoiled[place] ^= change
            batch_judged_the_same(spoiled, 0, len(spoiled))
            seal(spoiled)
            batch_judged_the_same(spoiled, 0, len(spoiled))


@given(batches(), st.integers(0, 2**30), st.integers(0, 255))
def test_any_batch_with_one_byte_changed_is_judged_the_same(
    batch: bytearray, place: int, change: int
) -> None:
    batch[place % len(batch)] ^= change
    for kind in KINDS:
        batch_judged_the_same(kind(batch), 0, len(batch))


def test_a_batch_in_wrong_bounds_is_judged_the_same() -> None:
    batch = bytes(3) + batch_of(framed(b"\0" + varints(0, 0, 0, 0, 0)), 1) + bytes(3)
    for start in range(-2, len(batch) + 3):
        for end in (*range(-2, 20), *range(len(batch) - 15, len(batch) + 3)):
            batch_judged_the_same(batch, start, end)


@given(st.binary(max_size=200), st.integers(-2, 100), st.integers(-2, 210))
def test_noise_is_judged_as_a_batch_the_same(noise: bytes, start: int, end: int) -> None:
    batch_judged_the_same(noise, start, end)


@pytest.mark.parametrize("count", [-(2**31), -1, 0, 1, 2, 3, 2**31 - 1])
@pytest.mark.parametrize("last_offset_delta", [-(2**31), -2, -1, 0, 1, 2, 2**31 - 1])
def test_counts_are_judged_the_same(count: int, last_offset_delta: int) -> None:
    batch = batch_of(b"", count, last_offset_delta)
    batch_judged_the_same(batch, 0, len(batch))


def test_a_header_is_the_same_named_tuple() -> None:
    batch = batch_of(framed(b"\0" + varints(0, 0, 0, 0, 0)), 1)
    header = _fast.read_header(batch)
    assert type(header) is type(read_header_pure(batch))
    assert hash(header) == hash(read_header_pure(batch))
    assert header.size_bytes == len(batch)


@pytest.mark.parametrize(
    "function", [_fast.crc32c, lambda data: _fast.check_records(data, 1), _fast.read_header]
)
@pytest.mark.parametrize("wrong", [None, "text", 7, memoryview(b"abcd")[::2]])
def test_what_is_no_plain_buffer_is_refused(function: Callable[[Any], Any], wrong: object) -> None:
    with pytest.raises((TypeError, BufferError)):
        function(wrong)


def test_every_buffer_is_given_back_and_nothing_is_kept() -> None:
    """A bytearray that somebody still looks at cannot grow; an error must not keep it either."""
    good = batch_of(framed(b"\0" + varints(0, 0, 0, 0, 0)), 1)
    large = bytearray(200_000)
    for buffer in (good, bytearray(good[:-1]), bytearray(3), large):
        before = sys.getrefcount(buffer)
        for _ in range(3):
            outcome(_fast.crc32c, buffer)
            outcome(_fast.check_records, buffer, 1)
            outcome(_fast.read_header, buffer)
            outcome(_fast.check_batch, buffer, 0, len(buffer))
        gc.collect()
        assert sys.getrefcount(buffer) == before
        buffer.append(0)


def test_threads_may_sum_and_walk_the_same_large_bytes() -> None:
    payload = b"".join(
        framed(b"\0" + varints(number, number, -1, 100) + bytes(100) + b"\0") for number in range(2000)
    )
    answers: list[tuple[int, int]] = []

    def work() -> None:
        for _ in range(20):
            answers.append((_fast.crc32c(payload), _fast.check_records(payload, 2000)))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [(crc32c_pure(payload), 1999)] * 80


FENCED = Fenced()


def test_records_are_not_read_beyond_their_end() -> None:
    fields = [
        varints(300),
        varints(0),
        varints(70) + bytes(70),
        varints(70) + bytes(70),
        varints(1, 70) + bytes(70),
    ]
    record = framed(b"\0" + b"".join(fields) + varints(0))
    for data in (*(record[:end] for end in range(len(record) + 1)), *INTEGERS):
        for view in FENCED.at_both_ends(data):
            records_judged_the_same(view, (1, 2))
    for size in range(
        1, len(record)
    ):  # Each field in turn ends with its record, and the record with the page.
        for view in FENCED.at_both_ends(framed(record[2 : 2 + size])):
            records_judged_the_same(view, (1, 2))


@given(st.binary(max_size=1200), st.integers(-2, 1300), st.integers(-2, 1300))
def test_no_batch_is_read_beyond_its_buffer(noise: bytes, start: int, end: int) -> None:
    for view in FENCED.at_both_ends(noise):
        assert _fast.crc32c(view) == crc32c_pure(view)
        assert outcome(_fast.read_header, view, start) == outcome(read_header_pure, view, start)
        assert outcome(_fast.check_batch, view, start, end) == outcome(check_batch_pure, view, start, end)


def test_no_plain_request_is_read_beyond_its_buffer() -> None:
    """Every beginning of a request, with a size that claims as much, ends where a page ends."""

    class Place:
        plain_limits = (2**20, 2**62, 1, True)

    builder = BatchBuilder()
    builder.add(b"key", b"value", timestamp_ms=0)
    batch = bytes(builder.build())
    for version in (3, 8, 9, 12, 13):
        topic = TOPIC_ID.bytes if version >= 13 else b"t"
        content = produce_request(version, batch)
        routes = {topic: [Place() for _ in range(4)]}
        for size in range(len(content) + 1):
            for view in FENCED.at_both_ends(size.to_bytes(4, "big") + content[:size]):
                assert taken_parts(view, routes) == (4 if size == len(content) else 0), (version, size)


def test_no_spoiled_plain_request_is_read_beyond_its_buffer() -> None:
    """Lengths and counts that lie, at the end of a page."""

    class Place:
        plain_limits = (2**20, 2**62, 1, True)

    builder = BatchBuilder()
    builder.add(b"key", b"value", timestamp_ms=0)
    seed = time_ns()
    rng = Random(seed)
    for version in (3, 8, 9, 12, 13):
        content = produce_request(version, bytes(builder.build()))
        routes = {TOPIC_ID.bytes if version >= 13 else b"t": [Place() for _ in range(4)]}
        for number in range(2000):
            spoiled = rng.choice(MUTATIONS)(rng, content, [content])[: Fenced.PAGE - 4]
            for view in FENCED.at_both_ends(len(spoiled).to_bytes(4, "big") + spoiled):
                assert taken_parts(view, routes) <= 4, (seed, version, number)


def taken_parts(view: memoryview, routes: dict[bytes, list[Any]]) -> int:
    """How many batches the lane takes from this buffer; none of them keeps a view of it."""
    kind, count = _fast.PlainProduce, 0
    leads = _fast.take_plain(
        kind, None, view, 0, len(view), 9, routes, routes, lambda _, packed, __: packed, 0, 0
    )
    for lead in leads:
        for part in lead.parts or (lead,):
            part.batch = None
            count += 1
    return count


def produce_request(version: int, batch: bytes) -> bytes:
    named = {"topic_id": TOPIC_ID} if version >= 13 else {"name": "t"}
    packed = bytearray(batch)
    packed[22] = 3  # The test above does not unpack; it hands the records back.
    seal(packed)
    topics = [
        {**named, "partition_data": [{"index": first + n, "records": (batch, packed)[n]} for n in (0, 1)]}
        for first in (0, 2)
    ]
    body = {"acks": 1, "timeout_ms": 1000, "topic_data": topics}
    return request_header(0, version, 7, "client") + encode_request(0, version, body)
