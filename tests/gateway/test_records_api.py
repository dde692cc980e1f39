"""Records in and out by HTTP."""

import base64
import json
import threading
import time
from collections.abc import Callable

import pytest

from anabranch.gateway.http import doorkeeper
from anabranch.record.builder import BatchBuilder
from anabranch.record.compression import Codec
from support.gateway_client import all_of, ask, gateway_broker, raw
from support.raw_client import RawClient

NDJSON = {"Content-Type": "application/x-ndjson"}
BINARY = {"Content-Type": "application/octet-stream"}


@pytest.fixture(scope="module")
def broker():
    with gateway_broker(num_partitions=3) as broker:
        yield broker


@pytest.fixture
def topic(broker, request) -> str:
    return broker.create_topic(broker.unused_name(request.node.name), partitions=1)


def records_of(broker, topic: str, query: str = "", partition: int = 0, **headers: str):
    return ask(broker, "GET", f"/v1/topics/{topic}/partitions/{partition}/records{query}", None, headers)


# --- writing -----------------------------------------------------------------------------------------------


def test_one_record_is_answered_with_its_place(broker, topic) -> None:
    answer = ask(broker, "POST", f"/v1/topics/{topic}/records", {"key": "k", "value": "v", "timestamp": 5})
    assert (answer.status, answer.json) == (200, {"partition": 0, "offset": "0", "timestamp": 5})
    (stored,) = broker.records(topic)
    assert (stored.key, stored.value, stored.timestamp) == (b"k", b"v", 5)


@pytest.mark.parametrize("is_wrapped", [True, False])
def test_list_of_records_keeps_its_order(broker, topic, is_wrapped: bool) -> None:
    records = [{"value": f"v{number}"} for number in range(100)]
    answer = ask(
        broker, "POST", f"/v1/topics/{topic}/records", {"records": records} if is_wrapped else records
    )
    assert [row["offset"] for row in answer.json["records"]] == [str(number) for number in range(100)]
    assert [stored.value for stored in broker.records(topic)] == [b"v%d" % number for number in range(100)]


@pytest.mark.parametrize(
    ("given", "key", "value"),
    [
        ({"value": "text"}, None, b"text"),
        ({"value": {"a": [1, 2.5, None]}}, None, b'{"a":[1,2.5,null]}'),
        ({"value": 7, "key": True}, b"true", b"7"),
        ({"value": None, "key": "k"}, b"k", None),
        ({"value": "grün"}, None, "grün".encode()),
        ({"value_base64": "AP8=", "key_base64": "/w=="}, b"\xff", b"\x00\xff"),
        ({"value": ""}, None, b""),
    ],
)
def test_value_becomes_these_bytes(broker, topic, given, key, value) -> None:
    assert ask(broker, "POST", f"/v1/topics/{topic}/records", given).status == 200
    (stored,) = broker.records(topic)
    assert (stored.key, stored.value) == (key, value)


@pytest.mark.parametrize(
    "headers", [{"a": "1", "b": None, "c": {"base64": "/w=="}}, [["a", "1"], ["a", "2"], ["c", None]]]
)
def test_headers_come_back_as_they_were_sent(broker, topic, headers) -> None:
    assert (
        ask(broker, "POST", f"/v1/topics/{topic}/records", {"value": "v", "headers": headers}).status == 200
    )
    pairs = [list(pair) for pair in headers.items()] if isinstance(headers, dict) else headers
    assert records_of(broker, topic).json["records"][0]["headers"] == pairs


def test_key_meets_the_partition_that_java_clients_choose(broker) -> None:
    topic = broker.create_topic(broker.unused_name("murmur2"), partitions=10)
    answer = ask(
        broker,
        "POST",
        f"/v1/topics/{topic}/records",
        [{"key": key} for key in ("foobar", "21", "a-little-bit-long-string")],
    )
    # Utils.murmur2 of Kafka's own test: -790332482, -973932308, -985981536, made positive.
    expected = [(number & 0x7FFFFFFF) % 10 for number in (-790332482, -973932308, -985981536)]
    assert [row["partition"] for row in answer.json["records"]] == expected


