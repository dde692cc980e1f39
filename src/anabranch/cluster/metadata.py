"""The agreed table: brokers, topics with their ids, places and configs, and the next free producer id.

The table changes only by `apply(entry, offset)`, in log order, so that every broker's is the same. An entry is a flat
JSON object with a `type`; unknown types are refused so that an older program never half-understands a newer log. An
entry that was overtaken by another, such as a second topic of the same name, changes nothing: whoever committed it
looks at the table to see what has become of it.
`snapshot()` and `restore()` turn the whole table into one JSON object and back, so that the log below it can be
dropped.

A log written before there were clusters names no brokers: its topics are all at the *founder*, the first broker that
ever registered.
"""

import json
import uuid
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from anabranch.cluster.forms import BRANCH as BRANCH
from anabranch.cluster.forms import BRANCHED, KEPT, STORED, Forms, form_in, settled
from anabranch.cluster.forms import OBJECT as OBJECT
from anabranch.errors import CorruptDataError
from anabranch.values import BrokerId, Generation, Offset

if TYPE_CHECKING:
    from anabranch.cluster.object_freezing import FrozenObjects
    from anabranch.cluster.object_rows import Coordinates
    from anabranch.cluster.object_table import ObjectTable

Entry = Mapping[str, Any]

INTERNAL_NAMES = frozenset({"__consumer_offsets", "__transaction_state"})
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
    """The records below are in the object store (`forms.py`)."""
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
"""Every lane of a topic in mode branch is told by its number to belong to one slot (`replication.branch_rows`)."""

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


# --- entries --------------------------------------------------------------------------------------------------------


def topic_entry(topic: Topic) -> Entry:
    entry: dict[str, Any] = {
        "type": "topic",
        "name": topic.name,
        "id": topic.topic_id.hex,
        "partitions": topic.partition_count,
        "overrides": dict(topic.overrides),
    }
    if topic.placements:
        entry["replicas"] = [list(placement.replicas) for placement in topic.placements]
    if topic.is_pinned:
        entry["pinned"] = True
    if topic.first:
        entry["first"], entry["copies"] = list(topic.first), topic.copies
    return entry


def topic_removed_entry(name: str) -> Entry:
    return {"type": "topic-removed", "name": name}


def partitions_entry(
    name: str,
    partition_count: int,
    replicas: Sequence[Sequence[BrokerId]] = (),
    first: Sequence[BrokerId] = (),
) -> Entry:
    """`replicas`: of each of the new partitions; `first`: in mode branch, who is to be primary of each."""
    entry: dict[str, Any] = {"type": "partitions", "name": name, "partitions": partition_count}
    if replicas:
        entry["replicas"] = [list(each) for each in replicas]
    if first:
        entry["first"] = list(first)
    return entry


def topic_config_entry(name: str, overrides: Mapping[str, str]) -> Entry:
    return {"type": "topic-config", "name": name, "overrides": dict(overrides)}


def producer_ids_entry(next_id: int) -> Entry:
    return {"type": "producer-ids", "next": next_id}


def broker_entry(row: BrokerRow) -> Entry:
    """Registers a broker, or again after it came back; its epoch is where this entry lands."""
    entry: dict[str, Any] = {
        "type": "broker",
        "broker": row.broker_id,
        "directory": row.directory_id,
        "host": row.host,
        "port": row.port,
        "peer_host": row.peer_host,
        "peer_port": row.peer_port,
        "rack": row.rack,
        "fenced": row.is_fenced,
        "slot": True,  # An entry from before there were slots gives none, wherever it is read.
    }
    if row.is_draining:
        entry["draining"] = True
    return entry


def broker_fenced_entry(broker: BrokerId, epoch: int, *, is_fenced: bool) -> Entry:
    """`epoch`: of the registration that is meant; a later one is not touched."""
    return {"type": "broker-fenced" if is_fenced else "broker-unfenced", "broker": broker, "epoch": epoch}


def broker_draining_entry(broker: BrokerId, *, is_draining: bool) -> Entry:
    """It is to leave the cluster, or stays after all."""
    return {"type": "broker-draining", "broker": broker, "draining": is_draining}


def broker_removed_entry(broker: BrokerId) -> Entry:
    return {"type": "broker-removed", "broker": broker}


