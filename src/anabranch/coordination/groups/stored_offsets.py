"""What groups have committed, as it is kept outside of their log: in the object store, for a cluster that loses its
disks. Members are not in it: whoever comes back joins again.

    groups   [group id, protocol type, generation]
    offsets  [group id, topic, partition, offset, leader epoch, note, time of the commit, when it expires or null]
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from anabranch.coordination.groups.group_table import GroupTable
from anabranch.coordination.groups.messages import LogRecord
from anabranch.coordination.groups.records import CommittedOffset, GroupRecord, group_record, offset_record
from anabranch.errors import CorruptDataError


class StoredOffset(NamedTuple):
    group_id: str
    topic: str
    partition: int
    committed: CommittedOffset


class StoredGroup(NamedTuple):
    group_id: str
    protocol_type: str
    generation: int


class StoredGroups(NamedTuple):
    groups: list[StoredGroup]
    offsets: list[StoredOffset]

    def json(self) -> dict[str, Any]:
        return {
            "groups": [list(each) for each in self.groups],
            "offsets": [[*each[:3], *each.committed] for each in self.offsets],
        }


def stored_groups(table: GroupTable, group_ids: Iterable[str]) -> StoredGroups:
    """These groups of the table; those without offsets have nothing to come back to."""
    stored = StoredGroups([], [])
    for group_id in group_ids:
        committed = table.offsets_of(group_id)
        if committed:
            group = table.groups[group_id]
            stored.groups.append(StoredGroup(group_id, group.protocol_type or "", group.generation))
            stored.offsets.extend(StoredOffset(group_id, *place, each) for place, each in committed.items())
    return stored


def groups_of(value: Mapping[str, Any]) -> StoredGroups:
    """Raises CorruptDataError."""
    try:
        groups = [StoredGroup(str(name), str(kind), int(number)) for name, kind, number in value["groups"]]
        offsets = [
            StoredOffset(str(group_id), str(topic), int(partition), CommittedOffset(*committed))
            for group_id, topic, partition, *committed in value["offsets"]
        ]
    except (LookupError, TypeError, ValueError) as error:
        raise CorruptDataError(f"it does not hold groups: {error}") from error
    return StoredGroups(groups, offsets)


def records_of(stored: StoredGroups, now_ms: int) -> Iterator[LogRecord]:
    """What the log has to hold for these groups, now empty, to be there with their offsets.

    A group of consumers becomes empty now: however old a commit is, it lives as long as if they had just left.
    """
    for group_id, protocol_type, generation in stored.groups:
        if protocol_type:
            record = GroupRecord(protocol_type, generation, None, None, now_ms, ())
            yield group_record(group_id, record)
    for each in stored.offsets:
        yield offset_record(each.group_id, each.topic, each.partition, each.committed)