def test_topic_may_choose_murmur3(broker) -> None:
    topic = broker.create_topic(broker.unused_name("murmur3"), partitions=4, anabranch_partitioner="murmur3")
    answer = ask(broker, "POST", f"/v1/topics/{topic}/records", {"key": "hello"})
    assert answer.json["partition"] == 0x248BFA47 * 4 >> 32


def test_topic_in_mode_branch_on_a_node_alone(broker) -> None:
    topic = broker.create_topic(broker.unused_name("branchy"), partitions=1, anabranch_mode="branch")
    answer = ask(broker, "POST", f"/v1/topics/{topic}/records", {"value": "v"})
    assert (answer.status, answer.json["offset"]) == (200, "0")
    [record] = records_of(broker, topic, "?from=earliest").json["records"]
    assert record["value"] == "v"


def test_partition_by_query_and_by_record(broker) -> None:
    topic = broker.create_topic(broker.unused_name("chosen"), partitions=3)
    answer = ask(
        broker,
        "POST",
        f"/v1/topics/{topic}/records?partition=2",
        [{"value": "a"}, {"value": "b", "partition": 1}],
    )
    assert [row["partition"] for row in answer.json["records"]] == [2, 1]


def test_records_without_key_are_spread(broker) -> None:
    topic = broker.create_topic(broker.unused_name("spread"), partitions=3)
    seen = {
        ask(broker, "POST", f"/v1/topics/{topic}/records", {"value": "v"}).json["partition"] for _ in range(6)
    }
    assert seen == {0, 1, 2}


def test_unknown_topic_is_made_on_its_first_use_if_the_node_allows_it(broker) -> None:
    assert ask(broker, "POST", "/v1/topics/made-by-use/records", {"value": "v"}).status == 200
    assert len(ask(broker, "GET", "/v1/topics/made-by-use").json["partitions"]) == 3


def test_one_record_that_is_refused_fails_alone(broker) -> None:
    topic = broker.create_topic(broker.unused_name("compacted"), cleanup_policy="compact")
    records = [{"key": "a"}, {"value": "no key"}, {"key": "b", "partition": 5}, {"key": "c"}]
    answer = ask(broker, "POST", f"/v1/topics/{topic}/records", records)
    assert answer.status == 207
    rows = answer.json["records"]
    assert [row.get("offset") for row in rows] == ["0", None, None, "1"]
    assert [row["error"]["code"] for row in rows[1:3]] == ["INVALID_RECORD", "UNKNOWN_TOPIC_OR_PARTITION"]
    assert [stored.key for stored in broker.records(topic)] == [b"a", b"c"]


def test_all_refused_is_the_status_of_the_first(broker, topic) -> None:
    answer = ask(broker, "POST", f"/v1/topics/{topic}/records", [{"value": "v", "partition": 9}])
    assert answer.status == 404


def test_record_above_the_topics_limit_fails_alone(broker) -> None:
    topic = broker.create_topic(broker.unused_name("small"), max_message_bytes=1000)
    answer = ask(broker, "POST", f"/v1/topics/{topic}/records", [{"value": "x"}, {"value": "y" * 2000}])
    assert answer.status == 207
    assert answer.json["records"][1]["error"]["code"] == "MESSAGE_TOO_LARGE"


def test_write_that_the_disk_refuses_once_is_tried_again_and_written_once(broker, topic) -> None:
    broker.faults.fail_next_write(topic, error="ENOSPC")
    assert ask(broker, "POST", f"/v1/topics/{topic}/records", {"value": "v"}).json["offset"] == "0"
    assert [stored.value for stored in broker.records(topic)] == [b"v"]


def gatherer_of(broker):
    ask(broker, "GET", "/healthz")  # The gateway is loaded with the first connection.
    return broker._running().node._http._web.gateway.gather


def test_partition_that_takes_no_writes_says_so_and_is_still_read(broker, topic, monkeypatch) -> None:
    monkeypatch.setattr(gatherer_of(broker), "delivery_ms", 300)
    broker.produce(topic, ["before"])
    broker.faults.fail_next_sync(topic)
    answer = ask(broker, "POST", f"/v1/topics/{topic}/records", {"value": "v"})
    assert (answer.status, answer.code, answer.headers["retry-after"]) == (503, "KAFKA_STORAGE_ERROR", "1")
    assert ask(broker, "GET", "/healthz").status == 503
    assert [row["value"] for row in records_of(broker, topic).json["records"]] == ["before"]
    broker.restart()


