"""Gatherer: records of many small writers become few compressed batches, one per partition at a time.

    gather = Gatherer(calls, settings, clock)
    partition, offset, timestamp = await gather.send("orders", None, b"key", b"value")

    writers > Basket of the partition > one RecordBatch > produce, at whoever leads > each writer gets its own offset

A lone record lingers a moment for company; while a batch of its partition is under way, the next one gathers until
that is answered. Batches carry a producer id of this node and a sequence, so that one whose answer was lost is sent
again without being written twice. A record that its topic would refuse is refused before it meets others, and a batch
that is refused all the same is taken apart until only the culprit fails. What waits is limited in bytes; beyond,
`send` waits for room. Every writer is told within `gateway.request.timeout.ms`: that its record was not written, or
that nobody knows.
"""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from functools import partial
from uuid import UUID

from anabranch.clock import Clock
from anabranch.config import NodeSettings
from anabranch.errors import AnabranchError, BrokerRefusedError, NotOwnerError, RequestTimedOutError
from anabranch.gateway.calls import ELSEWHERE, Calls, TopicView, Written, code_of_error, refusal
from anabranch.gateway.http.budget import Budget
from anabranch.gateway.http.deadline import retriable_code
from anabranch.gateway.produce.pending_batch import Basket, Headers, Placed, Waiting, fail
from anabranch.record.builder import BatchBuilder
from anabranch.record.compression import Codec
from anabranch.record.partitioner import partition_for
from anabranch.wire.api_keys import ApiKey
from anabranch.wire.error_codes import ErrorCode

Key = tuple[UUID, int]

GATHERED_BYTES_MAX = 64 * 2**20
"""Held for all partitions together: waiting, and under way."""
RECORD_OVERHEAD_BYTES = 200
"""What a record counts in a batch besides its bytes."""
LONG_KEY_BYTES = 16 * 1024
"""Longer keys are hashed by a worker: a megabyte takes a quarter of a second."""
SWEEP_SECONDS = 0.25
"""How often it is looked for records whose writers have waited for as long as they may."""
PRODUCERS_KEPT = 1000
"""Beyond so many, and at every doubling, those of deleted topics are forgotten."""
PAUSE_SECONDS = 0.05
INIT_PRODUCER_VERSION = 4
NOBODY = -1
NO_ID = "No producer id can be had: this broker does not reach the quorum of its cluster."
BRANCH = "branch"
ID_SECONDS_MAX = 1.0
IDS_PAUSE_MS = 5000
"""How long to wait for an id where records are taken without one, and how long not to ask again."""
CODECS = {"none": Codec.NONE, "lz4": Codec.LZ4, "zstd": Codec.ZSTD}
SEQUENCES = 2**31

AGAIN = ELSEWHERE | {
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.THROTTLING_QUOTA_EXCEEDED,
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.NOT_CONTROLLER,
}
"""The same batch may be taken in a moment."""
FORGOTTEN = frozenset({ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.INVALID_PRODUCER_EPOCH})
"""The partition does not know this producer, or not as it knows itself."""
OF_A_RECORD = frozenset(
    {
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.INVALID_RECORD,
        ErrorCode.INVALID_TIMESTAMP,
    }
)
"""Some record of the batch is to blame."""

logger = logging.getLogger(__name__)


class Producer:
    """Under which id a partition knows this node, and what comes next."""

    __slots__ = ("producer_id", "sequence")

    def __init__(self, producer_id: int) -> None:
        self.producer_id = producer_id
        self.sequence = 0

    @property
    def is_nobody(self) -> bool:
        """Its batches cannot be told from repeats, and are sent once."""
        return self.producer_id == NOBODY


