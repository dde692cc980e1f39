"""Golden bytes, malformed input, and what the codec promises about keys, defaults and errors."""

import subprocess
import sys
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import wire_messages
from anabranch.errors import ProtocolError, TooManyElementsError, UnsupportedVersionError
from anabranch.wire import codec
from anabranch.wire.api_keys import ApiKey
from anabranch.wire.codec import (
    decode_message,
    decode_request,
    decode_response,
    encode_message,
    encode_request,
)
from anabranch.wire.primitives import ELEMENTS_MAX
from anabranch.wire.table import Field as F
from anabranch.wire.table import Message

EVERYTHING = Message(
    "Everything",
    versions="0-2",
    flexible="1+",
    fields=(
        F("flag", "bool", "0+"),
        F("tiny", "int8", "0+"),
        F("port", "uint16", "0+"),
        F("share", "float64", "0+"),
        F("ids", "[]uuid", "0+"),
        F("names", "[]string", "0+", nullable="0+"),
        F("blobs", "[]bytes", "0+"),
        F("whole", "struct", "0+", fields=(F("x", "int32", "0+"), F("id", "uuid", "0+"))),
        F("part", "struct", "0+", nullable="0+", default=None, fields=(F("y", "string", "0+"),)),
        F("batch", "records", "0+"),
        F("later", "struct", "2+", fields=(F("id", "uuid", "2+"), F("list", "[]int32", "2+"))),
        F("tagged_names", "[]string", "1+", nullable="1+", tag=3, default=None),
        F("tagged_struct", "struct", "1+", tag=1, fields=(F("id", "uuid", "1+"), F("of", "[]int8", "1+"))),
        F("tagged_text", "string", "1+", tag=0),
    ),
)
"""Every type there is, also those no table uses yet."""


def decode(message: Message, version: int, data: bytes) -> dict[str, Any]:
    body, end = decode_message(message, version, memoryview(data), 0)
    assert end == len(data)
    return body


# --- golden bytes ------------------------------------------------------------------------------------------


def test_plain_version_has_fixed_lengths_and_no_tags() -> None:
    body = {"group_id": "g", "generation_id": 7, "member_id": "m"}
    assert encode_request(ApiKey.HEARTBEAT, 0, body) == b"\x00\x01g\x00\x00\x00\x07\x00\x01m"


def test_flexible_version_has_compact_lengths_and_a_tag_section() -> None:
    body = {"group_id": "g", "generation_id": 7, "member_id": "m", "group_instance_id": None}
    assert encode_request(ApiKey.HEARTBEAT, 4, body) == b"\x02g\x00\x00\x00\x07\x02m\x00\x00"


def test_tagged_field_is_written_only_when_it_differs_from_its_default() -> None:
    plain = codec.encode_response(ApiKey.API_VERSIONS, 3, {"error_code": 35})
    told = codec.encode_response(ApiKey.API_VERSIONS, 3, {"error_code": 35, "finalized_features_epoch": 9})
    assert plain == b"\x00\x23\x01\x00\x00\x00\x00\x00"
    assert told == b"\x00\x23\x01\x00\x00\x00\x00\x01\x01\x08\x00\x00\x00\x00\x00\x00\x00\x09"


def test_error_35_for_an_unknown_apiversions_version_fits_a_version_0_body() -> None:
    keys = [{"api_key": 18, "min_version": 0, "max_version": 4}]
    body = codec.encode_response(ApiKey.API_VERSIONS, 0, {"error_code": 35, "api_keys": keys})
    assert body == b"\x00\x23\x00\x00\x00\x01\x00\x12\x00\x00\x00\x04"


def test_nullable_struct_is_minus_one_or_one_and_its_fields() -> None:
    cursor = {"topic_name": "t", "partition_index": 2}
    api = ApiKey.DESCRIBE_TOPIC_PARTITIONS
    assert encode_request(api, 0, {"cursor": None}) == b"\x01\x00\x00\x07\xd0\xff\x00"
    told = encode_request(api, 0, {"cursor": cursor})
    assert told == b"\x01\x00\x00\x07\xd0\x01\x02t\x00\x00\x00\x02\x00\x00"
    assert decode_request(api, 0, told, 0, len(told))["cursor"] == cursor


