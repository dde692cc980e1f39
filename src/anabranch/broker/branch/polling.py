"""BranchPolling: every broker asks every other for its rows of the branch log, and where its lines end, all the time.

That is also how a broker knows whom it sees: its *view* are those who have answered within `branch.silence.ms`, and
itself. Rows go into the own tube, so that in the end all have the same; heads (`modes.branch.roles.Head`) are
remembered as long as their broker is in view. Both are told once: a poll says what is known, by the `boot` of whoever
is asked, because the order of its rows is that of one process.
"""

import asyncio
import logging
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from anabranch.broker.branch.heads import Key, decode_told, encode_told
from anabranch.broker.peers.messages import BranchNews, BranchRows, PollBranches
from anabranch.errors import PeerError, PeerProtocolError, StorageError
from anabranch.modes.branch.roles import Head
from anabranch.modes.branch.rows import BranchRow
from anabranch.values import BrokerId

if TYPE_CHECKING:
    from anabranch.broker.branch.branch_log import BranchTube
    from anabranch.broker.peers.peers import Peers
    from anabranch.clock import Clock

POLL_MS = 250
HEADS_MS = 100
"""How old what is told of own lines may be: of hundreds of partitions each look costs something."""
SLOW_ANSWERS = 3
"""A broker that takes long to answer has to be silent for so many answers, or it would be taken for gone because it is
busy: others would take over, which makes all of them busier."""
SLOW_MS_MAX = 5000
ROWS_MAX = 5000
"""In one answer: whoever is asked has to go on meanwhile."""

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Seen:
    """What another broker has said."""

    boot: str = ""
    rows_end: int = 0
    heads_at: int = 0
    heads: dict[Key, Head] = field(default_factory=dict)
    is_short: bool = False
    is_leaving: bool = False
    heard_ms: int | None = None
    slow_ms: int = 0
    """How long its answers take, at the most, lately."""
    is_kept: bool = True
    """What it has told is on our disk; while it is not, the silence is ours."""
    asked_ms: int = -POLL_MS


