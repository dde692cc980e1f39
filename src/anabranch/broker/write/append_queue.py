"""AppendQueue: what producers want written, in order, until the single writer takes it.

Handlers put jobs in during one turn of the loop; the writer (`BrokerCore.turn`) takes all of them at its
end, grouped by partition, so that neighbours share one write and one sync. A job's bytes stay
counted until it is answered: when `is_full`, connections stop reading, which slows their producers down and
costs nobody else anything.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from anabranch.errors import AnabranchError
from anabranch.record.batch import BatchHeader
from anabranch.values import Offset

if TYPE_CHECKING:
    from anabranch.broker.topics.partition import Partition

Batch = memoryview | bytearray
NEVER_MS = 2**63 - 1


class AppendJob:
    """One batch for one partition. `finished(job)` is called exactly once, with `error` set or `base_offset` known."""

    __slots__ = (
        "base_offset",
        "batch",
        "deadline_ms",
        "end_offset",
        "error",
        "finished",
        "header",
        "is_finished",
        "partition",
        "size",
        "wait_safe",
    )

    def __init__(
        self,
        partition: "Partition",
        batch: Batch,
        header: BatchHeader,
        finished: Callable[["AppendJob"], None],
        *,
        wait_safe: bool,
        deadline_ms: int = NEVER_MS,
    ) -> None:
        self.partition = partition
        self.batch: Batch | None = batch
        self.header = header
        self.finished = finished
        self.wait_safe = wait_safe
        self.deadline_ms = deadline_ms
        self.size = header.batch_length + 12
        self.base_offset = Offset(-1)
        self.end_offset = Offset(-1)
        self.error: AnabranchError | None = None
        self.is_finished = False

    def replace(self, batch: Batch, header: BatchHeader) -> None:
        """What the topic keeps is not what was sent."""
        self.batch, self.header, self.size = batch, header, header.batch_length + 12

    def place(self, base_offset: Offset) -> None:
        """Remember where the batch lies (or, for a duplicate, where its original lies)."""
        self.base_offset = base_offset
        self.end_offset = Offset(base_offset + self.header.last_offset_delta + 1)


class AppendQueue:
    """Bounded by bytes between `put` and `release`; the writer empties it whole."""

    __slots__ = ("_bytes_max", "_groups", "bytes_held")

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._groups: dict[Partition, list[AppendJob]] = {}
        self.bytes_held = 0

    @property
    def is_full(self) -> bool:
        return self.bytes_held >= self._bytes_max

    @property
    def is_relaxed(self) -> bool:
        """Half empty again: those who stopped reading may go on."""
        return self.bytes_held * 2 <= self._bytes_max

    def __bool__(self) -> bool:
        return bool(self._groups)

    def put(self, job: AppendJob) -> None:
        self.bytes_held += job.size
        group = self._groups.get(job.partition)
        if group is None:
            self._groups[job.partition] = [job]
        else:
            group.append(job)

    def take_all(self) -> dict["Partition", list[AppendJob]]:
        groups, self._groups = self._groups, {}
        return groups

    def release(self, size: int) -> None:
        """Jobs of that many bytes are answered: they no longer count."""
        self.bytes_held -= size
        assert self.bytes_held >= 0, "an append job was released twice"