def test_records_stay_in_the_callers_buffer() -> None:
    body = {"topic_data": [{"name": "t", "partition_data": [{"index": 0, "records": b"abc"}]}]}
    data = bytearray(encode_request(ApiKey.PRODUCE, 9, body))
    request = decode_request(ApiKey.PRODUCE, 9, data, 0, len(data))
    records = request["topic_data"][0]["partition_data"][0]["records"]
    data[data.index(b"abc")] = ord("X")
    assert bytes(records) == b"Xbc"


# --- round trips -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [0, 1, 2])
def test_every_type_comes_back_as_it_went(version: int) -> None:
    @settings(max_examples=40, deadline=None)
    @given(st.booleans().flatmap(lambda p: wire_messages.bodies(EVERYTHING.fields, version, populated=p)))
    def check(body: dict[str, Any]) -> None:
        decoded = decode(EVERYTHING, version, bytes(encode_message(EVERYTHING, version, body)))
        assert decoded == wire_messages.complete(EVERYTHING.fields, version, body)

    check()


def test_fields_a_version_lacks_are_decoded_as_their_defaults() -> None:
    body = decode(EVERYTHING, 0, bytes(encode_message(EVERYTHING, 0, {})))
    assert body["later"] == {"id": UUID(int=0), "list": []}
    assert body["tagged_names"] is None
    assert body["part"] is None


def test_keys_of_other_versions_are_left_out() -> None:
    assert encode_message(EVERYTHING, 0, {"tagged_text": "x"}) == encode_message(EVERYTHING, 0, {})


def test_unknown_tag_is_skipped() -> None:
    data = encode_request(ApiKey.HEARTBEAT, 4, {"group_id": "g"})
    newer = data[:-1] + b"\x01\x63\x02hi"
    assert decode_request(ApiKey.HEARTBEAT, 4, newer, 0, len(newer))["group_id"] == "g"
    assert codec.decode_response(ApiKey.API_VERSIONS, 3, b"\0\0\1\0\0\0\0\1\x63\2hi", 0, 12)["api_keys"] == []


# --- what others send wrong ----------------------------------------------------------------------------------


def test_bytes_behind_a_request_are_ignored_as_librdkafka_needs() -> None:
    data = b"\x00\x01g\x00\x00\x00\x07\x00\x01m!!!"
    assert decode_request(ApiKey.HEARTBEAT, 0, data, 0, len(data))["member_id"] == "m"


def test_bytes_behind_a_response_are_refused() -> None:
    with pytest.raises(ProtocolError, match="1 bytes are left over"):
        decode_response(ApiKey.HEARTBEAT, 0, b"\x00\x00!", 0, 3)


@pytest.mark.parametrize(
    ("version", "data", "complaint"),
    [
        (0, b"", "group_id is cut short"),
        (0, b"\xff\xff", "group_id is null or has a negative length"),
        (0, b"\xff\xfe", "group_id has length -2"),
        (0, b"\x00\x05abc", "group_id claims 5 bytes where 3 are left"),
        (0, b"\x00\x01\xff\x00\x00\x00\x07\x00\x01m", "group_id is not UTF-8"),
        (4, b"\x00", "group_id is null"),
        (4, b"\xff\xff\xff\xff\xff\xff", "group_id is a varint that does not end"),
        (4, b"\xff\xff\x7f", "group_id is a string of 2097150 bytes, more than 32767"),
        (4, b"\x02g\x00\x00\x00\x07\x02m\x00\x01\x00\x7f", r"\(tags\) claims 127 bytes where 0 are left"),
        (4, b"\x02g\x00\x00\x00\x07\x02m\x00", r"\(tags\) is cut short"),
    ],
)
def test_malformed_heartbeat_is_refused_by_name(version: int, data: bytes, complaint: str) -> None:
    with pytest.raises(ProtocolError, match=rf"^HeartbeatRequest v{version}: .*{complaint}"):
        decode_request(ApiKey.HEARTBEAT, version, data, 0, len(data))


