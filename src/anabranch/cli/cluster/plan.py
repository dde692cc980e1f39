"""Which partitions have to move when a broker joins or leaves. Pure: a view of the cluster in, a plan out.

Partitions keep their number of copies, and copies that need not move stay where they are. As everywhere in a cluster, a
partition's token on the ring of the brokers that may keep it decides where it goes.
"""

from collections.abc import Collection, Mapping
from typing import NamedTuple

from anabranch.cli.cluster.view import BRANCH, OBJECT, ClusterView, PartitionView, ReplicaView
from anabranch.cluster.tokens import partition_token, replicas_of, ring_order
from anabranch.values import BrokerId

Held = Mapping[int, Mapping[tuple[str, int], ReplicaView]]
"""What each broker that answers has of each partition."""


class Move(NamedTuple):
    topic: str
    partition: int
    before: tuple[int, ...]
    after: tuple[int, ...]


def moves_onto(view: ClusterView, broker_id: int) -> list[Move]:
    """The partitions that a ring with this broker would give to it, and that it does not keep yet."""
    ring = [BrokerId(live) for live in view.live]
    moves = []
    for partition in view.partitions:
        if not partition.is_assigned:
            continue
        wanted = tuple(replicas_of(_token(partition), ring, len(partition.replicas)))
        if broker_id in wanted and broker_id not in partition.replicas:
            moves.append(Move(partition.topic, partition.partition, partition.replicas, wanted))
    return moves


def moves_off(view: ClusterView, broker_id: int) -> list[Move]:
    """A new place for every copy that this broker keeps, as far as there are brokers for it."""
    others = [BrokerId(live) for live in view.live if live != broker_id]
    return [
        Move(partition.topic, partition.partition, partition.replicas, after)
        for partition in view.partitions
        if partition.is_assigned
        and broker_id in partition.replicas
        and (after := _without(partition, broker_id, others))
    ]


def _without(partition: PartitionView, broker_id: int, others: Collection[BrokerId]) -> tuple[int, ...]:
    """The copies that stay, and a new one on the next broker of the ring that has none; in ring order."""
    ring = ring_order(_token(partition), list(others))
    staying = [replica for replica in partition.replicas if replica != broker_id]
    new = [live for live in ring if live not in staying][: len(partition.replicas) - len(staying)]
    gone = [replica for replica in staying if replica not in ring]
    return tuple([live for live in ring if live in staying or live in new] + gone)


def _token(partition: PartitionView) -> int:
    return partition_token(partition.topic, partition.partition, partition.partition_count)


def kept_nowhere_else(view: ClusterView, broker_id: int) -> list[str]:
    """Partitions that would be lost with this broker: it keeps the only copy, or the only one in sync."""
    return [
        partition.name
        for partition in view.partitions
        if broker_id in partition.replicas and not set(partition.in_sync) - {broker_id}
    ]


def left_by_themselves(view: ClusterView, held: Held, broker_id: int) -> list[str]:
    """Partitions that no reassignment moves, and that this broker cannot leave yet: it writes them, or no other broker
    has all of them. They move on their own while it drains. A broker that runs but does not say what it holds may have
    something of each."""
    is_silent = broker_id in view.live and broker_id not in held
    return [
        partition.name
        for partition in view.partitions
        if (partition.mode == OBJECT and broker_id in partition.replicas)
        or (partition.mode == BRANCH and (is_silent or _needs(partition, held, broker_id)))
    ]


def _needs(partition: PartitionView, held: Held, broker_id: int) -> bool:
    """Whether a partition in mode branch needs this broker. Its primary may still be copying what others have."""
    place = partition.topic, partition.partition
    seen = held.get(broker_id, {}).get(place)
    has_records = seen is not None and seen.size_bytes > 0
    if partition.leader == broker_id or not (has_records or broker_id in partition.replicas):
        return partition.leader == broker_id
    others = [held.get(each, {}).get(place) for each in partition.in_sync if each != broker_id]
    return not any(other is not None and other.lag == 0 for other in others)


def shrunk(moves: Collection[Move]) -> list[str]:
    """Partitions that will have fewer copies than before, because there are too few brokers."""
    return [f"{move.topic}-{move.partition}" for move in moves if len(move.after) < len(move.before)]


def cannot_move(view: ClusterView, moves: Collection[Move]) -> list[str]:
    """Partitions with too few copies up: a ring changes only if more than half of its replicas agree."""
    live = set(view.live)
    return [
        f"{move.topic}-{move.partition}"
        for move in moves
        if len(live & set(move.before)) * 2 <= len(move.before)
    ]
