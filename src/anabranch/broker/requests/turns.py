"""Turns: how requests with many rows share the loop with everybody else.

All requests run on one loop, so whatever one of them does in one go keeps every other client waiting. Work is counted
in rows: one partition, topic, group or member of a request, or `BYTES_PER_ROW` bytes of a request to decode. Between
two turns of the loop all requests together get `ROWS_PER_TURN` of them, in portions of `PORTION`. Who needs more stands
in line for the next portion, so that long requests alternate. The first rows of each request are counted apart, so
that a request of a few rows does not wait behind long ones: only behind other first rows, where a thousand clients ask
at once, and then in the order in which they came.

Decoded requests take many times the memory of their bytes. Of each API only `LONG_OPEN_MAX` long requests are decoded
at a time; the others wait as bytes, which the connections' memory budget counts, and addresses take turns.

Everything here runs on the loop's thread and knows no clock: the simulator and the tests see the same turns.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from contextlib import asynccontextmanager
from typing import Any, cast

Body = dict[str, Any]
Rows = Generator[None, None, Body]
"""A response under construction: it yields after each row, and returns the whole."""

ROWS_PER_TURN = 500
"""A row costs 2 to 20 microseconds, so a turn stays below about 10 ms."""
PORTION = 100
BYTES_PER_ROW = 16
BYTES_PER_ROW_BY_HAND = 128
"""Of a Fetch request, which is not decoded by a table."""
FREE_ROWS = 32
"""The first rows of a request are handled at once: a short request does not wait behind long ones."""
FREE_ROWS_PER_TURN = 1000
"""Of all requests together."""
SHORT_BYTES_MAX = 1024
"""A request up to here is decoded without being counted, for the same reason."""
LONG_BYTES_MIN = 4096
LONG_OPEN_MAX = 4
CARRIED_OPEN_MAX = 8
CARRIED_SECONDS = 1.0
"""Of all APIs together, so many long requests are carried out that may have to wait for a disk, the quorum or a store.
One that has done no rows for this long does wait, and another may begin."""


class Turns:
    def __init__(self) -> None:
        self._rows_left = ROWS_PER_TURN
        self._free_rows_left = FREE_ROWS_PER_TURN
        self._rows_promised = 0
        """Of the next turn, to those who were let out of the line in this one."""
        self._line: deque[tuple[asyncio.Future[None], int]] = deque()
        self._first: deque[Callable[[], int]] = deque()
        """The first rows of requests that came when this turn had no more for that; each says how many it was."""
        self._is_renewal_due = False
        self._slots: dict[int, Slots] = {}
        self._carried = asyncio.Semaphore(CARRIED_OPEN_MAX)
        self._leases: dict[asyncio.Task[Any] | None, Lease] = {}
        self.rows_max = 0
        """The most rows that were handled in one turn so far."""

    # --- rows ------------------------------------------------------------------------------------------------

    def take(self, rows: int = PORTION) -> bool:
        """Whether `rows` may be handled in this turn. The last to be let in may take more than are left."""
        if not self.has_room:
            return False
        self._spend(rows)
        return True

    @property
    def has_room(self) -> bool:
        """Whether there are rows left in this turn, for work of which nobody knows the amount before it is done."""
        return self._rows_left > 0 and not self._line

    def spend(self, rows: int) -> None:
        """Count such work."""
        if rows:
            self._spend(rows)

    async def wait(self, rows: int = PORTION) -> None:
        """Return when `rows` may be handled: now, or in the first turn that has room for them."""
        if self.take(rows):
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._line.append((waiter, rows))
        self._renew_soon()
        await waiter

    def _spend(self, rows: int) -> None:
        self._rows_left -= rows
        self.rows_max = max(self.rows_max, ROWS_PER_TURN - self._rows_left)
        self._renew_soon()

    def _renew_soon(self) -> None:
        if not self._is_renewal_due:
            self._is_renewal_due = True
            asyncio.get_running_loop().call_soon(self._renew)

    def _renew(self) -> None:
        """Begin a turn. Waiters released in the last one run right after this callback: it was scheduled first."""
        self._is_renewal_due = False
        self._rows_left = ROWS_PER_TURN
        self._free_rows_left = FREE_ROWS_PER_TURN
        if self._rows_promised or self._line:
            self._spend(self._rows_promised)
        while self._first and self._free_rows_left > 0:
            self._free_rows_left -= self._first.popleft()()
        if self._first:
            self._renew_soon()
        self._rows_promised = 0
        while self._line and self._rows_promised < ROWS_PER_TURN:
            waiter, rows = self._line.popleft()
            if not waiter.done():  # Else whoever waited was cancelled.
                waiter.set_result(None)
                self._rows_promised += rows

    def pace(self) -> "Pace":
        """For one request that is answered by a coroutine."""
        return Pace(self)

    # --- requests ----------------------------------------------------------------------------------------------

    def drive(self, rows: Rows) -> "Body | Coroutine[Any, Any, Body]":
        """Build a response row by row: at once if this turn has room for all of them, else in later turns."""
        if not self._has_free_rows:
            return self._drive_later(rows)
        done, body = _first_rows(rows)
        self._spend_free(done)
        if body is not None:
            return body
        try:
            while self.take():
                for _ in range(PORTION):
                    next(rows)
        except StopIteration as ended:
            return cast(Body, ended.value)
        return self._drive_on(rows)

    async def _drive_later(self, rows: Rows) -> Body:
        begun: asyncio.Future[Body | None] = asyncio.get_running_loop().create_future()

        def begin() -> int:
            if begun.done():
                return 0
            try:
                done, body = _first_rows(rows)
            except Exception as error:  # noqa: BLE001 - handed to whoever awaits the response.
                begun.set_exception(error)
                return FREE_ROWS
            begun.set_result(body)
            return done

        self._first.append(begin)
        self._renew_soon()
        body = await begun
        return await self._drive_on(rows) if body is None else body

    async def wait_free(self, rows: int) -> None:
        """Return when these first rows of a request may be handled: now, or in the first turn that has room."""
        if self._has_free_rows:
            self._spend_free(rows)
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def begin() -> int:
            if waiter.done():
                return 0
            waiter.set_result(None)
            return rows

        self._first.append(begin)
        self._renew_soon()
        await waiter

    @property
    def _has_free_rows(self) -> bool:
        """Whether a request may begin in this turn. The last to be let in may take more rows than are left."""
        return self._free_rows_left > 0 and not self._first

    def _spend_free(self, rows: int) -> None:
        self._free_rows_left -= rows
        self._renew_soon()

    async def driven(self, rows: Rows) -> Body:
        """The same for coroutines."""
        response = self.drive(rows)
        return response if isinstance(response, dict) else await response

    async def _drive_on(self, rows: Rows) -> Body:
        try:
            while True:
                await self.wait()
                for _ in range(PORTION):
                    next(rows)
        except StopIteration as ended:
            return cast(Body, ended.value)

    def slots(self, api_key: int) -> "Slots":
        """The right to have a long request of this API decoded."""
        slots = self._slots.get(api_key)
        if slots is None:
            slots = self._slots[api_key] = Slots(LONG_OPEN_MAX)
        return slots

    def works(self) -> None:
        """The running task has got on with its rows."""
        lease = self._leases.get(asyncio.current_task())
        if lease is not None:
            lease.is_working = True

    async def lease(self) -> "Lease":
        """The right to carry out a long request that may have to wait for others than the loop."""
        await self._carried.acquire()
        return Lease(self._carried, self._leases)


class Slots:
    """A semaphore whose line is one for each address: they take turns, first come, first served within one, so that a
    thousand connections from one address do not keep another address waiting."""

    def __init__(self, count: int) -> None:
        self.free = count
        self._lines: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    @asynccontextmanager
    async def held(self, address: str) -> AsyncIterator[None]:
        await self._acquire(address)
        try:
            yield
        finally:
            self._release()

    async def _acquire(self, address: str) -> None:
        if self.free and not self._lines:
            self.free -= 1
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._lines.setdefault(address, deque()).append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if not waiter.cancelled():  # It was granted at the same moment.
                self._release()
            raise

    def _release(self) -> None:
        self.free += 1
        while self.free and self._lines:
            address, line = self._lines.popitem(last=False)
            waiter = line.popleft()
            if line:
                self._lines[address] = line
            if not waiter.done():  # Else its client is gone.
                self.free -= 1
                waiter.set_result(None)


class Lease:
    """Taken by one task until it ends, or for as long as it goes through rows."""

    def __init__(self, carried: asyncio.Semaphore, leases: "dict[asyncio.Task[Any] | None, Lease]") -> None:
        self._carried = carried
        self._leases = leases
        self._task = asyncio.current_task()
        self.is_working = True
        leases[self._task] = self
        self._timer = asyncio.get_running_loop().call_later(CARRIED_SECONDS, self._check)

    def _check(self) -> None:
        if self.is_working:
            self.is_working = False
            self._timer = asyncio.get_running_loop().call_later(CARRIED_SECONDS, self._check)
        else:
            self.end()

    def end(self) -> None:
        if self._leases.pop(self._task, None) is not None:
            self._timer.cancel()
            self._carried.release()


class Pace:
    """One request's way through its rows: the first are free, the others are waited for in portions."""

    __slots__ = ("_free", "_left", "_turns")

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._free = FREE_ROWS
        self._left = 0

    async def row(self, rows: int = 1) -> None:
        """Return when the next row may be handled, which costs as much as `rows` usual ones."""
        if rows <= self._free:
            self._free -= rows
            await self._turns.wait_free(rows)
            return
        rows -= self._free
        self._free = 0
        if self._left < rows:
            portion = max(PORTION, rows - self._left)
            await self._turns.wait(portion)
            self._turns.works()
            self._left += portion
        self._left -= rows


def _first_rows(rows: Rows) -> tuple[int, Body | None]:
    """Handle the first rows of a request: how many there were, and the response if they were all."""
    done = 0
    try:
        while done < FREE_ROWS:
            next(rows)
            done += 1
    except StopIteration as ended:
        return done, cast(Body, ended.value)
    return done, None
