"""Floods: short requests on many connections at once, more on each than are answered in one turn."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import NamedTuple

from anabranch.wire.api_keys import ApiKey
from hostile.cost import NO_ANSWER
from hostile.probes import ANSWER_SECONDS_MAX
from hostile.special_requests import frame
from support.raw_client import ClosedByBroker, RawClient, fetch_body, produce_body

CONNECTIONS = 500
REQUESTS = 64
"""On each connection, sent before any answer is read."""


class Flood(NamedTuple):
    api: ApiKey
    frame: bytes

    @property
    def name(self) -> str:
        return f"{self.api.name}, {REQUESTS} requests on each of {CONNECTIONS} connections"


def floods(broker_id: int) -> Iterator[Flood]:
    broker = {"resource_type": 4, "resource_name": str(broker_id), "configuration_keys": None}
    for api, version, body in (
        (ApiKey.API_VERSIONS, 0, {}),
        (ApiKey.METADATA, 9, {"topics": []}),
        (ApiKey.PRODUCE, 9, produce_body("unknown", 0, b"")),
        (ApiKey.FETCH, 12, fetch_body("unknown", 0, 0)),
        (ApiKey.DESCRIBE_CONFIGS, 4, {"resources": [broker]}),
        (ApiKey.DESCRIBE_LOG_DIRS, 4, {"topics": None}),
    ):
        yield Flood(api, frame(api, version, body))


def pour(bootstrap: str, flood: Flood) -> str:
    with ExitStack() as stack:
        clients = [stack.enter_context(RawClient(bootstrap)) for _ in range(CONNECTIONS)]
        try:
            for client in clients:
                client.sock.settimeout(ANSWER_SECONDS_MAX)
                client.send_bytes((len(flood.frame).to_bytes(4, "big") + flood.frame) * REQUESTS)
            for client in clients:
                for _ in range(REQUESTS):
                    client.receive_frame()
        except (ClosedByBroker, ConnectionError):
            return "closed"
        except TimeoutError:
            return NO_ANSWER
    return "answered"