def move_entry(
    topic_id: uuid.UUID, partition: int, target: Sequence[BrokerId] | None, *, is_pinned: bool = False
) -> Entry:
    """Begins a move of a partition; None: calls it off. `is_pinned`: somebody has chosen the target."""
    entry: dict[str, Any] = {
        "type": "move",
        "id": topic_id.hex,
        "partition": partition,
        "target": None if target is None else list(target),
    }
    if is_pinned:
        entry["pinned"] = True
    return entry


def disk_entry(topic_id: uuid.UUID, partition: int, broker: BrokerId, epoch: int) -> Entry:
    """A replica has everything on another disk than it was given to: that with which its broker registered at `epoch`.
    Should the first disk come back, it is that one which is not believed."""
    return {"type": "disk", "id": topic_id.hex, "partition": partition, "broker": broker, "epoch": epoch}


def boundary_entry(topic_id: uuid.UUID, partition: int, placement: Placement) -> Entry:
    """A new view begins. Of several for the same view the first counts, and one with other replicas than before only
    if its move is still the one that was decided on last: replicas of an earlier one may have thrown theirs away."""
    return {
        "type": "boundary",
        "id": topic_id.hex,
        "partition": partition,
        "view": placement.view,
        "start": placement.start,
        "generation": placement.generation,
        "replicas": list(placement.replicas),
        "move": placement.move,
        **({"lane_start": placement.lane_start} if placement.has_joined_branches else {}),
    }


def forced_boundary_entry(topic_id: uuid.UUID, partition: int, placement: Placement) -> Entry:
    """A new view begins although the replicas of the one before cannot end theirs: too many of them are gone, or may
    lack what was safe. It counts only if its replicas still have the disks that were looked at."""
    return {
        **boundary_entry(topic_id, partition, placement),
        "forced": True,
        "directories": list(placement.directories),
        "target": None if placement.target is None else list(placement.target),
    }


def keep_entry(topic_id: uuid.UUID, partition: int, replicas: Sequence[BrokerId]) -> Entry:
    """A partition comes back from the object store: from its end on, wherever that is when this is applied, these
    brokers keep it, be it only until it goes over to branches. Counts only if its topic's mode wants it so."""
    return {"type": "keep", "id": topic_id.hex, "partition": partition, "replicas": list(replicas)}


def leave_entry(topic_id: uuid.UUID, partition: int, closer: BrokerId | None, before: int) -> Entry:
    """A broker tries to bring a partition out of branches; None: nobody does. Whatever was promised under the decision
    `before` is void then. Counts only if that is the last one, and the topic's mode wants it so."""
    return {"type": "leave", "id": topic_id.hex, "partition": partition, "closer": closer, "before": before}


def left_entry(
    topic_id: uuid.UUID, partition: int, start: Offset, replicas: Sequence[BrokerId], move: int
) -> Entry:
    """All branches of a partition are one, and end: these brokers have all of it, and keep what is written from `start`
    on. Counts only if nobody has decided otherwise since, and no broker or disk has come or gone: it might have
    promised nothing."""
    return {
        "type": "left",
        "id": topic_id.hex,
        "partition": partition,
        "start": start,
        "replicas": list(replicas),
        "move": move,
    }


def encode_entry(entry: Entry) -> bytes:
    return json.dumps(entry, separators=(",", ":"), sort_keys=True).encode()


def decode_entry(data: bytes) -> Entry:
    try:
        entry = json.loads(data)
    except ValueError as error:
        raise CorruptDataError(f"A metadata entry is not JSON: {error}.") from error
    if not isinstance(entry, dict) or "type" not in entry:
        raise CorruptDataError("A metadata entry has no type.")
    return entry


# --- the table ------------------------------------------------------------------------------------------------------


