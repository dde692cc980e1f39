"""Bad input on every door of the gateway: it gets a sentence, costs nobody else anything, and writes nothing."""

import base64
import contextlib
import gzip
import http.client
import json
import os
import re
import socket
import struct
from collections.abc import Iterator
from typing import Any

import pytest

from anabranch.gateway import gateway as gateway_module
from anabranch.gateway.http import doorkeeper, protocol
from anabranch.testing import EmbeddedBroker
from support.gateway_client import Answer, all_of, ask, gateway_broker, raw
from support.http_client import ask_at
from support.raw_socket import BINARY, CONTINUATION, PING, TEXT, HandshakeRefused, RawSocket, frame
from support.secret_files import write_secret
from support.waiting import wait_until

TOKEN = "a-token-of-letters-and-digits"
REQUEST_BYTES_MAX = 64 * 1024
NDJSON = {"Content-Type": "application/x-ndjson"}
BYTES = {"Content-Type": "application/octet-stream"}


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with gateway_broker(gateway_request_bytes_max=REQUEST_BYTES_MAX) as broker:
        broker.create_topic("known", 2)
        broker.produce("known", [b"first"])
        yield broker


@pytest.fixture(autouse=True)
def nothing_was_written_and_all_goes_on(broker: EmbeddedBroker) -> Iterator[None]:
    before = broker.records("known")
    yield
    assert broker.records("known") == before
    assert ask(broker, "GET", "/healthz").json["status"] == "ok"


def refused(answer: Answer, status: int) -> str:
    """What a refusal says; it must be one of ours, and more than a word."""
    assert answer.status == status, answer
    assert answer.headers["content-type"] == "application/json"
    message = str(answer.json["error"]["message"])
    assert len(message.split()) >= 4, message
    assert answer.json["error"]["code"].isupper()
    return message


# --- writing by HTTP -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "JSON"),
        (b"{", "line 1, character 2"),
        (b'{"value": 1,}', "JSON"),
        (b"nonsense", "JSON"),
        (b'{"value": NaN}', "NaN"),
        (b'{"value": 1e999}', ""),
        (b'{"value": "\xff"}', "byte 11"),
        (b'{"value": "\\ud800"}', "surrogate"),
        (b'{"key": "\\udfff", "value": 1}', "surrogate"),
        (b"\xef\xbb\xbf{}", "JSON"),
        (b"[" * 60_000, "nested"),
        (b'{"value":' + b"[" * 30_000 + b"]" * 30_000 + b"}", "nested"),
        (b"7", "record"),
        (b'"text"', "record"),
        (b"null", "record"),
        (b"[7]", "records[0]"),
        (b'[{"value": 1}, {"valeu": 1}]', "records[1].valeu"),
        (b'{"records": 7}', "records"),
        (b'{"records": [], "topic": "x"}', "topic"),
        (b'{"value": 1, "partition": "0"}', "partition"),
        (b'{"value": 1, "partition": -1}', "partition"),
        (b'{"value": 1, "partition": 1e1}', "partition"),
        (b'{"value": 1, "partition": true}', "partition"),
        (b'{"value": 1, "timestamp": "now"}', "timestamp"),
        (b'{"value": 1, "timestamp": 99999999999999999999}', "timestamp"),
        (b'{"value_base64": "*"}', "base64"),
        (b'{"value_base64": 7}', "base64"),
        (b'{"value": 1, "value_base64": "AAAA"}', "twice"),
        (b'{"value": 1, "headers": 7}', "headers"),
        (b'{"value": 1, "headers": [["a"]]}', "headers[0]"),
        (b'{"value": 1, "headers": [["a", "b", "c"]]}', "headers[0]"),
        (b'{"value": 1, "headers": {"a": {"b": 1}}}', "headers[0]"),
        (b'{"value": 1, "headers": {"\\ud800": "x"}}', "surrogate"),
        (json.dumps({"value": 1, "headers": [["a", "b"]] * 2000}).encode(), "headers"),
        (b'{"value": ' + b"9" * 50_000 + b"}", ""),
    ],
)
def test_malformed_json_is_refused_with_the_place(broker: EmbeddedBroker, body: bytes, says: str) -> None:
    answer = ask(broker, "POST", "/v1/topics/known/records", body, {"Content-Type": "application/json"})
    assert says in refused(answer, 400)


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("/v1/topics/known/records?partition=2", 404),
        ("/v1/topics/known/records?partition=-1", 400),
        ("/v1/topics/known/records?partition=one", 400),
        ("/v1/topics/known/records?partition=%00", 400),
        ("/v1/topics/known/records?partition=99999999999999999999999", 400),
        ("/v1/topics/known/records?partitoin=0", 400),
        ("/v1/topics/no%20name/records", 400),
        ("/v1/topics/%2e%2e/records", 400),
        ("/v1/topics/" + "x" * 250 + "/records", 400),
        ("/v1/topics/%F0%9F%8E%89/records", 400),
        ("/v1/topics/%00/records", 400),
        ("/v1/topics/%FF/records", 400),
        ("/v1/topics/__consumer_offsets/records", 400),
        ("/v1/topics//records", 404),
        ("/v1/topics/a%2Fb/records", 404),
        ("/v1/topics/../records", 400),
        ("//v1/topics/known/records", 404),
        ("/v1/topics/known/records/", 404),
        ("/v1/./topics/known/records", 404),
        ("/V1/topics/known/records", 404),
    ],
)
def test_unknown_places_and_path_tricks_are_refused(broker: EmbeddedBroker, target: str, status: int) -> None:
    refused(ask(broker, "POST", target, {"value": 1}), status)


def test_unknown_topic_is_refused_where_topics_are_not_made_by_use() -> None:
    with gateway_broker(auto_create_topics_enable=False) as broker:
        message = refused(ask(broker, "POST", "/v1/topics/nothing/records", {"value": 1}), 404)
        assert "nothing" in message
        with RawSocket(broker.http_address or "") as link:
            link.say({"type": "publish", "id": 1, "topic": "nothing", "value": 1})
            assert link.hear_of("error")["code"] == "UNKNOWN_TOPIC_OR_PARTITION"
            link.say({"type": "subscribe", "id": 2, "topic": "nothing"})
            assert link.hear_of("error")["code"] == "UNKNOWN_TOPIC_OR_PARTITION"
        for target in ("/v1/topics/nothing", "/v1/topics/nothing/partitions/0/records"):
            refused(ask(broker, "GET", target), 404)
        assert broker.topics() == []