def test_value_as_it_is(broker, topic) -> None:
    answer = ask(
        broker,
        "POST",
        f"/v1/topics/{topic}/records?key=k%C3%BC&timestamp=7",
        b"\x00\xff",
        {**BINARY, "X-Anabranch-Header-Trace": "abc"},
    )
    assert answer.json == {"partition": 0, "offset": "0", "timestamp": 7}
    (stored,) = broker.records(topic)
    assert (stored.key, stored.value, stored.headers) == ("kü".encode(), b"\x00\xff", (("trace", b"abc"),))


def test_lines_are_answered_one_by_one_in_order(broker, topic) -> None:
    lines = [json.dumps({"value": number}) for number in range(2500)]
    lines[7] = "{broken"
    answer = ask(broker, "POST", f"/v1/topics/{topic}/records", "\n".join(lines).encode(), NDJSON)
    rows = answer.lines
    assert len(rows) == 2500
    assert rows[7]["error"]["code"] == "MALFORMED_JSON"
    assert [row["offset"] for row in rows if "offset" in row] == [str(number) for number in range(2499)]


def test_lines_may_ask_for_errors_alone(broker, topic) -> None:
    body = b'{"value":1}\n\n{"valu":2}\n{"value":3}\n'
    answer = ask(broker, "POST", f"/v1/topics/{topic}/records?answers=errors", body, NDJSON)
    assert [row.get("line") for row in answer.lines] == [1, None]
    assert answer.lines[1] == {"written": 2, "failed": 1}


def test_lines_are_answered_while_the_stream_is_open(broker, topic) -> None:
    with raw(broker) as link:
        link.sendall(
            f"POST /v1/topics/{topic}/records HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-ndjson\r\n"
            "Transfer-Encoding: chunked\r\n\r\n".encode()
        )
        for number in range(3):
            line = b'{"value":"v"}\n'
            link.sendall(b"%x\r\n%s\r\n" % (len(line), line))
            seen = b""
            while b'"offset":"%d"' % number not in seen:
                seen += link.recv(65536)
        link.sendall(b"0\r\n\r\n")


def test_stream_is_ended_with_a_word_when_the_node_stops() -> None:
    with gateway_broker() as broker:
        link = raw(broker)
        link.sendall(
            b"POST /v1/topics/t/records HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-ndjson\r\n"
            b'Transfer-Encoding: chunked\r\n\r\nc\r\n{"value":1}\n\r\n'
        )
        seen = b""
        while b'"offset":"0"' not in seen:
            seen += link.recv(65536)
    with link:
        assert b'"NODE_STOPS"' in all_of(link)


def test_stream_that_asks_first_is_told_to_go_on(broker, topic) -> None:
    with raw(broker) as link:
        link.sendall(
            f"POST /v1/topics/{topic}/records HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-ndjson\r\n"
            "Expect: 100-continue\r\nContent-Length: 12\r\n\r\n".encode()
        )
        assert link.recv(25).startswith(b"HTTP/1.1 100 ")
        link.sendall(b'{"value":1}\n')
        seen = b""
        while b'"offset":"0"' not in seen:
            seen += link.recv(65536)


def test_line_above_the_limit_ends_the_stream_with_an_error() -> None:
    with gateway_broker(gateway_request_bytes_max=2000) as broker:
        body = b'{"value":1}\n{"value":"' + b"x" * 3000 + b'"}\n{"value":2}\n'
        answer = ask(broker, "POST", "/v1/topics/t/records", body, NDJSON)
        assert answer.lines[0]["offset"] == "0"
        assert answer.lines[1]["error"]["code"] == "REQUEST_TOO_LARGE"
        assert len(answer.lines) == 2


