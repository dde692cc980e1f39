"""Snapshots in the object store: what they are called, and their bytes.

    metadata/<incarnation>-<end>               what a cluster had agreed on when it had applied so many entries
    groups/<incarnation>-<partition>-<number>  the offsets that the groups of one shard had committed; a later one has
                                               a greater number
    fences/<incarnation>-<successor>           a life of the cluster that is over: it was brought back as `successor`

Each is a state file (`record.state_file`), compressed with zstd: one that is damaged or cut short says so.
"""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from anabranch.errors import AnabranchError, CorruptDataError
from anabranch.record.compression import Codec, compress, decompress
from anabranch.record.state_file import dump_state, load_state

METADATA, GROUPS, FENCES = "metadata/", "groups/", "fences/"
FORMAT = 1
BYTES_MAX = 2**33
"""Of one snapshot, unpacked."""

_METADATA_NAME = re.compile(r"metadata/([0-9a-f]{16})-([0-9]{1,18})")
_GROUPS_NAME = re.compile(r"groups/([0-9a-f]{16})-([0-9]{1,9})-([0-9]{1,18})")
_FENCE_NAME = re.compile(r"fences/([0-9a-f]{16})-([0-9a-f]{16})")


class MetadataId(NamedTuple):
    incarnation: int
    end: int

    @property
    def name(self) -> str:
        return f"{metadata_prefix(self.incarnation)}{self.end}"


class GroupsId(NamedTuple):
    incarnation: int
    partition: int
    number: int

    @property
    def name(self) -> str:
        return f"{groups_prefix(self.incarnation)}{self.partition}-{self.number}"


class FenceId(NamedTuple):
    incarnation: int
    successor: int

    @property
    def name(self) -> str:
        return f"{fences_prefix(self.incarnation)}{self.successor:016x}"


def metadata_prefix(incarnation: int) -> str:
    return f"{METADATA}{incarnation:016x}-"


def groups_prefix(incarnation: int) -> str:
    return f"{GROUPS}{incarnation:016x}-"


def fences_prefix(incarnation: int) -> str:
    return f"{FENCES}{incarnation:016x}-"


def metadata_id_of(name: str) -> MetadataId | None:
    """None: something else."""
    found = _METADATA_NAME.fullmatch(name)
    return MetadataId(int(found[1], 16), int(found[2])) if found is not None else None


def groups_id_of(name: str) -> GroupsId | None:
    found = _GROUPS_NAME.fullmatch(name)
    return GroupsId(int(found[1], 16), int(found[2]), int(found[3])) if found is not None else None


def fence_id_of(name: str) -> FenceId | None:
    found = _FENCE_NAME.fullmatch(name)
    return FenceId(int(found[1], 16), int(found[2], 16)) if found is not None else None


# --- what they hold -------------------------------------------------------------------------------------------------


def metadata_value(
    snapshot: MetadataId, table: Mapping[str, Any], *, time_ms: int, producer_silence_ms: int
) -> dict[str, Any]:
    """`table`: all that was agreed on. `producer_silence_ms`: producers silent for so long may be forgotten by then."""
    return {
        "format": FORMAT,
        "incarnation": f"{snapshot.incarnation:016x}",
        "end": snapshot.end,
        "time_ms": time_ms,
        "producer_silence_ms": producer_silence_ms,
        "table": table,
    }


def groups_value(
    groups: Mapping[str, Any], *, time_ms: int, partition_count: int, generation: int, end: int
) -> dict[str, Any]:
    """`generation` and `end`: of the partition of their log, one of `partition_count`. Of two snapshots the one that is
    further on holds."""
    return {
        **groups,
        "format": FORMAT,
        "time_ms": time_ms,
        "partitions": partition_count,
        "generation": generation,
        "end": end,
    }


def pack_snapshot(value: Mapping[str, Any]) -> bytes:
    """Of anything JSON can carry. Any thread."""
    return compress(Codec.ZSTD, dump_state(value))


def unpack_snapshot(data: bytes) -> dict[str, Any]:
    """Raises CorruptDataError, which says why."""
    try:
        value, reason = load_state(decompress(Codec.ZSTD, data, BYTES_MAX))
    except AnabranchError as error:
        raise CorruptDataError(f"it does not unpack: {error}") from error
    if reason is not None:
        raise CorruptDataError(reason)
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        raise CorruptDataError("it is of another form: was it written by a newer version?")
    return value