@pytest.mark.parametrize("kind", ["application/json", "application/x-ndjson", "application/octet-stream"])
def test_oversize_body_is_refused(broker: EmbeddedBroker, kind: str) -> None:
    body = json.dumps({"value": "x" * REQUEST_BYTES_MAX}).encode()
    answer = ask(broker, "POST", "/v1/topics/known/records", body, {"Content-Type": kind})
    if kind == "application/x-ndjson" and answer.status == 200:
        assert [line["error"]["code"] for line in answer.lines] == ["REQUEST_TOO_LARGE"]
    else:
        refused(answer, 413)


def test_body_without_end_is_cut_off(broker: EmbeddedBroker) -> None:
    with raw(broker) as link:
        link.sendall(
            b"POST /v1/topics/known/records HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            b"transfer-encoding: chunked\r\n\r\n"
        )
        chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
        sent = 0
        try:
            while sent < 1000:
                link.sendall(chunk)
                sent += 1
        except OSError:
            pass
        assert sent < 1000, "64 MB were taken of a body that may have 64 KB"
        link.close()


@pytest.mark.parametrize(
    "kind", ["", "text/html", "application/xml", "multipart/form-data; boundary=x", "\xff"]
)
def test_other_kinds_of_bodies_are_refused(broker: EmbeddedBroker, kind: str) -> None:
    answer = ask(broker, "POST", "/v1/topics/known/records", b"x", {"Content-Type": kind})
    assert "application/json" in refused(answer, 415)


@pytest.mark.parametrize("kind", ["application/json", "application/x-ndjson", "application/octet-stream"])
@pytest.mark.parametrize("coding", ["Content-Encoding: gzip", "Transfer-Encoding: gzip, chunked"])
def test_packed_bodies_are_refused_and_not_kept_as_they_are(
    broker: EmbeddedBroker, kind: str, coding: str
) -> None:
    name, _, value = coding.partition(": ")
    headers = {"Content-Type": kind, name: value}
    body = iter([gzip.compress(b"{}")]) if name.startswith("T") else gzip.compress(b"{}")
    assert broker.http_address is not None
    link = http.client.HTTPConnection(broker.http_address, timeout=20)
    link.request("POST", "/v1/topics/known/records", body, headers, encode_chunked=name.startswith("T"))
    assert link.getresponse().status == 415
    link.close()


@pytest.mark.parametrize(
    "body", [rb'{"\ud800": 1}', rb'{"records": [], "\ud800": 1}', b'{"%s": 1}' % (b"x" * 60_000)]
)
def test_names_that_cannot_be_written_or_read_are_told_in_short(broker: EmbeddedBroker, body: bytes) -> None:
    answer = ask(broker, "POST", "/v1/topics/known/records", body, {"Content-Type": "application/json"})
    assert answer.status == 400
    assert len(answer.body) < 500
    lines = {"Content-Type": "application/x-ndjson"}
    streamed = ask(broker, "POST", "/v1/topics/known/records", body + b'\n{"partition": 9}\n', lines)
    assert ["error" in line for line in streamed.lines] == [True, True]


def test_lines_that_are_wrong_are_told_one_by_one(broker: EmbeddedBroker) -> None:
    lines = [b"{", b"7", b'{"value": "\xff"}', b'{"partition": 9}', b'{"valeu": 1}', b"\x00"]
    answer = ask(broker, "POST", "/v1/topics/known/records", b"\n".join(lines), NDJSON)
    assert answer.status == 200
    assert len(answer.lines) == len(lines)
    assert all(set(line) == {"error"} for line in answer.lines)


@pytest.mark.parametrize("query", ["key_base64=*", "timestamp=now", "timestamp=-1", "partition=7", "kye=1"])
def test_bad_parameters_of_a_binary_record_are_refused(broker: EmbeddedBroker, query: str) -> None:
    answer = ask(broker, "POST", f"/v1/topics/known/records?{query}", b"x", BYTES)
    refused(answer, 404 if query == "partition=7" else 400)


# --- reading by HTTP -------------------------------------------------------------------------------------------

READ = "/v1/topics/known/partitions/0/records"


@pytest.mark.parametrize(
    "query",
    [
        "offset=-1",
        "offset=one",
        "offset=1.5",
        "offset=0x1",
        "offset=+1",
        "offset=%D9%A1",
        "offset=9223372036854775808",
        "offset=" + "9" * 5000,
        "offset=",
        "offset=0&from=latest",
        "time=yesterday",
        "time=-5",
        "time=1969-01-01T00:00:00Z",
        "time=9999999999999999999",
        "from=middle",
        "wait_ms=-1",
        "wait_ms=soon",
        "max_records=-1",
        "max_bytes=1e9",
        "values=hex",
        "ofset=0",
    ],
)
def test_bad_questions_for_records_are_refused(broker: EmbeddedBroker, query: str) -> None:
    refused(ask(broker, "GET", f"{READ}?{query}"), 400)


@pytest.mark.parametrize("offset", [1, 2, 1000, 2**40, 2**53 + 1, 2**63 - 1])
def test_offset_at_or_beyond_the_end_is_an_empty_answer(broker: EmbeddedBroker, offset: int) -> None:
    answer = ask(broker, "GET", f"{READ}?offset={offset}")
    assert (answer.status, answer.json["records"]) == (200, [])
    assert answer.json["next_offset"] == str(offset)


@pytest.mark.parametrize(
    ("partition", "status"), [("2", 404), ("-1", 400), ("x", 400), ("%00", 400), ("00", 200), ("9" * 30, 400)]
)
def test_partition_in_the_path(broker: EmbeddedBroker, partition: str, status: int) -> None:
    answer = ask(broker, "GET", f"/v1/topics/known/partitions/{partition}/records")
    if status == 200:
        assert answer.status == 200
    else:
        refused(answer, status)


@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("DELETE", "/v1/topics/known/records"),
        ("GET", "/v1/topics/known/records"),
        ("POST", READ),
        ("PUT", "/v1/topics/known"),
        ("PATCH", "/v1/topics"),
        ("TRACE", "/healthz"),
        ("GET", "/v1/groups/g/sessions"),
        ("PUT", "/v1/groups/g/sessions/s"),
        ("DELETE", "/v1/groups/g/sessions/s/records"),
        ("GET", "/v1/groups/g/sessions/s/commit"),
        ("GET", "/v1/groups/g/sessions/s/records?commit=true"),
    ],
)
def test_wrong_method_is_refused_with_those_that_are_right(
    broker: EmbeddedBroker, method: str, target: str
) -> None:
    answer = ask(broker, method, target)
    refused(answer, 405)
    assert answer.headers["allow"]


