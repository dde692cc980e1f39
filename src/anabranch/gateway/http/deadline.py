"""Deadline: until when an HTTP request is answered, whatever the brokers do (`gateway.request.timeout.ms`).

    async with deadline:                the doorkeeper, around every request
        ...
    extend_deadline(wait_ms)            a route whose client asked to wait for records
    note_cause(error)                   whoever tries again: why the last try failed

The time in which a client sends its body, and that in which it takes its answer, are its own and have limits of their
own: the deadline is lifted meanwhile. Writes end a little earlier by themselves (`produce/produce_batcher.py`),
because there it is known whether a record may have been written.
"""

import asyncio
from contextvars import ContextVar
from types import TracebackType
from typing import Self

from anabranch.broker.requests.error_table import code_of
from anabranch.errors import AnabranchError, BrokerRefusedError, RequestTimedOutError
from anabranch.wire.error_codes import ErrorCode

WRITE_GRACE_MS = 750
"""So much longer a write waits: whoever knows more about what happened answers first."""


class Deadline:
    def __init__(self, timeout_ms: int, *, is_safe: bool) -> None:
        """`is_safe`: a request that changes nothing, as a GET."""
        self._timeout_ms = timeout_ms
        self._is_safe = is_safe
        self._timer = asyncio.timeout(timeout_ms / 1000)
        self.cause: AnabranchError | None = None

    async def __aenter__(self) -> Self:
        await self._timer.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Raises TimeoutError if it has passed."""
        await self._timer.__aexit__(kind, error, trace)

    @property
    def has_passed(self) -> bool:
        return self._timer.expired()

    def extend(self, wait_ms: int) -> None:
        when = self._timer.when()
        if when is not None and not self._timer.expired():
            self._timer.reschedule(when + wait_ms / 1000)

    def lift(self) -> None:
        if not self._timer.expired():
            self._timer.reschedule(None)

    def restart(self) -> None:
        if not self._timer.expired():
            now = asyncio.get_running_loop().time()
            self._timer.reschedule(now + self._timeout_ms / 1000)

    def error(self) -> AnabranchError:
        """What the client is told once it has passed."""
        late = f"This was not done within {self._timeout_ms} ms (gateway.request.timeout.ms)"
        why = f": {self.cause}" if self.cause is not None else "."
        if not self._is_safe:
            return RequestTimedOutError(
                f"{late}, and whether it will be is not known: look before you repeat it{why}"
            )
        if self.cause is None:
            return RequestTimedOutError(f"{late}: try again, or ask another broker.")
        return BrokerRefusedError(
            f"{late}{why} Try again, or ask another broker.", retriable_code(self.cause)
        )


def retriable_code(cause: AnabranchError | None) -> ErrorCode:
    """Kafka's code of why something was not done in time; one that says it may be in a moment."""
    if isinstance(cause, BrokerRefusedError):
        code = ErrorCode(cause.code)
    else:
        code = code_of(cause) if cause is not None else ErrorCode.LEADER_NOT_AVAILABLE
    return code if code.retriable else ErrorCode.LEADER_NOT_AVAILABLE


_CURRENT: ContextVar[Deadline | None] = ContextVar("_CURRENT", default=None)


def set_deadline(deadline: Deadline) -> None:
    """Of the request that is served in this context."""
    _CURRENT.set(deadline)


def extend_deadline(wait_ms: int) -> None:
    deadline = _CURRENT.get()
    if deadline is not None:
        deadline.extend(wait_ms)


def lift_deadline() -> None:
    deadline = _CURRENT.get()
    if deadline is not None:
        deadline.lift()


def restart_deadline() -> None:
    deadline = _CURRENT.get()
    if deadline is not None:
        deadline.restart()


def note_cause(error: AnabranchError) -> None:
    """Why a try of this request failed that is now made again. Held without its traceback."""
    deadline = _CURRENT.get()
    if deadline is not None:
        deadline.cause = error.with_traceback(None)
