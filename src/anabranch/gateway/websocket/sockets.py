"""Sockets: what all WebSockets of a node share: the fan-out, and the way they end when the node stops."""

import asyncio
from typing import TYPE_CHECKING

from anabranch.broker.requests.turns import Turns
from anabranch.gateway.read.fan_out import FanOut
from anabranch.gateway.read.record_source import RecordSource
from anabranch.gateway.record_json import record_json
from anabranch.gateway.websocket.subscription_memory import SubscriptionMemory

if TYPE_CHECKING:
    from anabranch.gateway.gateway import Gateway
    from anabranch.gateway.websocket.session import SocketSession

GROWTH_SECONDS = 5.0
"""How often subscriptions to whole topics look for partitions that were added."""
CLOSE_SECONDS_MAX = 1.0


class Sockets:
    def __init__(self, gateway: "Gateway") -> None:
        self.calls = gateway.calls
        self.gather = gateway.gather
        self.refusals = gateway.refusals
        settings = gateway.settings
        self.turns = Turns()
        self.unsent_bytes_max = settings.gateway_subscriber_bytes_max
        self.filter_bytes_max = settings.gateway_filter_bytes_max
        self.memory = SubscriptionMemory(
            settings.gateway_subscription_bytes_max, settings.gateway_socket_subscription_bytes_max
        )
        source = RecordSource(gateway.calls, record_json)
        self.fan_out = FanOut(source, gateway.clock, turns=gateway.calls.turns)
        self._sessions: set[SocketSession] = set()
        self._watch: asyncio.Task[None] | None = None
        self._is_closing = False

    @property
    def sessions(self) -> "frozenset[SocketSession]":
        return frozenset(self._sessions)

    async def serve(self, session: "SocketSession") -> None:
        self._sessions.add(session)
        if self._watch is None:
            self._watch = asyncio.ensure_future(self._watch_growth())
        try:
            await session.run()
        except asyncio.CancelledError:
            if not self._is_closing:
                raise  # Else it was cut off because it takes no goodbye, and nobody need hear of that.
        finally:
            self._sessions.discard(session)

    async def _watch_growth(self) -> None:
        while True:
            await asyncio.sleep(GROWTH_SECONDS)
            for session in list(self._sessions):
                session.look_for_partitions()

    async def close(self) -> None:
        self._is_closing = True
        if self._watch is not None:
            self._watch.cancel()
        closing = [asyncio.ensure_future(session.say_goodbye()) for session in self._sessions]
        if closing:
            await asyncio.wait(closing, timeout=CLOSE_SECONDS_MAX)
        for task in closing:
            task.cancel()
        await asyncio.gather(*closing, return_exceptions=True)
        await self.fan_out.close()
