"""What everybody agrees on, piece by piece: a broker, who keeps a partition, a topic. Never changed: the table
(`metadata.py`) puts another in its place.
"""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from anabranch.cluster.metadata.residence import BRANCH, BRANCHED, OBJECT, STORED, Forms, form_in
from anabranch.values import BrokerId, Generation, Offset

INTERNAL_NAMES = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})
"""Kafka's own; another name that begins with two underscores is a topic like any other."""
UNKNOWN_DIRECTORY = ""
NO_MOVE = -1
START = Offset(0)
NO_LANE_START = Offset(-1)
"""Of a partition that did not go over to branches."""
NO_BROKER = BrokerId(-1)
BRANCH_COPIES = 3
"""How many brokers are to keep a partition that goes over to branches, if there are as many and it had fewer."""
STORE: tuple[BrokerId, ...] = ()
"""The target of a partition that goes over to the object store: no broker keeps it then."""
NO_GENERATION_YET = Generation(0)


@dataclass(frozen=True, slots=True)
class BrokerRow:
    """One broker as everybody agrees on it. A broker whose disk was replaced has another directory id."""

    broker_id: BrokerId
    directory_id: str
    epoch: int
    """The offset of the entry that registered it: a later registration has a greater one."""
    host: str
    port: int
    """Where Kafka clients find it."""
    peer_host: str = ""
    peer_port: int = 0
    """Where other brokers find it; a node without peers has no such place."""
    rack: str | None = None
    is_fenced: bool = False
    """It has not been heard for a while: nothing new is placed there."""
    is_draining: bool = False
    """Somebody wants it to leave: nothing new is placed there, and what is there moves away."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Who keeps a partition, in one *view*: from `start` on, until the next view begins."""

    replicas: tuple[BrokerId, ...]
    """In the order of the ring: the first leads unless it cannot."""
    directories: tuple[str, ...] = ()
    """The disks they were given to, one for each replica."""
    view: int = 0
    start: Offset = START
    generation: Generation = NO_GENERATION_YET
    """The last one of the views before; those of this view exceed it."""
    target: tuple[BrokerId, ...] | None = None
    """Who shall keep it: a move is under way."""
    target_directories: tuple[str, ...] = ()
    move: int = NO_MOVE
    """The offset of the entry that decided on the move, or called it off: tells it from all others."""
    is_forced: bool = False
    """The view before could not end by its own rules: what the replicas have is all there is."""
    floor: Offset = START
    """The records below are in the object store (`residence.py`)."""
    since_view: int = 0
    """In which they were left there: what a disk has of an earlier view is in the store too, and nobody's."""
    lane_start: Offset = NO_LANE_START
    """Of a partition that went over to branches: where its records began then; they end at `start`, and are the first
    lane of every line."""
    left: int = NO_MOVE
    """Of one that came back from branches: the decision under which it did. What a disk has of it from before counts
    only if it was made ready for that one."""

    @property
    def leaves_for_store(self) -> bool:
        """It goes over to the object store."""
        return self.target == STORE

    @property
    def leaves_for_branches(self) -> bool:
        """Those who keep it are to seal it, so that it goes over to branches."""
        return self.target is not None and self.target == self.replicas

    @property
    def has_joined_branches(self) -> bool:
        return self.lane_start != NO_LANE_START

    @property
    def is_closing(self) -> bool:
        """It is in branches, and somebody tries to bring it out of them: the first of `target`, which are all brokers
        that were registered then, with the promise of each to open no branch under this `move`."""
        return bool(self.target) and not self.replicas

    @property
    def closer(self) -> BrokerId | None:
        return self.target[0] if self.target and not self.replicas else None

    def directory_of(self, broker: BrokerId) -> str:
        """The disk that this replica, one to be included, was given to."""
        if broker in self.replicas:
            return _at(self.directories, self.replicas.index(broker))
        return _at(self.target_directories, (self.target or ()).index(broker))

    def is_kept_by(self, broker: BrokerId) -> bool:
        """It keeps a replica, or shall."""
        return broker in self.replicas or broker in (self.target or ())

    def on_disk(self, broker: BrokerId, directory_id: str) -> "Placement":
        """The same, with this broker's replica on another disk."""
        return replace(
            self,
            directories=_with(self.directories, self.replicas, broker, directory_id),
            target_directories=_with(self.target_directories, self.target or (), broker, directory_id),
        )

    def is_strange_to(self, broker: BrokerId, directory_id: str) -> bool:
        """This replica was given to another disk than this one."""
        return self.is_kept_by(broker) and self.directory_of(broker) not in (UNKNOWN_DIRECTORY, directory_id)


def _at(directories: tuple[str, ...], place: int) -> str:
    return directories[place] if place < len(directories) else UNKNOWN_DIRECTORY


def _with(
    directories: tuple[str, ...], replicas: tuple[BrokerId, ...], broker: BrokerId, directory_id: str
) -> tuple[str, ...]:
    if broker not in replicas:
        return directories
    return tuple(
        directory_id if one == broker else _at(directories, place) for place, one in enumerate(replicas)
    )


MODE_CONFIG = "anabranch.mode"
"""The config that says how a topic keeps its records safe; its other values are in `cluster.placement`."""
SLOTS_MAX = 1024
"""Every lane of a topic in mode branch is told by its number to belong to one slot (`modes.branch.rows`)."""

NOWHERE = Placement(())
"""Before the first broker has registered: there is only one, and it keeps everything. And of a topic that is placed
nowhere: every broker serves it."""


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic as everybody agrees on it; `overrides` are the configs that differ from the defaults."""

    name: str
    topic_id: uuid.UUID
    partition_count: int
    overrides: Mapping[str, str] = field(default_factory=dict)
    placements: tuple[Placement, ...] = ()
    """One for each partition; none at all: everything is at the founder."""
    is_pinned: bool = False
    """Somebody chose how many replicas there are, or where: growing the cluster does not change it."""
    first: tuple[BrokerId, ...] = ()
    """In mode branch: of each partition who is to be its first primary."""
    first_disks: tuple[str, ...] = ()
    """The disks that those had then: on another one nobody knows what was written."""
    copies: int = 1
    """In mode branch: how many brokers are to keep what is written, as far as they are reached."""
    forms: Forms = ()
    """Of each partition, while that is being changed; empty: all are as the mode says."""

    @property
    def mode(self) -> str | None:
        """How its records are to be kept safe; None: nobody has said, and as many brokers keep it as there should."""
        return self.overrides.get(MODE_CONFIG)

    @property
    def is_object(self) -> bool:
        """Its records are in the object store, or shall be: no broker keeps them, and every broker serves them."""
        return self.overrides.get(MODE_CONFIG) == OBJECT

    def form(self, partition: int) -> str:
        return self.forms[partition] if self.forms else form_in(self.mode)

    def is_branched(self, partition: int) -> bool:
        """Each side of a split goes on with this partition now."""
        return self.form(partition) == BRANCHED

    def is_stored(self, partition: int) -> bool:
        """The records of this partition are in the object store now."""
        return self.form(partition) == STORED

    @property
    def all_forms(self) -> Forms:
        return self.forms or (form_in(self.mode),) * self.partition_count

    @property
    def is_branch(self) -> bool:
        """Each side of a split goes on with it, or shall."""
        return self.overrides.get(MODE_CONFIG) == BRANCH

    @property
    def is_placed(self) -> bool:
        """The table says which brokers keep its partitions; of the others every broker serves all."""
        return not (self.is_object or self.is_branch)

    @property
    def is_internal(self) -> bool:
        return self.name in INTERNAL_NAMES