def test_head_request_changes_no_group_either(broker: EmbeddedBroker) -> None:
    answer = ask(broker, "HEAD", "/v1/groups/g/sessions/s/records?commit=true")
    assert (answer.status, answer.headers["allow"]) == (405, "POST")


# --- ambiguous heads ---------------------------------------------------------------------------------------------

HELLO = b"5\r\nhello\r\n0\r\n\r\n"
SOCKET = (
    b"connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n"
    b"sec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
)


@pytest.mark.parametrize(
    ("version", "headers", "body"),
    [
        (b"1.1", b"host: localhost\r\nhost: evil.example\r\n", b""),
        (b"1.1", b"host: localhost\r\nHost: localhost\r\n", b""),
        (b"1.1", b"host: localhost\r\nauthorization: Bearer a\r\nauthorization: Bearer b\r\n", b""),
        (b"1.1", b"host: localhost\r\norigin: http://localhost\r\norigin: http://evil.example\r\n", b""),
        (b"1.1", b"host: localhost\r\ncontent-type: a/b\r\ncontent-type: text/plain\r\n", b""),
        (b"1.1", b"host: localhost\r\ncontent-length: 5\r\ncontent-length: 5\r\n", b"hello"),
        (b"1.1", b"host: localhost\r\ncontent-length: 5\r\ncontent-length: 0\r\n", b"hello"),
        (b"1.1", b"host: localhost\r\ncontent-length: 5, 5\r\n", b"hello"),
        (b"1.1", b"host: localhost\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n", HELLO),
        (b"1.1", b"host: localhost\r\ntransfer-encoding: chunked\r\ncontent-length: 5\r\n", HELLO),
        (b"1.1", b"host: localhost\r\n" + b"transfer-encoding: chunked\r\n" * 2, HELLO),
        (b"1.1", b"host: localhost\r\ntransfer-encoding: chunked, identity\r\n", HELLO),
        (b"1.1", b"host: localhost\r\ntransfer-encoding : chunked\r\n", HELLO),
        (b"1.1", b"host: localhost\r\nx: a\r\n b\r\n", b""),
        (b"1.0", b"host: localhost\r\ntransfer-encoding: chunked\r\n", HELLO),
        (b"1.1", b"host: 127.0.0.1:80@evil.example\r\n", b""),
        (b"1.1", b"host: localhost, evil.example\r\n", b""),
        (b"1.1", b"host: localhost\r\n" + SOCKET + b"sec-websocket-key: BAAAAAAAAAAAAAAAAAAAAA==\r\n", b""),
        (b"1.1", b"host: localhost\r\n" + SOCKET + b"sec-websocket-version: 13\r\n", b""),
        (b"1.1", b"host: localhost\r\n" + SOCKET + b"upgrade: h2c\r\n", b""),
        (b"1.0", b"host: localhost\r\n" + SOCKET, b""),
    ],
)
def test_ambiguous_head_is_refused_and_nothing_is_done(
    broker: EmbeddedBroker, version: bytes, headers: bytes, body: bytes
) -> None:
    topic = broker.create_topic(broker.unused_name("ambiguous"))
    with raw(broker) as link:
        link.sendall(
            b"POST /v1/topics/%s/records HTTP/%s\r\n%s\r\n%s" % (topic.encode(), version, headers, body)
        )
        answer = all_of(link)
    assert answer.startswith(b"HTTP/1.1 400 "), answer
    assert b"connection: close" in answer
    assert answer.count(b"content-length: ") == 1
    assert broker.records(topic) == []


def test_lists_of_a_handshake_may_stand_in_several_lines(broker: EmbeddedBroker) -> None:
    offers = b"sec-websocket-protocol: other\r\nsec-websocket-protocol: anabranch.v1\r\n"
    offers += b"sec-websocket-extensions: a\r\nsec-websocket-extensions: b\r\n"
    with raw(broker) as link:
        link.sendall(b"GET /v1/ws HTTP/1.1\r\nhost: localhost\r\n%s%s\r\n" % (SOCKET, offers))
        answer = link.recv(4096)
    assert answer.startswith(b"HTTP/1.1 101 "), answer
    assert b"sec-websocket-protocol: anabranch.v1\r\n" in answer.lower()


@pytest.mark.parametrize(
    ("headers", "trailers"),
    [
        (b"host: evil.example\r\n", b"host: localhost\r\n"),
        (b"host: localhost\r\norigin: http://evil.example\r\n", b"origin: http://localhost\r\n"),
    ],
)
def test_what_stands_behind_a_body_does_not_let_anybody_in(
    broker: EmbeddedBroker, headers: bytes, trailers: bytes
) -> None:
    topic = broker.create_topic(broker.unused_name("trailers"))
    with raw(broker) as link:
        link.sendall(
            b"POST /v1/topics/%s/records HTTP/1.1\r\n%sconnection: close\r\ntransfer-encoding: chunked\r\n"
            b"content-type: application/octet-stream\r\n\r\n5\r\nhello\r\n0\r\n%s\r\n"
            % (topic.encode(), headers, trailers)
        )
        assert all_of(link).startswith(b"HTTP/1.1 403 ")
    assert broker.records(topic) == []


def test_trailers_of_a_body_are_passed_over(broker: EmbeddedBroker) -> None:
    topic = broker.create_topic(broker.unused_name("trailers"))
    with raw(broker) as link:
        link.sendall(
            b"POST /v1/topics/%s/records HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
            b"transfer-encoding: chunked\r\ncontent-type: application/octet-stream\r\n\r\n"
            b"5\r\nhello\r\n0\r\nhost: evil.example\r\nchecksum: 1\r\n\r\n" % topic.encode()
        )
        assert all_of(link).startswith(b"HTTP/1.1 200 ")
    assert [record.value for record in broker.records(topic)] == [b"hello"]


