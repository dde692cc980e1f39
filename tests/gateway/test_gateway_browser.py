"""The gateway in a real browser: the demo page publishes and receives live; a page of another origin is kept out."""

import base64
import functools
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from anabranch.testing import EmbeddedBroker
from clients.registries import or_skip, program
from support.browser import Browser, Page
from support.gateway_client import ask, gateway_broker
from support.nginx import Nginx
from support.waiting import wait_until

pytestmark = pytest.mark.interop

ROWS = "document.querySelectorAll('#records tr').length"
VALUES = "[...document.querySelectorAll('#records tr')].map(row => row.cells[4].textContent)"
IS_OPEN = "document.querySelector('#state').dataset.state === 'open'"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    or_skip(lambda: program("chromium", "chromium"))
    with Browser(tmp_path_factory.mktemp("browser")) as browser:
        yield browser


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with gateway_broker() as broker:
        yield broker


def open_demo(browser: Browser, address: str, topic: str) -> Page:
    page = browser.open(f"http://{address}/v1/demo")
    page.wait_for(IS_OPEN)
    page.type("#topic", topic)
    page.click("#start")
    return page


def nothing_went_wrong(page: Page) -> None:
    """A browser asks for an icon on its own account; whatever else it complains of is ours."""
    assert [line for line in page.said if "favicon" not in line] == []


