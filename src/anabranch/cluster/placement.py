"""Who shall keep a partition. A choice depends on the topic, the partition and the brokers alone, so that everybody who
asks gets the same answer.

A partition's token decides where on the ring of brokers it sits: the broker there is B1, the next ones B2 and B3. Of
those, one in a rack that has no copy yet is preferred; a broker that names no rack counts as a rack of its own.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from anabranch.cluster.metadata.residence import BRANCH, OBJECT
from anabranch.cluster.metadata.rows import BrokerRow
from anabranch.cluster.tokens import REPLICAS, partition_token, ring_order
from anabranch.errors import (
    InvalidPartitionsError,
    InvalidReplicaAssignmentError,
    InvalidReplicationFactorError,
    PolicyViolationError,
)
from anabranch.values import BrokerId

UNSET = -1
SHARED_MAX = 4000
"""Partitions of one broker that others keep too. Each costs it a little all the time: an idle thousand a twentieth of a
core, and a broker that is late with that for everybody is taken for dead."""
CREATED_AT_ONCE_MAX = 10_000
"""Partitions that one request may create, as in Kafka."""
NO_BROKER = BrokerId(-1)
SOLO, RING = "solo", "ring"
"""A topic's mode: one copy whatever the cluster, or two and three."""
Replicas = tuple[BrokerId, ...]


class Partitions(NamedTuple):
    """Partitions `first` to `end - 1` of a topic that will have `end` of them."""

    topic: str
    first: int
    end: int


def place(partitions: Partitions, brokers: Collection[BrokerRow], factor: int) -> list[Replicas]:
    """The replicas of each of these partitions, B1 first. `brokers` are those that may keep something new."""
    return [
        ring_replicas(partitions.topic, index, partitions.end, brokers, factor)
        for index in range(partitions.first, partitions.end)
    ]


def ring_replicas(
    topic: str, partition: int, partition_count: int, brokers: Collection[BrokerRow], factor: int
) -> Replicas:
    ring = ring_of(topic, partition, partition_count, brokers)
    return walk(ring, (), factor)


def ring_of(
    topic: str, partition: int, partition_count: int, brokers: Collection[BrokerRow]
) -> list[BrokerRow]:
    """The brokers in the order in which this partition would choose them if there were no racks."""
    rows = {row.broker_id: row for row in brokers}
    token = partition_token(topic, partition, partition_count)
    return [rows[broker] for broker in ring_order(token, list(rows))]


def walk(ring: Sequence[BrokerRow], kept: Collection[BrokerId], factor: int) -> Replicas:
    """Take `factor` brokers of a ring, or as many as there are, in its order. Those of `kept` stay; the others come
    from new racks first, and are not fenced."""
    chosen = [row for row in ring if row.broker_id in kept][:factor]
    left = [row for row in ring if row not in chosen and not row.is_fenced]
    while len(chosen) < factor and left:
        racks = {row.rack for row in chosen if row.rack is not None}
        best = next((row for row in left if row.rack not in racks), left[0])
        left.remove(best)
        chosen.append(best)
    order = {row.broker_id: place for place, row in enumerate(ring)}
    return tuple(sorted((row.broker_id for row in chosen), key=order.__getitem__))


ROOM_ALIKE = 0.9
"""A disk with so much of the room of the roomiest counts as just as good: one that is a little fuller is no reason to
let a single broker have everything."""


def roomiest(free_bytes: Mapping[BrokerId, int], drawn: Callable[[BrokerId], int]) -> BrokerId:
    """Of those with about the most room, the one that has drawn the greatest number."""
    enough = ROOM_ALIKE * max(free_bytes.values())
    return max(
        (broker for broker, free in free_bytes.items() if free >= enough),
        key=lambda broker: (drawn(broker), broker),
    )


# --- what was asked for -----------------------------------------------------------------------------------------------


def default_factor(setting: int, broker_count: int) -> int:
    """The copies of a topic that does not say how many; a setting of 0 means as many as a ring has, if there are."""
    return setting or max(1, min(REPLICAS, broker_count))


def factor_in(mode: str | None, default: int, broker_count: int) -> int:
    """The copies of a topic in this mode that does not say how many."""
    if mode == SOLO:
        return 1
    return max(default, min(REPLICAS, broker_count)) if mode == RING and default == 1 else default


def check_mode(mode: str | None, factor: int) -> None:
    """Whether so many copies are what the mode means."""
    if mode == SOLO and factor != 1:
        raise InvalidReplicationFactorError(
            f"A topic in mode solo has one replica, not {factor}: leave the number out, or take mode ring."
        )
    if mode == RING and factor == 1:
        raise InvalidReplicationFactorError(
            "A topic in mode ring has two or three replicas, and one is no ring: leave the number out, or take mode "
            "solo."
        )


def check_object_factor(factor: int) -> None:
    """Whether so many copies may be asked of a topic whose records are in the object store."""
    if factor not in (1, UNSET):
        raise InvalidReplicationFactorError(
            f"A topic in mode {OBJECT} has its copies in the object store, not {factor} on brokers: leave the number "
            "out."
        )


