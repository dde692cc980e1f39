"""Leaders: who leads which partition now, as far as this broker knows.

What is kept here is asked here. Of the others every broker tells what it leads (`Leads`): changes at once, everything
when a link comes up. Of several who say so the newest view and generation counts; of whom nobody has spoken, the first
replica leads, because that is who a partition begins with. A leader that is gone leads nothing.
Nobody leads what is in the object store: clients are told the broker that the rendezvous hash names, so that those who
read the same find it loaded there.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol
from uuid import UUID

from anabranch.broker.metadata.metadata_log import MetadataLog
from anabranch.broker.topics.partition_opener import is_ring
from anabranch.cluster.metadata.entries import Entry
from anabranch.cluster.metadata.rows import Placement, Topic
from anabranch.values import BrokerId, Generation, Offset

if TYPE_CHECKING:
    from anabranch.broker.peers.messages import LeaderRow, Leads

UNKNOWN_GENERATION = Generation(-1)
"""Kafka's word for a leader epoch that the broker does not know; clients then do not compare it."""

ONLY_GENERATION = Generation(0)
"""Of a partition that one broker has always kept alone."""

Key = tuple[UUID, int]
Replicas = tuple[BrokerId, ...]


class Leader(NamedTuple):
    broker_id: BrokerId | None
    """None: nobody at the moment."""
    generation: Generation
    in_sync: Replicas


Own = Callable[[UUID, int, Placement], tuple[BrokerId | None, Generation, Replicas] | None]
"""Who leads a partition that is kept here; None: it is not."""


class RingReplicas(Protocol):
    """The ring partitions of this broker, as far as others need to know."""

    def leader_of(
        self, topic_id: UUID, index: int
    ) -> tuple[BrokerId | None, Generation, Replicas] | None: ...

    def prefer(self, topic_id: UUID, index: int) -> None:
        """This broker is the first replica: let it take the leadership now, if it may."""
        ...


class Leaders:
    def __init__(self, metadata: MetadataLog, own: Own, is_available: Callable[[BrokerId], bool]) -> None:
        self._table = metadata.table
        self._own = own
        self._is_available = is_available
        self._told: dict[Key, tuple[BrokerId, LeaderRow]] = {}
        self._named: dict[Key, Leader] = {}
        """Of what is in the object store; forgotten when a broker comes, goes or changes."""
        self._subscribers: list[Callable[[Key], None]] = []
        self.of_branch: Callable[[Key], tuple[BrokerId | None, Replicas]] = _nobody_known
        """Set by those who have topics in mode branch: who reigns over a partition, as far as they see, and who keeps
        copies."""
        metadata.subscribe(self._follow)

    def subscribe(self, changed: Callable[[Key], None]) -> None:
        """Be told of every partition of which another leader, or another generation, is heard."""
        self._subscribers.append(changed)

    # --- asking --------------------------------------------------------------------------------------------------

    def of(self, topic_id: UUID, index: int) -> Leader:
        """A partition that the table knows."""
        topic = self._table.topics_by_id[topic_id]
        if topic.is_branched(index):
            leader, copies = self.of_branch((topic_id, index))
            return Leader(leader, self._branch_generation(topic, index), copies)
        if topic.is_stored(index):
            return self._named.get((topic_id, index)) or self._name(topic_id, index)
        placement = self._table.placement(topic, index)
        own = self._own(topic_id, index, placement)
        told = self._told.get((topic_id, index))
        if own is not None and own[0] is not None:
            leader, generation, in_sync = own
            if not in_sync and told is not None and told[1].generation == generation:
                in_sync = told[1].in_sync  # Only the leader itself knows who keeps up.
            return self._available(leader, generation, in_sync)
        if told is not None and told[1].view >= placement.view:
            return self._available(told[0], told[1].generation, told[1].in_sync)
        first = placement.replicas[0] if placement.replicas and own is None else None
        generation = UNKNOWN_GENERATION if is_ring(placement) else ONLY_GENERATION
        return self._available(first, generation, placement.replicas)

    def _branch_generation(self, topic: Topic, index: int) -> Generation:
        """Branches have none. But clients that knew one believe no leader with a lower one, not even one with none."""
        placement = self._table.placement(topic, index)
        return Generation(placement.generation + 1) if placement.has_joined_branches else UNKNOWN_GENERATION

    def _name(self, topic_id: UUID, index: int) -> Leader:
        from anabranch.cluster.rendezvous import candidates, winner  # Not for a node without an object store.

        broker = winner(topic_id, index, candidates(self._table.brokers.values()))
        generation = self._table.placement(self._table.topics_by_id[topic_id], index).generation
        named = Leader(broker, generation, () if broker is None else (broker,))
        self._named[topic_id, index] = named
        return named

    def _available(self, leader: BrokerId | None, generation: Generation, in_sync: Replicas) -> Leader:
        if leader is not None and not self._is_available(leader):
            leader = None
        return Leader(leader, generation, tuple(each for each in in_sync if self._is_available(each)))

    # --- hearing -------------------------------------------------------------------------------------------------

    def heard(self, sender: BrokerId, leads: "Leads") -> None:
        named = {(row.topic_id, row.partition): row for row in leads.rows}
        if leads.is_whole:
            gone = [key for key, (who, _) in self._told.items() if who == sender and key not in named]
            for key in gone:
                del self._told[key]
                self._tell(key)
        for key, row in named.items():
            known = self._told.get(key)
            if not row.in_sync:
                if known is not None and known[0] == sender:
                    del self._told[key]
                    self._tell(key)
            elif known is None or _age(known[1]) <= _age(row):
                self._told[key] = sender, row
                self._tell(key)

    def _tell(self, key: Key) -> None:
        for changed in self._subscribers:
            changed(key)

    def _follow(self, offset: Offset, entry: Entry | None) -> None:
        """Forget what was said of topics that are gone, and who was named before a broker came or went."""
        if entry is None or entry["type"].startswith(("broker", "topic-removed", "boundary", "keep", "left")):
            self._named.clear()
        if entry is None or entry["type"] == "topic-removed":
            kept = self._table.topics_by_id
            self._told = {key: value for key, value in self._told.items() if key[0] in kept}


def _nobody_known(key: Key) -> tuple[BrokerId | None, Replicas]:
    """Before the first such topic is open."""
    return None, ()


def _age(row: "LeaderRow") -> tuple[int, int]:
    return row.view, row.generation
