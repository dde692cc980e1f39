"""The entries by which a cluster agrees on what lies in the object store. Each is a flat JSON object as in
`metadata.py`; long lists of numbers are packed and written as base64.

    objects-incarnation   which life of the cluster this is; the first one counts
    objects-commit        a broker has stored objects: their batches get their offsets here, in the order of the log
    objects-replace       the same records lie elsewhere now (merged, compacted), if the rows are as they were read
    objects-start         everything before these offsets is gone (retention, DeleteRecords)
    objects-tombstone     nothing may name these objects any more; they are deleted later
    objects-removed       they are deleted
    objects-forget        producers that have been silent for too long
    objects-import        records that brokers have kept lie in the store too: their partition goes over to it
    objects-over          the cluster was brought back from its bucket as another: this life takes no more writes

Nothing here reads a clock: what has to do with time was decided by whoever proposed it.
"""

import uuid
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from struct import Struct
from typing import Any, NamedTuple

from anabranch.objects.layout.names import Item as Item
from anabranch.objects.layout.names import Key as Key
from anabranch.objects.layout.names import ObjectId, Row, object_id_of, pack_rows, unpack_rows
from anabranch.values import BrokerId, Offset

Entry = Mapping[str, Any]


class Commit(NamedTuple):
    """One stored object; without items: the number is given up, and no object of that name counts."""

    number: int
    items: Sequence[Item]
    generations: Mapping[Key, int] = {}
    """Of partitions that have not always been in the store: since which time they were when this was gathered. What was
    gathered before a partition left the store, and came back, comes too late."""


_ITEM = Struct(">HQIIqhihqI")


def incarnation_entry(incarnation: int) -> Entry:
    return {"type": "objects-incarnation", "incarnation": f"{incarnation:016x}"}


def over_entry(successor: int) -> Entry:
    return {"type": "objects-over", "successor": f"{successor:016x}"}


def commit_entry(broker: BrokerId, epoch: int, now_ms: int, commits: Sequence[Commit]) -> Entry:
    """`commits` go on with the number after the last one of this epoch, one after the other."""
    return {
        "type": "objects-commit",
        "broker": broker,
        "epoch": epoch,
        "now_ms": now_ms,
        "commits": [_packed_commit(each) for each in commits],
    }


def _packed_commit(commit: Commit) -> Mapping[str, Any]:
    keys = {key: place for place, key in enumerate(dict.fromkeys(item.key for item in commit.items))}
    packed = b"".join(_ITEM.pack(keys[item.key], *item[1:]) for item in commit.items)
    entry = {
        "n": commit.number,
        "keys": [[topic_id.hex, partition] for topic_id, partition in keys],
        "items": b64encode(packed).decode(),
    }
    generations = [commit.generations.get(key, 0) for key in keys]
    return {**entry, "generations": generations} if any(generations) else entry


def commits_of(entry: Entry) -> Iterator[Commit]:
    for number, keys, lines, generations in packed_commits_of(entry):
        items = [Item(keys[line[0]], *line[1:]) for line in lines]
        yield Commit(number, items, dict(zip(keys, generations, strict=False)))


@lru_cache(1024)
def _topic_id(text: str) -> uuid.UUID:
    """One and the same for the same text: to make one takes as long as all else that an item needs."""
    return uuid.UUID(hex=text)


class PackedCommit(NamedTuple):
    """A `Commit` as it travels: each line is an item, with the place of its key among `keys` instead of the key."""

    number: int
    keys: Sequence[Key]
    lines: Sequence[tuple[int, ...]]
    generations: Sequence[int] = ()
    """One for each key; none at all: all are 0."""


def packed_commits_of(entry: Entry) -> Iterator[PackedCommit]:
    for each in entry["commits"]:
        keys = [(_topic_id(topic_id), partition) for topic_id, partition in each["keys"]]
        packed = b64decode(each["items"])
        if len(packed) % _ITEM.size:
            raise ValueError(f"{len(packed)} bytes are not a whole number of items")
        lines = list(_ITEM.iter_unpack(packed))
        if any(line[0] >= len(keys) for line in lines):
            raise ValueError("an item of a partition that is not named")
        yield PackedCommit(each["n"], keys, lines, each.get("generations", ()))


def check_commits(entry: Entry) -> None:
    """Raises ValueError, LookupError or TypeError if `commits_of` could not read it: much cheaper than to read it, for
    whoever only passes it on."""
    _check_count(entry["epoch"])
    _check_count(entry["now_ms"])
    for each in entry["commits"]:
        _check_count(each["n"])
        for topic_id, partition in each["keys"]:
            uuid.UUID(hex=topic_id)
            _check_count(partition)
        generations = each.get("generations", ())
        if len(generations) not in (0, len(each["keys"])):
            raise ValueError("each partition has a generation, or none has")
        for generation in generations:
            _check_count(generation)
        packed = b64decode(each["items"], validate=True)
        if len(packed) % _ITEM.size:
            raise ValueError(f"{len(packed)} bytes are not a whole number of items")
        places = {packed[start : start + 2] for start in range(0, len(packed), _ITEM.size)}
        if places and int.from_bytes(max(places)) >= len(each["keys"]):
            raise ValueError("an item belongs to no partition")


