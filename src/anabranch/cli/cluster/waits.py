"""What an incomplete cluster is waiting for: copies in progress, brokers that are not up, leaders, moves. Pure: a view
of the cluster in, sentences and facts out.

A copy that is not in sync on a broker that is up is being made; it still needs what the leader's log has beyond it. A
copy on a broker that is not up waits for that broker, and so does a partition that it still leads according to the
others. A partition without a leader waits for those of its brokers that are not up; if all are, they are about to elect
one.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from anabranch.cli.cluster.plan import Held
from anabranch.cli.cluster.view import FENCED, SILENT, UP, ClusterView, PartitionView

UNREGISTERED = "unregistered"
ABSENT = {
    SILENT: (
        "does not answer",
        "Check that its process runs and is not paused, and that its address can be reached from here.",
    ),
    FENCED: (
        "has stopped sending heartbeats",
        "It may be down, paused or cut off: check its process and its network.",
    ),
    UNREGISTERED: ("is not in the cluster", "Start it again."),
}
"""What is wrong with a broker that is not up, and what to do, by its state."""
UNITS = ("bytes", "kB", "MB", "GB", "TB")
Moving = Mapping[tuple[str, int], Collection[int]]
"""The brokers that each moving partition is moving to."""


@dataclass(slots=True)
class BrokerWait:
    """What is missing on one broker, or because of it."""

    broker_id: int
    state: str
    """`BrokerView.state`, or `unregistered` if the cluster does not know the broker."""
    copying: int = 0
    """Partitions whose copy on it is not in sync."""
    bytes_left: int = 0
    is_size_known: bool = True
    coming: int = 0
    """Partitions that move to it."""
    leaderless: int = 0
    """Partitions without a leader that it keeps, and that are not led because it is not up."""
    leading: int = 0
    """Partitions that it still leads according to the others, while it is not up."""

    @property
    def is_up(self) -> bool | None:
        """False if the cluster has fenced it. None if it does not answer us: it may be down, slow, paused, or out of
        reach from here."""
        return None if self.state == SILENT else self.state == UP


class Waits(NamedTuple):
    brokers: list[BrokerWait]
    electing: int
    """Partitions without a leader all of whose brokers are up."""

    def sentences(self) -> list[str]:
        lines = [line for wait in self.brokers for line in _sentences(wait)]
        if self.electing:
            lines.append(f"{_partitions(self.electing)} about to elect a leader.")
        return lines

    def facts(self) -> list[dict[str, object]]:
        return [
            {
                "broker": wait.broker_id,
                "state": wait.state,
                "is_up": wait.is_up,
                "copying": wait.copying,
                "bytes_left": wait.bytes_left if wait.is_size_known else None,
                "coming": wait.coming,
                "leaderless": wait.leaderless,
                "leading": wait.leading,
            }
            for wait in self.brokers
        ]


@dataclass(slots=True)
class _Found:
    view: ClusterView
    held: Held
    by_broker: dict[int, BrokerWait] = field(default_factory=dict)
    electing: int = 0

    def of(self, broker_id: int) -> BrokerWait:
        if broker_id not in self.by_broker:
            seen = self.view.brokers.get(broker_id)
            self.by_broker[broker_id] = BrokerWait(broker_id, UNREGISTERED if seen is None else seen.state)
        return self.by_broker[broker_id]


def waits_of(view: ClusterView, held: Held, moving: Moving) -> Waits:
    found = _Found(view, held)
    live = set(view.live)
    for partition in view.partitions:
        for broker_id in set(partition.replicas) - set(partition.in_sync):
            _note_copy(found, partition, broker_id)
        if partition.leader < 0:
            down = set(partition.replicas) - live
            for broker_id in down:
                found.of(broker_id).leaderless += 1
            found.electing += not down
        elif partition.replicas and partition.leader not in live:
            found.of(partition.leader).leading += 1
    for coming in moving.values():
        for broker_id in coming:
            found.of(broker_id).coming += 1
    return Waits([wait for _, wait in sorted(found.by_broker.items())], found.electing)


def _note_copy(found: _Found, partition: PartitionView, broker_id: int) -> None:
    wait = found.of(broker_id)
    wait.copying += 1
    place = partition.topic, partition.partition
    leader = found.held.get(partition.leader, {}).get(place)
    own = found.held.get(broker_id, {}).get(place)
    if leader is None:
        wait.is_size_known = False
    else:
        wait.bytes_left += max(0, leader.size_bytes - (0 if own is None else own.size_bytes))


def _sentences(wait: BrokerWait) -> list[str]:
    lines = []
    if not wait.is_up and (wait.copying or wait.leaderless or wait.leading):
        why, advice = ABSENT[wait.state]
        lines.append(f"Waiting for broker {wait.broker_id}, which {why}: {_missing(wait)}. {advice}")
    elif wait.copying:
        left = f", {size_of(wait.bytes_left)} left" if wait.is_size_known else ""
        lines.append(f"Broker {wait.broker_id}: {_partitions(wait.copying)} copying{left}.")
    if wait.coming:
        lines.append(f"Broker {wait.broker_id}: {_partitions(wait.coming)} moving to it.")
    return lines


def _missing(wait: BrokerWait) -> str:
    parts = []
    if wait.copying:
        parts.append(f"{_partitions(wait.copying)} missing its copy")
    if wait.leaderless:
        parts.append(f"{_partitions(wait.leaderless)} without a leader")
    if wait.leading:
        parts.append(f"{_partitions(wait.leading)} led by it")
    return ", ".join(parts)


def _partitions(count: int) -> str:
    return "1 partition is" if count == 1 else f"{count} partitions are"


def size_of(size_bytes: int) -> str:
    size = float(size_bytes)
    for unit in UNITS:
        if size < 1000 or unit == UNITS[-1]:
            return f"{size:.0f} {unit}" if unit == UNITS[0] else f"{size:.1f} {unit}"
        size /= 1000
    raise AssertionError("the last unit takes everything")


def moving_to(answer: Mapping[str, object]) -> dict[tuple[str, int], list[int]]:
    """The brokers each partition is moving to, from an answer to ListPartitionReassignments."""
    found: dict[tuple[str, int], list[int]] = defaultdict(list)
    topics = answer["topics"]
    assert isinstance(topics, list)
    for topic in topics:
        for row in topic["partitions"]:
            found[topic["name"], row["partition_index"]] = list(row["adding_replicas"])
    return dict(found)
