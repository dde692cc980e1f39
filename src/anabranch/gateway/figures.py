"""What `/metrics` says of the gateway."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from anabranch.server.metrics import counter, counters, gauge

if TYPE_CHECKING:
    from anabranch.gateway.gateway import Gateway
    from anabranch.gateway.websocket.sockets import Sockets


class Figures(Collector):
    def __init__(self, gateway: "Gateway") -> None:
        self._gateway = gateway

    def collect(self) -> Iterator[Metric]:
        yield from self._of_writers()
        yield counters(
            "anabranch_gateway_refusals",
            "Requests, records, messages and connections that were refused or given up.",
            "reason",
            self._gateway.refusals,
        )
        yield gauge(
            "anabranch_gateway_incoming_bytes",
            "Bytes of WebSocket messages that are not whole or not dealt with yet.",
            self._gateway.incoming_bytes(),
        )
        yield gauge(
            "anabranch_gateway_arrived_bytes",
            "Bytes received over HTTP and not yet read: bodies, and requests behind an unanswered one.",
            self._gateway.arrived_bytes(),
        )
        if self._gateway.sockets is not None:
            yield from _of_sockets(self._gateway.sockets)

    def _of_writers(self) -> Iterator[Metric]:
        gateway, gather = self._gateway, self._gateway.gather
        yield gauge(
            "anabranch_gateway_connections",
            "Open HTTP and WebSocket connections.",
            gateway.connection_count(),
        )
        yield gauge("anabranch_gateway_polls", "HTTP requests that wait for records.", gateway.polls_count)
        yield counter(
            "anabranch_gateway_records", "Records gathered from small writers.", gather.records_total
        )
        yield counter("anabranch_gateway_batches", "Batches they were gathered into.", gather.batches_total)
        yield gauge(
            "anabranch_gateway_gathered_bytes",
            "Bytes of records that are not written yet.",
            gather.budget.bytes_taken,
        )
        yield gauge(
            "anabranch_gateway_held_bytes",
            "Bytes of large requests and answers.",
            gateway.bodies.bytes_taken,
        )


def _of_sockets(sockets: "Sockets") -> Iterator[Metric]:
    fan_out, sessions = sockets.fan_out, sockets.sessions
    yield gauge("anabranch_gateway_websockets", "Open WebSockets.", len(sessions))
    yield gauge(
        "anabranch_gateway_subscriptions",
        "Subscriptions of all WebSockets.",
        sum(session.subscriptions for session in sessions),
    )
    yield gauge(
        "anabranch_gateway_subscription_bytes",
        "Memory that subscriptions may take, filters included.",
        sockets.memory.bytes_taken,
    )
    yield counter(
        "anabranch_gateway_records_sent", "Records sent to subscribers.", fan_out.records_sent_total
    )
    yield counter(
        "anabranch_gateway_loads", "Reads of partitions, each for all who wait there.", fan_out.loads_total
    )
    yield gauge(
        "anabranch_gateway_at_hand_bytes",
        "Records in memory for subscribers a little behind.",
        fan_out.bytes_at_hand,
    )