def _check_count(number: object) -> None:
    if type(number) is not int or not 0 <= number < 2**63:
        raise ValueError(f"{number!r} is no count")


class Replacement(NamedTuple):
    """In one partition, `old` rows, which follow each other, become `new` ones, which may be none."""

    key: Key
    old: Sequence[Row]
    new: Sequence[Row]


def replace_entry(broker: BrokerId, epoch: int, replacements: Sequence[Replacement]) -> Entry:
    """Each replacement counts for itself: one whose rows have changed meanwhile changes nothing."""
    return {
        "type": "objects-replace",
        "broker": broker,
        "epoch": epoch,
        "replacements": [
            {
                "id": key[0].hex,
                "partition": key[1],
                "old": b64encode(pack_rows(old)).decode(),
                "new": b64encode(pack_rows(new)).decode(),
            }
            for key, old, new in replacements
        ],
    }


def replacements_of(entry: Entry) -> Iterator[Replacement]:
    for each in entry["replacements"]:
        key = uuid.UUID(hex=each["id"]), each["partition"]
        old, new = (list(unpack_rows(b64decode(each[name]))) for name in ("old", "new"))
        yield Replacement(key, old, new)


def check_replacements(entry: Entry) -> None:
    """Raises as `check_commits` does."""
    _check_count(entry["epoch"])
    for (_, partition), _, _ in replacements_of(entry):
        _check_count(partition)


class Import(NamedTuple):
    """A stretch of a partition that goes over to the object store, as its brokers have kept it."""

    key: Key
    move: int
    """The decision that it shall go over: another one since, and this counts no more."""
    start: Offset
    """Where the partition begins now."""
    end: Offset
    """How far the store has everything when this counts; a partition may have gaps, one behind its last row too."""
    rows: Sequence[Row]
    producers: Sequence[Sequence[Any]]
    """Of each that has written since: what it wrote last below `end`, as ProducerTable.snapshot says it."""
    is_anew: bool = False
    """What was copied before is given up: it came from another log, and compaction leaves each with less."""


def import_entry(broker: BrokerId, epoch: int, part: Import) -> Entry:
    return {
        "type": "objects-import",
        "broker": broker,
        "epoch": epoch,
        "key": [part.key[0].hex, part.key[1]],
        "move": part.move,
        "start": part.start,
        "end": part.end,
        "rows": b64encode(pack_rows(part.rows)).decode(),
        "producers": [list(each) for each in part.producers],
        "anew": part.is_anew,
    }


def import_of(entry: Entry) -> Import:
    topic_id, partition = entry["key"]
    return Import(
        (uuid.UUID(hex=topic_id), partition),
        entry["move"],
        Offset(entry["start"]),
        Offset(entry["end"]),
        list(unpack_rows(b64decode(entry["rows"]))),
        entry["producers"],
        bool(entry["anew"]),
    )


def check_import(entry: Entry) -> None:
    """Raises as `check_commits` does."""
    part = import_of(entry)
    for number in (entry["epoch"], part.key[1], part.move, part.start, part.end):
        _check_count(number)
    for producer_id, epoch, timestamp_ms, batches in part.producers:
        if not all(type(number) is int for number in (producer_id, epoch, timestamp_ms)):
            raise ValueError(f"producer {producer_id!r} is none")
        for batch in batches:
            for number in (batch[0], batch[1], batch[2]):
                _check_count(number)
            if len(batch) != 3:
                raise ValueError("a batch that was written has two sequences and an offset")


def start_entry(starts: Mapping[Key, Offset]) -> Entry:
    return {
        "type": "objects-start",
        "starts": [[topic_id.hex, partition, offset] for (topic_id, partition), offset in starts.items()],
    }


def starts_of(entry: Entry) -> Iterator[tuple[Key, Offset]]:
    for topic_id, partition, offset in entry["starts"]:
        yield (uuid.UUID(hex=topic_id), partition), Offset(offset)


def tombstone_entry(objects: Sequence[ObjectId], now_ms: int) -> Entry:
    """`now_ms`: the table keeps it beside each, so that whoever leads next knows how long readers had."""
    return {"type": "objects-tombstone", "objects": [each.name for each in objects], "now_ms": now_ms}


def removed_entry(objects: Sequence[ObjectId]) -> Entry:
    return {"type": "objects-removed", "objects": [each.name for each in objects]}


def objects_of(entry: Entry) -> Iterator[ObjectId]:
    for name in entry["objects"]:
        object_id = object_id_of(name)
        if object_id is None:
            raise ValueError(f"{name!r} is no object's name")
        yield object_id


def forget_entry(producers: Mapping[Key, Sequence[int]]) -> Entry:
    return {
        "type": "objects-forget",
        "producers": [[key[0].hex, key[1], list(ids)] for key, ids in producers.items()],
    }


def forgotten_of(entry: Entry) -> Iterator[tuple[Key, Sequence[int]]]:
    for topic_id, partition, ids in entry["producers"]:
        yield (uuid.UUID(hex=topic_id), partition), ids
