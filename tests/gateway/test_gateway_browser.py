"""The gateway in a real browser: the demo page publishes and receives live; a page of another origin is kept out."""

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


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """A test's output is for what fails."""
