"""What the metadata quorum keeps on the disk, and how it is written and read.

    __cluster_metadata-0   the log: one batch per entry, its offset the entry's place, its generation the entry's term.
                           The key tells the kind: none for a change of the table, `members`, `reign`
    metadata-snapshot      the table at `offset`, of `term`, with the members in force there
    quorum-state           term and vote. `is_alone`: nobody else has ever heard of this term. `has_joined`: a log
                           without members belongs to somebody else's cluster, not to this broker alone

A node that has always been alone has no `quorum-state`, and its entries are all of term 0. A snapshot of another
member replaces the log: while `replaces_log` stands in the file, whatever the log holds means nothing, and
`prepare` makes it so before the log is opened.
"""

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from anabranch.cluster.raft.messages import Entry, EntryKind, Member, Members, Snapshot
from anabranch.errors import CorruptDataError, StorageError
from anabranch.log.disk.checkpoint import read_checkpoint, write_checkpoint
from anabranch.log.disk.files import Files
from anabranch.log.log import Log, clear_segments
from anabranch.record.batch import batch_spans, read_header
from anabranch.record.builder import BatchBuilder
from anabranch.record.records import Record, records_of
from anabranch.values import Offset

READ_BYTES = 2**20
KEYS = {EntryKind.MEMBERS: b"members", EntryKind.REIGN: b"reign"}
KINDS = {key: kind for kind, key in KEYS.items()}


class QuorumState(NamedTuple):
    """What a member has promised."""

    term: int = 0
    vote: Member | None = None
    is_alone: bool = True
    has_joined: bool = False


class QuorumStore:
    """The two small files. Any thread."""

    def __init__(self, files: Files, snapshot_path: str, state_path: str) -> None:
        self._files = files
        self._snapshot_path = snapshot_path
        self._state_path = state_path
        self._found: Any = None
        """What the snapshot file held at the start; until the table is made of it."""

    # --- term and vote

    def read_state(self) -> QuorumState | None:
        """None: there has never been one. Raises StorageError: a member that forgets its vote may vote twice."""
        value, reason = read_checkpoint(self._files, self._state_path)
        if value is None:
            if self._files.exists(self._state_path):
                raise StorageError(
                    f"{self._state_path} says whom this broker has voted for, but {reason}: restore it from a backup, "
                    "or let the broker join its cluster again with an empty data folder."
                )
            return None
        vote = value["vote"]
        return QuorumState(
            value["term"], Member(*vote) if vote else None, value["is_alone"], value["has_joined"]
        )

    def write_state(self, state: QuorumState) -> None:
        value = {
            "term": state.term,
            "vote": list(state.vote) if state.vote else None,
            "is_alone": state.is_alone,
            "has_joined": state.has_joined,
        }
        try:
            write_checkpoint(self._files, self._state_path, value)
        except OSError as error:
            raise StorageError(f"{self._state_path} cannot be written: {error.strerror or error}.") from error

    # --- the snapshot

    def prepare(self, folder: str) -> Offset:
        """Before the log in `folder` is opened: where it begins, as far as anybody needs it. Entries below, of which a
        refusing disk or a crash may have left some, are in the snapshot. Raises StorageError."""
        value, _ = read_checkpoint(self._files, self._snapshot_path)
        if value is not None and value.pop("replaces_log", False):
            self._finish_replacing(folder, value)
        self._found = value
        return Offset(value["offset"]) if value is not None else Offset(0)

    def _finish_replacing(self, folder: str, value: Any) -> None:
        """End what a crash has interrupted."""
        try:
            clear_segments(self._files, folder, Offset(value["offset"]))
        except OSError as error:
            raise StorageError(f"{folder} cannot begin anew: {error.strerror or error}.") from error
        self._write_snapshot(value)

    def take_snapshot(self, members: Members) -> tuple[Snapshot, Any]:
        """After `prepare`, once: the snapshot without its data, and the table as JSON has it (None: an empty one).
        `members`: if it does not say them."""
        value, self._found = self._found, None
        if value is None:
            return Snapshot(0, 0, members), None
        if "members" in value:
            members = members_of(value["members"])
        return Snapshot(value["offset"], value.get("term", 0), members), value["table"]

    def write_snapshot(self, snapshot: Snapshot, table: Any, *, replaces_log: bool = False) -> None:
        value = {
            "offset": snapshot.end,
            "term": snapshot.term,
            "members": members_json(snapshot.members),
            "table": table,
        }
        self._write_snapshot({**value, "replaces_log": True} if replaces_log else value)

    def _write_snapshot(self, value: Any) -> None:
        try:
            write_checkpoint(self._files, self._snapshot_path, value)
        except OSError as error:
            raise StorageError(
                f"{self._snapshot_path} cannot be written: {error.strerror or error}."
            ) from error

    def replace_all(self, snapshot: Snapshot, table: Any, log: Log) -> None:
        """Another member's snapshot instead of ours and of our log."""
        self.write_snapshot(snapshot, table, replaces_log=True)
        log.restart_at(Offset(snapshot.end))
        self.write_snapshot(snapshot, table)


