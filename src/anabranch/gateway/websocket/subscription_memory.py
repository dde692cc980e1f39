"""SubscriptionMemory: what the subscriptions of one WebSocket may take, and those of all of a node together.

    share = memory.share()              one per WebSocket
    share.take(size_bytes)              raises InvalidRequestError, which names the setting
    share.give(size_bytes)

Sizes are what a subscription takes at most, as `size_of` estimates it, not what was measured.
"""

from anabranch.errors import GatewayError, InvalidRequestError
from anabranch.gateway.read.header_filter import HeaderFilter

SUBSCRIPTION_BYTES = 8 * 1024
PARTITION_BYTES = 1024
"""What a subscription and each partition that it follows take, tasks included: measured, and rounded up."""


def size_of(partition_count: int, wanted: HeaderFilter | None) -> int:
    filter_bytes = wanted.size_bytes if wanted is not None else 0
    return SUBSCRIPTION_BYTES + partition_count * PARTITION_BYTES + filter_bytes


class SubscriptionMemory:
    def __init__(self, bytes_max: int, socket_bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.socket_bytes_max = socket_bytes_max
        self.bytes_taken = 0

    def share(self) -> "SocketShare":
        return SocketShare(self)


class SocketShare:
    def __init__(self, memory: SubscriptionMemory) -> None:
        self._memory = memory
        self.bytes_taken = 0

    def take(self, count: int) -> None:
        memory = self._memory
        if self.bytes_taken + count > memory.socket_bytes_max:
            raise InvalidRequestError(
                f"The subscriptions of this socket would take {self.bytes_taken + count} bytes, and may take "
                f"{memory.socket_bytes_max} (gateway.socket.subscription.bytes.max): choose fewer partitions, a "
                "shorter filter, or open another socket."
            )
        if memory.bytes_taken + count > memory.bytes_max:
            raise GatewayError(
                f"The subscriptions of all clients of this node take the {memory.bytes_max} bytes that they may "
                "(gateway.subscription.bytes.max): try again later, or at another broker.",
                "BUSY",
                503,
            )
        self.bytes_taken += count
        memory.bytes_taken += count

    def give(self, count: int) -> None:
        self.bytes_taken -= count
        self._memory.bytes_taken -= count
        assert self.bytes_taken >= 0, "more bytes given back than were taken"

    def close(self) -> None:
        """Give back all that is left."""
        self.give(self.bytes_taken)
