"""The gateway behind nginx, set up as docs/gateway.md says: writing, long poll, sessions, streams and WebSockets."""

import http.client
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from anabranch.testing import EmbeddedBroker
from clients.registries import or_skip, program
from support.gateway_client import TIMEOUT_SECONDS, gateway_broker
from support.http_client import ask_at
from support.nginx import Nginx
from support.raw_socket import RawSocket

pytestmark = pytest.mark.interop


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with gateway_broker(gateway_request_bytes_max=64 * 1024) as broker:
        yield broker


@pytest.fixture(scope="module")
def proxy(broker: EmbeddedBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nginx]:
    or_skip(lambda: program("nginx", "nginx-light"))
    assert broker.http_address is not None
    with Nginx(tmp_path_factory.mktemp("nginx"), broker.http_address) as proxy:
        yield proxy


def test_writing_and_reading_back(broker: EmbeddedBroker, proxy: Nginx) -> None:
    topic = broker.create_topic("proxied")
    target = f"/v1/topics/{topic}/records"
    assert ask_at(proxy.address, "POST", target, {"key": "k", "value": {"a": "ü"}}).json["offset"] == "0"
    lines = b"".join(json.dumps({"value": number}).encode() + b"\n" for number in range(1000))
    answer = ask_at(proxy.address, "POST", target, lines, {"Content-Type": "application/x-ndjson"})
    assert [line["offset"] for line in answer.lines] == [str(number) for number in range(1, 1001)]
    read = ask_at(proxy.address, "GET", f"/v1/topics/{topic}/partitions/0/records?max_records=2").json
    assert [record["value"] for record in read["records"]] == [{"a": "ü"}, "0"]
    assert len(broker.records(topic)) == 1001


def test_oversize_body_is_refused_by_the_node_and_not_by_the_proxy(
    broker: EmbeddedBroker, proxy: Nginx
) -> None:
    topic = broker.create_topic("oversize")
    answer = ask_at(proxy.address, "POST", f"/v1/topics/{topic}/records", {"value": "x" * 2_000_000})
    assert (answer.status, answer.code) == (413, "REQUEST_TOO_LARGE")


def test_long_poll_is_answered_when_the_record_comes(broker: EmbeddedBroker, proxy: Nginx) -> None:
    topic = broker.create_topic("awaited")
    timer = threading.Timer(0.3, lambda: broker.produce(topic, [b"now"]))
    timer.start()
    target = f"/v1/topics/{topic}/partitions/0/records?offset=0&wait_ms=15000"
    answer = ask_at(proxy.address, "GET", target)
    timer.join()
    assert [record["value"] for record in answer.json["records"]] == ["now"]


def test_session_through_the_proxy(broker: EmbeddedBroker, proxy: Nginx) -> None:
    topic = broker.create_topic("sessions")
    broker.produce(topic, [b"a"])
    body = {"topics": [topic], "from": "earliest"}
    path = ask_at(proxy.address, "POST", "/v1/groups/g/sessions", body).headers["location"]
    answer = ask_at(proxy.address, "POST", f"{path}/records?wait_ms=5000").json
    assert [record["value"] for record in answer["records"]] == ["a"]
    assert ask_at(proxy.address, "POST", f"{path}/commit", {"cursor": answer["cursor"]}).status == 200
    assert ask_at(proxy.address, "DELETE", path).status == 204
    assert broker.committed("g", topic) == {0: 1}


def test_lines_are_answered_while_the_stream_goes_on(broker: EmbeddedBroker, proxy: Nginx) -> None:
    topic = broker.create_topic("streamed")
    link = http.client.HTTPConnection(proxy.address, timeout=TIMEOUT_SECONDS)
    link.putrequest("POST", f"/v1/topics/{topic}/records")
    link.putheader("Content-Type", "application/x-ndjson")
    link.putheader("Transfer-Encoding", "chunked")
    link.endheaders()
    line = b'{"value": "first"}\n'
    link.send(b"%x\r\n%s\r\n" % (len(line), line))
    assert broker.wait_for_records(topic, 1)
    link.send(b"%x\r\n%s\r\n0\r\n\r\n" % (len(line), line))
    answer = link.getresponse()
    assert [json.loads(each)["offset"] for each in answer.read().splitlines()] == ["0", "1"]
    link.close()


def test_socket_publishes_and_receives(broker: EmbeddedBroker, proxy: Nginx) -> None:
    topic = broker.create_topic("sockets")
    with RawSocket(proxy.address, f"/v1/topics/{topic}/ws") as reader, RawSocket(proxy.address) as writer:
        reader.say({"type": "subscribe", "id": "s", "from": "new"})
        assert reader.hear()["type"] == "subscribed"
        for number in range(100):
            writer.say({"type": "publish", "id": number, "topic": topic, "value": number})
        offsets = [writer.hear_of("published")["offset"] for _ in range(100)]
        assert offsets == [str(number) for number in range(100)]
        heard: list[str] = []
        while len(heard) < 100:
            heard += [record["value"] for record in reader.hear_of("records")["records"]]
        assert heard == [str(number) for number in range(100)]


def test_page_of_another_origin_is_kept_out_behind_the_proxy_too(
    broker: EmbeddedBroker, proxy: Nginx
) -> None:
    assert ask_at(proxy.address, "GET", "/v1/topics", None, {"Origin": "http://evil.example"}).status == 403
    own = {"Origin": f"http://{proxy.address}"}
    assert ask_at(proxy.address, "GET", "/v1/topics", None, own).status == 200


def test_node_that_stops_tells_those_behind_the_proxy(proxy: Nginx, tmp_path: Path) -> None:
    del proxy  # It says whether nginx is there at all.
    with gateway_broker() as broker:
        topic = broker.create_topic("ending")
        assert broker.http_address is not None
        with Nginx(tmp_path, broker.http_address) as front:
            link = RawSocket(front.address)
            link.say({"type": "subscribe", "id": 1, "topic": topic})
            assert link.hear()["type"] == "subscribed"
            answers: list[int] = []
            target = f"/v1/topics/{topic}/partitions/0/records?wait_ms=20000"
            waiting = threading.Thread(
                target=lambda: answers.append(ask_at(front.address, "GET", target).status)
            )
            waiting.start()
            time.sleep(0.3)  # The request has to be there before the node stops.
            broker.restart()
            assert link.closed()[0] == 1001
            waiting.join()
            assert answers == [200]
            link.link.close()
