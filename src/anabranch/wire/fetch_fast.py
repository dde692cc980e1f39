"""Fetch, written out by hand: parsed without dicts, answered without copying records.

Reads versions 4 to 18. Whatever is rare (tagged fields a replica sends), huge or malformed is left to the
table, which either reads it or says which field is wrong. An answer is a list of pieces for the socket:
bytes, and the caller's own file slices where records go, so that they can be sent straight from the file.
"""

import struct
from collections.abc import Sequence
from typing import NamedTuple, Protocol
from uuid import UUID

from anabranch.wire.api_keys import ApiKey
from anabranch.wire.codec import Body, decode_request
from anabranch.wire.leader_hints import Endpoint, LeaderHint, leader_field, write_endpoints
from anabranch.wire.primitives import (
    ELEMENTS_MAX,
    MALFORMED,
    Malformed,
    read_compact_count,
    read_compact_string,
    read_count,
    read_numbers,
    read_string,
    read_uuid,
    too_many_elements,
    write_compact_count,
    write_compact_string,
    write_count,
    write_string,
    write_uvarint,
)

VERSIONS = range(4, 19)
FLEXIBLE_SINCE = 12
TOPIC_IDS_SINCE = 13
REPLICA_STATE_SINCE = 15
ENDPOINTS_SINCE = 16

NO_REPLICA = -1

PartitionFetch = tuple[int, int, int, int, int, int]
"""Partition, current leader epoch, fetch offset, last fetched epoch, log start offset, bytes_max."""


class FetchRequest(NamedTuple):
    replica_id: int
    wait_ms_max: int
    bytes_min: int
    bytes_max: int
    isolation_level: int
    session_id: int
    session_epoch: int
    topics: list[tuple[str | UUID, list[PartitionFetch]]]
    forgotten: list[tuple[str | UUID, list[int]]]
    rack_id: str


_start_v4 = struct.Struct(">iiiib")
_start_v7 = struct.Struct(">iiiibii")
_start_v15 = struct.Struct(">iiibii")
_partition_v4 = struct.Struct(">iqi")
_partition_v5 = struct.Struct(">iqqi")
_partition_v9 = struct.Struct(">iiqqi")
_partition_v12 = struct.Struct(">iiqiqi")


def parse_fetch_request(
    view: memoryview, position: int, end: int, version: int, elements_max: int = ELEMENTS_MAX
) -> FetchRequest:
    """The request whose body lies in `view[position:end]`."""
    if version in VERSIONS:
        parse = _parse_flexible if version >= FLEXIBLE_SINCE else _parse_plain
        try:
            return parse(view[:end], position, version, elements_max)[0]
        except MALFORMED:
            pass  # The table reads what is rare, and says what is wrong.
    return _from_table(decode_request(ApiKey.FETCH, version, view, position, end, elements_max), version)


# --- versions 4 to 11 --------------------------------------------------------------------------------------


def _parse_plain(view: memoryview, position: int, version: int, left: int) -> tuple[FetchRequest, int]:
    start, position = _plain_start(view, position, version)
    topics: list[tuple[str | UUID, list[PartitionFetch]]] = []
    topic_count, position = read_count(view, position, 6)
    left -= topic_count
    for _ in range(topic_count):
        name, position = read_string(view, position)
        count, position = read_count(view, position, 16)
        left -= count
        if left < 0:
            too_many_elements()
        partitions: list[PartitionFetch] = []
        for _ in range(count):
            partition, position = _plain_partition(view, position, version)
            partitions.append(partition)
        topics.append((name, partitions))
    forgotten, position = _plain_forgotten(view, position, left) if version >= 7 else ([], position)
    rack_id, position = read_string(view, position) if version >= 11 else ("", position)
    return FetchRequest(*start, topics, forgotten, rack_id), position


def _plain_start(
    view: memoryview, position: int, version: int
) -> tuple[tuple[int, int, int, int, int, int, int], int]:
    if version >= 7:
        replica, wait, least, most, isolation, session, epoch = _start_v7.unpack_from(view, position)
        return (replica, wait, least, most, isolation, session, epoch), position + _start_v7.size
    replica, wait, least, most, isolation = _start_v4.unpack_from(view, position)
    return (replica, wait, least, most, isolation, 0, -1), position + _start_v4.size


def _plain_partition(view: memoryview, position: int, version: int) -> tuple[PartitionFetch, int]:
    if version >= 9:
        index, epoch, offset, log_start, most = _partition_v9.unpack_from(view, position)
        return (index, epoch, offset, -1, log_start, most), position + _partition_v9.size
    if version >= 5:
        index, offset, log_start, most = _partition_v5.unpack_from(view, position)
        return (index, -1, offset, -1, log_start, most), position + _partition_v5.size
    index, offset, most = _partition_v4.unpack_from(view, position)
    return (index, -1, offset, -1, -1, most), position + _partition_v4.size


