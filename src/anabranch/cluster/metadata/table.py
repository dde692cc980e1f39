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

import uuid
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from anabranch.cluster.metadata.entries import Entry, broker_entry, topic_entry
from anabranch.cluster.metadata.residence import BRANCHED, KEPT, STORED, form_in, settled
from anabranch.cluster.metadata.rows import (
    BRANCH_COPIES,
    MODE_CONFIG,
    NO_BROKER,
    NO_LANE_START,
    NO_MOVE,
    NOWHERE,
    SLOTS_MAX,
    START,
    STORE,
    UNKNOWN_DIRECTORY,
    BrokerRow,
    Placement,
    Topic,
)
from anabranch.errors import CorruptDataError
from anabranch.values import BrokerId, Generation

if TYPE_CHECKING:
    from anabranch.cluster.objects.freezing import FrozenObjects
    from anabranch.cluster.objects.rows import Coordinates
    from anabranch.cluster.objects.table import ObjectTable


class MetadataTable:
    """Brokers by id, topics by name and by id. Readers look up; only `apply` and `restore` change it."""

    def __init__(self, coordinates: "Callable[[], Coordinates] | None" = None) -> None:
        """`coordinates`: makes what keeps rows of objects, once there are any; None: they are in memory."""
        self.brokers: dict[BrokerId, BrokerRow] = {}
        self.founder: BrokerId | None = None
        self.topics: dict[str, Topic] = {}
        self.topics_by_id: dict[uuid.UUID, Topic] = {}
        self.partitions_by_replicas: Counter[tuple[BrokerId, ...]] = Counter()
        """How many partitions there are of each set of replicas; `()`: those that no broker in particular keeps."""
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
            from anabranch.cluster.objects.table import ObjectTable

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
                    self.partitions_by_replicas -= _count_by_replicas(topic)
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
        replaced = self.topics.get(topic.name)
        if replaced is not None:
            self.partitions_by_replicas -= _count_by_replicas(replaced)
        self.partitions_by_replicas += _count_by_replicas(topic)
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
        self.partitions_by_replicas.clear()
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
            (self.partitions_by_replicas, other.partitions_by_replicas),
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
    from anabranch.cluster.objects import state as object_state

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


def _count_by_replicas(topic: Topic) -> Counter[tuple[BrokerId, ...]]:
    if topic.placements:
        return Counter(each.replicas for each in topic.placements)
    return Counter({(): topic.partition_count})


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
