"""Groups and offsets as records of the `__consumer_offsets` log, in Kafka's own formats so that its tools
read them.

Written: OffsetCommitKey v1, OffsetCommitValue v3 (v1 where a client set an expiry of its own, as Kafka does),
GroupMetadataKey v2, GroupMetadataValue v3. Read: every version of these up to 4. A key of a kind we do not
keep (the newer group types) is no error: `read_key` answers None and the record is passed over.
"""

from typing import NamedTuple

from anabranch.coordination.groups import fields
from anabranch.coordination.groups.fields import FieldReader
from anabranch.coordination.groups.messages import LogRecord
from anabranch.errors import CorruptDataError

_OFFSET_KEY, _GROUP_KEY = 1, 2
_VALUE_VERSION_MAX = 4
_COMPACT_FROM = 4


class OffsetKey(NamedTuple):
    group_id: str
    topic: str
    partition: int


class GroupKey(NamedTuple):
    group_id: str


class CommittedOffset(NamedTuple):
    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    expire_timestamp_ms: int | None = None


class MemberRecord(NamedTuple):
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


class GroupRecord(NamedTuple):
    protocol_type: str
    generation: int
    protocol_name: str | None
    leader: str | None
    state_timestamp_ms: int
    members: tuple[MemberRecord, ...]


# --- keys -------------------------------------------------------------------------------------------------


def offset_key(group_id: str, topic: str, partition: int) -> bytes:
    return (
        fields.int16(_OFFSET_KEY) + fields.string(group_id) + fields.string(topic) + fields.int32(partition)
    )


def group_key(group_id: str) -> bytes:
    return fields.int16(_GROUP_KEY) + fields.string(group_id)


def read_key(key: bytes) -> OffsetKey | GroupKey | None:
    reader = FieldReader(key)
    version = reader.int16()
    if version in (0, _OFFSET_KEY):
        return OffsetKey(reader.string(), reader.string(), reader.int32())
    if version == _GROUP_KEY:
        return GroupKey(reader.string())
    return None


# --- offsets ----------------------------------------------------------------------------------------------


def offset_record(group_id: str, topic: str, partition: int, committed: CommittedOffset | None) -> LogRecord:
    """With None the record that deletes the offset."""
    value = None if committed is None else _offset_value(committed)
    return offset_key(group_id, topic, partition), value


def _offset_value(committed: CommittedOffset) -> bytes:
    if committed.expire_timestamp_ms is not None:
        return (
            fields.int16(1)
            + fields.int64(committed.offset)
            + fields.string(committed.metadata)
            + fields.int64(committed.commit_timestamp_ms)
            + fields.int64(committed.expire_timestamp_ms)
        )
    return (
        fields.int16(3)
        + fields.int64(committed.offset)
        + fields.int32(committed.leader_epoch)
        + fields.string(committed.metadata)
        + fields.int64(committed.commit_timestamp_ms)
    )


def read_offset(value: bytes) -> CommittedOffset:
    reader = FieldReader(value)
    version = _value_version(reader)
    offset = reader.int64()
    leader_epoch = reader.int32() if version >= 3 else -1
    metadata = reader.string()
    commit_timestamp_ms = reader.int64()
    expire_timestamp_ms = reader.int64() if version == 1 else -1
    expires = None if expire_timestamp_ms == -1 else expire_timestamp_ms
    return CommittedOffset(offset, leader_epoch, metadata, commit_timestamp_ms, expires)


# --- groups -----------------------------------------------------------------------------------------------


def group_record(group_id: str, group: GroupRecord | None) -> LogRecord:
    """With None the record that deletes the group."""
    return group_key(group_id), None if group is None else _group_value(group)


def _group_value(group: GroupRecord) -> bytes:
    head = (
        fields.int16(3)
        + fields.string(group.protocol_type)
        + fields.int32(group.generation)
        + fields.nullable_string(group.protocol_name)
        + fields.nullable_string(group.leader)
        + fields.int64(group.state_timestamp_ms)
        + fields.int32(len(group.members))
    )
    return head + b"".join(map(_member_bytes, group.members))


def _member_bytes(member: MemberRecord) -> bytes:
    return (
        fields.string(member.member_id)
        + fields.nullable_string(member.instance_id)
        + fields.string(member.client_id)
        + fields.string(member.client_host)
        + fields.int32(member.rebalance_timeout_ms)
        + fields.int32(member.session_timeout_ms)
        + fields.data(member.subscription)
        + fields.data(member.assignment)
    )


def read_group(value: bytes) -> GroupRecord:
    reader = FieldReader(value)
    version = _value_version(reader)
    return GroupRecord(
        protocol_type=reader.string(),
        generation=reader.int32(),
        protocol_name=reader.nullable_string(),
        leader=reader.nullable_string(),
        state_timestamp_ms=reader.int64() if version >= 2 else -1,
        members=tuple(reader.array(lambda one: _read_member(one, version))),
    )


def _read_member(reader: FieldReader, version: int) -> MemberRecord:
    member_id = reader.string()
    instance_id = reader.nullable_string() if version >= 3 else None
    client_id, client_host = reader.string(), reader.string()
    rebalance_timeout_ms = reader.int32() if version >= 1 else -1
    session_timeout_ms = reader.int32()
    subscription, assignment = reader.data(), reader.data()
    reader.tags()
    if rebalance_timeout_ms == -1:
        rebalance_timeout_ms = session_timeout_ms
    return MemberRecord(
        member_id,
        instance_id,
        client_id,
        client_host,
        rebalance_timeout_ms,
        session_timeout_ms,
        subscription,
        assignment,
    )


def _value_version(reader: FieldReader) -> int:
    version = reader.int16()
    if not 0 <= version <= _VALUE_VERSION_MAX:
        raise CorruptDataError(f"A group record has version {version}; up to {_VALUE_VERSION_MAX} are known.")
    reader.compact = version >= _COMPACT_FROM
    return version