class Gatherer:
    def __init__(self, calls: Calls, settings: NodeSettings, clock: Clock) -> None:
        self._calls = calls
        self._clock = clock
        self.delivery_ms = settings.gateway_request_timeout_ms
        """How long a batch is tried before its writers are told what is known of it."""
        self._sweeper: asyncio.TimerHandle | None = None
        self._producers_limit = PRODUCERS_KEPT
        self.linger_seconds = settings.gateway_linger_ms / 1000
        self.batch_bytes_max = settings.gateway_batch_bytes_max
        self._codec = CODECS[settings.gateway_compression]
        self.budget = Budget(GATHERED_BYTES_MAX)
        self._baskets: dict[Key, Basket] = {}
        self._producers: dict[Key, Producer] = {}
        self._spoiled: set[Key] = set()
        """Partitions that may know more of this node's id than it knows itself."""
        self._node_id: int | None = None
        self._ids_again_ms = 0
        self._id_lock = asyncio.Lock()
        self._sticky: dict[str, int] = {}
        self._is_closing = False
        self.records_total = 0
        self.batches_total = 0

    # --- for writers -----------------------------------------------------------------------------------------

    async def send(
        self,
        topic: str,
        partition: int | None,
        key: bytes | None,
        value: bytes | None,
        headers: Headers = (),
        timestamp: int | None = None,
    ) -> Placed:
        """Write one record; it is safe when this returns. Raises BrokerRefusedError, or RequestTimedOutError: whether
        it was written is then not known."""
        return await (await self.put(topic, partition, key, value, headers, timestamp))

    async def put(
        self,
        topic: str,
        partition: int | None,
        key: bytes | None,
        value: bytes | None,
        headers: Headers = (),
        timestamp: int | None = None,
    ) -> "asyncio.Future[Placed]":
        """Hand one record over, and wait only for room. Records that one writer puts into one partition keep their
        order."""
        placed = self.put_now(topic, partition, key, value, headers, timestamp)
        if placed is not None:
            return placed
        view = await self.topic(topic)
        if partition is None and key is not None and len(key) > LONG_KEY_BYTES:
            partition = await self._calls.in_worker(partial(self._partition, view, None, key))
        record = self._waiting(view, key, value, headers, timestamp)
        await self._take(record.held_bytes)
        if self._is_closing:
            self.budget.give(record.held_bytes)
            raise refusal(ErrorCode.COORDINATOR_NOT_AVAILABLE, "The node stops: send this to another broker.")
        return self._add(view, partition, record)

    async def topic(self, name: str) -> TopicView:
        """The topic that records are for, made if there is none and one may be."""
        known = self._calls.known_topic(name)
        if known is not None:
            return known
        try:
            async with asyncio.timeout(self.delivery_ms / 1000):
                return await self._calls.topic(name, may_create=True)
        except TimeoutError:
            raise refusal(
                ErrorCode.LEADER_NOT_AVAILABLE,
                f"Topic {name} is not known here, and could not be made within {self.delivery_ms} ms "
                "(gateway.request.timeout.ms): does this broker reach the others? Try again, or at another one.",
            ) from None

    async def _take(self, size: int) -> None:
        try:
            async with asyncio.timeout(self.delivery_ms / 1000):
                await self.budget.take(size)
        except TimeoutError:
            raise refusal(
                ErrorCode.THROTTLING_QUOTA_EXCEEDED,
                f"This node holds {self.budget.bytes_max} bytes of records that are not written yet, and no more: try "
                "again in a moment, or at another broker.",
            ) from None

    def put_now(
        self,
        topic: str,
        partition: int | None,
        key: bytes | None,
        value: bytes | None,
        headers: Headers = (),
        timestamp: int | None = None,
    ) -> "asyncio.Future[Placed] | None":
        """The same, if nothing has to be waited for; None: nothing was done, `put` it."""
        view = self._calls.known_topic(topic)
        if view is None or self._is_closing or (key is not None and len(key) > LONG_KEY_BYTES):
            return None
        record = self._waiting(view, key, value, headers, timestamp)
        return self._add(view, partition, record) if self.budget.take_at_once(record.held_bytes) else None

    def _waiting(
        self,
        view: TopicView,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        timestamp: int | None,
    ) -> Waiting:
        """Raises BrokerRefusedError if the topic would not take it."""
        time_ms = self._clock.wall_ms() if timestamp is None else timestamp
        size = RECORD_OVERHEAD_BYTES + size_of(key, value, headers)
        self._check(view, key, time_ms, size)
        deadline_ms = self._clock.monotonic_ms() + self.delivery_ms
        return Waiting(
            key, value, headers, time_ms, size, deadline_ms, asyncio.get_running_loop().create_future()
        )

    def _add(self, view: TopicView, partition: int | None, record: Waiting) -> "asyncio.Future[Placed]":
        """Its bytes are taken from the budget already."""
        try:
            index = self._partition(view, partition, record.key)
        except BrokerRefusedError:
            self.budget.give(record.held_bytes)
            raise
        self._basket(view, index).add(record)
        return record.placed

    def _check(self, view: TopicView, key: bytes | None, time_ms: int, size: int) -> None:
        """What the topic would refuse is refused here, where it does no harm to others."""
        settings = view.settings
        if view.is_internal:
            raise refusal(
                ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic {view.name} is written by brokers alone."
            )
        if size - RECORD_OVERHEAD_BYTES > settings.max_message_bytes:
            raise refusal(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"The record has {size - RECORD_OVERHEAD_BYTES} bytes, and topic {view.name} takes batches of "
                f"{settings.max_message_bytes} (max.message.bytes).",
            )
        if key is None and settings.is_compacted:
            raise refusal(
                ErrorCode.INVALID_RECORD,
                f"Topic {view.name} is compacted: a record without key has no place.",
            )
        if not settings.is_log_append_time:
            self._check_time(view, time_ms)

    def _check_time(self, view: TopicView, time_ms: int) -> None:
        ahead_ms = time_ms - self._clock.wall_ms()
        settings = view.settings
        if (
            ahead_ms > settings.message_timestamp_after_max_ms
            or -ahead_ms > settings.message_timestamp_before_max_ms
        ):
            raise refusal(
                ErrorCode.INVALID_TIMESTAMP,
                f"The time {time_ms} lies outside what topic {view.name} takes (message.timestamp.*.max.ms): give "
                "milliseconds since 1970, or leave it out.",
            )

    def _partition(self, view: TopicView, partition: int | None, key: bytes | None) -> int:
        if partition is not None:
            if not 0 <= partition < view.partition_count:
                raise refusal(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    f"Topic {view.name} has no partition {partition}: it has {view.partition_count}, numbered from 0.",
                )
            return partition
        chosen = partition_for(key, view.partition_count, view.settings.anabranch_partitioner)
        if chosen is not None:
            return chosen
        return self._sticky.setdefault(view.name, 0) % view.partition_count

    def _basket(self, view: TopicView, index: int) -> Basket:
        basket = self._baskets.get((view.topic_id, index))
        if basket is None:
            basket = self._baskets[view.topic_id, index] = Basket(self, view, index)
            if self._sweeper is None:
                self._sweeper = asyncio.get_running_loop().call_later(SWEEP_SECONDS, self._sweep)
        return basket

    def _sweep(self) -> None:
        self._sweeper = None
        self.expire()
        if self._baskets:
            self._sweeper = asyncio.get_running_loop().call_later(SWEEP_SECONDS, self._sweep)

    def expire(self) -> None:
        """Tell every writer whose time is over what is known."""
        now_ms = self._clock.monotonic_ms()
        for basket in self._baskets.values():
            basket.expire(now_ms)

    # --- for baskets -------------------------------------------------------------------------------------------

    def taken(self, basket: Basket, records: Sequence[Waiting]) -> None:
        """A batch leaves: records without key go on to the next partition that somebody leads."""
        self.batches_total += 1
        self.records_total += len(records)
        view = basket.view
        if self._sticky.get(view.name) != basket.index:
            return
        for step in range(1, view.partition_count + 1):
            index = (basket.index + step) % view.partition_count
            try:
                if self._calls.leader(view.name, index) is not None:
                    break
            except BrokerRefusedError:
                break  # The topic is going away.
        self._sticky[view.name] = index

    def ended(self, basket: Basket) -> None:
        """Nothing waits there any more."""
        self._baskets.pop((basket.view.topic_id, basket.index), None)
        view = self._calls.known_topic(basket.view.name)
        if view is None or view.topic_id != basket.view.topic_id:
            self._sticky.pop(basket.view.name, None)
            for key in [key for key in self._producers if key[0] == basket.view.topic_id]:
                del self._producers[key]
                self._spoiled.discard(key)

    def late(self, basket: Basket) -> AnabranchError:
        """What a writer is told whose record is under way for as long as it may be."""
        cause = basket.cause
        if basket.may_be_written:
            why = cause if cause is not None else f"No answer within {self.delivery_ms} ms."
            return _unknown(basket.view, basket.index, why)
        if cause is not None:
            return self._not_written(basket, cause, str(cause))
        return self._not_written(basket, None, NO_ID)

    def never_tried(self, basket: Basket) -> AnabranchError:
        """The same of a record that waits behind a batch which makes no progress."""
        why = basket.cause if basket.cause is not None else "Those before it are not answered."
        return self._not_written(basket, basket.cause, str(why))

    def _not_written(self, basket: Basket, cause: AnabranchError | None, why: str) -> BrokerRefusedError:
        return BrokerRefusedError(
            f"The record was not written to {basket.view.name}-{basket.index} within {self.delivery_ms} ms "
            f"(gateway.request.timeout.ms). {why} Send it again, or to another broker.",
            retriable_code(cause),
        )

    async def deliver(self, basket: Basket, records: Sequence[Waiting]) -> None:
        """Write these as one batch, and tell each writer; a batch that is refused for one of them goes in halves."""
        index, records = basket.index, list(records)
        try:
            written = await self._write(basket, records)
        except AnabranchError as error:
            if len(records) > 1 and code_of_error(error) in OF_A_RECORD:
                middle = len(records) // 2
                await self.deliver(basket, records[:middle])
                await self.deliver(basket, records[middle:])
            else:
                fail(records, error)
            return
        if written is None:
            return
        for number, record in enumerate(records):
            if not record.placed.done():
                time_ms = written.append_time_ms if written.append_time_ms >= 0 else record.timestamp
                record.placed.set_result(Placed(index, written.base_offset + number, time_ms))

    async def _write(self, basket: Basket, records: list[Waiting]) -> Written | None:
        """Takes those from `records` whose writers were told meanwhile that they are not written; None: all of them."""
        view, index = basket.view, basket.index
        begun_ms = self._clock.monotonic_ms()
        producer = await self._producer_in_time(basket)
        batch = self._batch(producer, records)
        may_be_written = False
        while True:
            if not may_be_written and any(map(_is_told, records)):
                records[:] = [record for record in records if not _is_told(record)]
                batch = self._batch(producer, records)
            if not records:
                return None
            left_ms = max(1, begun_ms + self.delivery_ms - self._clock.monotonic_ms())
            basket.may_be_written = True
            try:
                written = await self._calls.produce(
                    view.name, view.topic_id, index, batch, timeout_ms=left_ms
                )
            except AnabranchError as error:
                code = code_of_error(error)
                if code in FORGOTTEN and not may_be_written and producer.sequence > 0:
                    # What was written before is there: this batch is not, and may begin anew.
                    producer = await self._renewed((view.topic_id, index))
                    batch = self._batch(producer, records)
                    continue
                may_be_written = (
                    may_be_written
                    or isinstance(error, RequestTimedOutError)
                    or (code in (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND))
                )
                basket.may_be_written, basket.cause = may_be_written, error.with_traceback(None)
                passed_ms = self._clock.monotonic_ms() - begun_ms
                may_pass = isinstance(error, NotOwnerError) or code in AGAIN
                may_pass = may_pass or self._calls.is_news(error, view.name, index, passed_ms)
                may_pass = may_pass and not (may_be_written and producer.is_nobody)
                is_late = passed_ms >= self.delivery_ms
                if is_late or self._is_closing or not may_pass:
                    if may_be_written:
                        self._spoiled.add((view.topic_id, index))
                        raise _unknown(view, index, error) from error
                    if is_late and may_pass:
                        raise self._not_written(basket, error, str(error)) from error
                    raise
            else:
                producer.sequence = (producer.sequence + len(records)) % SEQUENCES
                return written
            await asyncio.sleep(PAUSE_SECONDS)

    def _batch(self, producer: Producer, records: Iterable[Waiting]) -> bytearray:
        builder = BatchBuilder(
            codec=self._codec,
            producer_id=producer.producer_id,
            producer_epoch=-1 if producer.is_nobody else 0,
            base_sequence=-1 if producer.is_nobody else producer.sequence,
        )
        for record in records:
            builder.add(record.key, record.value, record.headers, timestamp_ms=record.timestamp)
        return builder.build()

    async def _producer_in_time(self, basket: Basket) -> Producer:
        try:
            async with asyncio.timeout(self.delivery_ms / 1000):
                while True:
                    try:
                        return await self._producer_of(basket.view, basket.index)
                    except BrokerRefusedError as error:
                        if self._is_closing or not ErrorCode(error.code).retriable:
                            raise
                        basket.cause = error.with_traceback(None)
                    await asyncio.sleep(PAUSE_SECONDS)
        except TimeoutError:
            raise self.late(basket) from None

    async def _producer_of(self, view: TopicView, index: int) -> Producer:
        """A topic of branches goes on where no new id can be had: on the side of a split that has no quorum."""
        key = view.topic_id, index
        if view.settings.anabranch_mode != BRANCH:
            return await self._producer(key)
        now_ms = self._clock.monotonic_ms()
        if key not in self._producers and now_ms < self._ids_again_ms:
            return Producer(NOBODY)
        try:
            async with asyncio.timeout(ID_SECONDS_MAX):
                return await self._producer(key)
        except (AnabranchError, TimeoutError) as error:
            logger.info("%s-%d is written without a producer id: %s", view.name, index, error)
            self._ids_again_ms = now_ms + IDS_PAUSE_MS
            return Producer(NOBODY)

    async def _producer(self, key: Key) -> Producer:
        if key in self._spoiled:
            return await self._renewed(key)
        producer = self._producers.get(key)
        if producer is None:
            own_id = await self._own_id()
            if len(self._producers) >= self._producers_limit:
                self._forget_producers()
            producer = self._producers[key] = Producer(own_id)
        return producer

    def _forget_producers(self) -> None:
        """Those of topics that are gone."""
        known = {view.topic_id for view in self._calls.topics()}
        for key in [key for key in self._producers if key[0] not in known]:
            del self._producers[key]
            self._spoiled.discard(key)
        self._producers_limit = max(PRODUCERS_KEPT, 2 * len(self._producers))

    async def _renewed(self, key: Key) -> Producer:
        """A partition that has lost track of this node meets it under another id."""
        producer = self._producers[key] = Producer(await self._new_id())
        self._spoiled.discard(key)
        return producer

    async def _own_id(self) -> int:
        async with self._id_lock:
            if self._node_id is None:
                self._node_id = await self._new_id()
            return self._node_id

    async def _new_id(self) -> int:
        request = {
            "transactional_id": None,
            "transaction_timeout_ms": 0,
            "producer_id": -1,
            "producer_epoch": -1,
        }
        answer = await self._calls.ask(ApiKey.INIT_PRODUCER_ID, INIT_PRODUCER_VERSION, request)
        if answer["error_code"]:
            raise refusal(answer["error_code"], NO_ID)
        return int(answer["producer_id"])

    async def close(self) -> None:
        """Take nothing more; what waits is written, or failed, before this returns."""
        self._is_closing = True
        for basket in list(self._baskets.values()):
            basket.hurry()
        if self._sweeper is not None:
            self._sweeper.cancel()
        tasks = [basket.task for basket in self._baskets.values() if basket.task is not None]
        await asyncio.gather(*tasks, return_exceptions=True)

    def abort(self) -> None:
        """Nobody waits for what is still under way."""
        for basket in self._baskets.values():
            if basket.task is not None:
                basket.task.cancel()


def size_of(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    size = len(key or b"") + len(value or b"")
    for name, held in headers:
        size += len(name) + len(held or b"") + 8
    return size


def _is_told(record: Waiting) -> bool:
    """Whether its writer knows the outcome; one that is gone does not."""
    return record.placed.done() and not record.placed.cancelled()


def _unknown(view: TopicView, index: int, error: object) -> RequestTimedOutError:
    return RequestTimedOutError(
        f"Whether the record was written to {view.name}-{index} is not known: look, and send it again if it is not "
        f"there. {error}"
    )
