"""Replicas: every partition of this broker that others keep too. Brings them letters, time and news of links, and
reports whom they lead.

A letter of another view, of a partition that is not here or of a broker that does not keep it is ignored and counted.
A tick costs a partition that has nothing to do next to nothing; those that lead all beat in the same turn, so that
a link carries their beats together.
"""

import logging
from collections.abc import Callable, Iterator
from uuid import UUID

from anabranch.broker.peers.messages import LeaderRow, RingLetter
from anabranch.broker.peers.peers import Peers
from anabranch.broker.ring.driver import RingDriver, ring_driver
from anabranch.broker.topics.partition import Partition
from anabranch.cluster.metadata.rows import Placement
from anabranch.errors import AnabranchError, CorruptDataError
from anabranch.modes.ring.effects import AskForDisk, EndView, Unseal
from anabranch.modes.ring.events import Heard, PeerUp, Placed, Resign, Retake, Tick
from anabranch.modes.ring.messages import Message, ReturnId
from anabranch.values import BrokerId, Generation, Offset

logger = logging.getLogger(__name__)

Key = tuple[UUID, int]
Leadership = tuple[BrokerId | None, Generation, tuple[BrokerId, ...]]


class Replicas:
    def __init__(self, me: BrokerId, peers: Peers) -> None:
        self._me = me
        self._peers = peers
        self._partitions: dict[Key, Partition] = {}
        self.on_leads: Callable[[Partition, LeaderRow | None], None] = _nobody_asks
        """Called when this broker begins to lead a partition, its followers change, or it leads it no longer (None)."""
        self.on_unreadable: Callable[[Partition, Offset], None] = _nobody_repairs
        """Records from an offset on were to be sent to another broker, and are damaged."""
        self.on_settle: Callable[[Partition, EndView | Unseal | AskForDisk], None] = _nobody_settles
        """A view may end, or should not have been sealed; or a replica has everything on another disk."""
        self.is_listening = True
        """Otherwise the replicas neither hear nor do anything."""
        self.letters_ignored_total = 0
        self.pushes_spoiled_total = 0

    def place(self, partition: Partition, placement: Placement, strange: ReturnId | None = None) -> None:
        """The agreed table says who keeps it, or shall; `strange`: on another disk than this one."""
        ring = _ring(partition)
        if (partition.topic_id, partition.id.partition) not in self._partitions:
            self.add(partition)
        replicas, target = placement.replicas, placement.target
        ring.do(
            Placed(
                placement.view,
                replicas,
                placement.generation,
                target,
                placement.move,
                is_forced=placement.is_forced,
                strange=strange,
            )
        )

    def add(self, partition: Partition) -> None:
        """Its letters come and go from now on."""
        self._partitions[partition.topic_id, partition.id.partition] = partition
        _ring(partition).carrier = self

    def remove(self, partition: Partition) -> None:
        """It is not kept here any more, or by nobody else."""
        key = (partition.topic_id, partition.id.partition)
        if self._partitions.get(key) is partition:
            del self._partitions[key]
        ring = ring_driver(partition)
        if ring is not None:
            ring.carrier = None

    def __iter__(self) -> Iterator[Partition]:
        return iter(list(self._partitions.values()))

    def __len__(self) -> int:
        return len(self._partitions)

    def find(self, topic_id: UUID, index: int) -> Partition | None:
        return self._partitions.get((topic_id, index))

    # --- what happens --------------------------------------------------------------------------------------------

    def heard(self, sender: BrokerId, letter: RingLetter) -> None:
        partition = self._partitions.get((letter.topic_id, letter.partition))
        ring = ring_driver(partition) if partition is not None else None
        if (
            not self.is_listening
            or partition is None
            or ring is None
            or letter.view != ring.mode.view
            or letter.message.sender != sender
            or sender not in ring.mode.replica.peers
        ):
            self.letters_ignored_total += 1
            return
        ring.do(Heard(letter.message))

    def prefer(self, topic_id: UUID, index: int) -> None:
        """This broker is the first replica: let it take the leadership now, if it may."""
        partition = self._partitions.get((topic_id, index))
        if partition is not None:
            _ring(partition).do(Retake())

    def resign(self) -> None:
        """This broker is about to stop: let others lead."""
        for partition in list(self._partitions.values()):
            _ring(partition).do(Resign())

    @property
    def is_missed(self) -> bool:
        """After `resign`: somebody who could has not taken over yet."""
        return self.is_listening and any(self._has_heir(partition) for partition in self._partitions.values())

    def _has_heir(self, partition: Partition) -> bool:
        mode = _ring(partition).mode
        if mode.is_fenced or mode.leader() not in (None, self._me):
            return False
        return any(self._peers.is_up(broker) for broker in mode.replica.heirs)

    def tick(self, now_ms: int) -> None:
        """To be called every 100 ms."""
        if not self.is_listening:
            return
        event = Tick()
        for partition in list(self._partitions.values()):
            ring = _ring(partition)
            if ring.mode.is_due(now_ms) and not ring.is_busy:
                ring.do(event)

    def peer_up(self, broker: BrokerId) -> None:
        if not self.is_listening:
            return
        for partition in list(self._partitions.values()):
            ring = _ring(partition)
            if broker in ring.mode.replica.peers:
                ring.do(PeerUp(broker))

    def peer_down(self, broker: BrokerId) -> None:
        """Silence is what counts: a link may be back in a moment."""

    # --- who leads -------------------------------------------------------------------------------------------------

    def leader_of(self, topic_id: UUID, index: int) -> Leadership | None:
        """Leader, generation and those in sync of a partition that is kept here; None: it is not."""
        partition = self._partitions.get((topic_id, index))
        if partition is None:
            return None
        mode = _ring(partition).mode
        leader = mode.leader() if not mode.is_remembering else None
        return leader, mode.generation, mode.replica.in_sync

    def led(self) -> list[LeaderRow]:
        """Of all partitions that this broker leads."""
        rows = (_row(partition) for partition in self._partitions.values())
        return [row for row in rows if row is not None]

    # --- for those who carry out effects -----------------------------------------------------------------------------

    def room(self, to: BrokerId) -> int:
        return self._peers.room(to)

    def tell(self, partition: Partition, to: BrokerId, message: Message) -> None:
        view = _ring(partition).mode.view
        self._peers.tell(to, RingLetter(partition.topic_id, partition.id.partition, view, message))

    def settle(self, partition: Partition, effect: EndView | Unseal | AskForDisk) -> None:
        self.on_settle(partition, effect)

    def changed(self, partition: Partition) -> None:
        self.on_leads(partition, _row(partition))

    def spoiled(self, partition: Partition, error: AnabranchError) -> None:
        self.pushes_spoiled_total += 1
        logger.error("%s was sent records that are not what they should be: %s", partition.id, error)

    def unreadable(self, partition: Partition, start: Offset, error: AnabranchError) -> None:
        logger.error("%s cannot be read for another broker: %s", partition.id, error)
        if isinstance(error, CorruptDataError):
            self.on_unreadable(partition, start)


def _ring(partition: Partition) -> RingDriver:
    driver = ring_driver(partition)
    assert driver is not None, f"nobody else keeps {partition.id}"
    return driver


def _row(partition: Partition) -> LeaderRow | None:
    ring = ring_driver(partition)
    if ring is None or not ring.mode.leads:
        return None
    mode = ring.mode
    return LeaderRow(
        partition.topic_id, partition.id.partition, mode.view, mode.generation, mode.replica.in_sync
    )


def _nobody_asks(partition: Partition, row: LeaderRow | None) -> None:
    """Until somebody does."""


def _nobody_settles(partition: Partition, effect: EndView | Unseal | AskForDisk) -> None:
    """It is said again."""


def _nobody_repairs(partition: Partition, start: Offset) -> None:
    """It stays as it is."""
