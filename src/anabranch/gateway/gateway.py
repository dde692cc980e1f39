"""Gateway: what the routes share: the way to the brokers, the gathered writes, limits and figures.

Every file of routes has a function `routes(gateway)`, which `app.py` lists; what it keeps running it ends in a
coroutine added to `on_close`, called before the last answers leave.
"""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from anabranch.gateway.budget import Budget
from anabranch.gateway.calls import Calls
from anabranch.gateway.gathering import Gatherer

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker
    from anabranch.server.listener import Listener

BODY_BYTES_MAX = 128 * 2**20
"""Of request bodies and of answers being made, over all connections."""


class Gateway:
    def __init__(self, broker: "Broker", listener: "Listener") -> None:
        self.broker = broker
        self.listener = listener
        self.settings = broker.settings
        self.clock = broker.clock
        self.calls = Calls(broker)
        self.gather = Gatherer(self.calls, broker.settings, broker.clock)
        self.bodies = Budget(BODY_BYTES_MAX)
        self.request_bytes_max = broker.settings.gateway_request_bytes_max
        self.poll_ms_max = broker.settings.gateway_poll_ms_max
        self.subscriber_bytes_max = broker.settings.gateway_subscriber_bytes_max
        self.on_close: list[Callable[[], Awaitable[None]]] = []
        self.is_closing = False
        """Whoever waits for records answers now."""

    async def close(self) -> None:
        self.is_closing = True
        for close in self.on_close:
            await close()
        await self.gather.close()