class MetadataTable:
    """Brokers by id, topics by name and by id. Readers look up; only `apply` and `restore` change it."""

    def __init__(self, coordinates: "Callable[[], Coordinates] | None" = None) -> None:
        """`coordinates`: makes what keeps rows of objects, once there are any; None: they are in memory."""
        self.brokers: dict[BrokerId, BrokerRow] = {}
        self.founder: BrokerId | None = None
        self.topics: dict[str, Topic] = {}
        self.topics_by_id: dict[uuid.UUID, Topic] = {}
        self.producer_id_next = 0
        self.slots: dict[str, int] = {}
        """Of each disk that ever registered, by its directory id: never given to another."""
        self._coordinates = coordinates
        self._objects: ObjectTable | None = None

    # --- looking up

    @property
    def objects(self) -> "ObjectTable":
        """What lies in the object store; loaded by those who have one."""
        if self._objects is None:
            from anabranch.cluster.object_table import ObjectTable

            self._objects = ObjectTable(self, self._coordinates() if self._coordinates is not None else None)
        return self._objects

    @property
    def has_objects(self) -> bool:
        """Anything was ever agreed on about objects."""
        return self._objects is not None and not self._objects.is_blank

    def placement(self, topic: Topic, partition: int) -> Placement:
        if topic.placements:
            return topic.placements[partition]
        if topic.form(partition) != KEPT:
            return NOWHERE
        if self.founder is None:
            return NOWHERE
        return Placement((self.founder,), (self._directory(self.founder),))

    def placements(self, topic: Topic) -> list[Placement]:
        return [self.placement(topic, partition) for partition in range(topic.partition_count)]

    def kept_by(self, broker: BrokerId) -> Iterator[tuple[Topic, int, Placement]]:
        """The partitions of which this broker keeps a replica, or shall."""
        for topic in self.topics.values():
            for partition, placement in enumerate(self.placements(topic)):
                if placement.is_kept_by(broker) and not placement.is_closing:
                    yield topic, partition, placement

    def _directory(self, broker: BrokerId) -> str:
        row = self.brokers.get(broker)
        return row.directory_id if row is not None else UNKNOWN_DIRECTORY

    # --- changing

    def apply(self, entry: Entry, offset: int) -> None:
        """Raises CorruptDataError for an entry that makes no sense here."""
        if self._objects is not None:
            self._objects.outcome = None
        try:
            self._apply(entry, offset)
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise CorruptDataError(
                f"A metadata entry of type {entry['type']!r} does not fit: {error}."
            ) from error

    def _apply(self, entry: Entry, offset: int) -> None:
        match entry["type"]:
            case "topic" | "topic-removed" | "partitions" | "topic-config":
                self._apply_to_topic(entry, offset)
            case "producer-ids":
                self.producer_id_next = max(self.producer_id_next, entry["next"])
            case "broker" | "broker-fenced" | "broker-unfenced" | "broker-draining" | "broker-removed":
                self._apply_to_broker(entry, offset)
            case "move" | "boundary" | "keep" | "leave" | "left" | "disk":
                self._apply_to_partition(entry, offset)
            case str(kind) if kind.startswith("objects-"):
                self.objects.apply(entry, offset)
            case unknown:
                raise CorruptDataError(
                    f"A metadata entry of type {unknown!r}: was it written by a newer version?"
                )

    def _apply_to_partition(self, entry: Entry, offset: int) -> None:
        match entry["type"]:
            case "move":
                self._move(entry, offset)
            case "boundary":
                self._begin_view(entry, offset)
            case "keep":
                self._keep(entry)
            case "leave":
                self._leave(entry, offset)
            case "left":
                self._end_branches(entry)
            case "disk":
                self._name_disk(entry)

    def _apply_to_topic(self, entry: Entry, offset: int) -> None:
        topic = self.topics.get(entry["name"])
        if entry["type"] == "topic":
            made = self._topic_of(entry)
            if topic is None:
                self._put(made)
        elif topic is not None:
            match entry["type"]:
                case "topic-removed":
                    del self.topics[topic.name], self.topics_by_id[topic.topic_id]
                    if self._objects is not None:
                        self._objects.remove_topic(topic.topic_id, topic.partition_count)
                case "partitions":
                    self._add_partitions(topic, entry)
                case "topic-config":
                    self._configure(topic, dict(entry["overrides"]), offset)

    def _configure(self, topic: Topic, overrides: dict[str, str], offset: int) -> None:
        """Another mode changes no partition by itself: each has the form it had until it has gone over. Those that are
        about to go over, and shall not any more, stay."""
        mode = overrides.get(MODE_CONFIG)
        self._put(replace(topic, overrides=overrides, forms=settled(topic.all_forms, mode)))
        for partition, placement in enumerate(topic.placements):
            has_changed = (placement.leaves_for_store and form_in(mode) != STORED) or (
                (placement.leaves_for_branches and form_in(mode) != BRANCHED)
                or (placement.is_closing and form_in(mode) == BRANCHED)
            )
            if has_changed:
                self._aim(self.topics_by_id[topic.topic_id], partition, None, offset)

    def _apply_to_broker(self, entry: Entry, offset: int) -> None:
        match entry["type"]:
            case "broker":
                self._register(_broker_of(entry, offset))
                if entry.get("slot"):
                    self._give_slot(entry["directory"], entry["broker"])
            case "broker-removed":
                self.brokers.pop(BrokerId(entry["broker"]), None)
            case "broker-draining":
                row = self.brokers.get(BrokerId(entry["broker"]))
                if row is not None:
                    self.brokers[row.broker_id] = replace(row, is_draining=entry["draining"])
            case fencing:
                self._fence(entry["broker"], entry["epoch"], is_fenced=fencing == "broker-fenced")

    def _register(self, row: BrokerRow) -> None:
        if self.founder is None:
            self.founder = row.broker_id
        known = self.brokers.get(row.broker_id)
        if known is not None and known.is_draining:
            row = replace(row, is_draining=True)  # A restart does not change what somebody wants.
        self.brokers[row.broker_id] = row

    def _give_slot(self, directory: str, broker: int) -> None:
        """The first one is kept for the founder, who may have used it before it was given any. Without one, as nobody
        is beyond the last, a broker follows others in mode branch and is never primary."""
        if directory in self.slots:
            return
        given = self.slots.values()
        slot = 0 if broker == self.founder and 0 not in given else max(given, default=0) + 1
        if slot < SLOTS_MAX:
            self.slots[directory] = slot

    def _fence(self, broker: BrokerId, epoch: int, *, is_fenced: bool) -> None:
        row = self.brokers.get(broker)
        if row is not None and row.epoch == epoch:
            self.brokers[broker] = replace(row, is_fenced=is_fenced)

    def _add_partitions(self, topic: Topic, entry: Entry) -> None:
        count_added, added = entry["partitions"] - topic.partition_count, self._new_placements(entry)
        if count_added <= 0 or len(added) not in (0, count_added) or topic.forms:
            return
        if not topic.is_placed:
            placements = (*topic.placements, *([NOWHERE] * count_added)) if topic.placements else ()
            first = tuple(entry.get("first", ()))
            self._put(
                replace(
                    topic,
                    partition_count=entry["partitions"],
                    placements=placements,
                    first=(*topic.first, *first),
                    first_disks=(*topic.first_disks, *map(self._directory, first)),
                )
            )
            return
        if topic.placements and not added:
            added = (self.placement(replace(topic, placements=()), 0),) * count_added
        kept = topic.placements or (tuple(self.placements(topic)) if added else ())
        self._put(replace(topic, partition_count=entry["partitions"], placements=(*kept, *added)))

    def _new_placements(self, entry: Entry) -> tuple[Placement, ...]:
        """Replicas are given to the disks that their brokers have at this point of the log."""
        return tuple(
            Placement(tuple(replicas), tuple(self._directory(broker) for broker in replicas))
            for replicas in entry.get("replicas", ())
        )

    def _move(self, entry: Entry, offset: int) -> None:
        topic, partition = self._kept_partition(entry)
        if topic is not None:
            target = None if entry["target"] is None else tuple(entry["target"])
            if target == self.placement(topic, partition).replicas and not topic.is_branch:
                target = (
                    None  # It was to go into branches, and shall not any more: it would be sealed for ever.
                )
            pinned = replace(topic, is_pinned=topic.is_pinned or entry.get("pinned", False))
            self._aim(pinned, partition, target, offset)

    def _aim(self, topic: Topic, partition: int, target: tuple[BrokerId, ...] | None, offset: int) -> None:
        current = self.placement(topic, partition)
        self._take_back(topic, partition, current)
        directories = tuple(self._directory(broker) for broker in target or ())
        placement = replace(current, target=target, target_directories=directories, move=offset)
        self._place(topic, partition, placement)

    def _take_back(self, topic: Topic, partition: int, current: Placement) -> None:
        """What was copied of it to the object store counts for nothing."""
        if current.leaves_for_store and self._objects is not None:
            self._objects.take_back((topic.topic_id, partition), current.floor)

    def _kept_partition(self, entry: Entry) -> tuple[Topic | None, int]:
        """The topic of a partition that brokers keep; None: there is none."""
        topic, partition = self.topics_by_id.get(uuid.UUID(hex=entry["id"])), entry["partition"]
        if topic is None or not 0 <= partition < topic.partition_count or topic.form(partition) != KEPT:
            return None, partition
        return topic, partition

    def _name_disk(self, entry: Entry) -> None:
        topic, partition = self._kept_partition(entry)
        row = self.brokers.get(BrokerId(entry["broker"]))
        if topic is None:
            return
        if row is None or row.epoch != entry["epoch"]:
            return  # It has come back since, perhaps with yet another disk.
        self._place(
            topic, partition, self.placement(topic, partition).on_disk(row.broker_id, row.directory_id)
        )

    def _begin_view(self, entry: Entry, offset: int) -> None:
        topic, partition = self._kept_partition(entry)
        if topic is None:
            return
        current = self.placement(topic, partition)
        if entry["view"] != current.view + 1:
            return  # Somebody else's was first.
        view, start, generation = entry["view"], entry["start"], entry["generation"]
        replicas = tuple(entry["replicas"])
        if entry.get("forced"):
            forced = self._forced_view(entry, offset)
            if forced is not None:
                self._take_back(topic, partition, current)  # What was copied it may lack, and write anew.
                kept_on = replace(
                    forced, floor=current.floor, since_view=current.since_view, left=current.left
                )
                self._place(topic, partition, kept_on)
            return
        is_branched = form_in(topic.mode) == BRANCHED and current.leaves_for_branches
        if is_branched and replicas == current.target and entry["move"] == current.move:
            self._branch(topic, partition, entry)
            return
        if replicas == current.replicas:
            placement = replace(current, view=view, start=start, generation=generation, is_forced=False)
        elif replicas == current.target and entry["move"] == current.move:
            if replicas == STORE:
                self._store(topic, partition, entry)
                return
            placement = replace(
                current,
                replicas=replicas,
                directories=current.target_directories,
                view=view,
                start=start,
                generation=generation,
                target=None,
                target_directories=(),
                is_forced=False,
            )
        else:
            return
        self._place(topic, partition, placement)

    def _store(self, topic: Topic, partition: int, entry: Entry) -> None:
        """All of it is in the object store: from now on that is where it is written."""
        if self._objects is None or self._objects.head((topic.topic_id, partition)).end != entry["start"]:
            return
        generation = Generation(entry["generation"] + 1)  # Clients believe no leader with a lower one.
        placement = Placement(STORE, (), entry["view"], entry["start"], generation)
        self._go_over(topic, partition, STORED, placement)

    def _branch(self, topic: Topic, partition: int, entry: Entry) -> None:
        """It is sealed: what its replicas have is the first lane, and others are opened behind it."""
        before = self.placement(topic, partition)
        if "lane_start" not in entry:
            return
        first = list(topic.first) or [NO_BROKER] * topic.partition_count
        first[partition] = before.replicas[0]
        branched = replace(
            topic,
            first=tuple(first),
            first_disks=(UNKNOWN_DIRECTORY,) * topic.partition_count,  # Its first lane is written already.
            copies=max(topic.copies, len(before.replicas), min(BRANCH_COPIES, len(self.brokers))),
        )
        placement = Placement(
            (),
            (),
            entry["view"],
            entry["start"],
            entry["generation"],
            floor=before.floor,
            since_view=before.since_view,
            lane_start=entry["lane_start"],
            move=before.move,  # What was promised in an earlier time in branches is void.
        )
        self._go_over(branched, partition, BRANCHED, placement)

    def _keep(self, entry: Entry) -> None:
        topic, partition = self.topics_by_id.get(uuid.UUID(hex=entry["id"])), entry["partition"]
        if topic is None or not 0 <= partition < topic.partition_count:
            return
        replicas = tuple(entry["replicas"])
        if not topic.is_stored(partition) or form_in(topic.mode) == STORED or not replicas:
            return  # Somebody else's was first, or nobody wants it any more.
        before = self.placement(topic, partition)
        end = self.objects.head((topic.topic_id, partition)).end
        directories = tuple(self._directory(broker) for broker in replicas)
        view = before.view + 1
        placement = Placement(replicas, directories, view, end, before.generation, floor=end, since_view=view)
        self._go_over(topic, partition, KEPT, placement)

    def _leave(self, entry: Entry, offset: int) -> None:
        topic, partition = self._branched_partition(entry)
        if topic is None or topic.is_branch or self.placement(topic, partition).move != entry["before"]:
            return
        closer, target = entry["closer"], None
        if closer is not None:
            if closer not in self.brokers:
                return
            target = (BrokerId(closer), *sorted(self.brokers.keys() - {closer}))
        self._aim(topic, partition, target, offset)

    def _branched_partition(self, entry: Entry) -> tuple[Topic | None, int]:
        topic, partition = self.topics_by_id.get(uuid.UUID(hex=entry["id"])), entry["partition"]
        if topic is None or not 0 <= partition < topic.partition_count or not topic.is_branched(partition):
            return None, partition
        return topic, partition

    def _end_branches(self, entry: Entry) -> None:
        topic, partition = self._branched_partition(entry)
        if topic is None or topic.is_branch:
            return
        before = self.placement(topic, partition)
        if not before.is_closing or before.move != entry["move"] or not self._have_all_stayed(before):
            return
        replicas = tuple(BrokerId(broker) for broker in entry["replicas"])
        if not replicas or not set(replicas) <= set(before.target or ()):
            return
        view = before.view + 1
        placement = Placement(
            replicas,
            tuple(self._directory(broker) for broker in replicas),
            view,
            entry["start"],
            Generation(before.generation + 1),  # As clients were told: they believe none lower.
            floor=before.floor,
            since_view=view,
            left=before.move,
        )
        self._go_over(topic, partition, KEPT, placement)

    def _have_all_stayed(self, placement: Placement) -> bool:
        """Those who were asked to promise are all there are, with the disks they had."""
        asked = dict(zip(placement.target or (), placement.target_directories, strict=True))
        return asked == {broker: row.directory_id for broker, row in self.brokers.items()}

    def _go_over(self, topic: Topic, partition: int, form: str, placement: Placement) -> None:
        forms = list(topic.all_forms)
        forms[partition] = form
        placements = self.placements(topic)
        placements[partition] = placement
        self._put(replace(topic, forms=settled(forms, topic.mode), placements=tuple(placements)))

    def _forced_view(self, entry: Entry, offset: int) -> Placement | None:
        replicas = tuple(entry["replicas"])
        directories = tuple(self._directory(broker) for broker in replicas)
        if directories != tuple(entry["directories"]):
            return None  # One has come back with another disk since, and has nothing.
        target = None if entry["target"] is None else tuple(entry["target"])
        return Placement(
            replicas,
            directories,
            entry["view"],
            entry["start"],
            entry["generation"],
            target,
            tuple(self._directory(broker) for broker in target or ()),
            offset,
            is_forced=True,
        )

    def _place(self, topic: Topic, partition: int, placement: Placement) -> None:
        placements = self.placements(topic)
        placements[partition] = placement
        self._put(replace(topic, placements=tuple(placements)))

    def _put(self, topic: Topic) -> None:
        self.topics[topic.name] = topic
        self.topics_by_id[topic.topic_id] = topic

    def _topic_of(self, entry: Entry) -> Topic:
        return Topic(
            name=entry["name"],
            topic_id=uuid.UUID(hex=entry["id"]),
            partition_count=entry["partitions"],
            overrides=dict(entry["overrides"]),
            placements=self._new_placements(entry),
            is_pinned=entry.get("pinned", False),
            first=tuple(entry.get("first", ())),
            first_disks=tuple(entry.get("first_disks", map(self._directory, entry.get("first", ())))),
            copies=entry.get("copies", 1),
            forms=tuple(entry.get("forms", ())),
        )

    # --- snapshots

    def snapshot(self) -> dict[str, Any]:
        """All of it: the same at every broker that has applied as much."""
        table = self._without_objects()
        if self.has_objects:
            table["objects"] = b64encode(self.objects.export()).decode()
        return table

    def snapshot_later(self) -> Callable[[], dict[str, Any]]:
        """`snapshot` of what there is now, to be called in a worker while the table goes on. Raises StorageError or
        CorruptDataError if that takes too long: try again."""
        table = self._without_objects()
        if not self.has_objects:
            return lambda: table
        export = self.objects.export_later()
        return lambda: {**table, "objects": b64encode(export()).decode()}

    def freeze(self) -> "FrozenTable":
        """What there is now, to be written by a worker while the table goes on."""
        return FrozenTable(self._without_objects(), self.objects.freeze() if self.has_objects else None)

    def _without_objects(self) -> dict[str, Any]:
        return {
            "brokers": [{**broker_entry(row), "epoch": row.epoch} for row in self.brokers.values()],
            "founder": self.founder,
            "topics": [_topic_row(topic) for topic in self.topics.values()],
            "producer_id_next": self.producer_id_next,
            "slots": dict(self.slots),
        }

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        self.brokers.clear()
        self.topics.clear()
        self.topics_by_id.clear()
        for row in snapshot.get("brokers", ()):
            self.brokers[BrokerId(row["broker"])] = _broker_of(row, row["epoch"])
        self.founder = snapshot.get("founder")
        self.slots = dict(snapshot.get("slots", {}))
        for row in snapshot["topics"]:
            topic = self._topic_of({**row, "replicas": ()})
            self._put(replace(topic, placements=tuple(_placement_of(each) for each in row.get("places", ()))))
        self.producer_id_next = snapshot["producer_id_next"]
        if "objects" in snapshot:
            self.objects.import_(b64decode(snapshot["objects"]))
        elif self._objects is not None:
            self._objects.adopt(MetadataTable(self._coordinates).objects)

    def adopt(self, other: "MetadataTable") -> None:
        """Be as a table that was restored in a worker; it is not used any more."""
        for mine, its in (
            (self.brokers, other.brokers),
            (self.topics, other.topics),
            (self.topics_by_id, other.topics_by_id),
        ):
            mine.clear()
            mine.update(its)  # type: ignore[arg-type]  # Of the same kind each.
        self.founder, self.producer_id_next = other.founder, other.producer_id_next
        self.slots = other.slots
        if self._objects is not None or other.has_objects:
            self.objects.adopt(other.objects)