# --- entries as records --------------------------------------------------------------------------------------


def batch_of(entry: Entry, now_ms: int) -> bytearray:
    builder = BatchBuilder()
    builder.add(KEYS.get(entry.kind), _value_of(entry), timestamp_ms=now_ms)
    return builder.build()


def _value_of(entry: Entry) -> bytes | None:
    match entry.kind:
        case EntryKind.CHANGE:
            return entry.data
        case EntryKind.MEMBERS:
            assert entry.members is not None
            return json.dumps(members_json(entry.members), separators=(",", ":")).encode()
        case EntryKind.REIGN:
            return None


def entry_of(record: Record, term: int) -> Entry:
    kind = EntryKind.CHANGE if record.key is None else KINDS.get(bytes(record.key))
    if kind is None:
        raise CorruptDataError(
            f"Metadata entry {record.offset} is of the unknown kind {record.key!r}: was it written by a newer version?"
        )
    if kind is EntryKind.REIGN:
        return Entry(term, kind)
    if record.value is None:
        raise CorruptDataError(f"Metadata entry {record.offset} is empty.")
    if kind is EntryKind.MEMBERS:
        return Entry(term, kind, b"", _decoded_members(record.offset, record.value))
    return Entry(term, kind, bytes(record.value))


def _decoded_members(offset: int, value: bytes) -> Members:
    try:
        return members_of(json.loads(bytes(value)))
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptDataError(f"Metadata entry {offset} does not name members: {error}.") from error


def members_json(members: Members) -> dict[str, list[list[Any]]]:
    return {
        "voters": [list(member) for member in sorted(members.voters)],
        "learners": [list(member) for member in sorted(members.learners)],
    }


def members_of(value: Any) -> Members:
    voters, learners = value["voters"], value["learners"]
    return Members(_member_set(voters), _member_set(learners))


def _member_set(value: Any) -> frozenset[Member]:
    return frozenset(Member(int(broker_id), str(directory_id)) for broker_id, directory_id in value)


def read_entries(log: Log, start: Offset) -> list[Entry]:
    """Every entry from `start` to the end of the log."""
    entries: list[Entry] = []
    for term, record in _read(log, start):
        if record.offset != start + len(entries):
            raise CorruptDataError(f"Metadata entry {start + len(entries)} is missing in {log.folder}.")
        entries.append(entry_of(record, term))
    return entries


def read_records(log: Log, start: Offset) -> Iterator[Record]:
    """Every record from `start` to the end of a log, checked on the way."""
    return (record for _, record in _read(log, start))


def _read(log: Log, start: Offset) -> Iterator[tuple[int, Record]]:
    while start < log.end_offset:
        part = log.slice(start, READ_BYTES, log.end_offset)
        if not part.count:
            return
        data = part.read()
        for first, last in batch_spans(data):
            header = read_header(data, first)
            for record in records_of(memoryview(data)[first:last]):
                if record.offset >= start:
                    yield header.generation, record
            start = header.next_offset
