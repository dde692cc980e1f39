"""`object`: any broker takes records, and gathers those of all partitions into one object. A record is safe when the
object store has it and the metadata quorum has agreed on where it lies; only then does it have an offset.

What it survives: the loss of every data disk, as long as the quorum is kept; of the quorum too, by a restore from the
store. What it gives up: latency, for each record waits for a PUT and a commit. There is no leader, so there is one
generation for ever, and every broker serves every reader.
"""

from collections.abc import Sequence

from anabranch.modes.mode import Appended, Effect, Event, Publish
from anabranch.values import BrokerId, Offset


class ObjectMode:
    """Publishes what the quorum has agreed on: here `Appended` says that the agreed end is known to this broker."""

    __slots__ = ("_broker_id", "_safe")

    def __init__(self, broker_id: BrokerId, safe: Offset) -> None:
        self._broker_id = broker_id
        self._safe = safe

    def step(self, event: Event, now_ms: int) -> Sequence[Effect]:
        assert isinstance(event, Appended), "nothing is synced here, and nobody follows"
        if event.end <= self._safe:
            return ()
        self._safe = event.end
        return (Publish(event.end),)

    def writer(self) -> BrokerId | None:
        return self._broker_id

    def reader(self, start: Offset) -> BrokerId:
        return self._broker_id

    def safe_offset(self) -> Offset:
        return self._safe

    def describe(self) -> dict[str, object]:
        return {"mode": "object", "safe_offset": self._safe}
