"""Where the partitions of a new topic go, by what was asked for: a number of replicas, an assignment, or nothing.

A choice *pins* the topic: it does not grow with the cluster. Asking for what the cluster would do anyway is no choice:
on one node a topic with one replica is like any other, because nobody could have asked for more.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from anabranch.cluster.metadata.residence import BRANCH, OBJECT
from anabranch.cluster.metadata.rows import Placement, Topic
from anabranch.cluster.placement import (
    RING,
    UNSET,
    Partitions,
    Replicas,
    check_factor,
    check_is_kept,
    check_mode,
    check_object_factor,
    check_replicas,
    check_ring_possible,
    check_same_factor,
    default_factor,
    factor_in,
    place,
)
from anabranch.cluster.tokens import REPLICAS
from anabranch.errors import (
    InvalidReplicaAssignmentError,
    InvalidReplicationFactorError,
    NotControllerError,
)

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker


class Choice(NamedTuple):
    replicas: list[Replicas]
    """Of each partition; empty where every broker serves all of them."""
    is_pinned: bool = False
    copies: int = 1
    """In mode branch: on how many brokers, where so many are reached."""

    @property
    def placements(self) -> list[Placement]:
        return [Placement(each) for each in self.replicas if each]

    @property
    def factor(self) -> int:
        """As Kafka's clients understand it: what is in the object store looks to them like one copy."""
        return max(self.copies, len(self.replicas[0]))


def usual_factor(broker: "Broker") -> int:
    """The replicas of a topic of which nobody has said anything."""
    return default_factor(broker.settings.default_replication_factor, len(broker.orchestrator.keepers()))


def by_factor(
    broker: "Broker", name: str, partition_count: int, factor: int = UNSET, mode: str | None = None
) -> Choice:
    if mode == OBJECT:
        check_object_factor(factor)
        return Choice([()] * partition_count)
    keepers = broker.orchestrator.keepers()
    if not keepers and not broker.metadata.table.brokers:
        raise NotControllerError("No broker is registered yet: try again in a moment.")
    if not keepers:
        raise InvalidReplicationFactorError(
            "No broker may keep a new partition: all of them are fenced or draining. Try again when one is back."
        )
    if mode == BRANCH:
        return _branches(broker, partition_count, factor)
    if mode == RING:
        check_ring_possible(len(keepers))
    default = factor_in(mode, usual_factor(broker), len(keepers))
    wanted = default if factor == UNSET else factor
    check_mode(mode, wanted)
    check_factor(wanted, len(keepers))
    return Choice(place(Partitions(name, 0, partition_count), keepers, wanted), is_pinned=wanted != default)


def _branches(broker: "Broker", partition_count: int, factor: int) -> Choice:
    """Nobody is bound to keep them: it is only said how many copies there are to be where so many are reached."""
    keepers = broker.orchestrator.keepers()
    copies = (
        default_factor(broker.settings.default_replication_factor, REPLICAS) if factor == UNSET else factor
    )
    check_factor(min(copies, len(keepers)) if factor == UNSET else factor, len(keepers))
    return Choice([()] * partition_count, is_pinned=factor != UNSET, copies=copies)


async def first_primaries(broker: "Broker", topic: Topic, begin: int) -> Replicas:
    """In mode branch: who is to be the first primary of each partition from `begin` on."""
    from anabranch.broker.branch import room as branch_room  # For those alone who have such topics.

    brokers = [row.broker_id for row in broker.orchestrator.keepers()]
    return await branch_room.first_primaries(
        broker, topic.topic_id, range(begin, topic.partition_count), brokers
    )


async def make_topic(
    broker: "Broker", name: str, partition_count: int, overrides: Mapping[str, str | None]
) -> None:
    """A topic on its first use, on a node without peers. Raises what CreateTopics would answer."""
    choice = by_factor(broker, name, partition_count)
    topic = broker.topics.plan(name, partition_count, overrides, choice.placements)
    await broker.topics.create(topic)


def by_assignment(
    broker: "Broker", name: str, assignments: Sequence[dict[str, Any]], mode: str | None = None
) -> Choice:
    check_is_kept(name, mode)
    by_index = {each["partition_index"]: each["broker_ids"] for each in assignments}
    if sorted(by_index) != list(range(len(assignments))):
        raise InvalidReplicaAssignmentError("A replica assignment must name every partition from 0 on, once.")
    replicas = _checked(broker, [by_index[index] for index in range(len(assignments))])
    check_mode(mode, len(replicas[0]))
    return Choice(replicas, is_pinned=len(broker.orchestrator.rows()) > 1)


def of_added(
    broker: "Broker", topic: Topic, count: int, assignments: Sequence[dict[str, Any]] | None
) -> list[Replicas]:
    """The replicas of the partitions that a topic gets besides those it has, which will then be `count`."""
    if not topic.is_placed:
        if assignments is not None:
            check_is_kept(topic.name, topic.mode)
        return []
    table = broker.metadata.table
    factor = max(1, *(len(placement.replicas) for placement in table.placements(topic)))
    if assignments is None:
        keepers = broker.orchestrator.keepers()
        check_factor(factor if topic.is_pinned else 1, len(keepers))
        partitions = Partitions(topic.name, topic.partition_count, count)
        return place(partitions, keepers, min(factor, len(keepers)))
    added = count - topic.partition_count
    if len(assignments) != added:
        raise InvalidReplicaAssignmentError(
            f"{added} partitions are added, but {len(assignments)} are assigned."
        )
    replicas = _checked(broker, [each["broker_ids"] for each in assignments])
    if any(len(each) != factor for each in replicas):
        raise InvalidReplicaAssignmentError(
            f"The partitions of {topic.name} have {factor} replicas each: assign as many to the new ones."
        )
    return replicas


def _checked(broker: "Broker", assigned: Sequence[Sequence[int]]) -> list[Replicas]:
    brokers = broker.orchestrator.rows()
    replicas = [check_replicas(each, brokers) for each in assigned]
    check_same_factor(replicas)
    return replicas
