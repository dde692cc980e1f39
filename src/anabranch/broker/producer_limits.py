"""ProducerLimits: how many idempotent producers a broker remembers, in one partition and in all.

Each costs some 360 bytes until `producer.id.expiration.ms` has passed, and anybody can invent ids. When there is no
room for a new one, those go that have been silent the longest, if that is longer than clients repeat a batch
(`producer.id.idle.ms`): what they send next is taken as that of any unknown producer. If all have written lately, the
new one is told to come again: forgetting one of the others could have a batch of theirs written twice.

A producer has several batches under way. One of which a batch was refused here must not begin with a later one, or the
first could never follow; so the least number that was refused is remembered for a while.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from anabranch.config import NodeSettings
from anabranch.errors import TooManyProducersError
from anabranch.values import Offset

if TYPE_CHECKING:
    from anabranch.broker.partition import Partition
    from anabranch.record.producer_table import Sequenced

FORGOTTEN_AT_ONCE = 64
"""So that room is not looked for again with every batch."""
REFUSED_MAX = 10_000
COUNT_MS = 1000
"""No more often are all partitions looked through."""
SNAPSHOT_OUTDATED = Offset(-1)
"""Whatever the file says is not what the table holds."""

RefusedKey = tuple[object, int, int]


class ProducerLimits:
    def __init__(self, settings: NodeSettings) -> None:
        self.partition_max = settings.producer_ids_per_partition_max
        self._broker_max = settings.producer_ids_max
        self._idle_ms = settings.producer_id_idle_ms
        self._total = 0
        """At most so many are known: what has left since the last count is in it."""
        self._counted_ms: int | None = None
        self._refused: OrderedDict[RefusedKey, int] = OrderedDict()
        self.partitions: Callable[[], Iterable[Partition]] = tuple
        """Set by the broker: all that it has open with a table of their own."""
        self.refused_total = 0
        self.forgotten_total = 0

    def admit(self, partition: "Partition", header: "Sequenced", now_ms: int) -> None:
        """Make room for the producer of a batch that is about to be written. Raises TooManyProducersError."""
        if header.producer_id in partition.producers.producers:
            return
        key = partition.topic_id, partition.id.partition, header.producer_id
        first = self._refused.get(key)
        if (first is not None and header.base_sequence > first) or not self._has_room(partition, now_ms):
            self._refuse(key, header.base_sequence)
        if first is not None:
            del self._refused[key]
        self._total += 1

    def check(self, partition: "Partition", header: "Sequenced") -> None:
        """The same where all brokers agree on who is known (the object store), and forget together."""
        known = partition.producers.producers
        if header.producer_id not in known and len(known) >= self.partition_max:
            key = partition.topic_id, partition.id.partition, header.producer_id
            self._refuse(key, header.base_sequence)

    def shorten(self, partition: "Partition") -> None:
        """For what was read back or came from a leader, which has decided who is known: the latest of them."""
        if len(partition.producers.producers) > self.partition_max:
            self._forgot(partition, partition.producers.shorten(self.partition_max))

    def _has_room(self, partition: "Partition", now_ms: int) -> bool:
        if len(partition.producers.producers) >= self.partition_max and not self._forget_idle(
            partition, now_ms
        ):
            return False
        if self._total < self._broker_max or self._forget_idle(partition, now_ms):
            return True
        if self._counted_ms is None or now_ms - self._counted_ms >= COUNT_MS:
            self._count(now_ms)
        return self._total < self._broker_max

    def _count(self, now_ms: int) -> None:
        """Look for room in all partitions."""
        self._counted_ms = now_ms
        partitions = list(self.partitions())
        self._total = sum(len(each.producers.producers) for each in partitions)
        for each in partitions:
            if self._total < self._broker_max:
                return
            self._forget_idle(each, now_ms)

    def _forget_idle(self, partition: "Partition", now_ms: int) -> int:
        forgotten = partition.producers.forget_idle(now_ms - self._idle_ms, FORGOTTEN_AT_ONCE)
        if forgotten:
            self._forgot(partition, forgotten)
        return forgotten

    def _forgot(self, partition: "Partition", count: int) -> None:
        partition.snapshot_offset = SNAPSHOT_OUTDATED  # It must not bring them back.
        self._total = max(0, self._total - count)
        self.forgotten_total += count

    def _refuse(self, key: RefusedKey, base_sequence: int) -> None:
        self.refused_total += 1
        self._refused[key] = min(base_sequence, self._refused.pop(key, base_sequence))
        if len(self._refused) > REFUSED_MAX:
            self._refused.popitem(last=False)
        raise TooManyProducersError(
            f"Too many producers have written in the last {self._idle_ms // 1000} s for another one to be remembered: "
            "try again, produce without idempotence, or raise producer.ids.per.partition.max and producer.ids.max."
        )
