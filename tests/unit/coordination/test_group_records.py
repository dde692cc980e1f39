"""Records of the `__consumer_offsets` log: Kafka's bytes, both ways."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.coordination.groups.records import (
    CommittedOffset,
    GroupKey,
    GroupRecord,
    MemberRecord,
    OffsetKey,
    group_key,
    group_record,
    offset_key,
    offset_record,
    read_group,
    read_key,
    read_offset,
)
from anabranch.errors import CorruptDataError, InvalidRecordError

text = st.text(max_size=20)
int32 = st.integers(-(2**31), 2**31 - 1)
timeouts = st.integers(0, 2**31 - 1)
int64 = st.integers(0, 2**63 - 1)
members = st.builds(
    MemberRecord,
    text,
    st.none() | text,
    text,
    text,
    timeouts,
    timeouts,
    st.binary(max_size=30),
    st.binary(max_size=30),
)
groups = st.builds(
    GroupRecord,
    text,
    int32,
    st.none() | text,
    st.none() | text,
    int64,
    st.lists(members, max_size=4).map(tuple),
)


def test_an_offset_key_has_kafkas_bytes() -> None:
    assert offset_key("g", "t", 3) == b"\0\1\0\1g\0\1t\0\0\0\3"


def test_a_group_key_has_kafkas_bytes() -> None:
    assert group_key("g") == b"\0\2\0\1g"


def test_an_offset_value_has_kafkas_version_3_bytes() -> None:
    _, value = offset_record("g", "t", 0, CommittedOffset(5, 2, "m", 7))
    assert value == b"\0\3" + (5).to_bytes(8) + (2).to_bytes(4) + b"\0\1m" + (7).to_bytes(8)


def test_an_offset_with_its_own_expiry_is_written_as_version_1() -> None:
    _, value = offset_record("g", "t", 0, CommittedOffset(5, -1, "m", 7, 9))
    assert value == b"\0\1" + (5).to_bytes(8) + b"\0\1m" + (7).to_bytes(8) + (9).to_bytes(8)
    assert read_offset(value) == CommittedOffset(5, -1, "m", 7, 9)


def test_a_group_value_has_kafkas_version_3_bytes() -> None:
    member = MemberRecord("m", None, "c", "h", 1, 2, b"s", b"a")
    _, value = group_record("g", GroupRecord("consumer", 4, "range", "m", 6, (member,)))
    assert value == (
        b"\0\3\0\x08consumer\0\0\0\4\0\5range\0\1m" + (6).to_bytes(8) + b"\0\0\0\1"
        b"\0\1m\xff\xff\0\1c\0\1h\0\0\0\1\0\0\0\2\0\0\0\1s\0\0\0\1a"
    )


def test_what_is_deleted_has_no_value() -> None:
    assert offset_record("g", "t", 0, None) == (offset_key("g", "t", 0), None)
    assert group_record("g", None) == (group_key("g"), None)


def test_compact_values_of_version_4_are_read() -> None:
    offset = b"\0\4" + (5).to_bytes(8) + (2).to_bytes(4) + b"\x02m" + (7).to_bytes(8) + b"\x01\0\x01x"
    assert read_offset(offset) == CommittedOffset(5, 2, "m", 7)
    group = (
        b"\0\4\x09consumer\0\0\0\4\x06range\x02m" + (6).to_bytes(8) + b"\x02"
        b"\x02m\0\x02c\x02h\0\0\0\1\0\0\0\2\x02s\x02a\0\0"
    )
    member = MemberRecord("m", None, "c", "h", 1, 2, b"s", b"a")
    assert read_group(group) == GroupRecord("consumer", 4, "range", "m", 6, (member,))


def test_a_group_of_version_0_takes_the_session_as_rebalance_timeout() -> None:
    value = b"\0\0\0\1t\0\0\0\4\0\1p\0\1m\0\0\0\1\0\1m\0\1c\0\1h\0\0\0\2\0\0\0\0\0\0\0\0"
    assert read_group(value).members[0].rebalance_timeout_ms == 2
    assert read_group(value).state_timestamp_ms == -1


def test_a_key_of_a_newer_group_type_is_passed_over() -> None:
    assert read_key(b"\0\3\0\1g") is None


def test_text_that_no_record_can_hold_is_refused() -> None:
    with pytest.raises(InvalidRecordError):
        group_key("x" * 40_000)


@given(text, text, int32)
def test_keys_come_back(group_id: str, topic: str, partition: int) -> None:
    assert read_key(offset_key(group_id, topic, partition)) == OffsetKey(group_id, topic, partition)
    assert read_key(group_key(group_id)) == GroupKey(group_id)


@given(groups)
def test_groups_come_back(group: GroupRecord) -> None:
    _, value = group_record("g", group)
    assert value is not None
    assert read_group(value) == group


@given(groups, st.data())
def test_a_cut_record_is_corrupt_and_nothing_else(group: GroupRecord, data: st.DataObject) -> None:
    _, value = group_record("g", group)
    assert value is not None
    with pytest.raises(CorruptDataError):
        read_group(value[: data.draw(st.integers(0, len(value) - 1))])


@given(st.binary(max_size=60))
def test_garbage_is_corrupt_or_read_but_never_a_defect(garbage: bytes) -> None:
    for read in (read_key, read_offset, read_group):
        try:
            read(garbage)
        except CorruptDataError:
            continue