@pytest.mark.parametrize("endless", [b"0\r\ntrailer: ", b"5;extension="])
def test_body_whose_wrapping_has_no_end_is_cut_off(broker: EmbeddedBroker, endless: bytes) -> None:
    topic = broker.create_topic(broker.unused_name("trailers"))
    with raw(broker) as link:
        link.sendall(
            b"POST /v1/topics/%s/records HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n"
            b"content-type: application/octet-stream\r\n\r\n5\r\nhello\r\n%s" % (topic.encode(), endless)
        )
        with pytest.raises(OSError):  # noqa: PT011 - Reset, or a broken pipe.
            link.sendall(b"x" * 50_000_000)
    assert broker.records(topic) == []


def test_body_in_many_small_chunks_is_taken(broker: EmbeddedBroker) -> None:
    topic = broker.create_topic(broker.unused_name("chunks"))
    with raw(broker) as link:
        link.sendall(
            b"POST /v1/topics/%s/records HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n"
            b"connection: close\r\ncontent-type: application/octet-stream\r\n\r\n%s0\r\n\r\n"
            % (topic.encode(), b"1;n=1\r\nx\r\n" * 20_000)
        )
        assert all_of(link).startswith(b"HTTP/1.1 200 ")
    assert [record.value for record in broker.records(topic)] == [b"x" * 20_000]


@pytest.mark.parametrize(
    ("target", "status"),
    [
        (b"http://localhost/healthz", 200),
        (b"http://localhost", 200),
        (b"http://localhost?x=/", 200),
        (b"http://localhost/v1/topics?max=x", 400),
        (b"http://evil/", 400),
        (b"http://evil?localhost/", 400),
    ],
)
def test_target_that_names_a_host_names_the_same_one(
    broker: EmbeddedBroker, target: bytes, status: int
) -> None:
    with raw(broker) as link:
        link.sendall(b"GET %s HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n" % target)
        assert all_of(link).startswith(b"HTTP/1.1 %d " % status)


def test_refusal_is_not_taken_for_the_answer_to_an_earlier_request(broker: EmbeddedBroker) -> None:
    with raw(broker) as link:
        link.sendall(
            b"GET /v1/topics/known/partitions/0/records?from=latest&wait_ms=300 HTTP/1.1\r\nhost: localhost\r\n\r\n"
            b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nhost: localhost\r\n\r\n"
        )
        assert statuses_of(all_of(link)) == [200, 400]


CHUNKED = b"transfer-encoding: chunked\r\n"
WHOLE = (
    b"POST /v1/topics/%s/records HTTP/1.1\r\nhost: localhost\r\ncontent-type: text/plain\r\n"
    b"transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"
)


@pytest.mark.parametrize(
    ("behind", "statuses"),
    [
        (b"GARBAGE\r\n\r\n", [200, 400]),
        (b"GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n" * 3 + b"GARBAGE\r\n\r\n", [200, 200, 200, 200, 400]),
        (b"GET /v1/ws HTTP/1.1\r\nhost: localhost\r\n" + SOCKET + b"\r\n", [200, 400]),
        (b"POST / HTTP/1.1\r\nhost: localhost\r\n" + CHUNKED + b"\r\nzz\r\n", [200, 400]),
    ],
    ids=["garbage", "requests and garbage", "handshake", "malformed body"],
)
@pytest.mark.parametrize("is_closed", [False, True])
def test_whole_request_is_answered_before_what_follows_is_refused(
    broker: EmbeddedBroker, behind: bytes, statuses: list[int], is_closed: bool
) -> None:
    topic = broker.create_topic(broker.unused_name("whole"))
    with raw(broker) as link:
        link.sendall(WHOLE % topic.encode() + behind)
        if is_closed:
            link.shutdown(socket.SHUT_WR)
        assert statuses_of(all_of(link)) == statuses
    assert [record.value for record in broker.records(topic)] == [b"hello"]


@pytest.mark.parametrize(
    "headers",
    [
        b"content-length: 5\r\ncontent-length: 5\r\n",
        b"content-length: 5\r\ncontent-length: 6\r\n",
        b"content-length: 5, 5\r\n",
        b"content-length: -5\r\n",
        b"content-length: 99999999999999999999999\r\n",
        CHUNKED + CHUNKED,
        CHUNKED + b"content-length: 5\r\n",
        b"content-length: 5\r\n" + CHUNKED,
        b"transfer-encoding: chunked, chunked\r\n",
        b"transfer-encoding: gzip\r\n",
        b"transfer-encoding: gzip\r\n" + CHUNKED,
    ],
)
def test_body_without_one_clear_length_is_ambiguous(broker: EmbeddedBroker, headers: bytes) -> None:
    with raw(broker) as link:
        link.sendall(
            b"POST /v1/topics/known/records HTTP/1.1\r\nhost: localhost\r\n%s\r\n0\r\n\r\n" % headers
        )
        assert "send" in refused_by(link, "AMBIGUOUS_REQUEST")


@pytest.mark.parametrize(
    ("length", "said"),
    [
        (b"0" * 5000 + b"13", "5002 digits"),
        (b"0" * 19 + b"13", "21 digits"),
        (b"99999999999999999999999", "too large"),
        (b"13, 14", "not one whole number"),
        (b"0x13", "not one whole number"),
    ],
    ids=["thousands of zeroes", "zeroes", "too large", "two", "hexadecimal"],
)
def test_length_that_is_not_taken_is_said_and_nothing_else(
    broker: EmbeddedBroker, length: bytes, said: str
) -> None:
    with raw(broker) as link:
        link.sendall(
            b"POST /v1/topics/known/records HTTP/1.1\r\nhost: localhost\r\ncontent-length: %s\r\n\r\n"
            % length
        )
        assert said in refused_by(link, "AMBIGUOUS_REQUEST")


def test_length_with_a_few_zeroes_before_it_is_a_length(broker: EmbeddedBroker) -> None:
    with raw(broker) as link:
        link.sendall(
            b"POST /v1/topics/zeroes/records HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
            b"content-type: application/octet-stream\r\ncontent-length: %020d\r\n\r\nhello" % 5
        )
        assert statuses_of(all_of(link)) == [200]


