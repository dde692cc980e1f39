"""Produce, written out by hand: the request a busy node sees most.

Reads versions 3 to 13 in place: records are given as positions in the caller's buffer and never touched.
What is malformed here is malformed for the table too, and the table then says which field it was.
"""

import struct
from collections.abc import Sequence
from typing import cast
from uuid import UUID

from anabranch.errors import ProtocolError
from anabranch.wire.api_keys import ApiKey
from anabranch.wire.codec import decode_request
from anabranch.wire.leader_hints import Endpoint, LeaderHint, leader_field, write_endpoints
from anabranch.wire.primitives import (
    ELEMENTS_MAX,
    MALFORMED,
    end_of,
    read_compact_count,
    read_compact_nullable_string,
    read_compact_string,
    read_count,
    read_nullable_string,
    read_string,
    read_uuid,
    read_uvarint,
    skip_tags,
    too_many_elements,
    write_compact_count,
    write_compact_nullable_string,
    write_compact_string,
    write_count,
    write_nullable_string,
    write_string,
)

VERSIONS = range(3, 14)
FLEXIBLE_SINCE = 9
TOPIC_IDS_SINCE = 13
LEADER_HINTS_SINCE = 10

NULL_RECORDS = -1
"""Where the records of a partition start when there are none at all."""

PartitionSpan = tuple[int, int, int]
"""Partition index, start and end of its records in the caller's buffer."""

TopicSpans = tuple[str | UUID, list[PartitionSpan]]


ProduceRequest = tuple[str | None, int, int, list[TopicSpans]]
"""Transactional id, acks, timeout in milliseconds, topics."""

_acks_and_timeout = struct.Struct(">hi").unpack_from
_index = struct.Struct(">i").unpack_from
_index_and_length = struct.Struct(">ii").unpack_from


def parse_produce_request(
    view: memoryview, position: int, end: int, version: int, elements_max: int = ELEMENTS_MAX
) -> ProduceRequest:
    """The request whose body lies in `view[position:end]`."""
    if version in VERSIONS:
        parse = _parse_flexible if version >= FLEXIBLE_SINCE else _parse_plain
        try:
            return parse(view[:end], position, version, elements_max)[0]
        except MALFORMED:
            raise _refusal(view, position, end, version, elements_max) from None
    raise _refusal(view, position, end, version, elements_max)


def _refusal(view: memoryview, position: int, end: int, version: int, elements_max: int) -> ProtocolError:
    """The table's own words for what is wrong."""
    try:
        decode_request(ApiKey.PRODUCE, version, view, position, end, elements_max)
    except ProtocolError as error:
        return error
    raise AssertionError("A Produce request was refused that its table accepts.")


def _parse_plain(view: memoryview, position: int, version: int, left: int) -> tuple[ProduceRequest, int]:
    transactional_id, position = read_nullable_string(view, position)
    acks, timeout_ms = _acks_and_timeout(view, position)
    topic_count, position = read_count(view, position + 6, 6)
    left -= topic_count
    topics: list[TopicSpans] = []
    for _ in range(topic_count):
        name, position = read_string(view, position)
        count, position = read_count(view, position, 8)
        left -= count
        if left < 0:
            too_many_elements()
        spans: list[PartitionSpan] = []
        for _ in range(count):
            index, length = _index_and_length(view, position)
            position += 8
            if length == -1:
                spans.append((index, NULL_RECORDS, NULL_RECORDS))
                continue
            start, position = position, end_of(view, position, length)
            spans.append((index, start, position))
        topics.append((name, spans))
    return (transactional_id, acks, timeout_ms, topics), position


def _parse_flexible(view: memoryview, position: int, version: int, left: int) -> tuple[ProduceRequest, int]:
    if view[position]:
        transactional_id, position = read_compact_nullable_string(view, position)
    else:
        transactional_id, position = None, position + 1
    acks, timeout_ms = _acks_and_timeout(view, position)
    topic_count, position = read_compact_count(view, position + 6, 3)
    left -= topic_count
    read_topic = read_uuid if version >= TOPIC_IDS_SINCE else read_compact_string
    topics: list[TopicSpans] = []
    for _ in range(topic_count):
        topic, position = read_topic(view, position)
        spans, position, left = _flexible_spans(view, position, left)
        topics.append((topic, spans))
    if view[position]:
        position, left = skip_tags(view, position, left)
    else:
        position += 1
    return (transactional_id, acks, timeout_ms, topics), position


