"""ObjectTable: what lies where in the object store, as everybody agrees on it; part of the agreed table.

It changes only by `apply`, in the order of the metadata log, and reads no clock, so that it is the same everywhere. A
commit names objects that a broker has stored; here their batches get their offsets, and here producers' sequences are
checked. Of one registration of a broker, commits count one after the other without a gap, so that nothing that was
given up, or came too late, is ever taken for later work.

An object that no row names any more is *unreferenced*. Before it may be deleted it is *tombstoned*: from then on no
entry may name it. A row can therefore never name an object that is gone.
"""

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from anabranch.cluster.metadata.residence import STORED
from anabranch.cluster.objects.entries import (
    Entry,
    Import,
    Key,
    PackedCommit,
    Replacement,
    forgotten_of,
    import_of,
    objects_of,
    packed_commits_of,
    replacements_of,
    starts_of,
)
from anabranch.cluster.objects.freezing import FrozenObjects, FrozenPartition
from anabranch.cluster.objects.items import (
    NO_OFFSET,
    NOTHING,
    Draft,
    Head,
    Partition,
    Result,
    take_items,
)
from anabranch.cluster.objects.loading import load
from anabranch.cluster.objects.rows import Coordinates, MemoryCoordinates, RowSequence
from anabranch.cluster.objects.state import (
    Record,
    object_records,
    pack_state,
    partition_record,
    producer_records,
    row_records,
    unpack_state,
)
from anabranch.errors import (
    AnabranchError,
    NotOwnerError,
    StoreRefusedError,
)
from anabranch.objects.layout.names import (
    ObjectId,
    ObjectKind,
    Row,
    lengths,
    object_counts,
    pack_rows,
)
from anabranch.record.producer_table import ProducerTable
from anabranch.values import BrokerId, Offset

if TYPE_CHECKING:
    from anabranch.cluster.metadata.table import MetadataTable

NO_NUMBER = -1


class CommitOutcome(NamedTuple):
    broker: BrokerId
    epoch: int
    results: Sequence[Sequence[Result]]
    """For each commit of the entry, one for each item; none for a number that had its turn before: whoever waited was
    told then."""


