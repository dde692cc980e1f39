"""Fetch, versions 4 to 18: long poll, byte limits with the first-batch rule, sessions, both isolation levels.

No byte leaves unchecked. What was checked since its file was last changed leaves as a file slice for sendfile; other
bytes are read, checked and sent from memory, after a worker has looked at them if they may have to come from the disk.
A batch with a changed byte is answered CORRUPT_MESSAGE, and those before and after it are served; where more was
changed its region of 64 KiB may be refused as a whole (decision 39). A consumer may fetch a thousand partitions of
which one has news: all of them are looked at when a fetch begins and when its time is up, and only those that were
published to when it is woken in between. Without transactions the last stable offset is the high watermark, so both
isolation levels see the same. Only a partition's leader serves it; others say who that is. A reader whose last record
is of a generation that ended earlier here is told where (the diverging epoch). Between the high watermark, which a new
leader has to find out, and the end it is empty. What is not on this broker and has to come first is waited for like
records to come (`broker/read/reading.py`). While a fetch waits, only partitions with something to tell cost more than
their entry; a fetch for which there is no room (`fetch.waiting.partitions.max`) is answered without partitions, as
clients know it from brokers that throttle them. Left out: reading from followers.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from anabranch.broker.handlers.leader_hints import LeaderHints
from anabranch.broker.read.fetch_sessions import FetchContext, FetchItem, TopicKey
from anabranch.broker.read.fetch_wait import GATHER_PARTITIONS_MIN, WaitingFetch
from anabranch.broker.read.reading import BeginRemoteReads, RemoteReads
from anabranch.broker.requests.call import Call, Piece
from anabranch.broker.requests.error_table import code_of
from anabranch.broker.requests.network import network_of
from anabranch.broker.requests.turns import FREE_ROWS, Rows
from anabranch.broker.topics.partition import Partition
from anabranch.errors import (
    AnabranchError,
    CorruptDataError,
    OffsetOutOfRangeError,
    ProtocolError,
    TooManyElementsError,
    detached,
)
from anabranch.log.segment.slice import Slice
from anabranch.values import Offset
from anabranch.wire.fetch_fast import FetchRequest, encode_fetch_response, parse_fetch_request

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker

logger = logging.getLogger(__name__)

ERROR_CODE_SINCE = 7
"""Before, an answer had no code for the whole of it."""
SENDFILE_BYTES_MIN = 16 * 1024
"""Below this a read and a copy cost less than a sendfile call of its own."""

LOADED_BYTES_MAX = 8 * 2**20
"""What an answer may have that is sent from memory, its first batch excepted; the rest comes with the next fetch."""

LOADED_BYTES_WHEN_SHORT = 64 * 1024
"""The same while readers leave too many answers lying in memory (`request.memory.bytes.max`)."""

GATHER_BYTES = 512 * 1024
"""With fewer than these at its first try, a fetch of many partitions lets more gather for a moment (`fetch_wait`)."""

TURNED_AWAY_MS = 500
"""How long a fetch waits that may not wait for its partitions: its client asks again at once."""
TURNED_AWAY_THROTTLE_MS = 1
"""What a full answer without partitions tells, so that clients take it for what it is; they have waited already."""


class Found:
    """What one partition has to say."""

    __slots__ = ("code", "data", "diverging", "error", "high_watermark", "item", "slice", "start_offset")

    def __init__(self, item: FetchItem) -> None:
        self.item = item
        self.code = 0
        self.error: AnabranchError | None = None
        self.diverging: tuple[int, int] | None = None
        """The generation up to which the reader's log is ours, and where it ends."""
        self.high_watermark = -1
        self.start_offset = -1
        self.slice: Slice | None = None
        self.data: bytes | bytearray | memoryview | None = None

    @property
    def has_news(self) -> bool:
        """Something to tell at once that is no record."""
        return self.code != 0 or self.diverging is not None

    def fail(self, error: AnabranchError) -> None:
        self.code = code_of(error)
        self.error = detached(error)
        self.slice = None

    def row(self, hints: LeaderHints) -> tuple[Any, ...]:
        row = (
            self.item.partition,
            self.code,
            self.high_watermark,
            self.high_watermark,
            self.start_offset,
            None,
            -1,
            self._records(),
        )
        if self.error is None and self.diverging is None:
            return row
        return (*row, self.diverging, hints.of(self.item.topic, self.item.partition, self.error))

    def _records(self) -> Piece:
        if self.slice is None:
            return b""
        return self.data if self.data is not None else self.slice