class BranchPolling:
    def __init__(
        self,
        peers: "Peers",
        tube: "BranchTube",
        clock: "Clock",
        silence_ms: int,
        *,
        own_heads: Callable[[], dict[Key, Head]],
        own_state: Callable[[], tuple[bool, bool]],
        changed: Callable[[], None],
        stirred: Callable[[Iterable[Key]], None] = lambda keys: None,
    ) -> None:
        """`own_state`: whether this broker is short of room, and whether it leaves. `changed`: is called when something
        new was heard, or somebody came or went; `stirred`, before that, with the partitions whose heads were told."""
        self._peers = peers
        self._tube = tube
        self._clock = clock
        self._silence_ms = silence_ms
        self._own_heads = own_heads
        self._own_state = own_state
        self._changed = changed
        self._stirred = stirred
        self._boot = uuid.uuid4().hex
        self._told: dict[Key, tuple[int, Head]] = {}
        self._heads_at = 0
        self._heads_ms = -HEADS_MS
        self._has_news = False
        self._seen: dict[BrokerId, Seen] = {}
        self._polls: dict[BrokerId, asyncio.Task[None]] = {}
        self._view: frozenset[BrokerId] = frozenset()
        self.stable_since_ms = self._pulsed_ms = clock.monotonic_ms()
        """Since when the view is the same."""
        self.news_at = 0
        """Counts what somebody has said of itself, as that it leaves, or has begun anew."""

    # --- whom this broker sees -----------------------------------------------------------------------------------

    @property
    def view(self) -> frozenset[BrokerId]:
        """The others that are heard; as `pulse` found it last."""
        return self._view

    def seen(self, broker: BrokerId) -> Seen:
        return self._seen.setdefault(broker, Seen())

    def heads(self, key: Key) -> dict[BrokerId, Head]:
        """Of those in view that have one."""
        return {
            broker: head
            for broker in sorted(self._view)
            if (head := self._seen[broker].heads.get(key)) is not None
        }

    def pulse(self, others: list[BrokerId], now_ms: int) -> None:
        """Ask who is to be asked again, and see who has fallen silent."""
        self._forgive(now_ms)
        for broker in others:
            seen = self.seen(broker)
            if now_ms - seen.asked_ms >= POLL_MS:
                self._begin(broker, seen, now_ms)
        for broker in self._seen.keys() - set(others):
            del self._seen[broker]
        self._look_around(now_ms)

    def _forgive(self, now_ms: int) -> None:
        """A broker that was held up itself could hear nobody meanwhile: that was not their silence."""
        held_up_ms = now_ms - self._pulsed_ms - POLL_MS
        self._pulsed_ms = now_ms
        if held_up_ms > 0:
            for seen in self._seen.values():
                if seen.heard_ms is not None:
                    seen.heard_ms += held_up_ms

    def _look_around(self, now_ms: int) -> None:
        view = frozenset(broker for broker, seen in self._seen.items() if self._is_heard(seen, now_ms))
        if view != self._view:
            self._view, self.stable_since_ms = view, now_ms
            self._changed()

    def _is_heard(self, seen: Seen, now_ms: int) -> bool:
        if seen.heard_ms is None or not seen.is_kept:
            return seen.heard_ms is not None
        return now_ms - seen.heard_ms < max(self._silence_ms, SLOW_ANSWERS * seen.slow_ms)

    # --- asking --------------------------------------------------------------------------------------------------

    def news(self, sender: BrokerId) -> None:
        """It says that something has changed there."""
        seen = self._seen.get(sender)
        if seen is not None:
            seen.asked_ms = -POLL_MS
            self._begin(sender, seen, self._clock.monotonic_ms())

    def tell_news(self) -> None:
        self._has_news = True
        for broker in self._view:
            self._peers.tell(broker, BranchNews())

    def _begin(self, broker: BrokerId, seen: Seen, now_ms: int) -> None:
        if broker in self._polls or not self._peers.is_up(broker):
            return
        seen.asked_ms = now_ms
        task = asyncio.get_running_loop().create_task(self._poll(broker, seen))
        self._polls[broker] = task
        task.add_done_callback(lambda done: self._ended(broker, done))

    def _ended(self, broker: BrokerId, task: "asyncio.Task[None]") -> None:
        del self._polls[broker]
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("a poll of branches failed: this is a defect", exc_info=error)

    async def _poll(self, broker: BrokerId, seen: Seen) -> None:
        try:
            await self.poll(broker, seen)
        except PeerError as error:
            logger.debug("broker %d does not tell of its branches: %s", broker, error)
        except StorageError as error:
            logger.error("rows of the branch log cannot be kept: %s", error)

    async def poll(self, broker: BrokerId, seen: Seen) -> None:
        """Raises PeerError, StorageError."""
        question = PollBranches(seen.boot, seen.rows_end, seen.heads_at)
        begun_ms = self._clock.monotonic_ms()
        answer = await self._peers.ask(broker, question, max(self._silence_ms, 2 * seen.slow_ms))
        if not isinstance(answer, BranchRows):
            raise PeerProtocolError("an answer about branches is of another kind")
        told = decode_told(answer.data)
        seen.heard_ms = self._clock.monotonic_ms()
        seen.slow_ms = min(SLOW_MS_MAX, max(seen.heard_ms - begun_ms, seen.slow_ms * 9 // 10))
        await self._keep(told.rows, seen)
        if seen.boot != answer.boot:
            seen.heads.clear()
            self.news_at += 1
        seen.boot, seen.rows_end, seen.heads_at = answer.boot, answer.rows_end, answer.heads_at
        seen.heads.update(told.heads)
        if (seen.is_short, seen.is_leaving) != (answer.is_short, answer.is_leaving):
            seen.is_short, seen.is_leaving = answer.is_short, answer.is_leaving
            self.news_at += 1
        seen.heard_ms = self._clock.monotonic_ms()
        self._look_around(seen.heard_ms)
        if told.rows or told.heads:
            self._stirred(told.heads)
            self._changed()

    async def _keep(self, rows: list[BranchRow], seen: Seen) -> None:
        seen.is_kept = False
        try:
            await self._tube.add(rows)
        finally:
            seen.is_kept = True

    # --- answering -----------------------------------------------------------------------------------------------

    def answer(self, question: PollBranches) -> BranchRows:
        self._look_at_heads()
        is_known = question.boot == self._boot
        first = question.rows_end if is_known else 0
        rows = self._tube.rows_since(first)[:ROWS_MAX]
        since = question.heads_at if is_known else 0
        heads = {key: head for key, (at, head) in self._told.items() if at > since}
        data = encode_told(rows, heads)
        return BranchRows(self._boot, first + len(rows), self._heads_at, *self._own_state(), data)

    def _look_at_heads(self) -> None:
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._heads_ms < HEADS_MS and not self._has_news:
            return
        self._heads_ms, self._has_news = now_ms, False
        heads = self._own_heads()
        for key, head in heads.items():
            known = self._told.get(key)
            if known is None or known[1] != head:
                self._heads_at += 1
                self._told[key] = self._heads_at, head
        for key in self._told.keys() - heads.keys():
            del self._told[key]

    async def stop(self) -> None:
        polls = list(self._polls.values())
        for poll in polls:
            poll.cancel()
        await asyncio.gather(*polls, return_exceptions=True)