def check_is_kept(topic: str, mode: str | None) -> None:
    """Whether brokers keep its partitions, so that somebody may choose which."""
    if mode == BRANCH:
        raise InvalidReplicaAssignmentError(
            f"Topic {topic} is in mode {BRANCH}: who keeps it follows from which brokers reach each other, so there is "
            "nothing to assign or to move. Give a replication factor instead."
        )
    if mode == OBJECT:
        raise InvalidReplicaAssignmentError(
            f"Topic {topic} is in mode {OBJECT}: its records are in the object store, kept by no broker and served by "
            "each, so there is nothing to assign or to move."
        )


def check_ring_possible(broker_count: int) -> None:
    if broker_count < 2:
        raise InvalidReplicationFactorError(
            "A ring needs two brokers that may keep a copy, and there is one: add another first, or leave the mode "
            "unset, and the topic grows with the cluster."
        )


def check_room(
    kept: Mapping[Replicas, int],
    added: Sequence[Replicas],
    brokers: Collection[BrokerId],
    partitions_max: int,
) -> None:
    """Raise InvalidPartitionsError if one of the brokers that get new partitions would keep too many.

    `kept`: how many partitions there are of each set of replicas; `()`: each of `brokers` has them open. A broker that
    gets none does not matter, however many it has.
    """
    new = Counter(added)
    all_new, shared_new = _by_broker(new, brokers)
    all_kept, shared_kept = _by_broker(kept, brokers)
    broker, count = _fullest(shared_new, shared_kept)
    if count > SHARED_MAX:
        raise InvalidPartitionsError(
            f"Broker {broker} would keep {count} partitions together with others, and may keep at most {SHARED_MAX}: "
            "take fewer partitions or replicas, or add brokers first."
        )
    broker, count = _fullest(all_new, all_kept)
    if count > partitions_max:
        raise InvalidPartitionsError(
            f"Broker {broker} would keep {count} partitions, and may keep {partitions_max} (partitions.max): take "
            "fewer partitions, delete topics, or add brokers first."
        )


def _by_broker(
    partitions: Mapping[Replicas, int], brokers: Collection[BrokerId]
) -> tuple[Counter[BrokerId], Counter[BrokerId]]:
    """How many each broker keeps, and how many of them others keep too."""
    in_all: Counter[BrokerId] = Counter()
    shared: Counter[BrokerId] = Counter()
    for replicas, count in partitions.items():
        for broker in replicas or brokers:
            in_all[broker] += count
            if len(replicas) > 1:
                shared[broker] += count
    return in_all, shared


def _fullest(new: Counter[BrokerId], kept: Counter[BrokerId]) -> tuple[BrokerId, int]:
    """Of the brokers that get new partitions, the one that would keep most, and how many."""
    return max(
        ((broker, new[broker] + kept[broker]) for broker in new),
        key=lambda row: row[1],
        default=(NO_BROKER, 0),
    )


def check_request(partition_count: int) -> None:
    """Raise PolicyViolationError if one request would create too many partitions, as Kafka does."""
    if partition_count > CREATED_AT_ONCE_MAX:
        raise PolicyViolationError(
            f"One request would create {partition_count} partitions; at most {CREATED_AT_ONCE_MAX} are created by one: "
            "send several requests."
        )


def check_factor(factor: int, broker_count: int) -> None:
    brokers = "there is 1 broker" if broker_count == 1 else f"there are {broker_count} brokers to keep copies"
    if factor < 1 or factor > min(REPLICAS, max(1, broker_count)):
        limit = min(REPLICAS, broker_count)
        if factor > REPLICAS:
            brokers = f"a ring has at most {REPLICAS} replicas"
        choice = f"1 to {limit}" if limit > 1 else "1"
        raise InvalidReplicationFactorError(
            f"Replication factor {factor} is not possible: {brokers}. Use {choice} or -1."
        )


def check_replicas(replicas: Sequence[int], brokers: Mapping[BrokerId, BrokerRow]) -> Replicas:
    """One partition's replicas as somebody wrote them."""
    if not 1 <= len(replicas) <= REPLICAS:
        raise InvalidReplicaAssignmentError(
            f"A partition has 1 to {REPLICAS} replicas, because a ring has no more, not {len(replicas)}."
        )
    if len(set(replicas)) < len(replicas):
        raise InvalidReplicaAssignmentError(f"A broker is named twice in {list(replicas)}.")
    unknown = [broker for broker in replicas if broker not in brokers]
    if unknown:
        known = ", ".join(str(broker) for broker in sorted(brokers))
        raise InvalidReplicaAssignmentError(f"There is no broker {unknown[0]}: known are {known}.")
    return tuple(BrokerId(broker) for broker in replicas)


def check_same_factor(assigned: Iterable[Replicas]) -> None:
    counts = sorted({len(replicas) for replicas in assigned})
    if len(counts) > 1:
        raise InvalidReplicaAssignmentError(
            f"Partitions of one topic have equally many replicas, not {counts[0]} here and {counts[-1]} there."
        )
