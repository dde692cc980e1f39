"""`solo`: one broker, no peers. A record is safe when it is written, or with `flush=always` when it is synced.

What it survives: a restart of the process always; a power cut only up to the last sync. What it gives up: the
machine. This is the smallest mode; the others differ only in what they wait for before they publish.
"""

from anabranch.modes.mode import Appended, Effect, Event, Flush, FlushFinished, Publish
from anabranch.values import BrokerId, Offset


class SoloMode:
    """Publishes on append, or on sync if `sync_first`."""

    __slots__ = ("_broker_id", "_safe", "_sync_first")

    def __init__(self, broker_id: BrokerId, safe: Offset, *, sync_first: bool) -> None:
        self._broker_id = broker_id
        self._safe = safe
        self._sync_first = sync_first

    def step(self, event: Event, now_ms: int) -> list[Effect]:
        if isinstance(event, Appended):
            return [Flush(event.end)] if self._sync_first else self._publish(event.end)
        assert isinstance(event, FlushFinished), "nobody else is here"
        return self._publish(event.end)

    def _publish(self, end: Offset) -> list[Effect]:
        if end <= self._safe:
            return []
        self._safe = end
        return [Publish(end)]

    def writer(self) -> BrokerId | None:
        return self._broker_id

    def reader(self, start: Offset) -> BrokerId:
        return self._broker_id

    def safe_offset(self) -> Offset:
        return self._safe

    def describe(self) -> dict[str, object]:
        return {"mode": "solo", "safe_offset": self._safe, "sync_first": self._sync_first}
