"""FetchLoads: what a fetch of partitions in the object store has to wait for.

Blocks that are not in the cache: the fetch is woken as each of them comes, and answers with whatever is there. And
offsets that this broker has not heard of: another one may have, so it first learns all that the cluster has agreed on,
once for a fetch. A store that does not answer, or a cluster without a leader, leaves the fetch empty.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from anabranch.broker.object.cache.block_cache import ANSWER_BYTES_ALWAYS, Loan
from anabranch.broker.object.log import ObjectLog
from anabranch.errors import AnabranchError
from anabranch.values import Offset

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker
    from anabranch.broker.object.cache.blocks import BlockKey
    from anabranch.broker.object.slice import ObjectSlice
    from anabranch.broker.topics.partition import Partition

LOAD_MS_MIN = 500
"""So long a fetch waits for what is on its way, even if its client would not."""


class FetchLoads:
    def __init__(
        self,
        broker: "Broker",
        bytes_max: int,
        wait_ms_max: int,
        woken: "Callable[[list[Partition]], None]",
    ) -> None:
        self._broker = broker
        self._bytes_max = bytes_max
        self._wait_ms_max = max(wait_ms_max, LOAD_MS_MIN)
        self._woken = woken
        self._log: ObjectLog | None = None
        self._loan: Loan | None = None
        self._awaited: set[BlockKey] = set()
        self._wanted: list[BlockKey] = []
        self._guess_left = bytes_max
        self._answer_left = bytes_max
        self._unheard_of: dict[Partition, None] = {}
        self._catching_up: asyncio.Task[None] | None = None
        self._is_caught_up = broker.is_alone

    # --- blocks ----------------------------------------------------------------------------------------------

    def begin_try(self) -> None:
        self._wanted = []
        self._guess_left = self._bytes_max
        self._answer_left = self._bytes_max
        if self._log is not None and self._loan is not None:
            self._answer_left = self._log.cache.answer_bytes_max
            self._loan.begin()

    def slice(
        self, log: object, start: Offset, bytes_max: int, upto: Offset, *, whole_first: bool
    ) -> "ObjectSlice | None":
        """What is at hand; None: it has to be loaded, or memory is short. Raises as `ObjectLog.slice` does."""
        assert isinstance(log, ObjectLog)
        if self._log is None:
            self._log = log
            self._loan = Loan(log.cache)
            self._answer_left = log.cache.answer_bytes_max
        if self._answer_left <= 0 and not whole_first:
            return None
        part = log.slice(start, min(bytes_max, self._answer_left), upto, whole_first=whole_first)
        if part.missing:
            if self._guess_left > 0:
                self._miss(part)
                self._guess_left -= part.count
            return None
        if part.check is not None:
            self._keep(part)
        if part.verified and part.count > ANSWER_BYTES_ALWAYS and log.cache.is_short:
            return None
        self._answer_left -= part.count
        return part

    def _miss(self, part: "ObjectSlice") -> None:
        assert self._log is not None
        assert self._loan is not None
        assert part.walk is not None
        if self._loan.borrow(part.walk, part.present):
            self._wanted += part.missing
        else:
            self._log.cache.call_when_returned(self._has_come)

    def _keep(self, part: "ObjectSlice") -> None:
        """What is being looked at: were it pushed out meanwhile, it would come anew, and nobody had looked at it."""
        assert self._loan is not None
        assert part.walk is not None
        self._loan.borrow(part.walk, part.present)

    def load(self) -> None:
        """Ask for what this try has missed."""
        if self._loan is not None:
            self._loan.settle()
        for key in self._wanted:
            if key not in self._awaited:
                assert self._log is not None
                self._awaited.add(key)
                self._log.cache.want(key, self._has_come)

    def ms_left(self, seconds_passed: float) -> int:
        """How long to wait yet for what the last try has missed: not at all, if it is not known to be on its way."""
        if not self._wanted or self._log is None or self._log.cache.is_away:
            return 0
        return max(0, round(self._wait_ms_max - seconds_passed * 1000))

    def _has_come(self) -> None:
        assert self._log is not None
        self._awaited = {key for key in self._awaited if self._log.cache.is_loading(key)}
        self._woken([])

    def leave(self) -> None:
        """The fetch is answered, or its client is gone."""
        if self._log is not None:
            self._log.cache.leave(list(self._awaited), self._has_come)
        self._awaited.clear()
        self._wanted.clear()
        if self._loan is not None:
            self._loan.end()
        if self._catching_up is not None:
            self._catching_up.cancel()
            self._catching_up = None

    # --- offsets that this broker has not heard of ---------------------------------------------------------------

    def may_be_elsewhere(self, partition: "Partition") -> bool:
        """Whether an offset beyond the end may exist all the same; the fetch is woken when that is known."""
        if self._is_caught_up:
            return False
        self._unheard_of[partition] = None
        if self._catching_up is None:
            self._catching_up = asyncio.get_running_loop().create_task(self._catch_up())
        return True

    async def _catch_up(self) -> None:
        try:
            await self._broker.metadata.caught_up()
        except AnabranchError:
            return  # Nobody knows: the fetch stays empty, and its client asks again.
        self._is_caught_up = True
        self._woken(list(self._unheard_of))