def test_page_publishes_and_another_receives_live(
    browser: Browser, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    topic = broker.create_topic("live", 3)
    assert broker.http_address is not None
    writer, reader = (open_demo(browser, broker.http_address, topic) for _ in range(2))
    for number in range(5):
        writer.type("#value", f"from the page {number} ✓")
        writer.type("#key", f"key-{number}")
        writer.type("#headers", "kind=greeting")
        writer.click("#publish")
        writer.wait_for(f"{ROWS} === {number + 1}")
    broker.produce(topic, [(b"k", b"from a Kafka client")])
    ask(broker, "POST", f"/v1/topics/{topic}/records", {"value": {"from": "HTTP"}})
    expected = {f"from the page {number} ✓" for number in range(5)}
    expected |= {"from a Kafka client", '{"from":"HTTP"}'}
    for page in (writer, reader):
        page.wait_for(f"{ROWS} === 7")
        assert set(page.run(VALUES)) == expected
        nothing_went_wrong(page)
    assert {record.value for record in broker.records(topic)} == {text.encode() for text in expected}
    assert reader.screenshot(tmp_path / "demo.png").stat().st_size > 10_000


def test_text_that_looks_like_markup_stays_text(browser: Browser, broker: EmbeddedBroker) -> None:
    topic = broker.create_topic("markup")
    assert broker.http_address is not None
    page = open_demo(browser, broker.http_address, topic)
    trick = "<img src=x onerror=\"document.title='tricked'\">"
    broker.produce(topic, [(trick.encode(), trick.encode(), [(trick, trick.encode())])])
    page.wait_for(f"{ROWS} === 1")
    assert page.run(VALUES) == [trick]
    assert page.run("document.title") == "anabranch: live records"
    assert page.run("document.querySelectorAll('img').length") == 0
    nothing_went_wrong(page)


def test_page_goes_on_where_it_was_when_the_node_comes_back(browser: Browser) -> None:
    with gateway_broker() as broker:
        topic = broker.create_topic("back")
        assert broker.http_address is not None
        page = open_demo(browser, broker.http_address, topic)
        broker.produce(topic, [b"before"])
        page.wait_for(f"{ROWS} === 1")
        broker.kill_and_restart()
        broker.produce(topic, [b"between", b"after"])
        page.wait_for(f"{ROWS} === 3")
        assert page.run(VALUES) == ["after", "between", "before"]


def test_page_of_another_origin_can_neither_read_nor_write(
    browser: Browser, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    topic = broker.create_topic("private")
    broker.produce(topic, [b"secret"])
    (tmp_path / "page.html").write_text("<!doctype html><title>elsewhere</title>")
    handler = functools.partial(QuietHandler, directory=tmp_path)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        page = browser.open(f"http://127.0.0.1:{server.server_port}/page.html")
        base = f"{broker.http_address}/v1/topics/{topic}"
        for script in (
            f"fetch('http://{base}/partitions/0/records')",
            f"fetch('http://{base}/records', {{method: 'POST', body: '{{}}',"
            " headers: {'content-type': 'application/json'}})",
        ):
            assert page.run(f"{script}.then(() => 'let in', () => 'kept out')") == "kept out"
        # What a form or a no-cors request may send without asking must not be written either.
        page.run(
            f"fetch('http://{base}/records', {{method: 'POST', mode: 'no-cors', body: 'x',"
            " headers: {'content-type': 'text/plain'}}).catch(() => 0)"
        )
        socket = f"new WebSocket('ws://{broker.http_address}/v1/ws')"
        said = page.run(
            f"new Promise(done => {{ const s = {socket}; s.onopen = () => done('let in');"
            " s.onerror = () => done('kept out'); })"
        )
        assert said == "kept out"
    finally:
        server.shutdown()
        server.server_close()
    assert [record.value for record in broker.records(topic)] == [b"secret"]


def test_page_works_through_a_proxy(browser: Browser, broker: EmbeddedBroker, tmp_path: Path) -> None:
    or_skip(lambda: program("nginx", "nginx-light"))
    topic = broker.create_topic("proxied")
    assert broker.http_address is not None
    with Nginx(tmp_path, broker.http_address) as proxy:
        page = open_demo(browser, proxy.address, topic)
        page.type("#value", "through the proxy")
        page.click("#publish")
        page.wait_for(f"{ROWS} === 1")
        assert page.run(VALUES) == ["through the proxy"]
        nothing_went_wrong(page)


def script(body: str) -> str:
    """Run with the client at hand; what it returns is the result."""
    return f"import('/v1/anabranch.js').then(async ({{ Anabranch }}) => {{ {body} }})"


def test_client_says_bytes_headers_and_nothing_as_they_are(browser: Browser, broker: EmbeddedBroker) -> None:
    topic = broker.create_topic("client-bytes", 1)
    page = browser.open(f"http://{broker.http_address}/v1/demo")
    placed = page.run(
        script(
            f"""const client = new Anabranch();
            const bytes = new Uint8Array(256).map((_, index) => index);
            const all = await Promise.all([
              client.publish("{topic}", bytes, {{ key: bytes.buffer, headers: {{ kind: "bytes" }} }}),
              client.publish("{topic}", null, {{ key: "gone" }}),
              client.publish("{topic}", {{ deep: [1, "ü", null] }}),
            ]);
            const heard = [];
            await new Promise((done) => client.subscribe("{topic}", (record) => heard.push(record) === 3 && done(),
              {{ from: "earliest" }}));
            client.close();
            const values = heard.map((each) => each.value_base64 ?? each.value);
            return [all.map((each) => each.offset), values, heard[0].headers];"""
        )
    )
    odd = bytes(range(256))
    assert placed == [
        ["0", "1", "2"],
        [base64.b64encode(odd).decode(), None, {"deep": [1, "ü", None]}],
        [["kind", "bytes"]],
    ]
    stored = broker.records(topic)
    assert [(record.key, record.value) for record in stored] == [
        (odd, odd),
        (b"gone", None),
        (None, '{"deep":[1,"ü",null]}'.encode()),
    ]


def test_client_with_a_slow_handler_is_sent_no_more_than_its_credit(
    browser: Browser, broker: EmbeddedBroker
) -> None:
    topic = broker.create_topic("client-credit", 1)
    broker.produce(topic, [b"%d" % number for number in range(100)])
    page = browser.open(f"http://{broker.http_address}/v1/demo")
    page.run(
        script(
            f"""window.handled = []; window.arrived = 0;
            const client = new Anabranch();
            const plain = client._heard.bind(client);
            client._heard = (message) => {{ window.arrived += (message.records ?? []).length; plain(message); }};
            client.subscribe("{topic}", async (record) => {{
              await new Promise((go) => (window.go = go));
              window.handled.push(record.value);
            }}, {{ from: "earliest", credit: 10 }});"""
        )
    )
    page.wait_for("window.arrived === 10 && window.go !== undefined")
    for _ in range(3):
        page.run("window.go()")
    assert page.run("new Promise(done => setTimeout(() => done(window.arrived), 300))") == 10
    page.run("setInterval(() => window.go(), 0)")
    page.wait_for("window.handled.length === 100")
    assert page.run("window.handled") == [str(number) for number in range(100)]
    nothing_went_wrong(page)


def test_client_refuses_what_has_no_json_and_says_the_rest(browser: Browser, broker: EmbeddedBroker) -> None:
    topic = broker.create_topic("client-unsaid", 1)
    page = browser.open(f"http://{broker.http_address}/v1/demo")
    found = page.run(
        script(
            f"""const client = new Anabranch();
            const outcome = (given) => given.then((placed) => placed.offset, (error) => error.name);
            const early = ["a", 1n, "b"].map((value) => outcome(client.publish("{topic}", value)));
            const first = await Promise.all(early);
            const late = await outcome(client.publish("{topic}", {{ deep: 1n }}));
            let refused = null;
            const follow = () => client.subscribe("{topic}", () => {{}}, {{ filter: 1n }});
            try {{ follow(); }} catch (error) {{ refused = error.name; }}
            return [first, late, refused, client._asked.size, client._subscriptions.size];"""
        )
    )
    assert found == [["0", "TypeError", "1"], "TypeError", "TypeError", 0, 0]
    nothing_went_wrong(page)


def test_client_grants_no_credit_twice_for_what_it_did_between_connections(
    browser: Browser, broker: EmbeddedBroker
) -> None:
    page = browser.open(f"http://{broker.http_address}/v1/demo")
    granted = page.run(
        script(
            """const client = new Anabranch();
            const sent = [], waiting = [];
            client._send = (message) => client.state === "open" && sent.push(message.credit ?? message.records);
            client._socket.onopen = null; // Whether it is open is for this test to say.
            client.state = "open";
            const handler = () => new Promise((done) => waiting.push(done));
            const subscription = client.subscribe("t", handler, { credit: 10 });
            const handled = async () => { waiting.shift()(); await new Promise((done) => setTimeout(done)); };
            const message = { type: "records", partition: 0, next: "1", records: [{}] };
            for (let n = 0; n < 8; n++) subscription._heard(message);
            client.state = "waiting";
            subscription._pause();
            for (let n = 0; n < 4; n++) await handled();
            client.state = "open";
            sent.length = 0;
            subscription._begin();
            for (let n = 0; n < 4; n++) await handled();
            client.close();
            return sent;"""
        )
    )
    assert granted == [6], "four are still to be done, and four are not enough to be told of"


def test_clients_of_a_group_share_its_partitions_and_commit_what_they_handled(
    browser: Browser, broker: EmbeddedBroker
) -> None:
    topic = broker.create_topic("client-group", 2)
    pages = [browser.open(f"http://{broker.http_address}/v1/demo") for _ in range(2)]
    for page in pages:
        page.run(
            script(
                f"""window.heard = [];
                window.client = new Anabranch();
                client.subscribe("{topic}", (record) => {{ heard.push(record.value); }},
                  {{ group: "pages", from: "earliest" }});"""
            )
        )
    broker.wait_for_group("pages", members=2)
    for number in range(20):
        broker.produce(topic, [str(number).encode()], partition=number % 2)
    for page in pages:
        page.wait_for("window.heard.length === 10")
    heard = [page.run("window.heard") for page in pages]
    assert sorted(map(tuple, heard)) == [
        tuple(str(number) for number in range(parity, 20, 2)) for parity in (0, 1)
    ]
    wait_until(lambda: broker.committed("pages", topic) == {0: 10, 1: 10}, "the commits")
    for page in pages:
        page.run("window.client.close()")
        nothing_went_wrong(page)
    broker.wait_for_group("pages", state="Empty")


def test_client_filters_in_the_broker(browser: Browser, broker: EmbeddedBroker) -> None:
    topic = broker.create_topic("client-filter", 1)
    for number in range(10):
        kind = b"even" if number % 2 == 0 else b"odd"
        broker.produce(topic, [(None, str(number).encode(), [("kind", kind)])])
    page = browser.open(f"http://{broker.http_address}/v1/demo")
    heard = page.run(
        script(
            f"""const heard = [];
            const client = new Anabranch();
            await new Promise((done) => client.subscribe("{topic}",
              (record) => heard.push(record.value) === 5 && done(),
              {{ from: "earliest", filter: {{ header: "kind", equals: "odd" }} }}));
            client.close();
            return heard;"""
        )
    )
    assert heard == ["1", "3", "5", "7", "9"]


def test_client_misses_nothing_and_hears_nothing_twice_over_restarts(browser: Browser) -> None:
    with gateway_broker() as broker:
        topic = broker.create_topic("client-restarts", 3)
        page = browser.open(f"http://{broker.http_address}/v1/demo")
        page.run(
            script(
                f"""window.heard = [];
                window.client = new Anabranch();
                client.subscribe("{topic}", (record) => {{ heard.push(record.partition + "/" + record.offset); }},
                  {{ from: "earliest" }});"""
            )
        )
        for start in (broker.restart, broker.kill_and_restart, lambda: None):
            for number in range(30):
                broker.produce(topic, [b"x"], partition=number % 3)
            start()
        page.wait_for("window.heard.length >= 90")
        heard = page.run("window.heard")
        page.run("window.client.close()")
    for partition in range(3):
        offsets = [int(each.split("/")[1]) for each in heard if each.startswith(f"{partition}/")]
        assert offsets == list(range(30))


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """A test's output is for what fails."""