@pytest.mark.parametrize("kind", [b"application/octet-stream", b"application/json", b"application/x-ndjson"])
@pytest.mark.parametrize(
    "chunks",
    [
        b"zz\r\nhello\r\n",
        b"-1\r\nhello\r\n",
        b"\r\nhello\r\n",
        b"5 x\r\nhello\r\n",
        b"f" * 40 + b"\r\nhello\r\n",
        b"5\r\nhelloXX\r\n",
        b"0\r\nno trailer\r\n\r\n",
        b"zz\r\n" + b"x" * 500_000,
    ],
)
def test_malformed_chunk_is_told(broker: EmbeddedBroker, kind: bytes, chunks: bytes) -> None:
    with raw(broker) as link:
        link.sendall(
            b"POST /v1/topics/known/records HTTP/1.1\r\nhost: localhost\r\ncontent-type: %s\r\n%s\r\n%s"
            % (kind, CHUNKED, chunks)
        )
        assert "chunks" in refused_by(link, "BAD_REQUEST")


def test_malformed_chunk_of_a_client_that_waits_for_100_is_no_defect(
    broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    with raw(broker) as link:
        link.sendall(
            b"POST /v1/topics/known/records HTTP/1.1\r\nhost: localhost\r\ncontent-type: text/plain\r\n"
            b"expect: 100-continue\r\n%s\r\nzz\r\n" % CHUNKED
        )
        assert "chunks" in refused_by(link, "BAD_REQUEST")
    assert ask(broker, "GET", "/healthz").status == 200
    assert "this is a defect" not in caplog.text


@pytest.mark.parametrize(
    "head", [b"HTTP/1.1\r\nhost: evil.example\r\nconnection: close", b"HTTP/1.0\r\nhost: evil.example"]
)
def test_last_refusal_is_seen_by_a_client_that_first_sends_its_whole_body(
    broker: EmbeddedBroker, head: bytes
) -> None:
    with raw(broker) as link:
        body = b"x" * 5_000_000
        link.sendall(b"POST /v1/topics %s\r\ncontent-length: %d\r\n\r\n%s" % (head, len(body), body))
        assert statuses_of(all_of(link)) == [403]


def test_client_of_http_1_0_is_not_told_to_continue(broker: EmbeddedBroker) -> None:
    with raw(broker) as link:
        link.sendall(
            b"POST /v1/topics/%s/records HTTP/1.0\r\nhost: localhost\r\nexpect: 100-continue\r\n"
            b"content-type: text/plain\r\ncontent-length: 5\r\n\r\nhello"
            % broker.create_topic(broker.unused_name("old")).encode()
        )
        assert statuses_of(all_of(link)) == [200]


def test_client_that_waits_for_100_is_refused_a_body_that_is_too_large(broker: EmbeddedBroker) -> None:
    with raw(broker) as link:
        link.sendall(
            b"POST /v1/topics/known/records HTTP/1.1\r\nhost: localhost\r\nexpect: 100-continue\r\n"
            b"content-type: text/plain\r\ncontent-length: %d\r\n\r\n" % (REQUEST_BYTES_MAX + 1)
        )
        assert link.recv(100).startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize("body", [CHUNKED + b"\r\nzz\r\n", b"transfer-encoding: gzip\r\n\r\nx"])
def test_request_with_a_malformed_body_is_not_carried_out(broker: EmbeddedBroker, body: bytes) -> None:
    """Also where nobody looks at the body."""
    group = broker.unused_name("kept")
    path = ask(broker, "POST", f"/v1/groups/{group}/sessions", {"topics": ["known"]}).headers["location"]
    with raw(broker) as link:
        link.sendall(b"DELETE %s HTTP/1.1\r\nhost: localhost\r\n%s" % (path.encode(), body))
        assert statuses_of(all_of(link)) == [400]
    assert ask(broker, "DELETE", path).status == 204


IMPOSSIBLE = ("__cluster_metadata", "no%20name", "..", "x" * 250, "%C3%A9", "a:b", "a%00", "a@", "%FF")


@pytest.mark.parametrize("name", [*IMPOSSIBLE, "__transaction_state"])
@pytest.mark.parametrize("target", ["/v1/topics/%s", "/v1/topics/%s/partitions/0/records"])
def test_name_that_nobody_can_create_is_not_advised_to_be(
    broker: EmbeddedBroker, target: str, name: str
) -> None:
    status = 400 if name in IMPOSSIBLE and "@" not in name else 404
    assert "topic create" not in refused(ask(broker, "GET", target % name), status)


def test_name_that_can_be_created_is_advised_to_be(broker: EmbeddedBroker) -> None:
    for target in ("/v1/topics/nope", "/v1/topics/nope/partitions/0/records"):
        assert "topic create nope" in refused(ask(broker, "GET", target), 404)


H2C = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAEAAEAAAAIAAAAB\r\n"


@pytest.mark.parametrize(
    ("length", "body"),
    [(b"content-length: 42\r\n", b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n"), (CHUNKED, HELLO)],
)
@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_request_that_offers_another_protocol_is_served_with_its_body(
    broker: EmbeddedBroker, length: bytes, body: bytes, size: int
) -> None:
    """The parser takes the body for the other protocol, and would serve it as the next request."""
    topic = broker.create_topic(broker.unused_name("h2c"))
    post = b"POST /v1/topics/%s/records HTTP/1.1\r\nhost: localhost\r\n" % topic.encode()
    sent = post + H2C + b"content-type: application/octet-stream\r\n" + length + b"\r\n" + body
    sent += b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
    with raw(broker) as link:
        for start in range(0, len(sent), size):
            link.sendall(sent[start : start + size])
        answers = all_of(link)
    assert statuses_of(answers) == [200, 200]
    assert b'"offset":"0"' in answers
    wanted = b"hello" if length == CHUNKED else body
    assert [record.value for record in broker.records(topic)] == [wanted]


def test_request_that_offers_another_protocol_may_stand_behind_a_chunked_body(broker: EmbeddedBroker) -> None:
    topic = broker.create_topic(broker.unused_name("h2c"))
    head = (
        b"POST /v1/topics/%s/records HTTP/1.1\r\nhost: localhost\r\ncontent-type: text/plain\r\n"
        % topic.encode()
    )
    with raw(broker) as link:
        link.sendall(head + CHUNKED + b"\r\n")
        link.sendall(HELLO + head + H2C + b"connection: close\r\ncontent-length: 5\r\n\r\nagain")
        assert statuses_of(all_of(link)) == [200, 200]
    assert [record.value for record in broker.records(topic)] == [b"hello", b"again"]


@pytest.mark.parametrize("path", ["/v1/ws", "/v1/topics/known/ws"])
@pytest.mark.parametrize(
    "headers", [{}, {"Upgrade": "websocket"}, {"Upgrade": "h2c", "Connection": "Upgrade"}]
)
def test_websocket_asked_without_upgrade_says_what_to_do(
    broker: EmbeddedBroker, path: str, headers: dict[str, str]
) -> None:
    answer = ask(broker, "GET", path, headers=headers)
    assert "Upgrade: websocket" in refused(answer, 426)
    assert (answer.headers["upgrade"], answer.headers["connection"]) == ("websocket", "Upgrade")


def statuses_of(answers: bytes) -> list[int]:
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d\d\d) ", answers)]


def refused_by(link: socket.socket, code: str) -> str:
    """The sentence of the one answer with status 400 and this code, after which the connection is closed."""
    answer = all_of(link)
    assert statuses_of(answer) == [400]
    error = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
    assert error["code"] == code
    return str(error["message"])


def test_parameter_that_is_there_twice_is_refused(broker: EmbeddedBroker) -> None:
    answer = ask(broker, "GET", f"{READ}?offset=0&offset=1")
    refused(answer, 400)
    assert "offset is there twice" in answer.json["error"]["message"]


# --- heads -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "head",
    [
        b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n" + b"x: y\r\n" * 10_000 + b"\r\n",
        b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nx: " + b"y" * 1_000_000 + b"\r\n\r\n",
        b"GET /" + b"a" * 1_000_000 + b" HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"GET /?" + b"a=1&" * 100_000 + b" HTTP/1.1\r\nhost: localhost\r\n\r\n",
    ],
)
def test_head_that_is_too_large_is_refused(broker: EmbeddedBroker, head: bytes) -> None:
    with raw(broker) as link:
        try:
            link.sendall(head)
        except OSError:
            return  # Refused before all of it was sent, and the answer went with the connection.
        answer = all_of(link)
    assert not answer or answer.startswith((b"HTTP/1.1 431 ", b"HTTP/1.1 400 ")), answer[:200]


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
        b"\x00\x00\x00\x10\x00\x12\x00\x03\x00\x00\x00\x01\x00\x04test\x00\r\n\r\n",
        b"GET /healthz HTTP/9.9\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nhost localhost\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nhost: localhost\r\ncontent-length: x\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nhost: localhost\r\ncontent-length: -1\r\n\r\n",
        b"POST /v1/topics/known/records HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5\r\n"
        b"transfer-encoding: chunked\r\ncontent-type: application/json\r\n\r\n0\r\n\r\n",
        b"POST /v1/topics/known/records HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n"
        b"content-type: application/json\r\n\r\nzzz\r\n\r\n",
        b"GET http://example.org/v1/topics HTTP/1.1\r\nhost: example.org\r\nconnection: close\r\n\r\n",
        b"CONNECT example.org:443 HTTP/1.1\r\nhost: example.org\r\nconnection: close\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
)
def test_what_is_no_request_of_ours_is_refused_and_the_link_closed(
    broker: EmbeddedBroker, sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "HEAD_SECONDS_MAX", 0.5)
    with raw(broker) as link:
        link.sendall(sent)
        link.shutdown(socket.SHUT_WR)
        answer = all_of(link)
    assert not answer or answer.startswith((b"HTTP/1.1 4", b"HTTP/1.0 4")), answer[:200]


