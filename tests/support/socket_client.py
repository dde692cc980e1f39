"""A WebSocket client of the gateway for tests: says and hears JSON, one message at a time."""

import contextlib
import json
from collections.abc import Iterator
from typing import Any

from websockets.sync.client import ClientConnection, connect

from anabranch.testing import EmbeddedBroker

TIMEOUT_SECONDS = 30.0


class SocketClient:
    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection

    def say(self, kind: str, **fields: Any) -> None:
        """`from_` stands for `from`."""
        message = {"type": kind, **{name.rstrip("_"): each for name, each in fields.items()}}
        self.connection.send(json.dumps(message))

    def hear(self, kind: str | None = None) -> dict[str, Any]:
        """The next message, which must be of this kind."""
        message: dict[str, Any] = json.loads(self.connection.recv(TIMEOUT_SECONDS))
        assert kind in (None, message["type"]), message
        return message

    def hear_until(self, kind: str) -> dict[str, Any]:
        """The next message of this kind; what comes before it is dropped."""
        while True:
            message = self.hear()
            if message["type"] == kind:
                return message

    def subscribe(self, own_id: str, topic: str, **fields: Any) -> dict[str, Any]:
        self.say("subscribe", id=own_id, topic=topic, **fields)
        return self.hear("subscribed")

    def publish(self, topic: str, value: Any, **fields: Any) -> dict[str, Any]:
        """For a socket without subscriptions: the answer is the next message."""
        self.say("publish", id="p", topic=topic, value=value, **fields)
        return self.hear("published")

    def records(self, count: int) -> list[dict[str, Any]]:
        """At least so many, as they come in messages; each with its partition."""
        found: list[dict[str, Any]] = []
        while len(found) < count:
            message = self.hear("records")
            found += [{"partition": message["partition"], **record} for record in message["records"]]
        return found


@contextlib.contextmanager
def socket_client(broker: EmbeddedBroker, path: str = "/v1/ws", **options: Any) -> Iterator[SocketClient]:
    with connect(f"ws://{broker.http_address}{path}", open_timeout=TIMEOUT_SECONDS, **options) as connection:
        yield SocketClient(connection)
