"""The hand-written Produce and Fetch say exactly what their tables say, of good bytes and of bad ones."""

from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import wire_messages
from anabranch.errors import ProtocolError, TooManyElementsError, UnsupportedVersionError
from anabranch.wire import codec, fetch_fast, produce_fast
from anabranch.wire.api_keys import ApiKey
from anabranch.wire.header import parse_response_header
from anabranch.wire.primitives import ELEMENTS_MAX

some = settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[Phase.generate, Phase.shrink],
)

LETTERS = [0, 1, 2, 127, 128, 255]


@dataclass(frozen=True)
class FakeSlice:
    data: bytes

    @property
    def count(self) -> int:
        return len(self.data)


def requests(api_key: int, version: int) -> st.SearchStrategy[bytes]:
    message = codec._message(api_key, 0)
    either = st.booleans().flatmap(lambda p: wire_messages.bodies(message.fields, version, populated=p))
    return either.map(lambda body: codec.encode_request(api_key, version, body))


@st.composite
def damaged(draw: st.DrawFn, api_key: int, version: int) -> bytes:
    data = bytearray(draw(requests(api_key, version)))
    for _ in range(draw(st.integers(0, 2))):
        data[draw(st.integers(0, len(data) - 1))] = draw(st.sampled_from(LETTERS))
    return bytes(data[: draw(st.integers(0, len(data)))] + draw(st.sampled_from([b"", b"\0", b"\1\7\0"])))


def outcome(parse: Any, *arguments: Any) -> Any:
    try:
        return parse(*arguments)
    except ProtocolError as error:
        return type(error), str(error)


# --- Produce -------------------------------------------------------------------------------------------------


def produce_by_table(data: bytes, end: int, version: int) -> Any:
    body = codec.decode_request(ApiKey.PRODUCE, version, data, 0, end)
    topics = [
        (
            topic["topic_id"] if version >= 13 else topic["name"],
            [(part["index"], part["records"]) for part in topic["partition_data"]],
        )
        for topic in body["topic_data"]
    ]
    return body["transactional_id"], body["acks"], body["timeout_ms"], topics


def produce_by_hand(data: bytes, end: int, version: int) -> Any:
    view = memoryview(data)
    *start, topics = produce_fast.parse_produce_request(view, 0, end, version)
    told = [
        (topic, [(index, None if first < 0 else view[first:last]) for index, first, last in spans])
        for topic, spans in topics
    ]
    return *start, told


@pytest.mark.parametrize("version", produce_fast.VERSIONS)
def test_produce_request_is_read_as_its_table_reads_it(version: int) -> None:
    @some
    @given(requests(ApiKey.PRODUCE, version) | damaged(ApiKey.PRODUCE, version))
    def check(data: bytes) -> None:
        by_table = outcome(produce_by_table, data + b"next", len(data), version)
        assert outcome(produce_by_hand, data + b"next", len(data), version) == by_table

    check()


@pytest.mark.parametrize("length", [b"\x80\x00", b"\x80\x80\x00"])
def test_null_records_in_a_roundabout_varint_are_null(length: bytes) -> None:
    data = b"\x00\x00\x01\x00\x00\x00\x00\x02\x02t\x02\x00\x00\x00\x00" + length + b"\x00\x00\x00"
    topics = produce_fast.parse_produce_request(memoryview(data), 0, len(data), 9)[3]
    assert topics == [("t", [(0, -1, -1)])]


def test_produce_version_without_a_table_is_unsupported() -> None:
    with pytest.raises(UnsupportedVersionError, match="ProduceRequest v2"):
        produce_fast.parse_produce_request(memoryview(b""), 0, 0, 2)


def test_refusing_what_the_table_accepts_would_be_noticed() -> None:
    data = codec.encode_request(ApiKey.PRODUCE, 9, {})
    with pytest.raises(AssertionError, match="its table accepts"):
        produce_fast._refusal(memoryview(data), 0, len(data), 9, ELEMENTS_MAX)


