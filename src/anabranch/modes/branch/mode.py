"""`branch`: on each side of a split one broker, the primary, goes on taking records, each reign into a lane of its own.
A record is safe when it is written (with `flush=always` synced) at the primary and at the copies it asked that are
there and keep up.

What it survives: any split; both sides go on, and join again. What it gives up: one order for everybody during a split.
Who reigns is decided elsewhere (roles.py): this says only what is safe while somebody does. There is no leader's
generation here, -1 for ever: an offset never names two records, so nobody needs one to tell them apart.
"""

from collections.abc import Mapping, Sequence

from anabranch.modes.mode import Appended, Effect, Event, Flush, FlushFinished, Publish
from anabranch.values import BrokerId, Offset


class BranchMode:
    """Publishes the least of the primary's own end and those of the copies that count."""

    __slots__ = ("_broker_id", "_copies", "_own", "_safe", "_start", "_sync_first")

    def __init__(self, broker_id: BrokerId, safe: Offset, *, sync_first: bool) -> None:
        self._broker_id = broker_id
        self._sync_first = sync_first
        self._safe = safe
        self._start: Offset | None = None
        self._own = safe
        self._copies: dict[BrokerId, Offset] = {}

    # --- reigns --------------------------------------------------------------------------------------------------

    @property
    def reigns(self) -> bool:
        return self._start is not None

    @property
    def is_settled(self) -> bool:
        """All that came before this reign is safe."""
        return self._start is not None and self._safe >= self._start

    def begin(self, start: Offset, end: Offset, copies: Sequence[BrokerId] = ()) -> Sequence[Effect]:
        """A reign begins in a lane that starts at `start`; up to `end` it is on the disk here. None of the `copies` has
        any of it yet."""
        self._start, self._own = start, end
        self._copies = {broker: Offset(0) for broker in copies}
        return self._publish()

    def end(self) -> None:
        self._start = None
        self._copies = {}

    def follow(self, safe: Offset) -> Sequence[Effect]:
        """Another broker reigns, and says what is safe; never less than before."""
        assert self._start is None, "whoever reigns knows best"
        if safe <= self._safe:
            return ()
        self._safe = safe
        return (Publish(safe),)

    # --- copies --------------------------------------------------------------------------------------------------

    @property
    def copies(self) -> Mapping[BrokerId, Offset]:
        """Up to where each copy that counts has the lane of this reign on its disk."""
        return self._copies

    def count(self, copies: Sequence[BrokerId]) -> Sequence[Effect]:
        """These count from now on, besides the primary."""
        self._copies = {broker: self._copies.get(broker, Offset(0)) for broker in copies}
        return self._publish()

    def heard(self, broker: BrokerId, end: Offset) -> Sequence[Effect]:
        """A copy has everything below `end` of this line on its disk."""
        if broker not in self._copies:
            return ()
        self._copies[broker] = max(end, self._copies[broker])
        return self._publish()

    # --- as every mode -------------------------------------------------------------------------------------------

    def step(self, event: Event, now_ms: int) -> Sequence[Effect]:
        if isinstance(event, Appended):
            if self._sync_first:
                return (Flush(event.end),)
            self._own = max(self._own, event.end)
            return self._publish()
        assert isinstance(event, FlushFinished), "nothing else happens to it here"
        self._own = max(self._own, event.end)
        return self._publish()

    def _publish(self) -> Sequence[Effect]:
        if self._start is None:
            return ()
        safe = safe_end(self._own, self._copies)
        if safe <= self._safe:
            return ()
        self._safe = safe
        return (Publish(safe),)

    def writer(self) -> BrokerId | None:
        return self._broker_id if self.reigns else None

    def reader(self, start: Offset) -> BrokerId:
        return self._broker_id

    def safe_offset(self) -> Offset:
        return self._safe

    def describe(self) -> dict[str, object]:
        return {
            "mode": "branch",
            "safe_offset": self._safe,
            "reigns": self.reigns,
            "copies": dict(self._copies),
        }


def safe_end(own: Offset, copies: Mapping[BrokerId, Offset]) -> Offset:
    """What all that count have."""
    return Offset(min((own, *copies.values())))