class Fetch:
    """One fetch request until it is answered."""

    def __init__(self, broker: "Broker", call: Call, request: FetchRequest, context: FetchContext) -> None:
        self._broker = broker
        self._call = call
        self._request = request._replace(
            topics=[], forgotten=[]
        )  # What may be long is in the context, once each.
        self._context = context
        self._bytes_max = min(request.bytes_max, broker.settings.fetch_max_bytes)
        self._bytes_min = min(request.bytes_min, self._bytes_max)  # More can never be there.
        self._bytes_wanted = self._bytes_min
        if self._bytes_min > 0 and len(context.items) >= GATHER_PARTITIONS_MIN:
            self._bytes_wanted = max(self._bytes_min, min(GATHER_BYTES, self._bytes_max))
        self._bytes_found = 0
        self.memory_bytes_left = 0
        self.whole_first = True
        self._found: dict[int, Found] = {}
        """Of those in `_ready`. All others end where their readers are."""
        self._ready: set[int] = set()
        """Numbers of those that have records or an error to tell of."""
        self._news: set[int] = set()
        """Numbers of those of which a session has told something else."""
        self._throttle_ms = 0
        self._unreadable: dict[FetchItem, AnabranchError] = {}
        self._waiting: WaitingFetch | None = None
        self._is_verifying = False
        self._is_look_old = False
        """Records may have come since a partition was looked at."""
        self._is_over = False
        self._remote: RemoteReads | None = None
        """For what is not on this broker."""
        self._begun = asyncio.get_running_loop().time()

    def run(self) -> "asyncio.Future[Any] | None":
        """Answer, or begin to wait. Returns what looks at all partitions, if that takes several turns."""
        self._call.on_close = self._closed
        return self._look_at_all_then(self._first_try)

    def _first_try(self) -> None:
        if self._try(self._request.wait_ms_max <= 0 or not self._context.items) or self._is_verifying:
            return
        self._wait()
        self._bytes_wanted = self._bytes_min
        if self._waiting is not None and self._bytes_found >= self._bytes_min:
            self._waiting.woken([])  # Enough is there already; it only lets more gather.

    def _wait(self) -> None:
        items, waits, network = self._context.items, self._broker.core.fetch_waits, self._network
        if not waits.make_room(len(items), network):
            self._turn_away()
            return
        places = [item.place for item in items]
        wait_ms = max(self._request.wait_ms_max, self._remote_ms_left)
        self._waiting = waits.wait(self._retry, places, wait_ms, network, self._turn_away)
        if self._is_look_old:
            self._is_look_old = False
            missed = [
                place
                for number, place in enumerate(places)
                if place is not None and place.readable_end != self._end_told(number)
            ]
            if missed:
                self._waiting.woken(missed)

    @property
    def _network(self) -> str:
        return network_of(self._call.client.host)

    def _end_told(self, number: int) -> int:
        """Where a partition ended when it was last looked at."""
        found = self._found.get(number)
        return self._context.items[number].offset if found is None else found.high_watermark

    def _turn_away(self) -> None:
        """There is no room to wait for so many partitions: answer with the records that are there, or else, after a
        moment in which nothing is kept of the partitions, without any."""
        try:
            self._waiting = None
            if not (self._bytes_found and self._try(True)):
                self._wait_without_partitions()
        except Exception as error:
            logger.exception("a fetch failed while it was turned away: this is a defect")
            self._call.close(f"{type(error).__name__}: {error}")

    def _wait_without_partitions(self) -> None:
        session = self._context.session
        if not self._context.incremental:
            self._throttle_ms = TURNED_AWAY_THROTTLE_MS
            if session is not None:  # Clients forget a session that does not begin with its partitions.
                self._broker.fetch_sessions.end(session)
                session = None
        self._context = FetchContext([], session, self._context.incremental)
        self._found, self._ready, self._news, self._unreadable = {}, set(), set(), {}
        if self._remote is not None:
            self._remote.leave()
            self._remote = None
        self._is_look_old = False
        self._waiting = self._broker.core.fetch_waits.wait(
            self._retry, [], min(self._request.wait_ms_max, TURNED_AWAY_MS)
        )

    def _closed(self) -> None:
        self._is_over = True
        if self._waiting is not None:
            self._waiting.leave()
        if self._remote is not None:
            self._remote.leave()
        self._call.on_close = (
            None  # Or only a search for garbage would free the call and all that is fetched.
        )

    def _retry(self, final: bool) -> bool:
        """`_try` for those who wake us, whom a defect of ours must not keep from waking others."""
        try:
            if final:
                self._look_at_all_then(self._last_try)
                return True
            self._look_again()
            return self._try(False)
        except Exception as error:
            logger.exception("a fetch failed while it waited: this is a defect")
            self._call.close(f"{type(error).__name__}: {error}")
            return True

    def _last_try(self) -> None:
        if not self._try(True) and not self._is_verifying:
            self._wait()

    def _try(self, final: bool) -> bool:
        """Answer if there is enough, or if this is the last try. True: nothing is left to wait for."""
        if self._is_over:
            return True
        if self._is_verifying:
            return False
        found = [self._found[number] for number in sorted(self._ready)]
        self._fill(found)
        unverified = [
            each
            for each in found
            if each.slice is not None and not each.slice.verified and not each.slice.is_warm
        ]
        if unverified:
            self._verify(unverified)
            return True
        self._bytes_found = sum(each.slice.count for each in found if each.slice is not None)
        is_short = self._bytes_found < self._bytes_wanted and not any(
            each.has_news or self._is_cut(each) for each in found
        )
        if is_short and (not final or self._remote_ms_left > 0):
            return False
        self._read(found)
        self._answer()
        return True

    # --- finding ---------------------------------------------------------------------------------------------

    def _look_at_all_then(self, go_on: Callable[[], None]) -> "asyncio.Future[Any] | None":
        """Look at every partition, and go on: at once, or in turns where there are so many that others would have to
        wait."""
        rows = self._look_at_all()
        if len(self._context.items) <= FREE_ROWS:
            for _ in rows:
                pass
            go_on()
            return None
        looked = self._broker.turns.drive(rows)
        if isinstance(looked, dict):
            go_on()
            return None
        self._is_look_old = True
        self._waiting = None  # What arrives meanwhile is looked at by the same look, or noticed at its end.
        return self._broker.core.carry_on(self._in_turns(looked), self._call, lambda _: go_on())

    async def _in_turns(self, looked: Awaitable[Any]) -> None:
        await looked
        if not self._is_over:
            await self._broker.turns.wait(self._rows_told)  # Of those that end together, one in each turn.

    @property
    def _rows_told(self) -> int:
        """How many partitions an answer would carry."""
        return len(self._ready | self._news) if self._context.incremental else len(self._context.items)

    def _look_at_all(self) -> Rows:
        self._found = {}
        self._ready.clear()
        self._news.clear()
        for number, item in enumerate(self._context.items):
            if self._is_over:
                break
            self._note(number, item)
            yield
        return {}

    def _note(self, number: int, item: FetchItem) -> None:
        found = self._look(number, item)
        if number in self._ready:
            self._found[number] = found

    def _look_again(self) -> None:
        """Look at those who woke us."""
        assert self._waiting is not None
        items = self._context.items
        for partition in self._waiting.woken_by:
            number = partition.waiting_fetches[self._waiting]
            self._ready.discard(number)
            self._found.pop(number, None)
            self._note(number, items[number])

    def _look(self, number: int, item: FetchItem) -> Found:
        found = Found(item)
        try:
            partition = item.place
            if partition is None or partition.is_gone:
                item.place = None
                item.place = partition = self._broker.topics.readable_partition(item.topic, item.partition)
            partition.check_leader()
            partition.check_generation(item.generation)
            high_watermark = partition.readable_end
            found.high_watermark = high_watermark
            found.start_offset = start_offset = partition.start_offset
            if item.offset != high_watermark or item.offset < start_offset:
                self._ready.add(number)
                if not start_offset <= item.offset <= partition.log.end_offset:
                    if partition.may_come(Offset(item.offset), self):
                        return found
                    raise OffsetOutOfRangeError(f"Offset {item.offset} is not in {partition.id}.")
                if item in self._unreadable:
                    raise self._unreadable[item]
            found.diverging = partition.divergence(item.generation_fetched, item.offset)
            if found.diverging is not None:
                self._ready.add(number)
            is_old = high_watermark == item.high_watermark_sent and start_offset == item.start_sent
            if self._context.incremental and not is_old:
                self._news.add(number)
        except AnabranchError as error:
            found.fail(error)
            self._ready.add(number)
        return found

    def _fill(self, found: list[Found]) -> None:
        """Give each partition its slice, in order, until the request's bytes are used up."""
        left = self._bytes_max
        self.memory_bytes_left = LOADED_BYTES_MAX
        if self._broker.are_answers_too_many:
            self.memory_bytes_left = LOADED_BYTES_WHEN_SHORT
        self.whole_first = True
        if self._remote is not None:
            self._remote.begin_try()
        for each in found:
            item = each.item
            each.slice = None
            if each.has_news or item.offset >= each.high_watermark or (left <= 0 and not self.whole_first):
                continue
            partition = item.place
            assert partition is not None, "looked up a moment ago"
            try:
                part = partition.read(
                    Offset(item.offset), min(item.bytes_max, left), Offset(each.high_watermark), self
                )
            except AnabranchError as error:
                self._note_unreadable(partition, item, error)
                each.start_offset = partition.start_offset  # It may have moved since, and clients go by it.
                each.fail(error)
                continue
            if part is not None and part.count:
                if part.is_warm and not part.verified:
                    if self.memory_bytes_left <= 0:
                        continue
                    self.memory_bytes_left -= part.count
                each.slice = part
                left -= part.count
                self.whole_first = False
        if self._remote is not None:
            self._remote.load()

    def remote(self, begin: BeginRemoteReads) -> RemoteReads:
        if self._remote is None:
            self._remote = begin(self._bytes_max, self._request.wait_ms_max, self._loaded)
        return self._remote

    def _loaded(self, partitions: list[Partition]) -> None:
        if self._waiting is not None:
            self._waiting.woken(partitions)

    @property
    def _remote_ms_left(self) -> int:
        """How long to wait yet for what is on its way to this broker."""
        if self._remote is None or self._broker.core.fetch_waits.is_ended:
            return 0
        return self._remote.ms_left(asyncio.get_running_loop().time() - self._begun)

    @staticmethod
    def _is_cut(found: Found) -> bool:
        """Whether more is there than this answer may carry: batches stay whole."""
        part, partition = found.slice, found.item.place
        if part is None or partition is None:
            return False
        return partition.is_cut(Offset(found.item.offset), part, Offset(found.high_watermark))

    def _read(self, found: list[Found]) -> None:
        """Small slices leave as bytes, and so do those that were not checked yet, or not since their file was changed.
        Where they cannot be read, the partition says so and the others go on."""
        for each in found:
            part = each.slice
            if part is None or (
                part.verified and part.count >= SENDFILE_BYTES_MIN and part.fileno() is not None
            ):
                continue
            trouble: AnabranchError | None
            try:
                each.data = part.checked()
                part.mark_verified()
                trouble = part.damage  # Behind what is answered.
            except AnabranchError as error:
                each.fail(error)
                trouble = error
            if trouble is not None:
                partition = each.item.place
                assert partition is not None, "looked up a moment ago"
                self._note_unreadable(partition, each.item, trouble)

    # --- verifying -------------------------------------------------------------------------------------------

    def _verify(self, unverified: list[Found]) -> None:
        self._is_verifying = True
        slices = [(each.item, each.slice) for each in unverified if each.slice is not None]

        def task() -> list[tuple[FetchItem, Slice, AnabranchError | None]]:
            return [(item, part, _trouble(part)) for item, part in slices]

        def done(
            checked: list[tuple[FetchItem, Slice, AnabranchError | None]] | None,
            error: BaseException | None,
        ) -> None:
            self._is_verifying = False
            if checked is None:
                logger.error("a slice could not be verified: this is a defect", exc_info=error)
                self._call.close(f"{type(error).__name__}: {error}")
                return
            for item, part, trouble in checked:
                self._note_checked(item, part, trouble)
            self._retry(True)

        self._broker.workers.heavy(task, done)

    def _note_checked(self, item: FetchItem, part: Slice, trouble: AnabranchError | None) -> None:
        if trouble is None:
            part.mark_verified()
            return  # Or it is read once more, if its file is being written to: it is warm now.
        if isinstance(trouble, CorruptDataError) and part.distrust():
            return
        if item.place is not None:
            self._note_unreadable(item.place, item, trouble)
        self._unreadable[item] = trouble

    def _note_unreadable(self, partition: Partition, item: FetchItem, error: AnabranchError) -> None:
        self._broker.note_read_error(partition, error)
        is_repairable = isinstance(error, CorruptDataError) and partition.is_kept_here(Offset(item.offset))
        if self._broker.peering is not None and is_repairable:
            self._broker.peering.repairs.begin(partition, Offset(item.offset))

    # --- answering -------------------------------------------------------------------------------------------

    def _answer(self) -> None:
        self._is_over = True
        if self._remote is not None:
            self._remote.leave()
        session = self._context.session
        if self._context.incremental:
            told = [self._told(number) for number in sorted(self._ready | self._news)]
            told = [each for each in told if _is_news(each)]
        else:
            told = [self._told(number) for number in range(len(self._context.items))]
        topics: dict[TopicKey, list[tuple[Any, ...]]] = {}
        hints = LeaderHints(self._broker, self._call.client)
        for each in told:
            topics.setdefault(each.item.topic, []).append(each.row(hints))
            if session is not None:
                session.told(each.item, each.high_watermark if not each.code else -1, each.start_offset)
        header = self._call.header
        self._broker.bytes_out_total += sum(each.slice.count for each in told if each.slice is not None)
        self._call.answer(
            encode_fetch_response(
                header.api_version,
                header.correlation_id,
                self._throttle_ms,
                0,
                self._context.session_id,
                list(topics.items()),
                hints.endpoints,
            )
        )
        self._let_go()

    def _told(self, number: int) -> Found:
        found = self._found.get(number)
        if found is None:
            item = self._context.items[number]
            assert item.place is not None, "who is nowhere has an error to tell"
            found = Found(item)
            found.high_watermark = item.offset
            found.start_offset = item.place.start_offset
        return found

    def _let_go(self) -> None:
        """Nobody may hold on to this fetch, which knows its call, which knows its answer: records in memory are free as
        soon as the socket has them."""
        self._call.on_close = None
        self._waiting = self._remote = None
        self._found = {}


