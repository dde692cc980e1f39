"""Membership: which brokers there are, and which of them may be counted on, as the agreed table says.

A node without peers enters itself in the table, once, and again when its address or disk changes (`found`); one with an
object store at every start, because what a start writes there is told apart by its registration. One with peers is
more: an Orchestrator.
"""

import asyncio
import logging
from collections.abc import Coroutine
from dataclasses import replace
from typing import TYPE_CHECKING

from anabranch.cluster.metadata.entries import broker_entry
from anabranch.cluster.metadata.rows import BrokerRow
from anabranch.errors import StorageError
from anabranch.values import BrokerId

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker
    from anabranch.cluster.orchestrator import Session

logger = logging.getLogger(__name__)

FOUND_AGAIN_SECONDS = 1.0


class Membership:
    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._metadata = broker.metadata
        self._me = BrokerId(broker.id)
        self.is_stopping = False
        self._is_over = False
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._epoch: int | None = None

    @property
    def epoch(self) -> int | None:
        """Of this start's registration; None: not registered yet. It is the table's while this broker is in it."""
        return self._epoch

    def rows(self) -> dict[BrokerId, BrokerRow]:
        """Every registered broker, and this one, which may not be yet."""
        brokers = self._metadata.table.brokers
        return brokers if self._me in brokers else {**brokers, self._me: self._own_row()}

    def keepers(self) -> list[BrokerRow]:
        """Those that may keep something new. The leader of the quorum is alive, whatever the table says yet."""
        rows = self.rows() if self._broker.peers is None else self._metadata.table.brokers
        return [
            row
            for row in rows.values()
            if not row.is_draining and (not row.is_fenced or row.broker_id == self._leader_here())
        ]

    def _leader_here(self) -> BrokerId | None:
        return self._me if self._metadata.is_leader else None

    def available(self) -> list[BrokerRow]:
        """Those a client may be sent to, this one among them unless it is leaving."""
        rows = [row for row in self.rows().values() if self.is_available(row.broker_id)]
        others = [row for row in rows if row.broker_id != self._me]
        return others if self.is_stopping and others else rows

    def is_available(self, broker_id: BrokerId) -> bool:
        """Heard by the quorum's leader, or here: a ring partition may be led where the quorum is not reached."""
        if broker_id == self._me:
            return True
        row = self._metadata.table.brokers.get(broker_id)
        if row is None:
            return False
        peers = self._broker.peers
        return not row.is_fenced or (peers is not None and peers.is_up(broker_id))

    def is_cut_off(self, now_ms: int) -> bool:
        """No leader of the quorum has answered this broker for a session. A node without peers leads its own."""
        return False

    def session(self, broker_id: BrokerId) -> "Session | None":
        """What a broker said last, as the leader of the quorum remembers it. There is nobody to be remembered."""
        return None

    def _own_row(self) -> BrokerRow:
        host, port = self._broker.own_address
        return BrokerRow(self._me, self._metadata.me.directory_id, 0, host, port)

    # --- starting ------------------------------------------------------------------------------------------------

    async def found(self) -> None:
        """Enter this node, which leads its quorum from the start, unless the table has it as it is."""
        own = self._own_row()
        async with self._metadata.lock:
            known = self._metadata.table.brokers.get(self._me)
            if (
                known is not None
                and replace(known, epoch=0, is_draining=False) == own
                and self._broker.store is None
            ):
                self._epoch = known.epoch
            else:
                self._epoch = await self._metadata.commit(broker_entry(own))

    def begin_founding(self) -> None:
        self._begin("found", self._found_or_say())

    async def _found_or_say(self) -> None:
        while True:
            try:
                await self.found()
                return
            except StorageError as error:
                # Without peers nobody reads it; the next start tries again.
                logger.warning("this node is not in its own table yet: %s", error)
            if self._broker.store is None:
                return
            await asyncio.sleep(FOUND_AGAIN_SECONDS)  # Without it nothing can be written to the store.

    # --- work beside all else -------------------------------------------------------------------------------------

    def _begin(self, kind: str, work: Coroutine[None, None, None]) -> None:
        """One task of a kind at a time."""
        if kind in self._tasks:
            work.close()
            return
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[kind] = task
        task.add_done_callback(lambda done: self._ended(kind, done))

    def _ended(self, kind: str, task: "asyncio.Task[None]") -> None:
        del self._tasks[kind]
        if not task.cancelled() and task.exception() is not None:
            logger.error("%s failed: this is a defect", kind, exc_info=task.exception())

    async def stop(self) -> None:
        """Nothing more is begun; what runs is ended."""
        self._is_over = True
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
