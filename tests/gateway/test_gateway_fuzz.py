"""Nonsense by seed, on the WebSocket and by HTTP: every field of every message may hold anything at all. Nothing may
make the node answer with a defect, log one, or hang up.

    make fuzz FUZZ_SECONDS=60 FUZZ_SEED=7
"""

import json
import os
import random
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest

from anabranch.testing import EmbeddedBroker
from support.gateway_client import ask, gateway_broker
from support.raw_socket import TEXT, RawSocket

SECONDS = float(os.environ.get("FUZZ_SECONDS", "2"))
SEED = int(os.environ.get("FUZZ_SEED", "8"))
REQUEST_BYTES_MAX = 100_000
TOO_LARGE = 1009
BUSY = 503

ODD: list[Any] = [
    *(None, True, False, 0, 1, -1, 2**31, 2**31 - 1, 2**63, 2**63 - 1, -(2**63), 10**30, 1.5, 1e308),
    *("", "a", "known", "0", "-1", "9223372036854775807", "9" * 30, "\ud800", "é", "\x00", "x" * 300),
    *("x" * 40_000, "new", "earliest", "latest", "g", "2026-01-01T00:00:00Z", "inf", "e30"),
    *([], {}, [1], ["known"], [[]], [["a", "b"]], [["a", None]], [["a", {"base64": "!"}]]),
    *({"offset": "1"}, {"offset": {"0": "1"}}, {"offset": {"0": 1, "9": "9"}}, {"time": 0}, {"time": 10**18}),
    *({"time": "9999-12-31T23:59:59Z"}, {"base64": "AAAA"}, {"h": {"base64": "AA=="}}),
    *({"header": "a", "equals": "b"}, {"and": [{"header": "a", "exists": True}]}, {"or": []}),
    *({"header": "a", "prefix": "\ud800"}, {"header": "a", "in": ["b", None]}, {"not": {"header": 7}}),
]
FIELDS = {
    "publish": ["key", "value", "headers", "partition", "timestamp", "key_base64", "value_base64"],
    "subscribe": ["from", "partitions", "group", "filter", "credit"],
    "credit": ["records"],
    "ack": ["partition", "offset"],
    "unsubscribe": ["x"],
}
PATHS = [
    *("/v1/topics", "/v1/topics/known", "/v1/topics/known/records", "/v1/topics/known/partitions/0/records"),
    *("/v1/groups/g/sessions", "/v1/groups/g/sessions/s", "/v1/groups/g/sessions/s/records"),
    *("/v1/groups/g/sessions/s/commit", "/", "/v1/ws", "/v1/demo", "/metrics"),
]
PARAMETERS = [
    *("offset", "time", "from", "max_records", "max_bytes", "values", "partition", "key", "key_base64"),
    *("timestamp", "answers", "cursor", "commit", "max", "after", "access_token", "x"),
]
BODY_FIELDS = ["records", "topics", "from", "timeout_ms", "cursor", "offsets", *FIELDS["publish"]]
KINDS = ["application/json"] * 4 + ["application/x-ndjson", "application/octet-stream", "text/plain", "x/y"]


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with gateway_broker(gateway_request_bytes_max=REQUEST_BYTES_MAX) as broker:
        broker.create_topic("known", 2)
        broker.produce("known", [b"a"])
        yield broker


class Nonsense:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def value(self) -> Any:
        value = self.rng.choice(ODD)
        return [value, self.rng.choice(ODD)] if self.rng.random() < 0.1 else value

    def message(self) -> str:
        kind = self.rng.choice(list(FIELDS))
        message = {"type": kind, "id": self.rng.choice([1, 2, "s", *ODD[:3]]), "topic": self._topic()}
        message |= {name: self.value() for name in FIELDS[kind] if self.rng.random() < 0.4}
        text = json.dumps(message)
        if self.rng.random() < 0.1:
            at = self.rng.randrange(len(text))
            text = text[:at] + self.rng.choice(['"', "{", ",", "\\u", "}"]) + text[at + 1 :]
        return text

    def _topic(self) -> Any:
        return "known" if self.rng.random() < 0.9 else self.value()

    def request(self) -> tuple[str, str, bytes | None, dict[str, str]]:
        names = self.rng.sample(PARAMETERS, self.rng.randrange(3))
        query = "&".join(f"{name}={self._quoted()}" for name in names)
        target = self.rng.choice(PATHS) + (f"?{query}" if query else "")
        method = self.rng.choice(["GET", "GET", "POST", "POST", "DELETE", "HEAD", "OPTIONS", "PUT"])
        if method not in ("POST", "PUT"):
            return method, target, None, {"Accept": self.rng.choice(KINDS)}
        given = {name: self.value() for name in self.rng.sample(BODY_FIELDS, self.rng.randrange(4))}
        body = json.dumps(self.rng.choice([given, given, [given, given], {"records": [given]}, self.value()]))
        return method, target, body.encode(), {"Content-Type": self.rng.choice(KINDS)}

    def _quoted(self) -> str:
        value = self.value()
        text = value if isinstance(value, str) else json.dumps(value)
        return quote(text.encode("utf-8", "surrogatepass")[:2000])


def test_messages_of_nonsense_are_answered(broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture) -> None:
    nonsense, end = Nonsense(SEED), time.monotonic() + SECONDS / 2
    link = RawSocket(broker.http_address or "")
    while time.monotonic() < end:
        text = nonsense.message()
        try:
            link.send_frame(TEXT, text.encode())
            link.say({"type": "unsubscribe", "id": "marker"})
            while link.hear().get("id") != "marker":
                pass
        except ConnectionError as closed:
            if closed.args[0] != TOO_LARGE:
                raise AssertionError(f"seed {SEED}: {text[:500]}") from closed
            link = RawSocket(broker.http_address or "")
    link.link.close()
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []


def test_requests_of_nonsense_are_answered(broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture) -> None:
    nonsense, end = Nonsense(SEED), time.monotonic() + SECONDS / 2
    while time.monotonic() < end:
        request = nonsense.request()
        answer = ask(broker, *request)
        assert answer.status < 500 or answer.status == BUSY, f"seed {SEED}: {request} {answer}"
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []
