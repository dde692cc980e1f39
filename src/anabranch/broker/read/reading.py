"""Reading: one try of a fetch to fill its answer, as the partitions that it reads know it.

A partition answers with a slice of what is here. What lies elsewhere and has to come first it asks for by the fetch's
RemoteReads, which wake the fetch when there is more.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from anabranch.values import Offset

if TYPE_CHECKING:
    from anabranch.broker.topics.partition import Partition
    from anabranch.log.segment.slice import Slice


class RemoteReads(Protocol):
    """What one fetch waits for that is not on this broker."""

    def begin_try(self) -> None: ...

    def slice(
        self, log: object, start: Offset, bytes_max: int, upto: Offset, *, whole_first: bool
    ) -> "Slice | None":
        """What is at hand; None: it has to be loaded."""
        ...

    def load(self) -> None:
        """Ask for what this try has missed."""
        ...

    def ms_left(self, seconds_passed: float) -> int:
        """How long to wait yet for what the last try has missed."""
        ...

    def may_be_elsewhere(self, partition: "Partition") -> bool:
        """Whether an offset beyond the end may exist all the same; the fetch is woken when that is known."""
        ...

    def leave(self) -> None:
        """The fetch is answered, or its client is gone."""
        ...


BeginRemoteReads = Callable[[int, int, "Callable[[list[Partition]], None]"], RemoteReads]
"""With the bytes that the fetch takes, how many milliseconds it waits, and how it is woken."""


class Reading(Protocol):
    whole_first: bool
    """The first batch is answered whole, however large it is: nothing else is in the answer yet."""
    memory_bytes_left: int
    """What the answer may still hold that is sent from memory."""

    def remote(self, begin: BeginRemoteReads) -> RemoteReads:
        """Those of this fetch; begun now, if it had none."""
        ...