@pytest.mark.parametrize(
    ("version", "data", "complaint"),
    [
        (1, b"\x7f\xff\xff\xff", "topics claims 2147483647 elements where 0 bytes are left"),
        (1, b"\xff\xff\xff\xfe", "topics has -2 elements"),
        (0, b"\xff\xff\xff\xff", "topics is null"),
        (9, b"\xff\xff\xff\xff\x07\x00", "topics claims 2147483646 elements where 1 bytes are left"),
    ],
)
def test_metadata_array_that_cannot_be_is_refused_before_anything_is_allocated(
    version: int, data: bytes, complaint: str
) -> None:
    with pytest.raises(ProtocolError, match=complaint):
        decode_request(ApiKey.METADATA, version, data, 0, len(data))


@pytest.mark.parametrize(
    ("version", "data"),
    [(0, b"\x00\x00\xff\xff\xff\xff"), (4, b"\x00\x00\x00\x00\x00\x00\x00\x00")],
    ids=["plain", "compact"],
)
def test_null_where_bytes_must_be_is_refused(version: int, data: bytes) -> None:
    with pytest.raises(ProtocolError, match=f"SyncGroupResponse v{version}: field assignment is null"):
        codec.decode_response(ApiKey.SYNC_GROUP, version, data, 0, len(data))


@pytest.mark.parametrize("count", [ELEMENTS_MAX, ELEMENTS_MAX + 1])
def test_one_array_has_at_most_elements_max(count: int) -> None:
    data = count.to_bytes(4, "big") + b"\0\0" * count
    if count <= ELEMENTS_MAX:
        assert len(decode_request(ApiKey.METADATA, 1, data, 0, len(data))["topics"]) == count
    else:
        with pytest.raises(ProtocolError, match=r"topics takes the message beyond its limit"):
            decode_request(ApiKey.METADATA, 1, data, 0, len(data))


def test_nested_arrays_share_one_limit() -> None:
    half = [0] * (ELEMENTS_MAX // 2)
    topics = [{"name": "t", "partition_indexes": half}, {"name": "t", "partition_indexes": half}]
    data = encode_request(ApiKey.OFFSET_FETCH, 1, {"topics": topics})
    with pytest.raises(ProtocolError, match=r"topics.partition_indexes takes the message beyond its limit"):
        decode_request(ApiKey.OFFSET_FETCH, 1, data, 0, len(data))


def test_limit_of_elements_is_the_readers() -> None:
    data = encode_request(ApiKey.METADATA, 1, {"topics": [{"name": "t"}] * 11})
    assert len(decode_request(ApiKey.METADATA, 1, data, 0, len(data), elements_max=11)["topics"]) == 11
    with pytest.raises(TooManyElementsError):
        decode_request(ApiKey.METADATA, 1, data, 0, len(data), elements_max=10)


@pytest.mark.parametrize(
    ("api_key", "version"), [(ApiKey.METADATA, 12), (ApiKey.FETCH, 12), (ApiKey.PRODUCE, 9)], ids=str
)
def test_tagged_fields_count_as_elements(api_key: ApiKey, version: int) -> None:
    """Of a message without any tag that we know, and of one with some (Fetch)."""
    data = encode_request(api_key, version, {})
    assert data.endswith(b"\0"), "no tagged fields"
    tagged = data[:-1] + b"\x0b" + b"\x7f\0" * 11
    decode_request(api_key, version, tagged, 0, len(tagged), elements_max=11)
    with pytest.raises(TooManyElementsError, match=r"\(tags\) takes the message beyond its limit"):
        decode_request(api_key, version, tagged, 0, len(tagged), elements_max=10)


def test_struct_that_is_neither_null_nor_there_is_refused() -> None:
    data = b"\x01\x00\x00\x07\xd0\x02\x00"
    with pytest.raises(ProtocolError, match="cursor is neither null nor there: 2"):
        decode_request(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, data, 0, len(data))


def test_tag_with_more_bytes_than_its_value_is_refused() -> None:
    data = b"\x00\x00\x01\x00\x00\x00\x00\x01\x01\x09" + bytes(9)
    with pytest.raises(ProtocolError, match="finalized_features_epoch does not fill its tag"):
        codec.decode_response(ApiKey.API_VERSIONS, 3, data, 0, len(data))


def test_bytes_of_the_next_frame_are_never_read() -> None:
    data = encode_request(ApiKey.HEARTBEAT, 0, {"group_id": "g", "member_id": "m"})
    with pytest.raises(ProtocolError, match="member_id"):
        decode_request(ApiKey.HEARTBEAT, 0, data + data, 0, len(data) - 1)


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_any_bytes_decode_or_raise_a_protocol_error(data: st.DataObject) -> None:
    _, _, message = data.draw(st.sampled_from(list(wire_messages.messages())))
    version = data.draw(st.sampled_from(wire_messages.versions(message)))
    body = data.draw(wire_messages.bodies(message.fields, version, populated=True))
    good = bytearray(encode_message(message, version, body))
    for _ in range(data.draw(st.integers(1, 3))):
        if good:
            good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.sampled_from([0, 1, 127, 128, 255]))
    bad = bytes(good[: data.draw(st.integers(0, len(good)))])
    complaint = complaint_about(message, version, bad)
    assert complaint is None or complaint.startswith(f"{message.name} v{version}: field ")