@pytest.mark.parametrize(
    ("body", "code", "place"),
    [
        (b"{", "MALFORMED_JSON", "line 1"),
        (b'{"value": NaN}', "MALFORMED_JSON", "NaN"),
        (b"[" * 100_000, "MALFORMED_JSON", "nested"),
        (b'{"value": "\xff"}', "WRONG_UTF8", "byte 11"),
        (b'{"value": "\\ud800"}', "WRONG_UTF8", "value"),
        (b"3", "INVALID_RECORD", "The record"),
        (b'[{"value":1},3]', "INVALID_RECORD", "records[1]"),
        (b'{"vlaue": 1}', "INVALID_RECORD", "vlaue"),
        (b'{"records": 1}', "INVALID_RECORD", "records"),
        (b'{"records": [], "x": 1}', "BAD_REQUEST", "x"),
        (b'{"value": 1, "headers": 5}', "INVALID_RECORD", "headers"),
        (b'{"value": 1, "headers": [["a"]]}', "INVALID_RECORD", "headers[0]"),
        (b'{"value_base64": "?"}', "INVALID_RECORD", "value_base64"),
        (b'{"value": 1, "value_base64": "AA=="}', "INVALID_RECORD", "twice"),
        (b'{"value": 1, "timestamp": "x"}', "INVALID_RECORD", "timestamp"),
        (b'{"value": 1, "timestamp": -1}', "INVALID_RECORD", "timestamp"),
        (b'{"value": 1, "partition": 1.5}', "INVALID_RECORD", "partition"),
        (b'{"value": 1e999}', "INVALID_RECORD", "value"),
    ],
)
def test_wrong_json_is_refused_with_its_place(broker, topic, body: bytes, code: str, place: str) -> None:
    answer = ask(broker, "POST", f"/v1/topics/{topic}/records", body, {"Content-Type": "application/json"})
    assert (answer.status, answer.code) == (400, code)
    assert place in answer.json["error"]["message"]
    assert broker.records(topic) == []


def test_key_that_is_no_text_is_refused_with_its_place(broker, topic) -> None:
    answer = ask(broker, "POST", f"/v1/topics/{topic}/records?key=a%FF", b"v", BINARY)
    assert (answer.status, answer.code) == (400, "WRONG_UTF8")
    assert "0xff" in answer.json["error"]["message"]
    assert ask(broker, "POST", f"/v1/topics/{topic}/records?key_base64=Yf8=", b"v", BINARY).status == 200
    assert [stored.key for stored in broker.records(topic)] == [b"a\xff"]


def test_list_that_is_too_long_is_refused_as_a_whole(broker, topic) -> None:
    answer = ask(broker, "POST", f"/v1/topics/{topic}/records", [{}] * 10_001)
    assert (answer.status, answer.code) == (413, "REQUEST_TOO_LARGE")
    assert broker.records(topic) == []


def test_time_far_ahead_is_refused(broker, topic) -> None:
    answer = ask(broker, "POST", f"/v1/topics/{topic}/records", {"value": "v", "timestamp": 2**62})
    assert (answer.status, answer.code) == (400, "INVALID_TIMESTAMP")


def test_body_above_the_limit_is_refused_whether_it_says_so_or_not(broker, topic) -> None:
    big = b'{"value":"' + b"x" * (2**20) + b'"}'
    assert (
        ask(broker, "POST", f"/v1/topics/{topic}/records", big, {"Content-Type": "application/json"}).status
        == 413
    )
    with raw(broker) as link:
        link.sendall(
            f"POST /v1/topics/{topic}/records HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            "Transfer-Encoding: chunked\r\n\r\n".encode()
            + b"%x\r\n%s\r\n0\r\n\r\n" % (len(big), big)
        )
        assert all_of(link).startswith(b"HTTP/1.1 413 ")
    assert broker.records(topic) == []


@pytest.mark.parametrize("kind", [None, "application/x-www-form-urlencoded", "image/png"])
def test_body_of_another_type_is_refused(broker, topic, kind) -> None:
    answer = ask(broker, "POST", f"/v1/topics/{topic}/records", b"x", {"Content-Type": kind} if kind else {})
    assert (answer.status, answer.code) == (415, "UNSUPPORTED_MEDIA_TYPE")


