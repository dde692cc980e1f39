"""Eviction: which connections are closed when what clients send takes too much memory.

The listener's sweep asks it. In this order:

- All who hold memory of the common budget (`MemoryBudget`) wait for more of it: nobody would ever give any back.
- Others wait for memory that a frame would hold for long, because it arrives slowly, or because its client sent it
  behind a request that waits. A few bytes now and then would otherwise keep large amounts from others for hours.
- The small buffers, which nobody has to wait for, take more together than all large ones may.

No more are closed than it takes, those of the address that claims most first. Where connections are merely slow, an
address that claims less than an even share loses none for a minute, so that a flood costs only the address it comes
from.
"""

import logging
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush

from anabranch.broker.requests.memory_budget import MemoryBudget
from anabranch.server.connection import FREE_BYTES, Connection

logger = logging.getLogger(__name__)

SENDING_MS_MIN = 3_000
"""How long a frame has been arriving before its speed says anything: over a long way TCP begins slowly."""
BLOCKED_MS_MAX = 3_000
"""How long bytes may lie behind a request that waits for something else."""
FRAME_MS_EXPECTED_MAX = 15_000
"""How long a frame may take to arrive in all, judged by what is here of it, while others wait for what it holds."""
SENDING_MS_MAX = 60_000
"""How long a frame may hold memory that others wait for, if it is slow, however little its address claims."""
CLOSED_PER_SWEEP_MAX = 250
"""The sweep is one step of the loop; the next one goes on."""

SHORT = "request memory is short (request.memory.bytes.max)"


class Eviction:
    def __init__(self, connections: set[Connection], memory: MemoryBudget) -> None:
        self.closed_total = 0
        self._connections = connections
        self._memory = memory
        self._may_close = 0

    @property
    def is_crowded(self) -> bool:
        """The small buffers take too much together."""
        return self._small_excess > 0

    def sweep(self, now_ms: int) -> None:
        self._may_close = CLOSED_PER_SWEEP_MAX
        if self._memory.is_short:
            self._end_standoff()
            self._close_slow(now_ms)
        self._close_small(now_ms)
        if (closed := CLOSED_PER_SWEEP_MAX - self._may_close) > 1:
            logger.warning("closed %d connections in this sweep because request memory is short", closed)

    def _end_standoff(self) -> None:
        """The newest holders are closed until somebody in line gets what was theirs."""
        holders = [connection for connection in self._connections if connection.memory_held]
        if not holders or not all(connection.is_in_line for connection in holders):
            return
        holders.sort(key=lambda connection: connection.last_read_ms)
        grants = self._memory.grants
        for connection in self._largest_claims_first(holders, share=0):
            if self._memory.grants != grants:
                return
            self._close(connection, f"{SHORT}, and others came first")

    def _close_slow(self, now_ms: int) -> None:
        holders = [connection for connection in self._connections if connection.memory_held]
        blocked = [each for each in holders if each.blocked_ms(now_ms) > BLOCKED_MS_MAX]
        slow = [
            connection
            for connection in holders
            if connection.sending_ms(now_ms) > SENDING_MS_MIN
            and connection.frame_ms_expected(now_ms) > FRAME_MS_EXPECTED_MAX
        ]
        slow.sort(key=lambda connection: connection.frame_ms_expected(now_ms))
        overdue = [connection for connection in slow if connection.sending_ms(now_ms) > SENDING_MS_MAX]
        for why, connections, share in (
            ("its next request waits behind an unfinished one", blocked, 0),
            ("its request arrives too slowly", slow, self._even_share),
            ("its request arrives too slowly", overdue, 0),
        ):
            for connection in self._largest_claims_first(connections, share):
                if not self._memory.bytes_missing:
                    return
                if not connection.is_closed:
                    self._close(connection, f"{SHORT}, and {why}")

    @property
    def _small_excess(self) -> int:
        if len(self._connections) * FREE_BYTES <= self._memory.bytes_max:
            return 0
        return sum(connection.free_bytes_held for connection in self._connections) - self._memory.bytes_max

    def _close_small(self, now_ms: int) -> None:
        excess = self._small_excess
        if excess <= 0:
            return

        def age(connection: Connection) -> int:
            """For how long the buffer will be there. Those in line are closed last: it is we who let them wait."""
            blocked_ms, sending_ms = connection.blocked_ms(now_ms), connection.sending_ms(now_ms)
            return max(blocked_ms, connection.frame_ms_expected(now_ms) if sending_ms else 0)

        late = [
            connection
            for connection in self._connections
            if connection.is_in_line
            or connection.sending_ms(now_ms) > SENDING_MS_MIN
            or connection.blocked_ms(now_ms) > BLOCKED_MS_MAX
        ]
        late.sort(key=age)
        for connection in self._largest_claims_first(late, self._even_share):
            if excess <= 0:
                return
            excess -= connection.free_bytes_held
            self._close(
                connection,
                f"unfinished requests of {len(self._connections)} connections take more than "
                "request.memory.bytes.max",
            )

    @property
    def _claims(self) -> Counter[str]:
        claims: Counter[str] = Counter()
        for connection in self._connections:
            claims[connection.network] += connection.memory_claimed
        return +claims

    @property
    def _even_share(self) -> int:
        """What each address may claim while others wait, of those that claim anything."""
        claims = self._claims
        return min(self._memory.bytes_max, claims.total()) // max(1, len(claims))

    def _largest_claims_first(self, candidates: Iterable[Connection], share: int) -> Iterator[Connection]:
        """The order in which to close: each time a connection of the address whose connections claim most, of those
        the last in `candidates`. Addresses that claim less than `share` keep theirs."""
        claims = self._claims
        by_network: defaultdict[str, list[Connection]] = defaultdict(list)
        for connection in candidates:
            by_network[connection.network].append(connection)
        heap = [(-claims[network], network) for network in by_network]
        heapify(heap)
        while heap and -heap[0][0] >= share and self._may_close:
            claim, network = heappop(heap)
            connection = by_network[network].pop()
            if by_network[network]:
                heappush(heap, (claim + connection.memory_claimed, network))
            yield connection

    def _close(self, connection: Connection, why: str) -> None:
        self.closed_total += 1
        if self._may_close == CLOSED_PER_SWEEP_MAX:
            logger.warning("closing a connection from %s: %s", connection.host, why)
        self._may_close -= 1
        connection.close(why)
