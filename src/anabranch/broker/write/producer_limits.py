"""ProducerLimits: how many idempotent producers a broker remembers, in one partition and in all.

Each costs some 360 bytes until `producer.id.expiration.ms` has passed, and anybody can invent ids. When there is no
room for a new one, those go that have been silent the longest, if that is longer than clients repeat a batch
(`producer.id.idle.ms`): what they send next is taken as that of any unknown producer. If all have written lately, the
new one is told to come again: forgetting one of the others could have a batch of theirs written twice.

Of a partition that another broker leads, that broker decides who is known. Where this makes too many, those go that
wrote longest ago; the same holds for what is read back at a start.

A producer has several batches under way. One of which a batch was refused here must not begin with a later one, or the
first could never follow (`refused_batches.py`).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import merge
from itertools import islice
from threading import Lock
from typing import TYPE_CHECKING

from anabranch.broker.write.refused_batches import RefusedBatches
from anabranch.config import NodeSettings
from anabranch.errors import TooManyProducersError
from anabranch.values import Offset

if TYPE_CHECKING:
    from anabranch.broker.topics.partition import Partition
    from anabranch.record.producer_table import Sequenced

FORGOTTEN_AT_ONCE = 64
"""So that room is not looked for again with every batch."""
COUNT_MS = 1000
"""No more often are all partitions looked through."""
SNAPSHOT_OUTDATED = Offset(-1)
"""Whatever the file says is not what the table holds."""

Age = tuple[int, int]


class ProducerLimits:
    def __init__(self, settings: NodeSettings) -> None:
        self.partition_max = settings.producer_ids_per_partition_max
        self._broker_max = settings.producer_ids_max
        self._idle_ms = settings.producer_id_idle_ms
        self._total = 0
        """At most so many are known, unless `_is_outdated`: what has left since the last count is in it."""
        self._is_outdated = False
        """Tables were read back, in whatever thread, which are not in the total."""
        self._counted_ms: int | None = None
        self.refused = RefusedBatches(self._idle_ms)
        self.partitions: Callable[[], Iterable[Partition]] = tuple
        """Set by the broker: all that it has open with a table of their own."""
        self.refused_total = 0
        self.forgotten_total = 0
        self._forgotten_lock = Lock()

    def admit(self, partition: "Partition", header: "Sequenced", now_ms: int) -> None:
        """Make room for the producer of a batch that is about to be written. Raises TooManyProducersError,
        EarlierBatchRefusedError."""
        if header.producer_id in partition.producers.producers:
            return
        self.refused.check_start(partition, header, now_ms)
        if not self._has_room(partition, now_ms):
            self._refuse()
        self._total += 1

    def check(self, partition: "Partition", header: "Sequenced", now_ms: int) -> None:
        """The same where all brokers agree on who is known (the object store), and forget together."""
        if header.producer_id in partition.producers.producers:
            return
        self.refused.check_start(partition, header, now_ms)
        if len(partition.producers.producers) >= self.partition_max:
            self._refuse()

    def shorten(self, partition: "Partition") -> None:
        """For a table that was read back: the latest of them. Any thread; `keep` counts it later."""
        self._is_outdated = True
        self._shorten_to(partition, self.partition_max)

    def followed(self, partition: "Partition", new: int, now_ms: int) -> None:
        """So many producers have come from the leader of a partition."""
        self._total += new - self._shorten_to(partition, self.partition_max)
        if self._total > self._broker_max:
            self.keep(now_ms)

    def keep(self, now_ms: int, *, is_start: bool = False) -> None:
        """Count, and forget what is too much: of partitions that others lead, and at a start of all."""
        if not (is_start or self._is_count_due(now_ms)):
            return
        self._count(now_ms)
        if self._total > self._broker_max:
            self._shorten_all([each for each in self.partitions() if is_start or not each.is_leader])

    def _has_room(self, partition: "Partition", now_ms: int) -> bool:
        is_full = len(partition.producers.producers) >= self.partition_max
        if is_full or self._total >= self._broker_max:
            forgotten = self._forget_idle(partition, now_ms)
            self._total -= forgotten
            if is_full and not forgotten:
                return False
        if (self._is_outdated or self._total >= self._broker_max) and self._is_count_due(now_ms):
            self._count(now_ms)
        return self._total < self._broker_max

    def _is_count_due(self, now_ms: int) -> bool:
        return self._counted_ms is None or now_ms - self._counted_ms >= COUNT_MS

    def _count(self, now_ms: int) -> None:
        """Look for room in all partitions."""
        self._counted_ms, self._is_outdated = now_ms, False
        partitions = list(self.partitions())
        self._total = sum(len(each.producers.producers) for each in partitions)
        for each in partitions:
            if self._total < self._broker_max:
                return
            self._total -= self._forget_idle(each, now_ms)

    def _shorten_all(self, partitions: "Sequence[Partition]") -> None:
        """Forget in these, until no more are known than may be: those that wrote longest ago."""
        oldest_first = merge(*(_ages(number, each) for number, each in enumerate(partitions)))
        counts = [0] * len(partitions)
        for _, number in islice(oldest_first, self._total - self._broker_max):
            counts[number] += 1
        for each, count in zip(partitions, counts, strict=True):
            self._total -= self._shorten_to(each, len(each.producers.producers) - count)

    def _shorten_to(self, partition: "Partition", count_max: int) -> int:
        if len(partition.producers.producers) <= count_max:
            return 0
        return self._forgot(partition, partition.producers.shorten(count_max))

    def _forget_idle(self, partition: "Partition", now_ms: int) -> int:
        forgotten = partition.producers.forget_idle(now_ms - self._idle_ms, FORGOTTEN_AT_ONCE)
        return self._forgot(partition, forgotten) if forgotten else 0

    def _forgot(self, partition: "Partition", count: int) -> int:
        partition.snapshot_offset = SNAPSHOT_OUTDATED  # It must not bring them back.
        with self._forgotten_lock:
            self.forgotten_total += count
        return count

    def _refuse(self) -> None:
        self.refused_total += 1
        raise TooManyProducersError(
            f"Too many producers have written in the last {self._idle_ms // 1000} s for another one to be remembered: "
            "try again, produce without idempotence, or raise producer.ids.per.partition.max and producer.ids.max."
        )


def _ages(number: int, partition: "Partition") -> Iterator[tuple[Age, int]]:
    """Of all read back at once, what the snapshot says tells who wrote last."""
    for each in partition.producers.producers.values():
        yield (each.heard_ms, each.timestamp_ms_last), number