def _trouble(part: Slice) -> AnabranchError | None:
    """Why this slice cannot be served: it is damaged, its file went away meanwhile, or the disk refuses."""
    try:
        part.verify()
    except AnabranchError as error:
        return error
    return None


def _is_news(found: Found) -> bool:
    """Whether an incremental answer must carry this partition."""
    item = found.item
    return bool(
        found.slice is not None
        or found.has_news
        or found.high_watermark != item.high_watermark_sent
        or found.start_offset != item.start_sent
    )


def handle(broker: "Broker", call: Call) -> "asyncio.Future[Any] | None":
    header = call.header
    elements_max = broker.settings.request_elements_max
    try:
        request = parse_fetch_request(call.view, call.body, call.end, header.api_version, elements_max)
        context = broker.fetch_sessions.context(
            request, call.client, uses_topic_ids=header.api_version >= 13, now_ms=broker.clock.monotonic_ms()
        )
    except AnabranchError as error:
        is_answered = not isinstance(error, ProtocolError) or isinstance(error, TooManyElementsError)
        if not is_answered or header.api_version < ERROR_CODE_SINCE:
            raise
        call.answer(
            encode_fetch_response(header.api_version, header.correlation_id, 0, code_of(error), 0, [])
        )
        return None
    return Fetch(broker, call, request, context).run()
