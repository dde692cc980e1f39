"""Call: one request on its way through the broker, and the way its answer goes back.

The server makes one per frame and hands it to `handlers.dispatch`; whoever settles the request calls `answer`
once, at once or later. A handler that keeps the call waiting sets `on_close` to be told that nobody waits for
the answer any longer. The request's bytes belong to the connection and are valid until the end of the next
write turn; who needs them longer copies them.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from anabranch.wire.fetch_fast import FileSlice
from anabranch.wire.header import RequestHeader

Piece = bytes | bytearray | memoryview | FileSlice
NO_BYTES = memoryview(b"")


class HeldBytes:
    """Bytes of answers in memory, of all connections together, that their readers have yet to take."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


class Client(Protocol):
    """Who asks, as far as handlers may know, and who takes the answer."""

    host: str
    """The client's own address."""
    local_address: tuple[str, int]
    """The address the client connected to: what we advertise unless told otherwise."""

    def answered(self, call: "Call", pieces: list[Piece] | None) -> None: ...

    def settled(self) -> None:
        """A call has its `pieces` and `is_settled`: what `answered` does for it, where that was done already."""
        ...

    def dropped(self, call: "Call", reason: str) -> None: ...


class Call:
    """One request. `answer(pieces)` sends the whole response, its size prefix included; None: no answer (acks=0).

    `close(reason)` drops the connection instead: the only way to tell a producer with acks=0 of an error. A handler
    that has not settled its request may set `holds` before it returns: what the client sends next then waits. One that
    also sets `keeps_bytes` may look at the request's bytes until it answers or resets it: nothing is read over them.
    `is_settled` and `pieces` are the client's: answers leave in the order of the requests, and some come early.
    """

    __slots__ = (
        "body",
        "client",
        "end",
        "header",
        "holds",
        "is_settled",
        "keeps_bytes",
        "on_close",
        "pieces",
        "view",
    )

    def __init__(self, client: Client, header: RequestHeader, view: memoryview, body: int, end: int) -> None:
        self.client = client
        self.header = header
        self.view = view
        self.body = body
        self.end = end
        self.holds = False
        self.keeps_bytes = False
        self.on_close: Callable[[], None] | None = None
        self.is_settled = False
        self.pieces: Sequence[Any] = ()

    def let_go(self) -> bool:
        """Give up the request's bytes, so that others can have the memory. False: they are still needed."""
        if self.keeps_bytes:
            return False
        self.view = NO_BYTES
        return True

    def answer(self, pieces: list[Piece] | None) -> None:
        self.client.answered(self, pieces)

    def close(self, reason: str) -> None:
        self.client.dropped(self, reason)
