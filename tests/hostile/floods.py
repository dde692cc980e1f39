"""Floods: short requests on many connections at once, more on each than are answered in one turn; and requests that all
wait, are woken together, and hang up together."""

import time
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

WAITING_TOPICS, WAITING_PARTITIONS = 4, 500
"""What a Fetch on each connection waits for."""
WAITING_NAME = (
    f"FETCH, {WAITING_TOPICS * WAITING_PARTITIONS} partitions waited for on each of {CONNECTIONS} connections"
)
WAITING_SECONDS = 15.0
"""Until all of them wait, or were answered."""
DELETE_MS = 30_000


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


def pour_waiting(bootstrap: str) -> str:
    """Let a Fetch of all partitions wait on each connection, wake them all by the end of a topic, and hang up."""
    names = [f"waited-{number}" for number in range(WAITING_TOPICS)]
    partitions = [
        {"partition": number, "partition_max_bytes": 100, "current_leader_epoch": -1}
        for number in range(WAITING_PARTITIONS)
    ]
    body = {
        "session_epoch": -1,
        "max_wait_ms": 120_000,
        "min_bytes": 2**30,
        "max_bytes": 2**30,
        "topics": [{"topic": name, "partitions": partitions} for name in names],
    }
    wanted = frame(ApiKey.FETCH, 12, body)
    with RawClient(bootstrap) as admin:
        admin.sock.settimeout(ANSWER_SECONDS_MAX)
        for name in names:
            admin.create_topic(name, WAITING_PARTITIONS)
        try:
            with ExitStack() as stack:
                for _ in range(CONNECTIONS):
                    stack.enter_context(RawClient(bootstrap)).send_frame(wanted)
                time.sleep(WAITING_SECONDS)
                _delete(admin, names[:1])
            _delete(admin, names[1:])
        except (ClosedByBroker, ConnectionError):
            return "closed"
        except TimeoutError:
            return NO_ANSWER
    return "answered"


def _delete(admin: RawClient, names: list[str]) -> None:
    admin.ask(ApiKey.DELETE_TOPICS, 4, {"topic_names": names, "timeout_ms": DELETE_MS})
