"""The parts of a peer message as bytes: each kind of field is written by one function and read by another.

What is read comes from another process, so every reader is strict: lengths and counts fit in what is left, numbers have
their bounds, names are text. Whatever does not hold is a PeerProtocolError.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from struct import Struct
from typing import Any, NamedTuple
from uuid import UUID

from anabranch.broker.peers.messages import LeaderRow
from anabranch.cluster.raft.messages import Entry, EntryKind, Member, Members, Snapshot
from anabranch.errors import PeerProtocolError
from anabranch.modes.generations import Generations, Row
from anabranch.values import BrokerId, Generation, Offset

LONG_MAX = 2**63 - 1
INT_MAX = 2**31 - 1
TEXT_BYTES_MAX = 32_767
"""As long as Kafka's own strings: a client's id travels with its request."""

_long = Struct(">Q")
_int = Struct(">I")
_short = Struct(">H")


class Reader:
    """One message's bytes, read from the front."""

    __slots__ = ("_body", "_position")

    def __init__(self, body: memoryview, position: int = 0) -> None:
        self._body = body
        self._position = position

    @property
    def left(self) -> int:
        return len(self._body) - self._position

    def take(self, count: int) -> memoryview:
        if count > self.left:
            raise PeerProtocolError(f"a message ends {count - self.left} bytes early")
        begin = self._position
        self._position = begin + count
        return self._body[begin : self._position]

    def rest(self) -> memoryview:
        return self.take(self.left)

    def end(self) -> None:
        if self.left:
            raise PeerProtocolError(f"{self.left} bytes follow the end of a message")

    def long(self) -> int:
        return checked(_long.unpack(self.take(8))[0], LONG_MAX)

    def whole(self) -> int:
        return checked(_int.unpack(self.take(4))[0], INT_MAX)

    def flag(self) -> bool:
        return bool(checked(self.take(1)[0], 1))

    def count(self, item_bytes_min: int) -> int:
        """How many items follow: no more than could be there."""
        return checked(_int.unpack(self.take(4))[0], self.left // item_bytes_min)

    def text(self) -> str:
        length = checked(_short.unpack(self.take(2))[0], TEXT_BYTES_MAX)
        try:
            return str(self.take(length), "utf-8")
        except UnicodeDecodeError as error:
            raise PeerProtocolError(f"a text is not UTF-8: {error.reason}") from None


def checked(number: int, highest: int) -> int:
    """The number, which must not be negative either."""
    if not 0 <= number <= highest:
        raise PeerProtocolError(f"the number {number} lies outside 0 to {highest}")
    return number


class Field(NamedTuple):
    write: Callable[[bytearray, Any], None]
    read: Callable[[Reader], Any]


# --- plain ones ------------------------------------------------------------------------------------------------


def _write_long(out: bytearray, number: int) -> None:
    out += _long.pack(number)


def _write_int(out: bytearray, number: int) -> None:
    out += _int.pack(number)


def _write_flag(out: bytearray, is_set: bool) -> None:
    out.append(is_set)


def _write_text(out: bytearray, text: str) -> None:
    data = text.encode()
    assert len(data) <= TEXT_BYTES_MAX, f"a name of {len(data)} bytes"
    out += _short.pack(len(data))
    out += data


def _write_optional_text(out: bytearray, text: str | None) -> None:
    _write_flag(out, text is not None)
    if text is not None:
        _write_text(out, text)


def _read_optional_text(reader: Reader) -> str | None:
    return reader.text() if reader.flag() else None


def _write_uuid(out: bytearray, identity: UUID) -> None:
    out += identity.bytes


def _read_uuid(reader: Reader) -> UUID:
    return UUID(bytes=bytes(reader.take(16)))


# --- of the metadata quorum ------------------------------------------------------------------------------------

KINDS = tuple(EntryKind)


def _write_member(out: bytearray, member: Member) -> None:
    _write_int(out, member.broker_id)
    _write_text(out, member.directory_id)


def _read_member(reader: Reader) -> Member:
    return Member(reader.whole(), reader.text())


def _write_members(out: bytearray, members: Members) -> None:
    for some in members:
        _write_int(out, len(some))
        for member in sorted(some):
            _write_member(out, member)


def _read_members(reader: Reader) -> Members:
    voters, learners = ([_read_member(reader) for _ in range(reader.count(6))] for _ in range(2))
    members = Members(frozenset(voters), frozenset(learners))
    if len(members.everyone) != len(voters) + len(learners):
        raise PeerProtocolError("a member of the metadata quorum is named twice")
    return members


def _write_entries(out: bytearray, entries: Sequence[Entry]) -> None:
    _write_int(out, len(entries))
    for entry in entries:
        _write_long(out, entry.term)
        out.append(KINDS.index(entry.kind))
        _write_int(out, len(entry.data))
        out += entry.data
        if entry.kind is EntryKind.MEMBERS:
            assert entry.members is not None
            _write_members(out, entry.members)


def _read_entries(reader: Reader) -> list[Entry]:
    return [_read_entry(reader) for _ in range(reader.count(13))]


def _read_entry(reader: Reader) -> Entry:
    term = reader.long()
    kind = KINDS[checked(reader.take(1)[0], len(KINDS) - 1)]
    data = bytes(reader.take(reader.count(1)))
    return Entry(term, kind, data, _read_members(reader) if kind is EntryKind.MEMBERS else None)


NO_DATA, BYTES, JSON = range(3)


def _write_snapshot(out: bytearray, snapshot: Snapshot) -> None:
    _write_long(out, snapshot.end)
    _write_long(out, snapshot.term)
    _write_members(out, snapshot.members)
    match snapshot.data:
        case None:
            out.append(NO_DATA)
        case bytes():
            out.append(BYTES)
            out += snapshot.data
        case _:
            out.append(JSON)
            out += json.dumps(snapshot.data, separators=(",", ":")).encode()


def _read_snapshot(reader: Reader) -> Snapshot:
    return Snapshot(reader.long(), reader.long(), _read_members(reader), _read_snapshot_data(reader))


def _read_snapshot_data(reader: Reader) -> object:
    kind = checked(reader.take(1)[0], JSON)
    data = bytes(reader.rest())
    if kind == BYTES:
        return data
    if kind == JSON:
        try:
            return json.loads(data)
        except (ValueError, RecursionError) as error:
            raise PeerProtocolError(f"a snapshot is not JSON: {error}") from None
    if data:
        raise PeerProtocolError("a snapshot without data has some")
    return None


# --- of ring partitions ----------------------------------------------------------------------------------------


def _write_generations(out: bytearray, table: Generations) -> None:
    _write_int(out, len(table.rows))
    for row in table.rows:
        _write_int(out, row.generation)
        _write_long(out, row.start)


def _read_generations(reader: Reader) -> Generations:
    rows: list[Row] = []
    for _ in range(reader.count(12)):
        row = Row(Generation(reader.whole()), Offset(reader.long()))
        if rows and not (rows[-1].generation < row.generation and rows[-1].start <= row.start):
            raise PeerProtocolError(f"a table of generations goes back: {row} after {rows[-1]}")
        rows.append(row)
    return Generations(rows)


def _write_returns(out: bytearray, returns: Mapping[BrokerId, str]) -> None:
    _write_int(out, len(returns))
    for broker, return_id in sorted(returns.items()):
        _write_int(out, broker)
        _write_text(out, return_id)


def _read_returns(reader: Reader) -> dict[BrokerId, str]:
    return {BrokerId(reader.whole()): reader.text() for _ in range(reader.count(6))}


def _write_rows(out: bytearray, rows: Sequence[LeaderRow]) -> None:
    _write_int(out, len(rows))
    for row in rows:
        _write_uuid(out, row.topic_id)
        for number in (row.partition, row.view, row.generation, len(row.in_sync), *row.in_sync):
            _write_int(out, number)


def _read_rows(reader: Reader) -> list[LeaderRow]:
    return [_read_row(reader) for _ in range(reader.count(32))]


def _read_row(reader: Reader) -> LeaderRow:
    topic_id, partition, view = _read_uuid(reader), reader.whole(), reader.whole()
    generation = Generation(reader.whole())
    in_sync = tuple(BrokerId(reader.whole()) for _ in range(reader.count(4)))
    return LeaderRow(topic_id, partition, view, generation, in_sync)


def _write_brokers(out: bytearray, brokers: Sequence[BrokerId]) -> None:
    for number in (len(brokers), *brokers):
        _write_int(out, number)


def _read_brokers(reader: Reader) -> tuple[BrokerId, ...]:
    return tuple(BrokerId(reader.whole()) for _ in range(reader.count(4)))


def _write_move(out: bytearray, move: int) -> None:
    _write_long(out, move + 1)  # There may be none.


def _read_move(reader: Reader) -> int:
    return reader.long() - 1


LONG = Field(_write_long, Reader.long)
INT = Field(_write_int, Reader.whole)
FLAG = Field(_write_flag, Reader.flag)
TEXT = Field(_write_text, Reader.text)
OPTIONAL_TEXT = Field(_write_optional_text, _read_optional_text)
TOPIC_ID = Field(_write_uuid, _read_uuid)
MEMBER = Field(_write_member, _read_member)
ENTRIES = Field(_write_entries, _read_entries)
SNAPSHOT = Field(_write_snapshot, _read_snapshot)
GENERATIONS = Field(_write_generations, _read_generations)
RETURNS = Field(_write_returns, _read_returns)
MOVE = LANE = Field(_write_move, _read_move)
ROWS = Field(_write_rows, _read_rows)
BROKERS = Field(_write_brokers, _read_brokers)
