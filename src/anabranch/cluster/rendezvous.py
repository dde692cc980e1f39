"""Rendezvous hash: which of several brokers is meant for a partition that any of them could serve.

Every broker draws a number for the partition, and the greatest wins. So everybody who knows the same brokers names the
same one, the partitions are spread evenly, and when a broker comes or goes only those change that it wins or had won.
"""

from collections.abc import Iterable
from uuid import UUID

from anabranch.cluster.metadata.rows import BrokerRow
from anabranch.record.partitioner import murmur3
from anabranch.values import BrokerId


def drawn(topic_id: UUID, partition: int, broker: BrokerId) -> int:
    """The number that a broker draws for a partition."""
    return murmur3(
        topic_id.bytes + partition.to_bytes(4, "little") + broker.to_bytes(4, "little", signed=True)
    )


def winner(topic_id: UUID, partition: int, brokers: Iterable[BrokerId]) -> BrokerId | None:
    """None: there are no brokers."""
    return max(brokers, key=lambda broker: (drawn(topic_id, partition, broker), broker), default=None)


def candidates(rows: Iterable[BrokerRow]) -> list[BrokerId]:
    """The brokers that may be named: those that are heard and stay; if all of those drain, then all that are heard."""
    heard = [row for row in rows if not row.is_fenced]
    staying = [row for row in heard if not row.is_draining]
    return [row.broker_id for row in staying or heard]