@pytest.mark.parametrize(
    ("sent", "says"),
    [
        (b"CONNECT localhost:443 HTTP/1.1\r\nhost: localhost\r\n\r\n", "CONNECT"),
        (b"GET / HTTP/2.0\r\nhost: localhost\r\n\r\n", "HTTP/2.0 is not served here"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "HTTP/2 is not served here"),
    ],
)
def test_request_that_cannot_be_served_is_told_why(broker: EmbeddedBroker, sent: bytes, says: str) -> None:
    with raw(broker) as link:
        link.sendall(sent)
        assert says in refused_by(link, "BAD_REQUEST")


def test_slow_heads_and_bodies_are_given_up(broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    from anabranch.gateway.http import bodies

    monkeypatch.setattr(protocol, "HEAD_SECONDS_MAX", 0.2)
    monkeypatch.setattr(bodies, "BODY_SECONDS_MAX", 0.2)
    monkeypatch.setattr(bodies, "SILENT_SECONDS_MAX", 0.2)
    with raw(broker) as link:
        link.sendall(b"GET /healthz HTTP/1.1\r\nhost: loc")
        assert all_of(link).startswith(b"HTTP/1.1 408 ")
    for kind in (b"application/json", b"application/octet-stream"):
        with raw(broker) as link:
            link.sendall(
                b"POST /v1/topics/known/records HTTP/1.1\r\nhost: localhost\r\ncontent-type: "
                + kind
                + b'\r\ncontent-length: 100\r\n\r\n{"value"'
            )
            assert all_of(link).startswith(b"HTTP/1.1 408 ")


# --- who may ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "", "http://127.0.0.1", "file://", "http://127.0.0.1:1", "\xff"]
)
def test_wrong_origin_is_refused_on_every_door(broker: EmbeddedBroker, origin: str) -> None:
    for method, target in (
        ("GET", READ),
        ("POST", "/v1/topics/known/records"),
        ("POST", "/v1/groups/g/sessions"),
        ("GET", "/v1/topics"),
    ):
        answer = ask(broker, method, target, {"value": 1} if method == "POST" else None, {"Origin": origin})
        refused(answer, 403)
        assert "access-control-allow-origin" not in answer.headers
    with pytest.raises(HandshakeRefused) as met:
        RawSocket(broker.http_address or "", headers={"Origin": origin})
    assert met.value.status == 403


def test_preflight_of_a_wrong_origin_is_refused(broker: EmbeddedBroker) -> None:
    headers = {"Origin": "http://evil.example", "Access-Control-Request-Method": "POST"}
    answer = ask(broker, "OPTIONS", "/v1/topics/known/records", None, headers)
    refused(answer, 403)


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:80", ""])
def test_name_that_somebody_else_has_for_this_machine_is_refused(broker: EmbeddedBroker, host: str) -> None:
    answer = ask(broker, "GET", "/v1/topics", None, {"Host": host})
    assert answer.status in (400, 403), answer
    with pytest.raises(HandshakeRefused) as met:
        RawSocket(broker.http_address or "", headers={"Host": host})
    assert met.value.status in (400, 403)


