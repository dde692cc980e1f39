"""One HTTP request to an address, whoever listens there: a node in another process, a proxy."""

import http.client
import json
from typing import Any

from support.gateway_client import TIMEOUT_SECONDS, Answer


def ask_at(
    address: str, method: str, target: str, body: Any = None, headers: dict[str, str] | None = None
) -> Answer:
    """On a connection of its own. A body that is not bytes is sent as JSON."""
    headers = dict(headers or {})
    if body is not None and not isinstance(body, bytes):
        body = json.dumps(body).encode()
        headers.setdefault("Content-Type", "application/json")
    link = http.client.HTTPConnection(address, timeout=TIMEOUT_SECONDS)
    try:
        link.request(method, target, body, headers)
        answer = link.getresponse()
        told = {name.lower(): value for name, value in answer.getheaders()}
        return Answer(answer.status, told, answer.read())
    finally:
        link.close()
