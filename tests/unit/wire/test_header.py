"""Request and response headers, plain and flexible."""

import pytest
from kio.schema.index import schema_name_map

from anabranch.errors import ProtocolError, UnsupportedVersionError
from anabranch.wire import header
from anabranch.wire.api_keys import FLEXIBLE_SINCE, ApiKey
from anabranch.wire.header import (
    RequestHeader,
    parse_request_header,
    parse_response_header,
    request_header,
    response_header,
)


def test_plain_request_header_ends_behind_the_client_id() -> None:
    data = b"\x00\x00\x00\x08\x00\x00\x00\x05\x00\x02me" + b"body"
    assert parse_request_header(data, 0, len(data)) == (RequestHeader(0, 8, 5, "me"), 12)


def test_flexible_request_header_keeps_the_plain_client_id_and_adds_tags() -> None:
    data = b"\x00\x00\x00\x09\x00\x00\x00\x05\x00\x02me\x00" + b"body"
    assert parse_request_header(data, 0, len(data)) == (RequestHeader(0, 9, 5, "me"), 13)


def test_tags_of_a_header_are_skipped() -> None:
    data = b"\x00\x03\x00\x0c\x00\x00\x00\x05\xff\xff\x01\x07\x02hi" + b"body"
    assert parse_request_header(data, 0, len(data)) == (RequestHeader(3, 12, 5, None), 15)


def test_header_is_read_within_its_frame_only() -> None:
    data = b"\x00\x00\x00\x08\x00\x00\x00\x05\x00\x02me"
    with pytest.raises(ProtocolError, match="The request header claims 2 bytes where 1 are left"):
        parse_request_header(data, 0, len(data) - 1)
    with pytest.raises(ProtocolError, match="The request header is cut short"):
        parse_request_header(data, 0, 7)


def test_unknown_api_key_is_unsupported() -> None:
    with pytest.raises(UnsupportedVersionError, match="no API with key 999"):
        parse_request_header(b"\x03\xe7\x00\x00\x00\x00\x00\x05\xff\xff", 0, 10)


def test_unknown_version_of_apiversions_is_still_readable() -> None:
    """franz-go opens with a version newer than ours and waits for error 35."""
    data = request_header(ApiKey.API_VERSIONS, 5, 1, "kgo")
    assert parse_request_header(data, 0, len(data)) == (RequestHeader(18, 5, 1, "kgo"), len(data))


@pytest.mark.parametrize("client_id", [None, "", "kcat"])
@pytest.mark.parametrize("version", [8, 9])
def test_request_header_comes_back_as_it_went(version: int, client_id: str | None) -> None:
    data = request_header(ApiKey.PRODUCE, version, -7, client_id)
    expected = RequestHeader(ApiKey.PRODUCE, version, -7, client_id), len(data)
    assert parse_request_header(data, 0, len(data)) == expected


def test_response_header_is_flexible_with_its_version_but_never_for_apiversions() -> None:
    assert response_header(ApiKey.PRODUCE, 8, 7) == b"\x00\x00\x00\x07"
    assert response_header(ApiKey.PRODUCE, 9, 7) == b"\x00\x00\x00\x07\x00"
    assert response_header(ApiKey.API_VERSIONS, 4, 7) == b"\x00\x00\x00\x07"


@pytest.mark.parametrize(("version", "size"), [(8, 4), (9, 5)])
def test_response_header_comes_back_as_it_went(version: int, size: int) -> None:
    data = response_header(ApiKey.PRODUCE, version, 7)
    assert parse_response_header(data, 0, len(data), ApiKey.PRODUCE, version) == (7, size)
    with pytest.raises(ProtocolError, match="The response header is cut short"):
        parse_response_header(data, 0, len(data) - 1, ApiKey.PRODUCE, version)


def test_every_api_key_says_since_when_it_is_flexible() -> None:
    assert set(FLEXIBLE_SINCE) == set(ApiKey)


def test_flexible_versions_agree_with_kio() -> None:
    from kio.index import load_request_schema

    compared = 0
    for key in ApiKey:
        for version in schema_name_map.get(key.name.lower(), {}):
            assert header.is_flexible(key, version) == load_request_schema(key, version).__flexible__, (
                key,
                version,
            )
            compared += 1
    assert compared > 200