def test_wrong_token_is_refused_on_every_door(tmp_path: Any) -> None:
    write_secret(tmp_path / "token", TOKEN + "\n")
    with gateway_broker(gateway_token_file=str(tmp_path / "token")) as broker:
        broker.create_topic("known")
        address = broker.http_address or ""
        wrong = [{}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {TOKEN}"}]
        wrong += [
            {"Authorization": f"Bearer {TOKEN}x"},
            {"Authorization": "Bearer"},
            {"Authorization": "\xff"},
        ]
        for headers in wrong:
            for method, target in (
                ("GET", "/v1/topics"),
                ("GET", READ),
                ("GET", f"{READ}?access_token={TOKEN}"),
                ("POST", "/v1/topics/known/records"),
                ("DELETE", "/v1/groups/g/sessions/s"),
            ):
                answer = ask_at(address, method, target, {"value": 1} if method == "POST" else None, headers)
                refused(answer, 401)
                assert answer.headers["www-authenticate"].startswith("Bearer")
            with pytest.raises(HandshakeRefused) as met:
                RawSocket(address, headers=headers)
            assert met.value.status == 401
        right = {"Authorization": f"Bearer {TOKEN}"}
        assert ask_at(address, "GET", "/v1/topics", None, right).status == 200
        with RawSocket(address, f"/v1/ws?access_token={TOKEN}") as link:
            link.say({"type": "publish", "id": 1, "topic": "known", "value": 1})
            assert link.hear()["type"] == "published"
        assert len(broker.records("known")) == 1


# --- WebSocket -------------------------------------------------------------------------------------------------


@pytest.fixture
def link(broker: EmbeddedBroker) -> Iterator[RawSocket]:
    with RawSocket(broker.http_address or "") as link:
        yield link


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "nonsense",
        "7",
        "[]",
        "null",
        "[" * 60_000,
        '{"type": 7}',
        '{"type": "shout"}',
        '{"type": "publish"}',
        '{"type": "publish", "id": 1, "topic": 7}',
        '{"type": "publish", "id": 1, "topic": "\\ud800", "value": 1}',
        '{"type": "publish", "id": "\\ud800", "topic": "known", "value": "\\ud800"}',
        '{"type": "publish", "id": 1, "topic": "no name", "value": 1}',
        '{"type": "publish", "id": 1, "topic": "' + "x" * 40_000 + '", "value": 1}',
        '{"type": "subscribe", "id": 1, "topic": "' + "x" * 40_000 + '"}',
        '{"type": "publish", "id": 1, "topic": "known", "value": NaN}',
        '{"type": "publish", "id": 1, "topic": "known", "value": "\\ud800"}',
        '{"type": "publish", "id": 1, "topic": "known", "partition": 9}',
        '{"type": "publish", "id": 1, "topic": "known", "partition": -1}',
        '{"type": "publish", "id": 1, "topic": "known", "headers": 7}',
        '{"type": "publish", "id": [1], "topic": "known"}',
        '{"type": "publish", "id": 1, "topic": "__consumer_offsets", "value": 1}',
        '{"type": "subscribe", "id": 1}',
        '{"type": "subscribe", "id": 1, "topic": "no name"}',
        '{"type": "subscribe", "id": 1, "topic": "\\ud800"}',
        '{"type": "subscribe", "id": 1, "topic": "known", "partitions": [9]}',
        '{"type": "subscribe", "id": 1, "topic": "known", "partitions": []}',
        '{"type": "subscribe", "id": 1, "topic": "known", "partitions": [0, 0]}',
        '{"type": "subscribe", "id": 1, "topic": "known", "from": "yesterday"}',
        '{"type": "subscribe", "id": 1, "topic": "known", "from": {"offset": "-1"}}',
        '{"type": "subscribe", "id": 1, "topic": "known", "from": {"offset": "9223372036854775808"}}',
        '{"type": "subscribe", "id": 1, "topic": "known", "from": {"offset": {"9": "1"}}}',
        '{"type": "subscribe", "id": 1, "topic": "known", "from": {"time": "never"}}',
        '{"type": "subscribe", "id": 1, "topic": "known", "group": ""}',
        '{"type": "subscribe", "id": 1, "topic": "known", "group": "\\ud800"}',
        '{"type": "subscribe", "id": 1, "topic": "known", "credit": -1}',
        '{"type": "subscribe", "id": 1, "topic": "known", "filter": {"what": 1}}',
        '{"type": "subscribe", "id": 1, "topic": "known", "filter": ' + '{"not": ' * 5000 + "}" * 5001,
        '{"type": "credit", "id": "nobody", "records": 1}',
        '{"type": "ack", "id": "nobody", "partition": 0, "offset": "1"}',
        '{"type": "unsubscribe", "id": "nobody"}',
        '{"type": "unsubscribe"}',
    ],
)
def test_bad_messages_are_answered_and_the_socket_goes_on(link: RawSocket, text: str) -> None:
    link.send_frame(TEXT, text.encode())
    error = link.hear_of("error")
    assert len(error["message"].split()) >= 4, error
    assert error["code"].isupper()
    link.say({"type": "subscribe", "id": "after", "topic": "known", "from": "earliest"})
    assert link.hear_of("subscribed")["id"] == "after"
    assert link.hear_of("records")["records"][0]["value"] == "first"


@pytest.mark.parametrize("offset", ["1", "2", "1000", str(2**53 + 1), str(2**63 - 1)])
def test_subscription_beyond_the_end_hears_nothing_of_elsewhere(link: RawSocket, offset: str) -> None:
    link.say({"type": "subscribe", "id": 1, "topic": "known", "partitions": [0], "from": {"offset": offset}})
    assert link.hear()["type"] in ("subscribed", "error")
    link.say({"type": "unsubscribe", "id": "nobody"})
    answer = link.hear_of("error")
    assert answer["id"] == "nobody" or "OFFSET" in answer["code"]


@pytest.mark.parametrize(
    ("frames", "code"),
    [
        ([(TEXT, b"\xff\xfe")], 1007),
        ([(TEXT, b'{"type": "publish", "topic": "known", "value": "\xff"}')], 1007),
        ([(BINARY, b"{}")], 1003),
        ([(TEXT, b"x" * (REQUEST_BYTES_MAX + 1))], 1009),
        ([(3, b"")], 1002),
        ([(CONTINUATION, b"")], 1002),
        ([(PING, b"x" * 126)], 1002),
    ],
)
def test_bad_frames_close_the_socket_with_their_code(
    link: RawSocket, frames: list[tuple[int, bytes]], code: int
) -> None:
    for opcode, payload in frames:
        link.send_frame(opcode, payload)
    assert link.closed()[0] == code


