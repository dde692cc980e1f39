"""Driver: what a partition does for its durability mode, besides writing to its log.

The mode decides, the driver acts: it is told what was written and synced, and publishes what is safe. It also knows who
else keeps the partition, and so what producers, readers and upkeep may count on. `SoloDriver` is that of a partition of
which this broker has the only copy; `broker/ring/driver.py` has the one of several replicas.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from anabranch.errors import AnabranchError
from anabranch.modes.mode import Appended, FlushFinished
from anabranch.values import Offset

if TYPE_CHECKING:
    from anabranch.broker.topics.partition import Partition, Placed, PlainLimits


class Driver(Protocol):
    # --- what is promised --------------------------------------------------------------------------------------

    @property
    def leads(self) -> bool:
        """Whether this broker serves those who read and write here."""
        ...

    @property
    def leads_replicas(self) -> bool:
        """Whether this broker leads a set of replicas, which have agreed on that."""
        ...

    @property
    def copies(self) -> int:
        """On how many brokers a record is when it is safe."""
        ...

    @property
    def lag(self) -> int:
        """How many records are missing here that others keep safe, as far as is known."""
        ...

    @property
    def acks1_waits(self) -> bool:
        """Whether a producer that asks for the leader's word alone waits for that of a follower all the same."""
        ...

    @property
    def is_settled(self) -> bool:
        """Whether the high watermark is as far as it ever was: a new leader has to find out."""
        ...

    @property
    def leaves_for_store(self) -> bool:
        """Whether the partition moves to the object store, and its records are being copied there."""
        ...

    def is_of_view(self, view: int) -> bool:
        """Whether what it knows of its replicas is of that view or later."""
        ...

    def refusal(self) -> AnabranchError | None:
        """Why nobody may write here now."""
        ...

    def plain_limits(self, limits: "PlainLimits") -> "PlainLimits | None":
        """What a plain produce request must keep to here, of what its topic's settings say."""
        ...

    def divergence(self, generation: int, offset: int) -> tuple[int, int] | None:
        """As `Partition.divergence`, of the records in the log."""
        ...

    def generation_end(self, generation: int) -> tuple[int, int] | None:
        """As `Partition.generation_end`."""
        ...

    # --- what happens --------------------------------------------------------------------------------------------

    def monotonic_ms(self) -> int:
        """Now, for those who let producers wait; only if `acks1_waits`."""
        ...

    def copied(self, batches: "Sequence[Placed]") -> bytes:
        """A copy of what it needs of these batches: their buffers are used again from here on."""
        ...

    def appended(self, start: Offset, end: Offset, records: bytes, now_ms: int) -> None:
        """Producers have written from `start` to `end`; `records`: what `copied` has kept."""
        ...

    def refused(self) -> None:
        """The disk did not take what producers sent."""
        ...

    def synced(self, end: Offset, now_ms: int) -> None:
        """Everything below `end` is on the disk."""
        ...

    def published(self, end: Offset) -> None:
        """Readers see what lies below `end` from now on."""
        ...

    def stored(self, end: Offset) -> None:
        """Everything below `end` is in the object store, too."""
        ...

    def sync_now(self) -> None:
        """Sync what is written, though no turn writes anything."""
        ...

    def fence(self) -> None:
        """Stop leading and following: a sync failed, so the disk cannot be trusted until a restart."""
        ...

    def drop_snapshot(self) -> None:
        """The producers' snapshot on the disk speaks of records that are cut off now. Raises StorageError."""
        ...


class SoloDriver:
    """Driver of a partition of which this broker has the only copy."""

    __slots__ = ("_partition",)

    leads = True
    leads_replicas = False
    copies = 1
    lag = 0
    acks1_waits = False
    is_settled = True
    leaves_for_store = False

    def __init__(self, partition: "Partition") -> None:
        self._partition = partition

    def is_of_view(self, view: int) -> bool:
        return True

    def refusal(self) -> AnabranchError | None:
        return None

    def plain_limits(self, limits: "PlainLimits") -> "PlainLimits | None":
        return limits

    def divergence(self, generation: int, offset: int) -> tuple[int, int] | None:
        return None  # Nothing that readers saw was ever cut.

    def generation_end(self, generation: int) -> tuple[int, int] | None:
        partition = self._partition
        return (generation, partition.high_watermark) if generation == partition.generation else None

    def monotonic_ms(self) -> int:
        raise AssertionError("nobody is waited for")

    def copied(self, batches: "Sequence[Placed]") -> bytes:
        return b""

    def appended(self, start: Offset, end: Offset, records: bytes, now_ms: int) -> None:
        partition = self._partition
        partition.carry_out(partition.mode.step(Appended(end), now_ms))

    def refused(self) -> None:
        """Its producers are told, and nobody else waits."""

    def synced(self, end: Offset, now_ms: int) -> None:
        partition = self._partition
        partition.carry_out(partition.mode.step(FlushFinished(end), now_ms))

    def published(self, end: Offset) -> None:
        """Nobody else is to hear of it."""

    def stored(self, end: Offset) -> None:
        """Its placement says when it may go."""

    def sync_now(self) -> None:
        raise AssertionError("only replicas ask for a sync outside of a turn")

    def fence(self) -> None:
        """Its log refuses whatever comes."""

    def drop_snapshot(self) -> None:
        raise AssertionError("the only copy is never cut back")