class FrozenTable(NamedTuple):
    """A table at one point of the log; see `object_freezing`."""

    without_objects: dict[str, Any]
    objects: "FrozenObjects | None"

    def write(self) -> dict[str, Any]:
        """In a worker: our own snapshot; what it names beside itself is on the disk. Raises StorageError."""
        if self.objects is None:
            return self.without_objects
        return {**self.without_objects, "objects": b64encode(self.objects.write()).decode()}

    def discard(self) -> None:
        """In a worker: `write` was refused."""
        if self.objects is not None:
            self.objects.discard()

    def kept(self) -> None:
        """The snapshot is on the disk."""
        if self.objects is not None:
            self.objects.kept()

    def remove_others(self) -> None:
        """In a worker: what only the snapshot before it has named."""
        if self.objects is not None:
            self.objects.remove_others()


def carried(table: Mapping[str, Any], coordinates: "Callable[[], Coordinates]") -> Mapping[str, Any]:
    """Our own snapshot in the form that another broker can read."""
    if "objects" not in table:
        return table
    from anabranch.cluster import object_state

    state = object_state.carried(b64decode(table["objects"]), coordinates())
    return {**table, "objects": b64encode(state).decode()}


def _broker_of(entry: Entry, epoch: int) -> BrokerRow:
    return BrokerRow(
        BrokerId(entry["broker"]),
        entry["directory"],
        epoch,
        entry["host"],
        entry["port"],
        entry["peer_host"],
        entry["peer_port"],
        entry["rack"],
        entry["fenced"],
        entry.get("draining", False),
    )


def _topic_row(topic: Topic) -> dict[str, Any]:
    row = dict(topic_entry(topic))
    row.pop("replicas", None)
    if topic.forms:
        row["forms"] = list(topic.forms)
    if topic.first:
        row["first_disks"] = list(topic.first_disks)
    if topic.placements:
        row["places"] = [
            [
                placement.replicas,
                placement.directories,
                placement.view,
                placement.start,
                placement.generation,
                placement.target,
                placement.target_directories,
                placement.move,
                placement.is_forced,
                placement.floor,
                placement.since_view,
                placement.lane_start,
                placement.left,
            ]
            for placement in topic.placements
        ]
    return row


def _placement_of(row: Sequence[Any]) -> Placement:
    replicas, directories, view, start, generation, target, target_directories, move, *more = row
    more += [False, START, 0, NO_LANE_START, NO_MOVE][len(more) :]  # Older versions did not say as much.
    return Placement(
        tuple(replicas),
        tuple(directories),
        view,
        start,
        generation,
        None if target is None else tuple(target),
        tuple(target_directories),
        move,
        bool(more[0]),
        more[1],
        more[2],
        more[3],
        more[4],
    )
