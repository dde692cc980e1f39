"""Fetch sessions (KIP-227): a consumer names its partitions once; later requests and answers carry changes only.

Pure bookkeeping. A session is a number, an epoch that grows with every request, and an ordered table of partitions with
what was last told about each. The cache is bounded in sessions and in partitions of all of them: when it is full, the
session unused for longest gives way if it has been idle for a while; otherwise the newcomer gets no session and fetches
in full, which is always right, only longer. One that outgrows the cache is forgotten, and its consumer is told to begin
again. A session ends with the connection that used it last: consumers begin a new one when they reconnect.
"""

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID

from anabranch.errors import FetchSessionTopicIdError, InvalidFetchSessionEpochError, UnknownFetchSessionError
from anabranch.wire.fetch_fast import FetchRequest

if TYPE_CHECKING:
    from anabranch.broker.topics.partition import Partition

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
    __slots__ = ("epoch", "id", "items", "owner", "used_ms_last", "uses_topic_ids")

    def __init__(self, session_id: int, owner: object, *, uses_topic_ids: bool, now_ms: int) -> None:
        self.id = session_id
        self.owner = owner
        """The connection that used it last."""
        self.epoch = 1
        self.uses_topic_ids = uses_topic_ids
        self.used_ms_last = now_ms
        self.items: OrderedDict[tuple[TopicKey, int], FetchItem] = OrderedDict()

    def update(self, request: FetchRequest) -> None:
        for key, item in items_of(request).items():
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


def items_of(request: FetchRequest) -> dict[tuple[TopicKey, int], FetchItem]:
    """Each partition once: where one is named several times, the last counts, as in Kafka."""
    return {
        (topic, partition): FetchItem(topic, partition, generation, offset, bytes_max, generation_fetched)
        for topic, partitions in request.topics
        for partition, generation, offset, generation_fetched, _start, bytes_max in partitions
    }


class FetchSessions:
    """All sessions of this broker."""

    def __init__(
        self, slots_max: int, partitions_max: int, session_partitions_max: int, next_id: int
    ) -> None:
        self._slots_max = slots_max
        self._partitions_max = partitions_max
        self._session_partitions_max = session_partitions_max
        self._next_id = max(1, next_id % EPOCH_MAX)
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()
        self._by_owner: dict[object, set[int]] = {}
        self.partitions = 0
        """Of all sessions together."""

    def __len__(self) -> int:
        return len(self._sessions)

    def context(
        self, request: FetchRequest, owner: object, *, uses_topic_ids: bool, now_ms: int
    ) -> FetchContext:
        """Settle which partitions a request means. Raises what the whole answer must then say."""
        if request.session_epoch in (EPOCH_FIRST, EPOCH_FINAL):
            self._end(request.session_id)
            session = None
            if request.session_epoch == EPOCH_FIRST:
                session = self._create(request, owner, uses_topic_ids=uses_topic_ids, now_ms=now_ms)
            items = (session.items if session is not None else items_of(request)).values()
            return FetchContext(list(items), session, incremental=False)
        session = self._continue(request, owner, uses_topic_ids=uses_topic_ids, now_ms=now_ms)
        self._update(session, request)
        if not session.items:  # Kafka's rule: a session that has nothing left to fetch is over.
            self._end(session.id)
            return FetchContext([], None, incremental=False)
        return FetchContext(list(session.items.values()), session, incremental=True)

    def client_left(self, owner: object) -> None:
        """The connection is closed: its sessions are over."""
        for session_id in list(self._by_owner.get(owner, ())):
            self._end(session_id)

    def end(self, session: FetchSession) -> None:
        """Its client will not use it."""
        if self._sessions.get(session.id) is session:
            self._end(session.id)

    def _end(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self.partitions -= len(session.items)
            self._disown(session)

    def _own(self, session: FetchSession, owner: object) -> None:
        session.owner = owner
        self._by_owner.setdefault(owner, set()).add(session.id)

    def _disown(self, session: FetchSession) -> None:
        owned = self._by_owner[session.owner]
        owned.discard(session.id)
        if not owned:
            del self._by_owner[session.owner]

    def _update(self, session: FetchSession, request: FetchRequest) -> None:
        count_before = len(session.items)
        session.update(request)
        self.partitions += len(session.items) - count_before
        if len(session.items) <= count_before:
            return
        if len(session.items) > self._session_partitions_max or self.partitions > self._partitions_max:
            self._end(session.id)
            raise UnknownFetchSessionError(
                f"Fetch session {session.id} has outgrown this broker's memory for sessions: begin a new one."
            )

    def _continue(
        self, request: FetchRequest, owner: object, *, uses_topic_ids: bool, now_ms: int
    ) -> FetchSession:
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
        if session.owner is not owner:
            self._disown(session)
            self._own(session, owner)
        self._sessions.move_to_end(session.id)
        return session

    def _create(
        self, request: FetchRequest, owner: object, *, uses_topic_ids: bool, now_ms: int
    ) -> FetchSession | None:
        count = sum(len(partitions) for _, partitions in request.topics)
        if not request.topics or not self._make_room(count, now_ms):
            return None
        while self._next_id in self._sessions:
            self._next_id = self._next_id % EPOCH_MAX + 1
        session = FetchSession(self._next_id, owner, uses_topic_ids=uses_topic_ids, now_ms=now_ms)
        self._next_id = self._next_id % EPOCH_MAX + 1
        self._sessions[session.id] = session
        self._own(session, owner)
        session.update(request)
        self.partitions += len(session.items)
        return session

    def _make_room(self, partitions: int, now_ms: int) -> bool:
        """Whether one more session fits in, once those that have been idle for long have given way."""
        if partitions > self._partitions_max:
            return False
        while len(self._sessions) >= self._slots_max or self.partitions + partitions > self._partitions_max:
            oldest = next(iter(self._sessions.values()), None)
            if oldest is None or now_ms - oldest.used_ms_last < IDLE_MS_BEFORE_EVICTION:
                return False
            self._end(oldest.id)
        return True
