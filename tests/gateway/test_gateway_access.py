"""Who may use the gateway, and from which page."""

import json
import subprocess
import sys

import pytest

from anabranch.config import NodeSettings
from anabranch.errors import GatewayError, InvalidConfigError
from anabranch.gateway.http.access import Access, read_token
from support.gateway_client import all_of, ask, gateway_broker, raw
from support.secret_files import write_secret

TOKEN = "correct-horse-battery-staple"


@pytest.fixture(scope="module")
def broker():
    with gateway_broker(gateway_origins="https://app.example.com") as broker:
        broker.create_topic("t")
        yield broker


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    path = tmp_path_factory.mktemp("token") / "token"
    write_secret(path, f"{TOKEN}\n")
    with gateway_broker(gateway_token_file=str(path)) as broker:
        broker.create_topic("t")
        yield broker


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("https://app.example.com", 200),
        ("HTTPS://APP.example.com", 200),
        ("https://app.example.com:444", 403),
        ("http://app.example.com", 403),
        ("https://evil.example.com", 403),
        ("null", 403),
        ("", 403),
    ],
)
def test_page_may_if_its_origin_is_named(broker, origin: str, status: int) -> None:
    answer = ask(broker, "GET", "/v1/topics", headers={"Origin": origin})
    assert answer.status == status
    if status == 200:
        assert answer.headers["access-control-allow-origin"] == origin
        assert answer.headers["vary"] == "Origin"
    else:
        assert answer.code == "ORIGIN_REFUSED"
        assert "gateway.origins" in answer.json["error"]["message"]


def test_page_of_the_node_itself_may_always(broker) -> None:
    answer = ask(broker, "GET", "/v1/topics", headers={"Origin": f"http://{broker.http_address}"})
    assert answer.status == 200
    assert "access-control-allow-origin" not in answer.headers


def test_wrong_origin_writes_nothing(broker) -> None:
    answer = ask(
        broker, "POST", "/v1/topics/t/records", {"value": "v"}, {"Origin": "https://evil.example.com"}
    )
    assert answer.status == 403
    assert broker.records("t") == []


def test_page_that_gets_an_error_may_read_it(broker) -> None:
    answer = ask(broker, "GET", "/v1/topics/no-such", headers={"Origin": "https://app.example.com"})
    assert (answer.status, answer.headers["access-control-allow-origin"]) == (404, "https://app.example.com")


def test_browser_is_told_beforehand_what_it_may_do(broker) -> None:
    asked = {"Origin": "https://app.example.com", "Access-Control-Request-Method": "POST"}
    answer = ask(broker, "OPTIONS", "/v1/topics/t/records", headers=asked)
    assert (answer.status, answer.headers["access-control-allow-origin"]) == (204, "https://app.example.com")
    assert "POST" in answer.headers["access-control-allow-methods"]
    assert answer.headers["access-control-allow-headers"] == "*, authorization"
    refused = ask(broker, "OPTIONS", "/v1/topics/t/records", headers={**asked, "Origin": "https://evil.com"})
    assert refused.status == 403


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:1234", 200),
        ("127.0.0.1", 200),
        ("[::1]:80", 200),
        ("app.example.com", 200),
        ("rebound.example.com", 403),
        ("localhost.evil.com", 403),
    ],
)
def test_local_port_is_not_reached_under_any_name(broker, host: str, status: int) -> None:
    for path in ("/v1/topics", "/metrics", "/v1/demo"):
        assert ask(broker, "GET", path, headers={"Host": host}).status == status
    assert ask(broker, "GET", "/healthz", headers={"Host": host}).status == 200


@pytest.mark.parametrize("address", ["0.0.0.0:8080", "192.168.1.5:8080", "127.0.0.1:8080", "[::]:8080"])
@pytest.mark.parametrize(
    ("host", "is_taken"),
    [
        ("192.168.1.5:8080", True),
        ("localhost:8080", True),
        ("broker-1.example:8080", True),
        ("app.example.com", True),
        ("evil.example", False),
        ("evil.example:8080", False),
        ("127.0.0.1.evil.example", False),
        ("", False),
    ],
)
def test_name_that_resolves_to_any_bound_address_is_no_way_in(
    address: str, host: str, is_taken: bool
) -> None:
    """A page of evil.example whose name is rebound to the node sends Host and Origin that agree."""
    access = Access(
        NodeSettings.load(
            {
                "http": address,
                "advertise": "broker-1.example:9092",
                "gateway.origins": "https://app.example.com",
                "allow.unauthenticated": "true",
            }
        )
    )
    headers = {"host": host, "origin": f"http://{host}"}
    preflight = {**headers, "access-control-request-method": "POST"}
    checks = (
        lambda: access.check("/v1/topics", headers, b"", is_socket=False),
        lambda: access.check("/v1/topics", {"host": host}, b"", is_socket=False),
        lambda: access.check("/v1/ws", headers, b"", is_socket=True),
        lambda: access.check("/metrics", headers, b"", is_socket=False),
        lambda: access.check_preflight(preflight),
    )
    for check in checks:
        if is_taken:
            check()
        else:
            with pytest.raises(GatewayError, match=r"gateway\.origins"):
                check()