@pytest.mark.parametrize(
    ("method", "target", "status", "code"),
    [
        ("POST", "/v1/topics/{}/records?partition=x", 400, "INVALID_PARAMETER"),
        ("POST", "/v1/topics/{}/records?partition=-1", 400, "INVALID_PARAMETER"),
        ("POST", "/v1/topics/{}/records?nothing=1", 400, "INVALID_PARAMETER"),
        ("POST", "/v1/topics/a%20b/records", 400, "INVALID_TOPIC_EXCEPTION"),
        ("POST", "/v1/topics/__consumer_offsets/records", 400, "INVALID_TOPIC_EXCEPTION"),
        ("POST", "/v1/topics/..%2Fetc/records", 404, "NOT_FOUND"),
        ("GET", "/v1/topics/{}/records", 405, "METHOD_NOT_ALLOWED"),
        ("DELETE", "/v1/topics/{}", 405, "METHOD_NOT_ALLOWED"),
    ],
)
def test_wrong_targets(broker, topic, method: str, target: str, status: int, code: str) -> None:
    answer = ask(broker, method, target.format(topic), {"value": "v"} if method == "POST" else None)
    assert (answer.status, answer.code) == (status, code)


# --- reading -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ten(broker) -> str:
    topic = broker.create_topic("ten", partitions=1)
    broker.produce(topic, [(f"k{number}", f"v{number}") for number in range(10)])
    return topic


@pytest.mark.parametrize(
    ("query", "first", "count"),
    [
        ("", 0, 10),
        ("?offset=4", 4, 6),
        ("?offset=4&max_records=2", 4, 2),
        ("?offset=4&max_bytes=1", 4, 1),
        ("?from=earliest", 0, 10),
        ("?time=0", 0, 10),
        ("?time=1970-01-01T00:00:00Z", 0, 10),
        ("?time=1970-01-01T02:00:00+02:00", 0, 10),
        ("?time=1971-01-01", 0, 10),
        ("?from=latest", 10, 0),
        ("?offset=10", 10, 0),
        ("?offset=11", 11, 0),
        ("?offset=9223372036854775807", 2**63 - 1, 0),
        ("?time=9999999999999", 10, 0),
    ],
)
def test_reading_from(broker, ten, query: str, first: int, count: int) -> None:
    answer = records_of(broker, ten, query)
    assert answer.status == 200
    found = answer.json
    assert [row["offset"] for row in found["records"]] == [str(first + number) for number in range(count)]
    assert [row["value"] for row in found["records"]] == [f"v{first + number}" for number in range(count)]
    assert (found["next_offset"], found["end_offset"]) == (str(first + count), "10")
    assert answer.headers["x-anabranch-next-offset"] == found["next_offset"]


@pytest.mark.parametrize(
    "query",
    [
        "?offset=-1",
        "?offset=x",
        "?offset=1e3",
        "?offset=99999999999999999999999",
        "?offset=",
        "?from=middle",
        "?time=yesterday",
        "?offset=1&from=latest",
        "?wait_ms=x",
        "?values=xml",
        "?ofset=1",
    ],
)
def test_wrong_parameters_are_refused_by_name(broker, ten, query: str) -> None:
    answer = records_of(broker, ten, query)
    assert (answer.status, answer.code) == (400, "INVALID_PARAMETER")


@pytest.mark.parametrize(
    ("topic", "partition", "status"), [("nothing-here", "0", 404), ("ten", "1", 404), ("ten", "x", 400)]
)
def test_unknown_partitions(broker, ten, topic: str, partition: str, status: int) -> None:
    assert records_of(broker, topic, partition=partition).status == status
    assert "nothing-here" not in broker.topics(), "reading makes no topics"


def test_records_that_are_gone_are_said_to_be_gone(broker) -> None:
    topic = broker.create_topic(broker.unused_name("gone"))
    broker.produce(topic, ["a", "b", "c"])

    async def shorten(node) -> None:
        partition = node.topics.partition(topic, 0)
        await node.kinds.of(partition).delete_before(partition, 2)

    life = broker._running()
    life.run(shorten(life.node.broker))
    answer = records_of(broker, topic, "?offset=0")
    assert (answer.status, answer.code) == (416, "OFFSET_OUT_OF_RANGE")
    assert "first offset is 2" in answer.json["error"]["message"]