class ObjectTable:
    """Readers look up, on the loop's thread; only `apply` and `restore` change it."""

    def __init__(self, agreed: "MetadataTable", coordinates: Coordinates | None = None) -> None:
        self.incarnation: int | None = None
        self.past: tuple[int, ...] = ()
        """The lives before this one: objects of theirs may still be named."""
        self.successor: int | None = None
        """The life in which somebody has brought this cluster back: this one is over."""
        self.outcome: CommitOutcome | None = None
        """Of the entry applied last, if that was a commit."""
        self._agreed = agreed
        self._coordinates = coordinates if coordinates is not None else MemoryCoordinates()
        self._partitions: dict[Key, Partition] = {}
        self._numbers: dict[BrokerId, tuple[int, int]] = {}
        """The last number that each broker has committed, and in which epoch."""
        self._merged_floors: dict[int, int] = {}
        """By epoch, the last number of a merged object that was tombstoned: none up to it may be named anew."""
        self._forgotten_last = NO_NUMBER
        """The greatest id of a producer that was forgotten, with its topic or by itself: one with a greater id has
        never been."""
        self._references: dict[ObjectId, int] = {}
        self._unreferenced: dict[ObjectId, None] = {}
        self._tombstones: dict[ObjectId, int] = {}
        self._version_next = self._coordinates.next_version()

    # --- looking up

    @property
    def is_blank(self) -> bool:
        """Nothing was ever agreed on about objects."""
        return self.incarnation is None and not self._tombstones and not self._unreferenced

    def head(self, key: Key) -> Head:
        partition = self._partitions.get(key)
        return partition.head if partition is not None else NOTHING

    def rows(self, key: Key, start: Offset, count_max: int) -> list[Row]:
        """From the row that holds `start` on, or the first one behind it if compaction took that away."""
        partition = self._partitions.get(key)
        if partition is None:
            return []
        return partition.rows.read(partition.rows.find(start), count_max)

    def row_before(self, key: Key, end: Offset) -> Row | None:
        """The last one that begins before `end`."""
        partition = self._partitions.get(key)
        if partition is None:
            return None
        place = partition.rows.find(Offset(end - 1))
        found = [row for row in partition.rows.read(max(0, place - 1), 2) if row.base_offset < end]
        return found[-1] if found else None

    def row_at_time(self, key: Key, timestamp_ms: int) -> Row | None:
        """The first one that has a record of this time or later."""
        partition = self._partitions.get(key)
        place = partition.rows.find_time(timestamp_ms) if partition is not None else None
        return partition.rows.read(place, 1)[0] if partition is not None and place is not None else None

    def newest_row(self, key: Key) -> Row | None:
        """The first one that has a record of the largest time of all."""
        partition = self._partitions.get(key)
        newest = partition.rows.newest_time() if partition is not None else None
        return self.row_at_time(key, newest) if newest is not None else None

    def row_count(self, key: Key) -> int:
        partition = self._partitions.get(key)
        return partition.rows.count if partition is not None else 0

    def producers(self, key: Key) -> ProducerTable:
        """Of a partition never written to: an empty one, which is nobody's."""
        partition = self._partitions.get(key)
        return partition.producers if partition is not None else ProducerTable()

    @property
    def forgotten_last(self) -> int:
        """The greatest id of a producer that was forgotten; -1: none was."""
        return self._forgotten_last

    def keys(self) -> Iterable[Key]:
        """The partitions that were ever written to."""
        return self._partitions.keys()

    def last_number(self, broker: BrokerId, epoch: int) -> int:
        """Of the objects this broker has committed in this epoch, those given up included; -1: none yet."""
        known, number = self._numbers.get(broker, (epoch, NO_NUMBER))
        return number if known == epoch else NO_NUMBER

    def references(self, object_id: ObjectId) -> int:
        """How many rows name it."""
        return self._references.get(object_id, 0)

    def referenced(self) -> Iterable[ObjectId]:
        return self._references.keys()

    def unreferenced(self) -> Iterable[ObjectId]:
        """Objects that were agreed on and that no row names, or not any more; none that is tombstoned."""
        return self._unreferenced.keys()

    def is_tombstoned(self, object_id: ObjectId) -> bool:
        return object_id in self._tombstones

    @property
    def tombstones(self) -> Mapping[ObjectId, int]:
        """Each with the time at which it was tombstoned, as its proposer's clock had it."""
        return self._tombstones

    @property
    def lives(self) -> tuple[int, ...]:
        """Whose objects are this cluster's."""
        return self.past if self.incarnation is None else (*self.past, self.incarnation)

    # --- changing

    def apply(self, entry: Entry, offset: int) -> None:
        match entry["type"]:
            case "objects-commit":
                self.outcome = self._commit(entry)
            case "objects-replace":
                self._replace(entry)
            case "objects-import":
                self._import(entry)
            case "objects-start":
                self._advance_starts(entry)
            case "objects-tombstone":
                self._tombstone(objects_of(entry), entry["now_ms"])
            case "objects-removed":
                self._remove(objects_of(entry))
            case "objects-forget":
                self._forget(entry)
            case "objects-incarnation":
                self._begin(int(entry["incarnation"], 16))
            case "objects-over":
                self.successor = int(entry["successor"], 16)
            case unknown:
                raise ValueError(f"{unknown!r} is not known: was it written by a newer version?")

    def _begin(self, incarnation: int) -> None:
        if self.incarnation is None:
            self.incarnation = incarnation

    def remove_topic(self, topic_id: uuid.UUID, partition_count: int) -> None:
        for number in range(partition_count):
            partition = self._partitions.pop((topic_id, number), None)
            if partition is not None:
                # Who wrote to it may go on with another topic of its name, where it was.
                self._forgotten_last = max(self._forgotten_last, *partition.producers.producers, NO_NUMBER)
                for packed in partition.rows.packed():
                    self._unname_packed(packed)

    # --- coming back from the bucket (`object_restore`); no entry does this

    def begin_life(self, incarnation: int) -> None:
        """Nobody who registered before has a say any more, and no name that was given before is given again."""
        self.past = self.lives
        self.incarnation, self.successor = incarnation, None
        self._numbers.clear()
        self._merged_floors.clear()

    def begin_partition(self, key: Key) -> ProducerTable:
        """Its producers, to be gone on with."""
        return self._partition(key).producers

    def append_rows(self, key: Key, rows: Iterable[Row], end: Offset) -> None:
        """Behind a gap, and perhaps with one behind them: the partition goes on at `end`."""
        partition = self._partition(key)
        for row in rows:
            self._append(partition, row)
        partition.end = end

    def insert_rows(self, key: Key, rows: Sequence[Row], end: Offset) -> None:
        """Among those that are there, each where its offsets belong; the partition goes on at `end`."""
        partition = self._partition(key)
        there = [row for chunk in partition.rows.chunks() for row in chunk]
        partition.rows.splice(0, len(there), sorted([*there, *rows], key=lambda row: row.base_offset))
        partition.size_bytes += sum(row.length for row in rows)
        partition.end = end
        self._name(rows)

    def knows(self, object_id: ObjectId) -> bool:
        """Whether it was agreed on, whatever became of it, as far as that is remembered."""
        return (
            object_id in self._references or object_id in self._unreferenced or object_id in self._tombstones
        )

    def cut_rows(self, key: Key, kept: Mapping[Row, Sequence[Row]]) -> None:
        """Put what is left of these rows in their places: the rest of their records is gone."""
        partition = self._partition(key)
        rows = [row for chunk in partition.rows.chunks() for row in chunk]
        partition.rows.splice(0, len(rows), [part for row in rows for part in kept.get(row, (row,))])
        parts = [part for row in kept for part in kept[row]]
        partition.size_bytes += sum(part.length for part in parts) - sum(row.length for row in kept)
        self._name(parts)
        self._unname(kept)

    # --- commits and who may make them

    def _refusal(self, broker: BrokerId, epoch: int) -> NotOwnerError | None:
        """Why a broker has no say in this."""
        row = self._agreed.brokers.get(broker)
        if row is None or row.epoch != epoch:
            return NotOwnerError(f"Broker {broker} has registered anew since epoch {epoch}, or has left.")
        if row.is_fenced:
            return NotOwnerError(f"Broker {broker} is fenced: the cluster has not heard from it for a while.")
        if self.incarnation is None:
            return NotOwnerError("The cluster has not agreed yet on how its objects are named.")
        return None

    # --- commits

    def _commit(self, entry: Entry) -> CommitOutcome:
        broker, epoch = BrokerId(entry["broker"]), entry["epoch"]
        refusal = self._refusal(broker, epoch)
        results: list[Sequence[Result]] = []
        for commit in list(packed_commits_of(entry)):  # All of it makes sense, or nothing is changed.
            if refusal is not None:
                results.append(_refused(commit, refusal))
            else:
                results.append(self._commit_one(broker, epoch, commit, entry["now_ms"]))
        return CommitOutcome(broker, epoch, results)

    def _commit_one(
        self, broker: BrokerId, epoch: int, commit: PackedCommit, now_ms: int
    ) -> Sequence[Result]:
        expected = self.last_number(broker, epoch) + 1
        if commit.number < expected:
            return ()
        if commit.number > expected:
            return _refused(
                commit,
                NotOwnerError(f"Object {commit.number} of broker {broker} came before object {expected}."),
            )
        self._numbers[broker] = epoch, commit.number
        if not commit.lines:
            return ()
        assert self.incarnation is not None
        object_id = ObjectId(self.incarnation, epoch, commit.number)
        if self.successor is not None:
            return _refused(commit, StoreRefusedError(_over(self.successor)))
        if object_id in self._tombstones:
            return _refused(commit, NotOwnerError(f"{object_id.name} was given up."))
        generations = commit.generations or [0] * len(commit.keys)
        drafts = [
            Draft(key, self._writable(key, generation), is_kept=self._is_known(key))
            for key, generation in zip(commit.keys, generations, strict=True)
        ]
        results = take_items(drafts, commit.lines, now_ms, self._forgotten_last)
        for draft in drafts:
            for row in draft.rows(object_id):
                assert draft.partition is not None
                self._append(draft.partition, row)
        self._note_unreferenced((object_id,))
        return results

    def _writable(self, key: Key, generation: int) -> Partition | None:
        """`generation`: the one that it had when what is to be written was gathered."""
        if not self._is_known(key):
            return None
        topic = self._agreed.topics_by_id[key[0]]
        if topic.form(key[1]) != STORED or self._agreed.placement(topic, key[1]).generation != generation:
            return None
        return self._partition(key)

    def _is_known(self, key: Key) -> bool:
        topic = self._agreed.topics_by_id.get(key[0])
        return topic is not None and 0 <= key[1] < topic.partition_count

    def _partition(self, key: Key) -> Partition:
        partition = self._partitions.get(key)
        if partition is None:
            partition = self._partitions[key] = Partition(RowSequence(self._coordinates, key))
        return partition

    def _append(self, partition: Partition, row: Row) -> None:
        partition.rows.append(row)
        partition.size_bytes += row.length
        self._name((row,))

    # --- partitions that come from brokers, and go back to them

    def _import(self, entry: Entry) -> None:
        part, epoch = import_of(entry), entry["epoch"]
        objects = {row.object_id for row in part.rows}
        is_wanted = self._refusal(BrokerId(entry["broker"]), epoch) is None and self.successor is None
        if is_wanted and self._is_coming(part) and all(self._may_name(each, epoch) for each in objects):
            self._take_in(part)
        self._note_unreferenced(objects)

    def _is_coming(self, part: Import) -> bool:
        """Whether this partition goes over to the store by this very decision, and these rows are its next."""
        topic = self._agreed.topics_by_id.get(part.key[0])
        if topic is None or not 0 <= part.key[1] < topic.partition_count or topic.form(part.key[1]) == STORED:
            return False
        placement = self._agreed.placement(topic, part.key[1])
        at = placement.floor if part.is_anew else self.head(part.key).end
        for row in part.rows:
            if not at <= row.base_offset < row.next_offset:
                return False
            at = row.next_offset
        return placement.leaves_for_store and placement.move == part.move and at <= part.end

    def _take_in(self, part: Import) -> None:
        if part.is_anew:
            topic = self._agreed.topics_by_id[part.key[0]]
            self.take_back(part.key, self._agreed.placement(topic, part.key[1]).floor)
        partition = self._partition(part.key)
        for row in part.rows:
            self._append(partition, row)
        partition.end = part.end
        partition.producers.restore({"producers": part.producers})
        self._advance_start(part.key, part.start)

    def take_back(self, key: Key, end: Offset) -> None:
        """A partition does not go over to the store after all: what lies here beyond `end` its brokers still have."""
        partition = self._partitions.get(key)
        if partition is None or partition.end <= end:
            return
        first, count = partition.rows.find(end), partition.rows.count
        for packed in partition.rows.packed(partition.rows.slice(first, count - first)):
            self._unname_packed(packed)
            partition.size_bytes -= sum(lengths(packed))
        # The last row that stays is written anew: a file never ends within what a snapshot names of it.
        kept = partition.rows.read(first - 1, 1) if first else []
        partition.rows.splice(first - len(kept), count - first + len(kept), kept)
        partition.end = end
        partition.start = min(partition.start, end)

    # --- replacing

    def _replace(self, entry: Entry) -> None:
        epoch = entry["epoch"]
        refusal = self._refusal(BrokerId(entry["broker"]), epoch)
        named: dict[ObjectId, None] = {}
        for replacement in list(replacements_of(entry)):
            named.update(dict.fromkeys(row.object_id for row in replacement.new))
            if refusal is None and self.successor is None:
                self._replace_rows(replacement, epoch)
        self._note_unreferenced(named)

    def _replace_rows(self, replacement: Replacement, epoch: int) -> None:
        key, old, new = replacement
        partition = self._partitions.get(key)
        if partition is None or not old or not _fits(old, new):
            return
        if not all(self._may_name(object_id, epoch) for object_id in {row.object_id for row in new}):
            return
        place = partition.rows.find(old[0].base_offset)
        if partition.rows.read(place, len(old)) != list(old):
            return  # Somebody else has replaced them, or they are gone.
        partition.rows.splice(place, len(old), new)
        partition.size_bytes += sum(row.length for row in new) - sum(row.length for row in old)
        self._name(new)
        self._unname(old)

    def _may_name(self, object_id: ObjectId, epoch: int) -> bool:
        """What is named already is there to stay. Anything else has to be this epoch's, and newer than what was
        tombstoned of it: an object that is gone for long is not remembered by its name."""
        if object_id in self._references:
            return True
        return (
            object_id not in self._tombstones
            and object_id.kind is ObjectKind.MERGED
            and object_id.incarnation == self.incarnation
            and object_id.epoch == epoch
            and object_id.number > self._merged_floors.get(epoch, NO_NUMBER)
        )

    # --- what goes

    def _advance_starts(self, entry: Entry) -> None:
        for key, start in starts_of(entry):
            self._advance_start(key, start)

    def _advance_start(self, key: Key, offset: Offset) -> None:
        partition = self._partitions.get(key)
        if partition is None:
            return
        start = min(offset, partition.end)
        if start <= partition.start:
            return
        partition.start = start
        count = partition.rows.find(start)
        for packed in partition.rows.packed(partition.rows.slice(0, count)):
            self._unname_packed(packed)
            partition.size_bytes -= sum(lengths(packed))
        partition.rows.splice(0, count, ())

    def _tombstone(self, objects: Iterable[ObjectId], now_ms: int) -> None:
        present = {row.epoch: row.broker_id for row in self._agreed.brokers.values()}
        self._merged_floors = {
            epoch: floor for epoch, floor in self._merged_floors.items() if epoch in present
        }
        for object_id in objects:
            if object_id in self._references or object_id in self._tombstones:
                continue
            broker = present.get(object_id.epoch) if object_id.incarnation == self.incarnation else None
            if broker is not None and not self._is_settled(object_id, broker):
                continue
            self._unreferenced.pop(object_id, None)
            self._tombstones[object_id] = now_ms
            if broker is not None and object_id.kind is ObjectKind.MERGED:
                floor = self._merged_floors.get(object_id.epoch, NO_NUMBER)
                self._merged_floors[object_id.epoch] = max(floor, object_id.number)

    def _remove(self, objects: Iterable[ObjectId]) -> None:
        for object_id in objects:
            self._tombstones.pop(object_id, None)

    def _is_settled(self, object_id: ObjectId, broker: BrokerId) -> bool:
        """No commit that is still to come can need it."""
        if object_id.kind is not ObjectKind.WRITTEN:
            return True
        return object_id.number <= self.last_number(broker, object_id.epoch)

    def _forget(self, entry: Entry) -> None:
        for key, ids in forgotten_of(entry):
            self._forgotten_last = max(self._forgotten_last, *ids, NO_NUMBER)
            partition = self._partitions.get(key)
            if partition is not None:
                for producer_id in ids:
                    partition.producers.producers.pop(producer_id, None)

    # --- references

    def _name(self, rows: Iterable[Row]) -> None:
        for row in rows:
            object_id = row.object_id
            self._references[object_id] = self._references.get(object_id, 0) + 1
            self._unreferenced.pop(object_id, None)

    def _unname(self, rows: Iterable[Row]) -> None:
        for row in rows:
            self._drop_references(row.object_id, 1)

    def _unname_packed(self, packed: bytes) -> None:
        for object_id, count in object_counts(packed):
            self._drop_references(object_id, count)

    def _drop_references(self, object_id: ObjectId, count: int) -> None:
        left = self._references[object_id] - count
        if left:
            self._references[object_id] = left
        else:
            del self._references[object_id]
            self._unreferenced[object_id] = None

    def _note_unreferenced(self, objects: Iterable[ObjectId]) -> None:
        for object_id in objects:
            if object_id not in self._references and object_id not in self._tombstones:
                self._unreferenced[object_id] = None

    # --- snapshots

    def freeze(self) -> FrozenObjects:
        """What there is now, to be written by a worker. One at a time: `FrozenObjects` says what follows."""
        version = self._version_next
        self._version_next += 1
        partitions = [FrozenPartition(key, each, version) for key, each in self._partitions.items()]
        return FrozenObjects(
            self._coordinates,
            self._first_record(),
            list(self._unreferenced),
            dict(self._tombstones),
            partitions,
        )

    def export(self) -> bytes:
        """All of it, rows included: the same at every broker that has applied as much."""
        return pack_state(self._records())

    def export_later(self) -> Callable[[], bytes]:
        """`export` of what there is now, to be called in a worker whatever is applied meanwhile. Raises StorageError or
        CorruptDataError if the files it reads have gone by then."""
        copy = ObjectTable(self._agreed, self._coordinates)
        copy.incarnation, copy.past, copy.successor = self.incarnation, self.past, self.successor
        copy._numbers, copy._merged_floors = dict(self._numbers), dict(self._merged_floors)
        copy._forgotten_last = self._forgotten_last
        copy._unreferenced, copy._tombstones = dict(self._unreferenced), dict(self._tombstones)
        for key, partition in self._partitions.items():
            # What waits for the disk is taken from where it was: it may get there while somebody reads.
            pieces = [list(each) if isinstance(each, list) else each for each in partition.rows.settled()]
            copy._partitions[key] = Partition(RowSequence(self._coordinates, key, pieces), partition.head)
            copy._partitions[key].producers.producers.update(partition.producers.producers)
        return copy.export

    def import_(self, data: bytes) -> None:
        """Instead of all that is here: what `export` has made, whose rows go to files, synced; or what
        `FrozenObjects.write` has, whose files are cut to what it names and checked. Raises CorruptDataError,
        StorageError."""
        loaded = load(unpack_state(data), self._coordinates)
        self.incarnation, self.past, self.successor = loaded.incarnation, loaded.past, loaded.successor
        self.outcome = None
        self._partitions = loaded.partitions
        self._numbers, self._merged_floors = loaded.numbers, loaded.merged_floors
        self._forgotten_last = loaded.forgotten_last
        self._references, self._unreferenced = loaded.references, loaded.unreferenced
        self._tombstones = loaded.tombstones
        self._version_next = self._coordinates.next_version()

    def adopt(self, other: "ObjectTable") -> None:
        """Be as a table that was read elsewhere, perhaps in a worker; it is not used any more."""
        self.incarnation, self.past, self.successor = other.incarnation, other.past, other.successor
        self.outcome = None
        self._partitions = other._partitions
        self._numbers, self._merged_floors = other._numbers, other._merged_floors
        self._forgotten_last = other._forgotten_last
        self._references, self._unreferenced = other._references, other._unreferenced
        self._tombstones = other._tombstones
        self._version_next = other._version_next

    def _first_record(self) -> Record:
        return Record(
            {
                "table": {
                    "incarnation": self.incarnation,
                    "past": list(self.past),
                    "successor": self.successor,
                    "numbers": [[broker, *known] for broker, known in self._numbers.items()],
                    "merged_floors": [[*each] for each in self._merged_floors.items()],
                    "forgotten_last": self._forgotten_last,
                }
            }
        )

    def _records(self) -> Iterator[Record]:
        yield self._first_record()
        yield from object_records(list(self._unreferenced), self._tombstones)
        for key, partition in self._partitions.items():
            yield partition_record(key, partition.head, None)
            yield from row_records(pack_rows(rows) for rows in partition.rows.chunks())
            yield from producer_records(partition.producers.producers)


# --- rows -----------------------------------------------------------------------------------------------------------


def _over(successor: int) -> str:
    return (
        f"This cluster was brought back from its bucket as another one ({successor:016x}), which does not have what is "
        "sent to this one: write to that one, and stop this one."
    )


def _refused(commit: PackedCommit, error: AnabranchError) -> Sequence[Result]:
    return [Result(NO_OFFSET, error)] * len(commit.lines)


def _fits(old: Sequence[Row], new: Sequence[Row]) -> bool:
    """Whether the new rows follow each other within the offsets of the old ones."""
    offset = old[0].base_offset
    for row in new:
        if not offset <= row.base_offset < row.next_offset:
            return False
        offset = row.next_offset
    return offset <= old[-1].next_offset


__all__ = ["CommitOutcome", "Head", "ObjectTable", "Partition", "Result"]