def test_frames_that_break_the_protocol_close_the_socket(broker: EmbeddedBroker) -> None:
    address = broker.http_address or ""
    with RawSocket(address) as link:
        link.send_frame(TEXT, b"{}", masked=False)
        assert link.closed()[0] == 1002
    with RawSocket(address) as link:
        link.send_frame(TEXT, b"{}", reserved=0x40)
        assert link.closed()[0] == 1002
    with RawSocket(address) as link:
        link.send_frame(TEXT, b"{}", final=False)
        link.send_frame(TEXT, b"{}")
        assert link.closed()[0] == 1002
    with RawSocket(address) as link:
        # Pieces of one message count together.
        link.send_frame(TEXT, b"x" * 1000, final=False)
        for _ in range(REQUEST_BYTES_MAX // 1000):
            link.send_frame(CONTINUATION, b"x" * 1000, final=False)
        assert link.closed()[0] == 1009
    with RawSocket(address) as link:
        link.link.sendall(b"\x81\xff" + b"\x7f" + b"\xff" * 7 + bytes(4))  # 2^63 bytes are announced.
        assert link.closed()[0] in (1002, 1009)


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-WebSocket-Version": "8"},
        {"Sec-WebSocket-Key": "short"},
        {"Upgrade": "h2c"},
        {"Connection": "keep-alive"},
    ],
)
def test_handshakes_that_are_none_are_refused(broker: EmbeddedBroker, headers: dict[str, str]) -> None:
    with pytest.raises(HandshakeRefused) as met:
        RawSocket(broker.http_address or "", headers=headers)
    assert 400 <= met.value.status < 500


def test_sockets_are_only_where_they_are(broker: EmbeddedBroker) -> None:
    for path in ("/v1/topics", "/healthz", "/nothing", "/v1/ws/", READ):
        with pytest.raises(HandshakeRefused) as met:
            RawSocket(broker.http_address or "", path)
        assert 400 <= met.value.status < 500, path


def test_bytes_that_are_no_text_come_back_as_they_were(broker: EmbeddedBroker) -> None:
    """Not bad at all, but what breaks whoever takes bytes for text."""
    topic = broker.create_topic(broker.unused_name("bytes"))
    odd = bytes(range(256))
    broker.produce(topic, [(odd, odd, [("h", odd), ("n", None)]), (None, None), b"{", b'{"a": NaN}'])
    records = ask(broker, "GET", f"/v1/topics/{topic}/partitions/0/records").json["records"]
    assert base64.b64decode(records[0]["value_base64"]) == odd == base64.b64decode(records[0]["key_base64"])
    assert base64.b64decode(records[0]["headers"][0][1]["base64"]) == odd
    assert (records[1]["key"], records[1]["value"]) == (None, None)
    assert [record["value"] for record in records[2:]] == ["{", '{"a": NaN}']
    with RawSocket(broker.http_address or "") as link:
        link.say({"type": "subscribe", "id": 1, "topic": topic, "from": "earliest"})
        heard: list[Any] = []
        while len(heard) < 4:
            heard += link.hear_of("records")["records"]
        assert heard == records


def test_publisher_that_hangs_up_without_reading_is_no_defect(
    broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """Its answers wait for their turn; the first that cannot be sent is news, the others must not be."""
    topic = broker.create_topic(broker.unused_name("unheard"))
    with RawSocket(broker.http_address or "", receive_bytes=4096) as link:
        link.link.settimeout(1.0)
        message = {"type": "publish", "id": "x" * 128, "topic": topic, "value": "y" * 1000}
        pieces = frame(TEXT, json.dumps(message).encode()) * 50
        with contextlib.suppress(TimeoutError):
            for _ in range(10_000):
                link.link.sendall(pieces)
        link.link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    assert broker.records(topic)
    wait_until(lambda: b"anabranch_gateway_websockets 0.0" in ask(broker, "GET", "/metrics").body, "its end")
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == []


def test_readers_that_do_not_take_their_answers_do_not_keep_others_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What answers may hold in memory is bounded: those who stall with it go first when others want some."""
    monkeypatch.setattr(gateway_module, "BODY_BYTES_MAX", 8 * 2**20)
    monkeypatch.setattr(doorkeeper, "SEND_SECONDS_MAX", 3600.0)
    monkeypatch.setattr(doorkeeper, "CROWDED_SECONDS", 0.1)
    with gateway_broker() as broker:
        topic = broker.create_topic("large")
        for _ in range(8):
            broker.produce(topic, [os.urandom(500_000).hex().encode()])
        stalled = [raw(broker) for _ in range(10)]
        for link in stalled:
            link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            target = f"/v1/topics/{topic}/partitions/0/records?offset=0&max_bytes=8000000"
            link.sendall(f"GET {target} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
        for _ in range(5):
            assert ask(broker, "GET", f"/v1/topics/{topic}/partitions/0/records?max_records=1").status == 200
        for link in stalled:
            link.close()


def test_answer_that_is_taken_slowly_is_not_cut_by_a_refusal_behind_it(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "LINGER_SECONDS", 0.0)
    body = b"[" + b",".join([b'{"partition":9}'] * 4000) + b"]"
    with raw(broker, receive_bytes=4096) as link:
        request = (
            b"POST /v1/topics/known/records HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\n\r\n%s" % (len(body), body)
        )
        link.sendall(request * 10 + b"GARBAGE\r\n\r\n")
        wait_until(lambda: ask(broker, "GET", "/healthz").status == 200, "others to be served meanwhile")
        assert statuses_of(all_of(link)) == [404] * 10 + [400]


def test_client_of_http_1_0_gets_no_chunks(broker: EmbeddedBroker) -> None:
    with raw(broker) as link:
        link.sendall(
            b"POST /v1/topics/known/records HTTP/1.0\r\nhost: localhost\r\ncontent-type: application/x-ndjson\r\n"
            b"content-length: 4\r\n\r\n{\n7\n"
        )
        head, _, body = all_of(link).partition(b"\r\n\r\n")
    assert statuses_of(head + b" ") == [200]
    assert b"transfer-encoding" not in head.lower()
    assert ["error" in json.loads(line) for line in body.splitlines()] == [True, True]