def test_values_are_shown_as_they_are(broker, topic) -> None:
    values = [
        b'{"a": 1.10,\n "b": 12345678901234567890}',
        b"[1]",
        b"text",
        b"12",
        b"\xff\x00",
        b"{broken",
        None,
    ]
    broker.produce(topic, [("k", value) for value in values])
    rows = records_of(broker, topic).json["records"]
    assert [row.get("value") for row in rows] == [
        {"a": 1.1, "b": 12345678901234567890},
        [1],
        "text",
        "12",
        None,
        "{broken",
        None,
    ]
    assert rows[4]["value_base64"] == base64.b64encode(b"\xff\x00").decode()
    lines = records_of(broker, topic, accept="application/x-ndjson")
    assert lines.headers["content-type"] == "application/x-ndjson"
    assert lines.lines == rows
    assert b"1.10" in lines.body, "numbers stay as they were written"
    as_text = records_of(broker, topic, "?values=string").json["records"]
    assert as_text[1]["value"] == "[1]"
    in_base64 = records_of(broker, topic, "?values=base64").json["records"]
    assert in_base64[2]["value_base64"] == base64.b64encode(b"text").decode()


def test_what_is_read_can_be_written_back(broker, topic) -> None:
    values = [b'{"a":1}', b"text", b"12", b"\xff", b"", None]
    broker.produce(topic, [(b"\xfe", value, [("h", b"\xfd"), ("h", b"t")]) for value in values])
    rows = records_of(broker, topic).json["records"]
    copy = broker.create_topic(broker.unused_name("copy"))
    sent = [{name: held for name, held in row.items() if name != "offset"} for row in rows]
    assert ask(broker, "POST", f"/v1/topics/{copy}/records", sent).status == 200
    assert [(each.key, each.value, each.headers) for each in broker.records(copy)] == [
        (each.key, each.value, each.headers) for each in broker.records(topic)
    ]


def test_one_value_as_it_is(broker, topic) -> None:
    broker.produce(topic, [("k ü", b"\x00\xff", [("h", b"x")]), ("gone", None)])
    answer = records_of(broker, topic, "?offset=0", accept="application/octet-stream")
    assert (answer.status, answer.body) == (200, b"\x00\xff")
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["x-anabranch-key"] == "k %C3%BC"
    assert answer.headers["x-anabranch-header-h"] == "x"
    assert answer.headers["x-anabranch-next-offset"] == "1"
    tombstone = records_of(broker, topic, "?offset=1", accept="application/octet-stream")
    assert (tombstone.status, tombstone.headers["x-anabranch-offset"]) == (204, "1")
    nothing = records_of(broker, topic, "?offset=2", accept="application/octet-stream")
    assert nothing.status == 204
    assert "x-anabranch-offset" not in nothing.headers


def figure(broker, name: str) -> float:
    text = ask(broker, "GET", "/metrics").body.decode()
    line = next(line for line in text.splitlines() if line.startswith(f"anabranch_gateway_{name} "))
    return float(line.split()[1])


def until_figure(broker, name: str, is_so: Callable[[float], bool]) -> None:
    deadline = time.monotonic() + 20
    while not is_so(figure(broker, name)):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_one_value_whose_key_or_headers_fit_no_answer_says_so(broker, topic) -> None:
    broker.produce(
        topic,
        [(b"k" * 100_000, b"long key", [("a/b c", b"x")]), (b"k", b"long header", [("h", b"x" * 4000)])],
    )
    as_it_is = {"Accept": "application/octet-stream"}
    key, header = (
        ask(broker, "GET", f"/v1/topics/{topic}/partitions/0/records?offset={offset}", headers=as_it_is)
        for offset in (0, 1)
    )
    assert (key.status, key.body, key.headers["x-anabranch-omitted"]) == (200, b"long key", "key")
    assert key.headers["x-anabranch-header-a%2fb%20c"] == "x"
    assert (header.headers["x-anabranch-omitted"], header.headers["x-anabranch-key"]) == ("headers", "k")


def test_record_that_unpacks_to_megabytes_is_told_of_and_read_as_it_is(broker, topic) -> None:
    """Two kilobytes of a batch become sixty megabytes, and those would be 360 of JSON."""
    large = bytes(20 * 2**20)
    builder = BatchBuilder(codec=Codec.ZSTD)
    builder.add(None, large, timestamp_ms=int(time.time() * 1000))
    with RawClient(broker.bootstrap) as client:
        assert client.produce(topic, 0, bytes(builder.build()))["error_code"] == 0
    shown = records_of(broker, topic, "?max_bytes=1")
    assert [row.get("omitted_bytes") for row in shown.json["records"]] == [len(large)]
    assert records_of(broker, topic, "?max_bytes=1", accept="application/octet-stream").body == large
    until_figure(broker, "held_bytes", lambda held: held == 0)


