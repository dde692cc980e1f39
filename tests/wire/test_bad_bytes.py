"""Bytes that are not Kafka's, or not whole: refused with a sentence or a close, before any memory is taken."""

import socket
import ssl
import struct

import pytest

from anabranch.wire.api_keys import FLEXIBLE_SINCE, ApiKey
from anabranch.wire.codec import decode_response
from anabranch.wire.header import request_header
from support.raw_client import RawClient
from support.wire_node import MIB, WireNode, bystander

pytestmark = pytest.mark.usefixtures("others_served")

FRAME_BYTES_MAX = 104_857_600
NO_SUCH_KEYS = [-1, 93, 999, 32767, -32768]
NOT_SERVED = [key for key in ApiKey if key in (4, 7, 24, 29, 58, 69, 78)]


@pytest.fixture
def memory_growth_max() -> int:
    return 8 * MIB


@pytest.mark.parametrize("method", ["GET / HTTP/1.1", "POST /topics HTTP/1.0", "PRI * HTTP/2.0"])
def test_http_is_told_with_a_400_that_this_is_a_kafka_port(client: RawClient, method: str) -> None:
    client.send_bytes(f"{method}\r\nHost: localhost\r\n\r\n".encode())
    head, _, text = client.receive_all().partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert b"Kafka" in text
    assert f"Content-Length: {len(text)}".encode() in head


def test_a_tls_hello_is_told_in_a_plain_sentence(client: RawClient) -> None:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    handshake = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        handshake.do_handshake()
    client.send_bytes(outgoing.read())
    said = client.receive_all().decode()
    assert "Kafka" in said
    assert "TLS" in said


def test_a_foreign_greeting_in_single_bytes_is_recognised_too(client: RawClient) -> None:
    for letter in b"GET ":
        client.send_bytes(bytes([letter]))
    assert client.receive_all().startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize("size", [-1, 0, -(2**31), FRAME_BYTES_MAX + 1, 2**31 - 1])
def test_a_size_that_is_none_closes_before_memory_is_taken(client: RawClient, size: int) -> None:
    client.send_bytes(struct.pack(">i", size))
    client.expect_closed()


def test_a_size_at_the_limit_takes_a_megabyte_at_most_before_its_bytes_come(node: WireNode) -> None:
    clients = [RawClient(node.bootstrap) for _ in range(6)]
    for each in clients:
        each.send_bytes(struct.pack(">i", FRAME_BYTES_MAX) + b"x")
    node.check_served()
    for each in clients:
        each.sock.close()


def test_a_bad_size_behind_good_requests_leaves_those_answered(client: RawClient) -> None:
    good = request_header(ApiKey.API_VERSIONS, 0, 7, None)
    client.send_bytes(struct.pack(">i", len(good)) + good + struct.pack(">i", -5))
    answer = client.receive_frame()
    assert struct.unpack(">i", answer[:4]) == (7,)
    client.expect_closed()


@pytest.mark.parametrize("key", NO_SUCH_KEYS)
def test_an_unknown_api_key_closes(client: RawClient, key: int) -> None:
    client.send_frame(struct.pack(">hhih", key, 0, 1, -1))
    client.expect_closed()


@pytest.mark.parametrize("key", NOT_SERVED, ids=lambda key: key.name)
def test_an_api_that_is_not_advertised_closes(client: RawClient, key: ApiKey) -> None:
    client.send_frame(request_header(key, 0, 1, "raw") + b"\0" * 20)
    client.expect_closed()


@pytest.mark.parametrize("version", [5, 99, 32767])
def test_an_unknown_api_versions_version_is_answered_with_error_35_in_a_v0_body(
    client: RawClient, version: int
) -> None:
    client.send_frame(request_header(ApiKey.API_VERSIONS, version, 3, "raw") + b"\x01\x01\0")
    frame = client.receive_frame()
    assert struct.unpack(">i", frame[:4]) == (3,)
    answer = decode_response(ApiKey.API_VERSIONS, 0, frame, 4, len(frame))
    assert answer["error_code"] == 35
    assert answer["api_keys"] == [{"api_key": 18, "min_version": 0, "max_version": 4}]
    software = {"client_software_name": "raw", "client_software_version": "1"}
    asked_again = client.ask(ApiKey.API_VERSIONS, 4, software)
    assert asked_again["error_code"] == 0


@pytest.mark.parametrize("version", [-1, -32768])
def test_a_negative_api_versions_version_is_answered_with_error_35_too(
    client: RawClient, version: int
) -> None:
    client.send_frame(struct.pack(">hhih", ApiKey.API_VERSIONS, version, 4, -1))
    frame = client.receive_frame()
    assert decode_response(ApiKey.API_VERSIONS, 0, frame, 4, len(frame))["error_code"] == 35


@pytest.mark.parametrize("key", [ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.METADATA, ApiKey.JOIN_GROUP])
@pytest.mark.parametrize("version", [-1, 99, 32767])
def test_an_unknown_version_of_any_other_api_closes(client: RawClient, key: ApiKey, version: int) -> None:
    tags = b"\0" if version >= FLEXIBLE_SINCE[key] else b""
    client.send_frame(struct.pack(">hhih", key, version, 1, -1) + tags + b"\0" * 30)
    client.expect_closed()


@pytest.mark.parametrize("version", [0, 1, 2])
def test_the_oldest_produce_versions_are_advertised_but_close(client: RawClient, version: int) -> None:
    client.send_frame(request_header(ApiKey.PRODUCE, version, 1, "raw") + b"\0" * 10)
    client.expect_closed()


@pytest.mark.parametrize("cut", range(1, 10))
def test_a_request_header_cut_short_closes(client: RawClient, cut: int) -> None:
    client.send_frame(request_header(ApiKey.METADATA, 9, 1, "raw")[:cut])
    client.expect_closed()


def test_a_client_id_that_is_not_utf_8_closes(client: RawClient) -> None:
    client.send_frame(struct.pack(">hhih", ApiKey.METADATA, 1, 1, 2) + b"\xff\xfe" + b"\0\0\0\0")
    client.expect_closed()


def test_a_client_that_hangs_up_in_the_middle_of_a_frame_costs_nothing(node: WireNode) -> None:
    before = node.descriptor_count()
    for count in (1, 3, 4, 5, 40):
        with RawClient(node.bootstrap) as client:
            client.send_bytes((struct.pack(">i", 1000) + b"\0" * 36)[:count])
    node.check_served()
    with bystander(node) as other:
        pass
    assert other.seconds
    assert node.descriptor_count() <= before + 1


def test_a_reset_connection_costs_nothing(node: WireNode) -> None:
    for _ in range(20):
        client = RawClient(node.bootstrap)
        client.send(ApiKey.METADATA, 1, {"topics": None})
        client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.sock.close()