ENDPOINTS = st.lists(
    st.tuples(st.integers(0, 9), wire_messages.TEXTS, st.integers(0, 65535), st.none() | wire_messages.TEXTS),
    max_size=3,
)


@pytest.mark.parametrize("version", produce_fast.VERSIONS)
def test_produce_response_is_what_its_table_writes(version: int) -> None:
    int64 = st.integers(-(2**63), 2**63 - 1)
    plain = (st.integers(0, 9), st.integers(-1, 90), int64, int64, int64, st.none() | wire_messages.TEXTS)
    leader = st.tuples(st.integers(0, 9), st.integers(-1, 9))
    partition = st.tuples(*plain) | st.tuples(*plain, leader)
    topic = st.uuids() if version >= 13 else wire_messages.TEXTS

    @some
    @given(
        st.lists(st.tuples(topic, st.lists(partition, max_size=3)), max_size=3), st.integers(0, 9), ENDPOINTS
    )
    def check(topics: list[Any], throttle_ms: int, endpoints: list[Any]) -> None:
        frame = produce_fast.encode_produce_response(version, 77, topics, throttle_ms, endpoints)
        names = (
            "index",
            "error_code",
            "base_offset",
            "log_append_time_ms",
            "log_start_offset",
            "error_message",
        )
        body = {
            "throttle_time_ms": throttle_ms,
            "responses": [
                {
                    "topic_id" if version >= 13 else "name": topic,
                    "partition_responses": [produce_row(names, each, version) for each in partitions],
                }
                for topic, partitions in topics
            ],
        }
        if version >= 10:
            body["node_endpoints"] = endpoint_rows(endpoints)
        assert_frame(frame, ApiKey.PRODUCE, version, codec.encode_response(ApiKey.PRODUCE, version, body))

    check()


def produce_row(names: tuple[str, ...], values: tuple[Any, ...], version: int) -> dict[str, Any]:
    row = dict(zip(names, values[:6], strict=True))
    if len(values) > 6 and version >= 10:
        row["current_leader"] = {"leader_id": values[6][0], "leader_epoch": values[6][1]}
    return row


def assert_frame(frame: bytes, api_key: int, version: int, body: bytes) -> None:
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    correlation_id, position = parse_response_header(frame, 4, len(frame), api_key, version)
    assert correlation_id == 77
    assert frame[position:] == body


