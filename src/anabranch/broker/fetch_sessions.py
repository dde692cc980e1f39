"""Fetch sessions (KIP-227): a consumer names its partitions once; later requests and answers carry changes only.

Pure bookkeeping. A session is a number, an epoch that grows with every request, and an ordered table of
partitions with what was last told about each. The cache is bounded: when it is full, the session unused for
longest gives way if it has been idle for a while; otherwise the newcomer gets no session and fetches in full,
which is always right, only longer.
"""

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID

from anabranch.errors import FetchSessionTopicIdError, InvalidFetchSessionEpochError, UnknownFetchSessionError
from anabranch.wire.fetch_fast import FetchRequest

if TYPE_CHECKING:
    from anabranch.broker.partition import Partition

TopicKey = str | UUID
EPOCH_FIRST = 0
EPOCH_FINAL = -1
EPOCH_MAX = 2**31 - 1
IDLE_MS_BEFORE_EVICTION = 120_000


class FetchItem:
    """One partition somebody fetches, and what the session last told about it.

    `place` is the partition itself once somebody has looked it up; it counts until it is gone.
    """

    __slots__ = (
        "bytes_max",
        "generation",
        "generation_fetched",
        "high_watermark_sent",
        "offset",
        "partition",
        "place",
        "start_sent",
        "topic",
    )

    def __init__(
        self,
        topic: TopicKey,
        partition: int,
        generation: int,
        offset: int,
        bytes_max: int,
        generation_fetched: int = -1,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.generation = generation
        self.offset = offset
        self.bytes_max = bytes_max
        self.generation_fetched = generation_fetched
        """That of the last record it has; -1: it does not say."""
        self.place: Partition | None = None
        self.high_watermark_sent = -1
        self.start_sent = -1


class FetchSession:
    __slots__ = ("epoch", "id", "items", "used_ms_last", "uses_topic_ids")

    def __init__(self, session_id: int, *, uses_topic_ids: bool, now_ms: int) -> None:
        self.id = session_id
        self.epoch = 1
        self.uses_topic_ids = uses_topic_ids
        self.used_ms_last = now_ms
        self.items: OrderedDict[tuple[TopicKey, int], FetchItem] = OrderedDict()

    def update(self, request: FetchRequest) -> None:
        for item in items_of(request):
            key = (item.topic, item.partition)
            known = self.items.get(key)
            if known is None:
                self.items[key] = item
            else:
                known.generation, known.offset, known.bytes_max = item.generation, item.offset, item.bytes_max
                known.generation_fetched = item.generation_fetched
        for topic, partitions in request.forgotten:
            for partition in partitions:
                self.items.pop((topic, partition), None)

    def told(self, item: FetchItem, high_watermark: int, start: int) -> None:
        """The answer carries this partition: remember what it said, and serve it last next time (fairness)."""
        item.high_watermark_sent = high_watermark
        item.start_sent = start
        key = (item.topic, item.partition)
        if key in self.items:
            self.items.move_to_end(key)


@dataclass(slots=True)
class FetchContext:
    """What one request fetches; `session` is None for a full fetch without one."""

    items: list[FetchItem]
    session: FetchSession | None
    incremental: bool

    @property
    def session_id(self) -> int:
        return self.session.id if self.session is not None else 0


def items_of(request: FetchRequest) -> list[FetchItem]:
    return [
        FetchItem(topic, partition, generation, offset, bytes_max, generation_fetched)
        for topic, partitions in request.topics
        for partition, generation, offset, generation_fetched, _start, bytes_max in partitions
    ]


class FetchSessions:
    """All sessions of this broker."""

    def __init__(self, slots_max: int, next_id: int) -> None:
        self._slots_max = slots_max
        self._next_id = max(1, next_id % EPOCH_MAX)
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def context(self, request: FetchRequest, *, uses_topic_ids: bool, now_ms: int) -> FetchContext:
        """Settle which partitions a request means. Raises what the whole answer must then say."""
        if request.session_epoch in (EPOCH_FIRST, EPOCH_FINAL):
            self._sessions.pop(request.session_id, None)
            session = None
            if request.session_epoch == EPOCH_FIRST:
                session = self._create(request, uses_topic_ids=uses_topic_ids, now_ms=now_ms)
            items = list(session.items.values()) if session is not None else items_of(request)
            return FetchContext(items, session, incremental=False)
        session = self._continue(request, uses_topic_ids=uses_topic_ids, now_ms=now_ms)
        session.update(request)
        if not session.items:  # Kafka's rule: a session that has nothing left to fetch is over.
            del self._sessions[session.id]
            return FetchContext([], None, incremental=False)
        return FetchContext(list(session.items.values()), session, incremental=True)

    def _continue(self, request: FetchRequest, *, uses_topic_ids: bool, now_ms: int) -> FetchSession:
        session = self._sessions.get(request.session_id)
        if session is None:
            raise UnknownFetchSessionError(
                f"No fetch session {request.session_id}: begin a new one with epoch 0."
            )
        if session.epoch != request.session_epoch:
            raise InvalidFetchSessionEpochError(
                f"Fetch session {session.id} is at epoch {session.epoch}, not {request.session_epoch}."
            )
        if session.uses_topic_ids != uses_topic_ids:
            raise FetchSessionTopicIdError(
                f"Fetch session {session.id} cannot mix topic names and topic ids."
            )
        session.epoch = 1 if session.epoch == EPOCH_MAX else session.epoch + 1
        session.used_ms_last = now_ms
        self._sessions.move_to_end(session.id)
        return session

    def _create(self, request: FetchRequest, *, uses_topic_ids: bool, now_ms: int) -> FetchSession | None:
        if not request.topics or not self._make_room(now_ms):
            return None
        while self._next_id in self._sessions:
            self._next_id = self._next_id % EPOCH_MAX + 1
        session = FetchSession(self._next_id, uses_topic_ids=uses_topic_ids, now_ms=now_ms)
        self._next_id = self._next_id % EPOCH_MAX + 1
        session.update(request)
        self._sessions[session.id] = session
        return session

    def _make_room(self, now_ms: int) -> bool:
        if len(self._sessions) < self._slots_max:
            return True
        if not self._sessions:
            return False
        oldest = next(iter(self._sessions.values()))
        if now_ms - oldest.used_ms_last < IDLE_MS_BEFORE_EVICTION:
            return False
        del self._sessions[oldest.id]
        return True
