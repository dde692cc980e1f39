"""What groups have committed, outside of their log."""

import json

import pytest

from anabranch.coordination.groups.group_memory import GroupMemory, OffsetMemory
from anabranch.coordination.groups.group_table import GroupTable
from anabranch.coordination.groups.messages import Now
from anabranch.coordination.groups.records import CommittedOffset, GroupRecord
from anabranch.coordination.groups.settings import GroupSettings
from anabranch.coordination.groups.stored_offsets import groups_of, records_of, stored_groups
from anabranch.errors import CorruptDataError
from anabranch.values import TopicPartition

ORDERS = TopicPartition("orders", 3)
COMMITTED = CommittedOffset(41, 5, "a note", 1_000)
EXPIRING = CommittedOffset(7, -1, "", 1_000, 9_000)
LONG_AGO_MS, NOW_MS = 1_000, 90 * 86_400_000


def table() -> GroupTable:
    return GroupTable(GroupSettings(), lambda: "id", GroupMemory(2**20), OffsetMemory(2**20))


def filled() -> GroupTable:
    groups = table()
    now = Now(0, LONG_AGO_MS)
    groups.find_or_add("billing", now).restore(GroupRecord("consumer", 8, "range", None, LONG_AGO_MS, ()))
    groups.apply_offset("billing", ORDERS, COMMITTED, now)
    groups.apply_offset("by-hand", TopicPartition("orders", 0), EXPIRING, now)
    groups.find_or_add("without-offsets", now)
    return groups


def brought_back(groups: GroupTable) -> GroupTable:
    value = json.loads(json.dumps(stored_groups(groups, list(groups.groups)).json()))
    again = table()
    for key, record in records_of(groups_of(value), NOW_MS):
        again.replay(key, record, Now(0, NOW_MS))
    return again


def test_offsets_come_back_with_all_that_was_said_of_them() -> None:
    again = brought_back(filled())
    assert again.offsets_of("billing") == {ORDERS: COMMITTED}
    assert again.offsets_of("by-hand") == {TopicPartition("orders", 0): EXPIRING}
    assert set(again.groups) == {"billing", "by-hand"}


def test_a_group_of_consumers_is_as_if_they_had_just_left() -> None:
    again = brought_back(filled())
    group = again.groups["billing"]
    assert (group.generation, group.protocol_type) == (8, "consumer")
    assert again.expired_offsets("billing", NOW_MS + 1000, ()) == []


@pytest.mark.parametrize(
    "value",
    [{}, {"groups": [["a"]], "offsets": []}, {"groups": [], "offsets": [["a", "t", "x", 1, 2, 3, 4]]}],
)
def test_what_is_not_groups_is_refused(value: dict[str, object]) -> None:
    with pytest.raises(CorruptDataError, match="does not hold groups"):
        groups_of(value)