@pytest.mark.parametrize("version", [8, 9])
def test_produce_has_at_most_elements_max(version: int) -> None:
    half = [{"index": 0, "records": None}] * (ELEMENTS_MAX // 2)
    body = {"topic_data": [{"name": "t", "partition_data": half}, {"name": "t", "partition_data": half}]}
    data = codec.encode_request(ApiKey.PRODUCE, version, body)
    with pytest.raises(ProtocolError, match=r"topic_data.partition_data takes the message beyond its limit"):
        produce_fast.parse_produce_request(memoryview(data), 0, len(data), version)


@pytest.mark.parametrize("version", [11, 12])
def test_fetch_has_at_most_elements_max(version: int) -> None:
    forgotten = [{"topic": "t", "partitions": [0] * (ELEMENTS_MAX // 2)}] * 2
    data = codec.encode_request(ApiKey.FETCH, version, {"forgotten_topics_data": forgotten})
    with pytest.raises(
        ProtocolError, match=r"forgotten_topics_data.partitions takes the message beyond its limit"
    ):
        fetch_fast.parse_fetch_request(memoryview(data), 0, len(data), version)


@pytest.mark.parametrize("version", [11, 12, 13, 17])
def test_fetch_counts_topics_and_partitions(version: int) -> None:
    """Also on the way without the table."""
    topics = [{"topic": "t", "partitions": [{"partition": number} for number in range(9)]}]
    data = memoryview(codec.encode_request(ApiKey.FETCH, version, {"topics": topics}))
    assert len(fetch_fast.parse_fetch_request(data, 0, len(data), version, 10).topics[0][1]) == 9
    with pytest.raises(TooManyElementsError):
        fetch_fast.parse_fetch_request(data, 0, len(data), version, 9)


def test_produce_counts_tagged_fields() -> None:
    plain = codec.encode_request(
        ApiKey.PRODUCE, 9, {"topic_data": [{"name": "t", "partition_data": [{"index": 0, "records": None}]}]}
    )
    assert plain.endswith(b"\0\0\0"), "the partition, the topic and the request have no tagged fields"
    tags = b"\x03" + b"\x7f\0" * 3
    for place in (-3, -2, -1):
        data = memoryview(plain[:place] + tags + (plain[place + 1 :] if place != -1 else b""))
        produce_fast.parse_produce_request(data, 0, len(data), 9, 5)
        with pytest.raises(TooManyElementsError):
            produce_fast.parse_produce_request(data, 0, len(data), 9, 4)


# --- Fetch ---------------------------------------------------------------------------------------------------


def fetch_by_table(data: bytes, end: int, version: int) -> Any:
    body = codec.decode_request(ApiKey.FETCH, version, data, 0, end)
    return fetch_fast._from_table(body, version)


@pytest.mark.parametrize("version", fetch_fast.VERSIONS)
def test_fetch_request_is_read_as_its_table_reads_it(version: int) -> None:
    @some
    @given(requests(ApiKey.FETCH, version) | damaged(ApiKey.FETCH, version) | untagged(version))
    def check(data: bytes) -> None:
        by_table = outcome(fetch_by_table, data + b"next", len(data), version)
        view = memoryview(data + b"next")
        assert outcome(fetch_fast.parse_fetch_request, view, 0, len(data), version) == by_table

    check()


def untagged(version: int) -> st.SearchStrategy[bytes]:
    """What consumers send: no tagged fields at all, so that nothing is left to the table."""
    tagged = ("cluster_id", "replica_state", "replica_directory_id", "high_watermark")

    def without(body: dict[str, Any]) -> bytes:
        for topic in body["topics"]:
            for partition in topic["partitions"]:
                for name in tagged:
                    partition.pop(name, None)
        kept = {name: value for name, value in body.items() if name not in tagged}
        return codec.encode_request(ApiKey.FETCH, version, kept)

    fields = codec._message(ApiKey.FETCH, 0).fields
    return wire_messages.bodies(fields, version, populated=True).map(without)


def test_fetch_of_a_consumer_is_read_field_by_field() -> None:
    topic_id = UUID(int=5)
    body = {
        "max_wait_ms": 500,
        "min_bytes": 1,
        "max_bytes": 1000,
        "isolation_level": 1,
        "session_id": 3,
        "session_epoch": 4,
        "topics": [{"topic_id": topic_id, "partitions": [{"partition": 2, "fetch_offset": 9}]}],
        "forgotten_topics_data": [{"topic_id": topic_id, "partitions": [7]}],
        "rack_id": "r",
    }
    data = codec.encode_request(ApiKey.FETCH, 17, body)
    request = fetch_fast.parse_fetch_request(memoryview(data), 0, len(data), 17)
    assert request == fetch_fast.FetchRequest(
        -1, 500, 1, 1000, 1, 3, 4, [(topic_id, [(2, -1, 9, -1, -1, 0)])], [(topic_id, [7])], "r"
    )


def test_fetch_of_a_replica_is_left_to_the_table() -> None:
    data = codec.encode_request(ApiKey.FETCH, 17, {"replica_state": {"replica_id": 3}})
    assert fetch_fast.parse_fetch_request(memoryview(data), 0, len(data), 17).replica_id == 3


def test_fetch_version_without_a_table_is_unsupported() -> None:
    with pytest.raises(UnsupportedVersionError, match="FetchRequest v3"):
        fetch_fast.parse_fetch_request(memoryview(b""), 0, 0, 3)


@st.composite
def fetch_answers(draw: st.DrawFn, version: int) -> list[Any]:
    int64 = st.integers(-(2**63), 2**63 - 1)
    small = st.binary(max_size=50)
    records = st.one_of(
        st.none(),
        small,
        small.map(bytearray),
        small.map(memoryview),
        small.map(FakeSlice),
        st.just(b"L" * (fetch_fast.JOINED_BYTES_MAX + 1)),
    )
    aborted = st.none() | st.lists(st.tuples(int64, int64), max_size=2)
    plain = (
        st.integers(0, 9),
        st.integers(-1, 90),
        int64,
        int64,
        int64,
        aborted,
        st.integers(-1, 9),
        records,
    )
    diverging = st.tuples(st.integers(0, 9), st.integers(0, 9))
    leader = st.none() | st.tuples(st.integers(0, 9), st.integers(-1, 9))
    partition = st.tuples(*plain) | st.tuples(*plain, st.none() | diverging, leader)
    topic = st.uuids() if version >= 13 else wire_messages.TEXTS
    return draw(st.lists(st.tuples(topic, st.lists(partition, max_size=3)), max_size=3))


def contents(records: Any) -> bytes | None:
    if isinstance(records, FakeSlice):
        return records.data
    return None if records is None else bytes(records)


def fetch_partition(values: tuple[Any, ...]) -> dict[str, Any]:
    index, error_code, high, stable, start, aborted, preferred, records, *tagged = values
    partition = {
        "partition_index": index,
        "error_code": error_code,
        "high_watermark": high,
        "last_stable_offset": stable,
        "log_start_offset": start,
        "aborted_transactions": aborted
        and [{"producer_id": producer, "first_offset": first} for producer, first in aborted],
        "preferred_read_replica": preferred,
        "records": contents(records),
    }
    diverging, leader = tagged or (None, None)
    if diverging is not None:
        partition["diverging_epoch"] = {"epoch": diverging[0], "end_offset": diverging[1]}
    if leader is not None:
        partition["current_leader"] = {"leader_id": leader[0], "leader_epoch": leader[1]}
    return partition


def endpoint_rows(endpoints: list[Any]) -> list[dict[str, Any]]:
    return [dict(zip(("node_id", "host", "port", "rack"), each, strict=True)) for each in endpoints]


@pytest.mark.parametrize("version", fetch_fast.VERSIONS)
def test_fetch_response_is_what_its_table_writes(version: int) -> None:
    @some
    @given(fetch_answers(version), ENDPOINTS)
    def check(topics: list[Any], endpoints: list[Any]) -> None:
        pieces = fetch_fast.encode_fetch_response(version, 77, 3, 6, 5, topics, endpoints)
        name = "topic_id" if version >= 13 else "topic"
        responses = [
            {name: topic, "partitions": [fetch_partition(each) for each in partitions]}
            for topic, partitions in topics
        ]
        body = {"throttle_time_ms": 3, "error_code": 6, "session_id": 5, "responses": responses}
        if version >= 16:
            body["node_endpoints"] = endpoint_rows(endpoints)
        frame = b"".join(contents(piece) or b"" for piece in pieces)
        assert_frame(frame, ApiKey.FETCH, version, codec.encode_response(ApiKey.FETCH, version, body))
        assert all(len(piece) for piece in pieces if not isinstance(piece, FakeSlice))

    check()


def test_small_records_are_joined_and_large_or_filed_ones_are_not() -> None:
    large, filed = b"L" * (fetch_fast.JOINED_BYTES_MAX + 1), FakeSlice(b"filed")
    answers = [
        (index, 0, 1, 1, 0, None, -1, records) for index, records in enumerate([b"s", large, filed, b"s"])
    ]
    pieces = fetch_fast.encode_fetch_response(12, 77, 0, 0, 0, [("t", answers)])
    assert [piece is large or piece is filed for piece in pieces] == [False, True, False, True, False]


def test_last_piece_may_be_a_slice_in_a_plain_version() -> None:
    filed = FakeSlice(b"filed")
    pieces = fetch_fast.encode_fetch_response(11, 77, 0, 0, 0, [("t", [(0, 0, 1, 1, 0, None, -1, filed)])])
    assert pieces[-1] is filed
    assert len(pieces) == 2
