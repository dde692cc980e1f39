"""Call: one request on its way through the broker, and the way its answer goes back.

The server makes one per frame and hands it to `handlers.dispatch`; whoever settles the request calls `answer`
once, at once or later. A handler that keeps the call waiting sets `on_close` to be told that nobody waits for
the answer any longer. The request's bytes belong to the connection and are valid until the end of the next
write turn; who needs them longer copies them.
"""

from collections.abc import Callable
from typing import Protocol

from anabranch.wire.fetch_fast import FileSlice
from anabranch.wire.header import RequestHeader

Piece = bytes | bytearray | memoryview | FileSlice


class Client(Protocol):
    """Who asks, as far as handlers may know."""

    host: str
    """The client's own address."""
    local_address: tuple[str, int]
    """The address the client connected to: what we advertise unless told otherwise."""


class Call:
    """One request. `answer(pieces)` sends the whole response, its size prefix included; None: no answer (acks=0).

    `close(reason)` drops the connection instead: the only way to tell a producer with acks=0 of an error. A handler
    that has not settled its request may set `holds` before it returns: what the client sends next then waits.
    """

    __slots__ = ("answer", "body", "client", "close", "end", "header", "holds", "on_close", "view")

    def __init__(
        self,
        client: Client,
        header: RequestHeader,
        view: memoryview,
        body: int,
        end: int,
        answer: Callable[[list[Piece] | None], None],
        close: Callable[[str], None],
    ) -> None:
        self.client = client
        self.header = header
        self.view = view
        self.body = body
        self.end = end
        self.answer = answer
        self.close = close
        self.holds = False
        self.on_close: Callable[[], None] | None = None