def _flexible_spans(view: memoryview, position: int, left: int) -> tuple[list[PartitionSpan], int, int]:
    """The partitions of one topic, and past its tags. Short lengths are read in place: a call costs more."""
    count, position = read_compact_count(view, position, 6)
    left -= count
    if left < 0:
        too_many_elements()
    spans: list[PartitionSpan] = []
    for _ in range(count):
        (index,) = _index(view, position)
        length, position = view[position + 4], position + 5
        if length > 127:
            length, position = read_uvarint(view, position - 1)
        if length:
            start, position = position, position + length - 1
            spans.append((index, start, position))
        else:
            spans.append((index, NULL_RECORDS, NULL_RECORDS))
        # A length beyond the message fails here, where the byte behind the records is read.
        if view[position]:
            position, left = skip_tags(view, position, left)
        else:
            position += 1
    if view[position]:
        position, left = skip_tags(view, position, left)
    else:
        position += 1
    return spans, position, left


# --- the answer ------------------------------------------------------------------------------------------

RecordErrors = Sequence[tuple[int, str | None]]
"""Of single records: which of the batch, and what is wrong with it."""
PartitionAnswer = (
    tuple[int, int, int, int, int, str | None]
    | tuple[int, int, int, int, int, str | None, LeaderHint]
    | tuple[int, int, int, int, int, str | None, LeaderHint | None, RecordErrors]
)
"""Index, error code, base offset, log append time, log start offset, error message; who leads instead, told from v10
on; and which records were refused, told from v8 on."""
CURRENT_LEADER_TAG = 0

_size = struct.Struct(">i")
_header = struct.Struct(">ii")
_flexible_header = struct.Struct(">iix")

_v3 = struct.Struct(">ihqq").pack
_v5 = struct.Struct(">ihqqq").pack
_v8 = struct.Struct(">ihqqqi").pack
_v9 = struct.Struct(">ihqqqB").pack
NO_RECORD_ERRORS = 1
"""An empty array in compact form: its length and one."""


def encode_produce_response(
    version: int,
    correlation_id: int,
    topics: list[tuple[str | UUID, list[PartitionAnswer]]],
    throttle_ms: int = 0,
    endpoints: Sequence[Endpoint] = (),
) -> bytes:
    """The whole frame: size, header, body. `endpoints` are of those who lead instead, told from v10 on."""
    assert version in VERSIONS, version
    flexible = version >= FLEXIBLE_SINCE
    out = bytearray((_flexible_header if flexible else _header).pack(0, correlation_id))
    (_flexible_topics if flexible else _plain_topics)(out, version, topics)
    out += _size.pack(throttle_ms)
    if flexible:
        write_endpoints(out, endpoints if version >= LEADER_HINTS_SINCE else ())
    _size.pack_into(out, 0, len(out) - _size.size)
    return bytes(out)


def _plain_topics(
    out: bytearray, version: int, topics: list[tuple[str | UUID, list[PartitionAnswer]]]
) -> None:
    write_count(out, len(topics))
    for topic, answers in topics:
        write_string(out, str(topic))
        write_count(out, len(answers))
        for index, error_code, base_offset, time_ms, start_offset, message, *rest in answers:
            if version < 5:
                out += _v3(index, error_code, base_offset, time_ms)
            elif version < 8:
                out += _v5(index, error_code, base_offset, time_ms, start_offset)
            else:
                errors = _record_errors(rest)
                out += _v8(index, error_code, base_offset, time_ms, start_offset, len(errors))
                for place, why in errors:
                    out += _size.pack(place)
                    write_nullable_string(out, why)
                write_nullable_string(out, message)


def _flexible_topics(
    out: bytearray, version: int, topics: list[tuple[str | UUID, list[PartitionAnswer]]]
) -> None:
    write_compact_count(out, len(topics))
    for topic, answers in topics:
        if isinstance(topic, UUID):
            out += topic.bytes
        else:
            write_compact_string(out, topic)
        write_compact_count(out, len(answers))
        for index, error_code, base_offset, time_ms, start_offset, message, *rest in answers:
            out += _v9(index, error_code, base_offset, time_ms, start_offset, NO_RECORD_ERRORS)
            if errors := _record_errors(rest):
                del out[-1]
                _write_compact_record_errors(out, errors)
            write_compact_nullable_string(out, message)
            leader = rest[0] if rest else None
            if leader is not None and version >= LEADER_HINTS_SINCE:
                out.append(1)
                out += leader_field(CURRENT_LEADER_TAG, cast(LeaderHint, leader))
            else:
                out.append(0)
        out.append(0)


def _record_errors(rest: Sequence[object]) -> RecordErrors:
    return cast(RecordErrors, rest[1]) if len(rest) > 1 else ()


def _write_compact_record_errors(out: bytearray, errors: RecordErrors) -> None:
    write_compact_count(out, len(errors))
    for place, why in errors:
        out += _size.pack(place)
        write_compact_nullable_string(out, why)
        out.append(0)
