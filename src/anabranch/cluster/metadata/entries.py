"""The entries of the metadata log: flat JSON objects, each with a `type`. What the table makes of them is in
`metadata.py`.
"""

import json
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from anabranch.cluster.metadata.rows import BrokerRow, Placement, Topic
from anabranch.errors import CorruptDataError
from anabranch.values import BrokerId, Offset

Entry = Mapping[str, Any]


def topic_entry(topic: Topic) -> Entry:
    entry: dict[str, Any] = {
        "type": "topic",
        "name": topic.name,
        "id": topic.topic_id.hex,
        "partitions": topic.partition_count,
        "overrides": dict(topic.overrides),
    }
    if topic.placements:
        entry["replicas"] = [list(placement.replicas) for placement in topic.placements]
    if topic.is_pinned:
        entry["pinned"] = True
    if topic.first:
        entry["first"], entry["copies"] = list(topic.first), topic.copies
    return entry


def topic_removed_entry(name: str) -> Entry:
    return {"type": "topic-removed", "name": name}


def partitions_entry(
    name: str,
    partition_count: int,
    replicas: Sequence[Sequence[BrokerId]] = (),
    first: Sequence[BrokerId] = (),
) -> Entry:
    """`replicas`: of each of the new partitions; `first`: in mode branch, who is to be primary of each."""
    entry: dict[str, Any] = {"type": "partitions", "name": name, "partitions": partition_count}
    if replicas:
        entry["replicas"] = [list(each) for each in replicas]
    if first:
        entry["first"] = list(first)
    return entry


def topic_config_entry(name: str, overrides: Mapping[str, str]) -> Entry:
    return {"type": "topic-config", "name": name, "overrides": dict(overrides)}


def producer_ids_entry(next_id: int) -> Entry:
    return {"type": "producer-ids", "next": next_id}


def broker_entry(row: BrokerRow) -> Entry:
    """Registers a broker, or again after it came back; its epoch is where this entry lands."""
    entry: dict[str, Any] = {
        "type": "broker",
        "broker": row.broker_id,
        "directory": row.directory_id,
        "host": row.host,
        "port": row.port,
        "peer_host": row.peer_host,
        "peer_port": row.peer_port,
        "rack": row.rack,
        "fenced": row.is_fenced,
        "slot": True,  # An entry from before there were slots gives none, wherever it is read.
    }
    if row.is_draining:
        entry["draining"] = True
    return entry


def broker_fenced_entry(broker: BrokerId, epoch: int, *, is_fenced: bool) -> Entry:
    """`epoch`: of the registration that is meant; a later one is not touched."""
    return {"type": "broker-fenced" if is_fenced else "broker-unfenced", "broker": broker, "epoch": epoch}


def broker_draining_entry(broker: BrokerId, *, is_draining: bool) -> Entry:
    """It is to leave the cluster, or stays after all."""
    return {"type": "broker-draining", "broker": broker, "draining": is_draining}


def broker_removed_entry(broker: BrokerId) -> Entry:
    return {"type": "broker-removed", "broker": broker}


def move_entry(
    topic_id: uuid.UUID, partition: int, target: Sequence[BrokerId] | None, *, is_pinned: bool = False
) -> Entry:
    """Begins a move of a partition; None: calls it off. `is_pinned`: somebody has chosen the target."""
    entry: dict[str, Any] = {
        "type": "move",
        "id": topic_id.hex,
        "partition": partition,
        "target": None if target is None else list(target),
    }
    if is_pinned:
        entry["pinned"] = True
    return entry


def disk_entry(topic_id: uuid.UUID, partition: int, broker: BrokerId, epoch: int) -> Entry:
    """A replica has everything on another disk than it was given to: that with which its broker registered at `epoch`.
    Should the first disk come back, it is that one which is not believed."""
    return {"type": "disk", "id": topic_id.hex, "partition": partition, "broker": broker, "epoch": epoch}


def boundary_entry(topic_id: uuid.UUID, partition: int, placement: Placement) -> Entry:
    """A new view begins. Of several for the same view the first counts, and one with other replicas than before only
    if its move is still the one that was decided on last: replicas of an earlier one may have thrown theirs away."""
    return {
        "type": "boundary",
        "id": topic_id.hex,
        "partition": partition,
        "view": placement.view,
        "start": placement.start,
        "generation": placement.generation,
        "replicas": list(placement.replicas),
        "move": placement.move,
        **({"lane_start": placement.lane_start} if placement.has_joined_branches else {}),
    }


def forced_boundary_entry(topic_id: uuid.UUID, partition: int, placement: Placement) -> Entry:
    """A new view begins although the replicas of the one before cannot end theirs: too many of them are gone, or may
    lack what was safe. It counts only if its replicas still have the disks that were looked at."""
    return {
        **boundary_entry(topic_id, partition, placement),
        "forced": True,
        "directories": list(placement.directories),
        "target": None if placement.target is None else list(placement.target),
    }


def keep_entry(topic_id: uuid.UUID, partition: int, replicas: Sequence[BrokerId]) -> Entry:
    """A partition comes back from the object store: from its end on, wherever that is when this is applied, these
    brokers keep it, be it only until it goes over to branches. Counts only if its topic's mode wants it so."""
    return {"type": "keep", "id": topic_id.hex, "partition": partition, "replicas": list(replicas)}


def leave_entry(topic_id: uuid.UUID, partition: int, closer: BrokerId | None, before: int) -> Entry:
    """A broker tries to bring a partition out of branches; None: nobody does. Whatever was promised under the decision
    `before` is void then. Counts only if that is the last one, and the topic's mode wants it so."""
    return {"type": "leave", "id": topic_id.hex, "partition": partition, "closer": closer, "before": before}


def left_entry(
    topic_id: uuid.UUID, partition: int, start: Offset, replicas: Sequence[BrokerId], move: int
) -> Entry:
    """All branches of a partition are one, and end: these brokers have all of it, and keep what is written from `start`
    on. Counts only if nobody has decided otherwise since, and no broker or disk has come or gone: it might have
    promised nothing."""
    return {
        "type": "left",
        "id": topic_id.hex,
        "partition": partition,
        "start": start,
        "replicas": list(replicas),
        "move": move,
    }


def encode_entry(entry: Entry) -> bytes:
    return json.dumps(entry, separators=(",", ":"), sort_keys=True).encode()


def decode_entry(data: bytes) -> Entry:
    try:
        entry = json.loads(data)
    except ValueError as error:
        raise CorruptDataError(f"A metadata entry is not JSON: {error}.") from error
    if not isinstance(entry, dict) or "type" not in entry:
        raise CorruptDataError("A metadata entry has no type.")
    return entry