def complaint_about(message: Message, version: int, data: bytes) -> str | None:
    try:
        decode_message(message, version, memoryview(data), 0)
    except ProtocolError as error:
        return str(error)
    return None


# --- what is not served, and slips of our own ----------------------------------------------------------------


@pytest.mark.parametrize("api_key", [-1, 9999, ApiKey.VOTE])
def test_api_without_a_table_is_unsupported(api_key: int) -> None:
    with pytest.raises(UnsupportedVersionError, match=f"API key {int(api_key)}"):
        decode_request(api_key, 0, b"", 0, 0)


def test_version_outside_the_table_is_unsupported() -> None:
    with pytest.raises(UnsupportedVersionError, match="ApiVersionsRequest v5 is not served; 0-4 are"):
        decode_request(ApiKey.API_VERSIONS, 5, b"", 0, 0)
    with pytest.raises(UnsupportedVersionError, match="ProduceResponse v2"):
        codec.encode_response(ApiKey.PRODUCE, 2, {})


def test_versions_of_an_api_are_those_of_its_table() -> None:
    assert codec.versions_of(ApiKey.PRODUCE) == range(3, 14)


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ({"eror_code": 1}, "eror_code"),
        ({"error_code": 2**15}, "error_code"),
        ({"error_code": None}, "error_code"),
        ({"members": [{"member_id": None}]}, "members.member_id"),
        ({"members": [{"member_id": "x" * 32768}]}, "members.member_id"),
        ({"members": [{"member_id": "\ud800"}]}, "members.member_id"),
    ],
)
@pytest.mark.parametrize("version", [3, 4])
def test_message_of_ours_that_does_not_fit_is_a_defect_with_a_name(
    version: int, body: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ValueError, match=f"LeaveGroupResponse v{version}: .*{complaint}"):
        codec.encode_response(ApiKey.LEAVE_GROUP, version, body)


def test_table_that_cannot_be_imported_is_not_mistaken_for_a_missing_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(name: str) -> None:
        raise ModuleNotFoundError(name="something_else")

    monkeypatch.setattr(codec, "import_module", broken)
    with pytest.raises(ModuleNotFoundError):
        codec._tables.__wrapped__(int(ApiKey.PRODUCE))


def test_importing_the_room_loads_no_table_and_builds_no_code() -> None:
    program = (
        "import sys; from anabranch.wire import codec, consumer_protocol, fetch_fast, frame, header, produce_fast;"
        "print([n for n in sys.modules if '.wire.schemas' in n or n.endswith(('.decoder', '.encoder'))"
        " and n.startswith('anabranch')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