def _plain_forgotten(
    view: memoryview, position: int, left: int
) -> tuple[list[tuple[str | UUID, list[int]]], int]:
    forgotten: list[tuple[str | UUID, list[int]]] = []
    topic_count, position = read_count(view, position, 6)
    left -= topic_count
    for _ in range(topic_count):
        name, position = read_string(view, position)
        count, position = read_count(view, position, 4)
        left -= count
        if left < 0:
            too_many_elements()
        partitions, position = read_numbers(view, position, count, "i")
        forgotten.append((name, partitions))
    return forgotten, position


# --- versions 12 to 18 -------------------------------------------------------------------------------------


def _parse_flexible(view: memoryview, position: int, version: int, left: int) -> tuple[FetchRequest, int]:
    read_topic = read_uuid if version >= TOPIC_IDS_SINCE else read_compact_string
    start, position = _flexible_start(view, position, version)
    topics: list[tuple[str | UUID, list[PartitionFetch]]] = []
    topic_count, position = read_compact_count(view, position, 3)
    left -= topic_count
    for _ in range(topic_count):
        topic, position = read_topic(view, position)
        partitions, position = _flexible_partitions(view, position, left)
        left -= len(partitions)
        topics.append((topic, partitions))
    forgotten: list[tuple[str | UUID, list[int]]] = []
    topic_count, position = read_compact_count(view, position, 3)
    left -= topic_count
    for _ in range(topic_count):
        topic, position = read_topic(view, position)
        count, position = read_compact_count(view, position, 4)
        left -= count
        if left < 0:
            too_many_elements()
        indexes, position = read_numbers(view, position, count, "i")
        position = _past_no_tags(view, position)
        forgotten.append((topic, indexes))
    rack_id, position = read_compact_string(view, position)
    return FetchRequest(*start, topics, forgotten, rack_id), _past_no_tags(view, position)


def _flexible_start(
    view: memoryview, position: int, version: int
) -> tuple[tuple[int, int, int, int, int, int, int], int]:
    if version < REPLICA_STATE_SINCE:
        return _plain_start(view, position, version)
    wait, least, most, isolation, session, epoch = _start_v15.unpack_from(view, position)
    return (NO_REPLICA, wait, least, most, isolation, session, epoch), position + _start_v15.size


def _flexible_partitions(view: memoryview, position: int, left: int) -> tuple[list[PartitionFetch], int]:
    partitions: list[PartitionFetch] = []
    count, position = read_compact_count(view, position, 33)
    if count > left:
        too_many_elements()
    for _ in range(count):
        partitions.append(_partition_v12.unpack_from(view, position))
        position = _past_no_tags(view, position + 32)
    return partitions, _past_no_tags(view, position)


def _past_no_tags(view: memoryview, position: int) -> int:
    if view[position]:
        raise Malformed("has tagged fields, which the table knows")
    return position + 1


def _from_table(body: Body, version: int) -> FetchRequest:
    topic = "topic_id" if version >= TOPIC_IDS_SINCE else "topic"
    replica_state = body["replica_state"]["replica_id"]
    return FetchRequest(
        replica_state if version >= REPLICA_STATE_SINCE else body["replica_id"],
        body["max_wait_ms"],
        body["min_bytes"],
        body["max_bytes"],
        body["isolation_level"],
        body["session_id"],
        body["session_epoch"],
        [
            (each[topic], [_partition_from_table(part) for part in each["partitions"]])
            for each in body["topics"]
        ],
        [(each[topic], each["partitions"]) for each in body["forgotten_topics_data"]],
        body["rack_id"],
    )


def _partition_from_table(partition: Body) -> PartitionFetch:
    return (
        partition["partition"],
        partition["current_leader_epoch"],
        partition["fetch_offset"],
        partition["last_fetched_epoch"],
        partition["log_start_offset"],
        partition["partition_max_bytes"],
    )


# --- the answer --------------------------------------------------------------------------------------------

JOINED_BYTES_MAX = 16 * 1024
"""Records in memory up to this size are copied into the piece before them: cheaper than one more piece."""


class FileSlice(Protocol):
    """Records that stay in their file until the socket takes them."""

    @property
    def count(self) -> int: ...


Records = bytes | bytearray | memoryview | FileSlice | None
Piece = bytes | bytearray | memoryview | FileSlice
PartitionAnswer = (
    tuple[int, int, int, int, int, list[tuple[int, int]] | None, int, Records]
    | tuple[
        int,
        int,
        int,
        int,
        int,
        list[tuple[int, int]] | None,
        int,
        Records,
        tuple[int, int] | None,
        LeaderHint | None,
    ]
)
"""Index, error code, high watermark, last stable offset, log start offset, aborted transactions (producer
id, first offset), preferred read replica, records; and where logs diverge (epoch, end offset) and who leads instead,
told from v12 on."""
CURRENT_LEADER_TAG = 1

_size = struct.Struct(">i")
_answer_v4 = struct.Struct(">iii").pack
_answer_v7 = struct.Struct(">iiihi").pack
_answer_v12 = struct.Struct(">iixihi").pack
_part_v4 = struct.Struct(">ihqq").pack
_part_v5 = struct.Struct(">ihqqq").pack
_int32 = struct.Struct(">i").pack
_aborted = struct.Struct(">qq").pack
_aborted_flexible = struct.Struct(">qqx").pack
_diverging_epoch = struct.Struct(">BBiqx").pack
NULL_ARRAY = b"\xff\xff\xff\xff"