def test_any_host_is_taken_where_any_origin_is() -> None:
    access = Access(NodeSettings.load({"http": "127.0.0.1:0", "gateway.origins": "*"}))
    access.check("/v1/topics", {"host": "evil.example"}, b"", is_socket=False)


@pytest.mark.parametrize("origin", [b"null", b"://", b""])
@pytest.mark.parametrize("host", [b"", b"host:\r\n"])
def test_no_origin_is_that_of_no_host(broker, origin: bytes, host: bytes) -> None:
    with raw(broker) as link:
        link.sendall(
            b"GET /healthz HTTP/1.1\r\norigin: " + origin + b"\r\nconnection: close\r\n" + host + b"\r\n"
        )
        assert all_of(link).startswith(b"HTTP/1.1 403 ")


@pytest.mark.parametrize(
    ("shown", "status"),
    [
        (f"Bearer {TOKEN}", 200),
        (f"bearer  {TOKEN}", 200),
        (f"Bearer {TOKEN}x", 401),
        (f"Basic {TOKEN}", 401),
        ("Bearer", 401),
        ("Bearer \xff", 401),
        (None, 401),
    ],
)
def test_token_is_asked_for(guarded, shown: str | None, status: int) -> None:
    answer = ask(guarded, "GET", "/v1/topics", headers={"Authorization": shown} if shown else {})
    assert answer.status == status
    if status == 401:
        assert answer.code == "TOKEN_REFUSED"
        assert answer.headers["www-authenticate"].startswith("Bearer")
        assert TOKEN not in answer.body.decode()


def test_token_in_the_query_is_for_sockets_alone(guarded) -> None:
    assert ask(guarded, "GET", f"/v1/topics?access_token={TOKEN}").status == 401


def test_metrics_and_health_need_no_token(guarded) -> None:
    assert [ask(guarded, "GET", path).status for path in ("/metrics", "/healthz")] == [200, 200]


def test_token_is_not_shown_among_the_settings(guarded) -> None:
    described = guarded._ask_broker(lambda broker: broker.settings.describe())
    assert not any(TOKEN in (entry.value or "") for entry in described)


@pytest.mark.parametrize("text", ["", "short", "with a space in its middle", "grün-und-lang-genug"])
def test_token_that_cannot_be_sent_is_refused_at_the_start(tmp_path, text: str) -> None:
    path = tmp_path / "token"
    write_secret(path, text)
    with (
        pytest.raises(InvalidConfigError, match="openssl rand"),
        gateway_broker(gateway_token_file=str(path)),
    ):
        pass
    with pytest.raises(InvalidConfigError, match="cannot be read"):
        read_token(str(tmp_path / "none"))


@pytest.mark.parametrize(
    ("given", "is_fine"),
    [
        ({"http": "8080"}, True),
        ({"http": ":8080"}, True),
        ({"http": "0.0.0.0:8080"}, False),
        ({"http": "0.0.0.0:8080", "allow.unauthenticated": True}, True),
        ({"http": "0.0.0.0:8080", "gateway.token.file": "f"}, True),
        ({"http": "x"}, False),
        ({"gateway.origins": "app.example.com"}, False),
        ({"gateway.origins": "https://app.example.com/"}, False),
        ({"gateway.origins": "*"}, True),
    ],
)
def test_settings_of_the_port(given: dict[str, object], is_fine: bool) -> None:
    if is_fine:
        NodeSettings.load(given)
    else:
        with pytest.raises(InvalidConfigError):
            NodeSettings.load(given)


def test_port_alone_is_one_of_this_machine() -> None:
    with gateway_broker(http=":0") as broker:
        assert broker.http_address is not None
        assert broker.http_address.startswith("127.0.0.1:")


LAZY = """
import http.client, json, sys
from anabranch.testing import EmbeddedBroker
WEB = ("uvicorn", "starlette", "websockets", "httptools", "anyio")
with EmbeddedBroker(settings={"http": "127.0.0.1:0"}) as broker:
    before = [name for name in WEB if name in sys.modules]
    link = http.client.HTTPConnection(broker.http_address, timeout=20)
    link.request("GET", "/healthz")
    status = link.getresponse().status
    print(json.dumps([before, status, "uvicorn" in sys.modules]))
"""


def test_web_server_is_loaded_by_the_first_who_knocks() -> None:
    ran = subprocess.run([sys.executable, "-c", LAZY], capture_output=True, text=True, timeout=60)
    assert json.loads(ran.stdout) == [[], 200, True], ran.stderr
