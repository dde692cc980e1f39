"""ProducerIds: numbers for idempotent producers, none given twice, whatever crashes.

Ids are reserved from the metadata log in blocks; a block that a crash cuts short is never touched again. A broker that
does not lead the metadata quorum asks the one that does for a block of its own. While there is none in reach, one with
topics in mode branch has ids of its own (`own_producer_ids.py`).
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from anabranch.broker.metadata.metadata_log import MetadataLog
from anabranch.cluster.metadata.entries import producer_ids_entry
from anabranch.errors import CoordinatorNotAvailableError, NotControllerError, PeerError, QuorumBusyError

if TYPE_CHECKING:
    from anabranch.broker.peers.peers import Peers

BLOCK = 1000
ASK_MS_MAX = 5000

Block = tuple[int, int]
"""The first of them, and how many."""


class ProducerIds:
    def __init__(self, metadata: MetadataLog, peers: "Peers | None" = None) -> None:
        self._metadata = metadata
        self._peers = peers
        self._lock = asyncio.Lock()
        self._next = 0
        self._end = 0
        self.own_block: Callable[[], Awaitable[Block | None]] = _no_block
        """Where to get a block without the quorum."""

    async def take(self) -> int:
        """A producer id nobody has. Raises StorageError if no block can be reserved, CoordinatorNotAvailableError if
        nobody can be asked for one, upon which clients try again."""
        if self._next == self._end:
            async with self._lock:
                if self._next == self._end:
                    self._next, self._end = await self._block()
        taken = self._next
        self._next += 1
        return taken

    async def _block(self) -> tuple[int, int]:
        try:
            if self._peers is None or self._metadata.is_leader:
                first, count = await self.reserve()
            else:
                first, count = await self._ask(self._peers)
        except (NotControllerError, QuorumBusyError, PeerError) as error:
            own = await self.own_block()
            if own is None:
                raise CoordinatorNotAvailableError(
                    f"No producer ids can be had at the moment: {error}"
                ) from error
            first, count = own
        return first, first + count

    async def _ask(self, peers: "Peers") -> Block:
        from anabranch.broker.peers.messages import ProducerIdBlock, ProducerIds  # Not for a node alone.

        leader = self._metadata.leader_id
        if leader is None:
            raise NotControllerError("There is no leader of the metadata quorum.")
        answer = await peers.ask(leader, ProducerIdBlock(), ASK_MS_MAX)
        assert isinstance(answer, ProducerIds)
        return answer.first, answer.count

    async def reserve(self) -> Block:
        """A block for whoever asks. Raises NotControllerError, QuorumBusyError, StorageError."""
        async with self._metadata.lock:
            first = self._metadata.table.producer_id_next
            await self._metadata.commit(producer_ids_entry(first + BLOCK))
        return first, BLOCK


async def _no_block() -> Block | None:
    return None