class _Pieces:
    """Bytes so far, the piece under construction, and how many bytes lie in pieces already closed."""

    def __init__(self, start: bytes) -> None:
        self.out = bytearray(start)
        self.closed: list[Piece] = []
        self.closed_bytes = 0

    def add(self, records: Piece, size: int) -> None:
        if isinstance(records, bytes | bytearray | memoryview) and size <= JOINED_BYTES_MAX:
            self.out += records
        elif size:
            self.closed_bytes += len(self.out) + size
            self.closed += (self.out, records)
            self.out = bytearray()

    def finish(self) -> list[Piece]:
        size = self.closed_bytes + len(self.out)
        pieces = [*self.closed, self.out] if self.out else self.closed
        first = pieces[0]
        assert isinstance(first, bytearray)
        _size.pack_into(first, 0, size - _size.size)
        return pieces


def encode_fetch_response(
    version: int,
    correlation_id: int,
    throttle_ms: int,
    error_code: int,
    session_id: int,
    topics: list[tuple[str | UUID, list[PartitionAnswer]]],
    endpoints: Sequence[Endpoint] = (),
) -> list[Piece]:
    """The whole frame in pieces, in order; the size at its start counts the slices too.

    `endpoints` are of those who lead instead, told from v16 on. Snapshots are not told of (tagged fields).
    """
    assert version in VERSIONS, version
    if version >= FLEXIBLE_SINCE:
        pieces = _Pieces(_answer_v12(0, correlation_id, throttle_ms, error_code, session_id))
        _flexible_topics(pieces, topics)
        write_endpoints(pieces.out, endpoints if version >= ENDPOINTS_SINCE else ())
    else:
        start = _answer_v4(0, correlation_id, throttle_ms)
        if version >= 7:
            start = _answer_v7(0, correlation_id, throttle_ms, error_code, session_id)
        pieces = _Pieces(start)
        _plain_topics(pieces, version, topics)
    return pieces.finish()


def _plain_topics(
    pieces: _Pieces, version: int, topics: list[tuple[str | UUID, list[PartitionAnswer]]]
) -> None:
    write_count(pieces.out, len(topics))
    for topic, partitions in topics:
        write_string(pieces.out, str(topic))
        write_count(pieces.out, len(partitions))
        for partition in partitions:
            _plain_answer(pieces, version, partition)


def _plain_answer(pieces: _Pieces, version: int, partition: PartitionAnswer) -> None:
    index, error, high, stable, start, aborted, preferred, records, *_ = partition
    out = pieces.out
    out += (
        _part_v5(index, error, high, stable, start) if version >= 5 else _part_v4(index, error, high, stable)
    )
    if aborted is None:
        out += NULL_ARRAY
    else:
        write_count(out, len(aborted))
        for producer_id, first_offset in aborted:
            out += _aborted(producer_id, first_offset)
    if version >= 11:
        out += _int32(preferred)
    if records is None:
        out += NULL_ARRAY
        return
    size = _bytes_of(records)
    out += _int32(size)
    pieces.add(records, size)


def _flexible_topics(pieces: _Pieces, topics: list[tuple[str | UUID, list[PartitionAnswer]]]) -> None:
    write_compact_count(pieces.out, len(topics))
    for topic, partitions in topics:
        if isinstance(topic, UUID):
            pieces.out += topic.bytes
        else:
            write_compact_string(pieces.out, topic)
        write_compact_count(pieces.out, len(partitions))
        for partition in partitions:
            _flexible_answer(pieces, partition)
        pieces.out.append(0)


def _flexible_answer(pieces: _Pieces, partition: PartitionAnswer) -> None:
    index, error, high, stable, start, aborted, preferred, records, *tagged = partition
    out = pieces.out
    out += _part_v5(index, error, high, stable, start)
    if aborted is None:
        out.append(0)
    else:
        write_compact_count(out, len(aborted))
        for producer_id, first_offset in aborted:
            out += _aborted_flexible(producer_id, first_offset)
    out += _int32(preferred)
    if records is None:
        out.append(0)
    else:
        size = _bytes_of(records)
        write_uvarint(out, size + 1)
        pieces.add(records, size)
    if tagged:
        _tagged_fields(pieces.out, *tagged)
    else:
        pieces.out.append(0)


def _tagged_fields(
    out: bytearray, diverging: tuple[int, int] | None, leader: LeaderHint | None = None
) -> None:
    out.append((diverging is not None) + (leader is not None))
    if diverging is not None:
        out += _diverging_epoch(0, 13, *diverging)
    if leader is not None:
        out += leader_field(CURRENT_LEADER_TAG, leader)


def _bytes_of(records: Piece) -> int:
    """Asked by type, not by attribute: bytes have a `count` of their own, which is something else."""
    return len(records) if isinstance(records, bytes | bytearray | memoryview) else records.count