def test_reader_waits_for_a_record_and_gets_it_at_once(broker, topic) -> None:
    found = []
    reader = threading.Thread(
        target=lambda: found.append(records_of(broker, topic, "?from=latest&wait_ms=60000").json)
    )
    reader.start()
    until_figure(broker, "polls", lambda count: count == 1)
    assert not found
    broker.produce(topic, ["late"])
    reader.join(20)
    assert [row["value"] for row in found[0]["records"]] == ["late"]


def test_reader_that_waited_in_vain_gets_an_empty_answer(broker, topic) -> None:
    found = records_of(broker, topic, "?wait_ms=50").json
    assert (found["records"], found["next_offset"]) == ([], "0")


def test_reader_that_is_gone_waits_no_longer(broker, topic) -> None:
    links = [raw(broker) for _ in range(5)]
    for link in links:
        link.sendall(
            f"GET /v1/topics/{topic}/partitions/0/records?wait_ms=60000 HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
        )
    until_figure(broker, "polls", lambda count: count == 5)
    for link in links:
        link.close()
    until_figure(broker, "polls", lambda count: count == 0)


def test_reader_that_takes_no_answer_is_given_up(broker, topic, monkeypatch) -> None:
    monkeypatch.setattr(doorkeeper, "SEND_SECONDS_MAX", 0.3)
    for _ in range(15):
        broker.produce(topic, [b"x" * 500_000])
    with raw(broker, receive_bytes=4096) as link:
        target = f"/v1/topics/{topic}/partitions/0/records?max_bytes=8000000"
        link.sendall(f"GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        until_figure(broker, "held_bytes", lambda held: held > 0)
        until_figure(broker, "held_bytes", lambda held: held == 0)
        assert len(all_of(link)) < 7_000_000, "it was cut off"


def test_waiting_reader_is_answered_when_the_node_stops() -> None:
    with gateway_broker() as broker:
        broker.create_topic("t")
        found = []
        reader = threading.Thread(
            target=lambda: found.append(records_of(broker, "t", "?offset=0&wait_ms=30000"))
        )
        reader.start()
        until_figure(broker, "polls", lambda count: count == 1)
    reader.join(20)
    assert (found[0].status, found[0].json["records"]) == (200, [])


def test_records_of_a_topic_in_the_object_store(tmp_path) -> None:
    settings = {"object_store": f"file://{tmp_path}/store", "object_gather_ms": 5}
    with gateway_broker(**settings) as broker:
        broker.create_topic("stored", anabranch_mode="object")
        for number in range(3):
            answer = ask(broker, "POST", "/v1/topics/stored/records", {"value": f"v{number}"})
            assert answer.json["offset"] == str(number)
        rows = records_of(broker, "stored").json["records"]
        assert [row["value"] for row in rows] == ["v0", "v1", "v2"]


# --- topics ------------------------------------------------------------------------------------------------


def test_topics_are_listed_page_by_page_without_the_brokers_own() -> None:
    with gateway_broker() as broker:
        for name in ("b", "a", "c"):
            broker.create_topic(name, partitions=2)
        assert ask(broker, "GET", "/v1/topics").json == {
            "topics": [{"name": name, "partitions": 2} for name in "abc"]
        }
        page = ask(broker, "GET", "/v1/topics?max=2").json
        assert ([row["name"] for row in page["topics"]], page["next_after"]) == (["a", "b"], "b")
        rest = ask(broker, "GET", "/v1/topics?max=2&after=b").json
        assert ([row["name"] for row in rest["topics"]], "next_after" in rest) == (["c"], False)


def test_topic_tells_its_partitions(broker, ten) -> None:
    found = ask(broker, "GET", "/v1/topics/ten").json
    assert found["partitions"] == [{"partition": 0, "leader": 0, "start_offset": "0", "end_offset": "10"}]
    assert (found["name"], found["partitioner"]) == ("ten", "murmur2")
    missing = ask(broker, "GET", "/v1/topics/none-such")
    assert (missing.status, missing.code) == (404, "UNKNOWN_TOPIC_OR_PARTITION")
