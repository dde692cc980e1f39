"""Calls: the gateway's way to the brokers. Every request is one of Kafka's, carried out in this process where this
broker leads or coordinates, else by the broker that does, over the peer link.

    calls = Calls(broker)
    await calls.fetch("orders", 0, offset, bytes_max=2**20, wait_ms=500)
    await calls.ask_group("workers", ApiKey.HEARTBEAT, 4, {...})

While nobody leads, or the one that did says so no longer, a request is tried again until its patience ends. Raises
BrokerRefusedError with Kafka's code, or RequestTimedOutError: whether it was done is then not known.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from uuid import UUID

from anabranch.broker.requests.error_table import code_of
from anabranch.broker.requests.turns import ROWS_PER_TURN
from anabranch.broker.requests.unpacking import unpacked
from anabranch.broker.topics.topics import Topics
from anabranch.broker.workers import in_heavy_worker
from anabranch.cluster.metadata.rows import INTERNAL_NAMES
from anabranch.config import TopicSettings
from anabranch.errors import (
    AnabranchError,
    BrokerRefusedError,
    InvalidTopicError,
    NotOwnerError,
    RequestTimedOutError,
)
from anabranch.gateway.asking import CLIENT_ID, PATIENCE_MS, READ, WAIT, Asking, Body
from anabranch.gateway.http.deadline import note_cause
from anabranch.gateway.read.reading import is_little
from anabranch.record.batch import batch_spans, read_header
from anabranch.record.buffers import ByteBuffer
from anabranch.values import BrokerId
from anabranch.wire.api_keys import ApiKey
from anabranch.wire.error_codes import ErrorCode

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker
    from anabranch.broker.topics.partition import Partition

Result = TypeVar("Result")

PAUSE_SECONDS = 0.05
BEYOND_SECONDS = 0.25
"""How often it is looked whether a partition has grown to an offset beyond its end."""
ANSWER_MS = 2000
"""What an answer may take on top of the time that its request may wait."""
PRODUCE_VERSION, FETCH_VERSION, LIST_OFFSETS_VERSION, METADATA_VERSION, FIND_VERSION = 13, 16, 8, 12, 4
NAME_SHOWN_MAX = 80
LATEST, EARLIEST = -1, -2
"""Timestamps of `list_offsets` that are none."""
TOPIC_TIMEOUT_MS = 5000

ELSEWHERE = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)
"""Nothing was done, and another broker, or the same one in a moment, may do it."""
NOT_COORDINATED = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    }
)
WAITING_BYTES_MAX = 64 * 1024
"""What one gets at first who waited for records of another broker: of those there may be many at once."""
CROWDED_WAIT_MS = 250
"""How long a fetch of another broker may wait for records while others stand in line for it."""
LISTED_AT_ONCE = 128
"""Partitions that one request asks the offsets of."""
NEWS_MS = 3000
"""How long a topic that is known here may be unknown to its leader: it hears of new ones a little later."""


class TopicView(NamedTuple):
    """A topic as this broker knows it."""

    name: str
    topic_id: UUID
    partition_count: int
    settings: TopicSettings
    is_internal: bool


class Written(NamedTuple):
    base_offset: int
    append_time_ms: int
    """-1: records carry their own time."""


class Fetched(NamedTuple):
    batches: bytes | memoryview
    """Whole record batches, the first of which may begin before what was asked for."""
    high_watermark: int
    start_offset: int


class Calls(Asking):
    def __init__(self, broker: "Broker") -> None:
        super().__init__(broker)
        self._shared: dict[tuple[str, int, int, int, int], asyncio.Task[Fetched]] = {}
        self.turns = broker.turns

    def in_worker(self, task: Callable[[], Result]) -> "asyncio.Future[Result]":
        """What would hold up the loop, done beside it."""
        return in_heavy_worker(self._broker.workers, task)

    async def decoded(self, batches: ByteBuffer, task: Callable[[], Result]) -> Result:
        """What a task makes of batches: here if that takes no time, else by a worker, once there is memory for it."""
        if is_little(batches):
            return task()
        headers = (read_header(batches, start) for start, _ in batch_spans(batches))
        return await unpacked(self._broker, headers, task)

    # --- topics --------------------------------------------------------------------------------------------------

    def known_topic(self, name: str) -> TopicView | None:
        """Without asking anybody; a branch is one for readers (`orders@5`). None: this broker knows of none."""
        state = self._broker.topics.find_readable(name)
        if state is None:
            return None
        topic = state.topic
        return TopicView(name, topic.topic_id, topic.partition_count, state.settings, topic.is_internal)

    def topics(self) -> list[TopicView]:
        names = sorted(state.topic.name for state in self._broker.topics)
        return [view for name in names if (view := self.known_topic(name)) is not None]

    async def topic(self, name: str, *, may_create: bool = False) -> TopicView:
        """Raises BrokerRefusedError if there is none, or none may be made."""
        view = self.known_topic(name)
        if view is not None:
            return view
        missing = no_topic(name)
        if missing.code == ErrorCode.INVALID_TOPIC_EXCEPTION:
            raise missing
        request = {
            "topics": [{"topic_id": UUID(int=0), "name": name}],
            "allow_auto_topic_creation": may_create,
            "include_topic_authorized_operations": False,
        }
        answer = await self.ask(ApiKey.METADATA, METADATA_VERSION, request)
        code = answer["topics"][0]["error_code"]
        view = self.known_topic(name)
        if view is not None:
            return view
        if code in (0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_TOPIC_EXCEPTION):
            raise missing
        raise refusal(code, f"Topic {name} cannot be used: {ErrorCode(code).name}.")

    def leader(self, topic: str, partition: int) -> BrokerId | None:
        """Who leads a partition now, as far as this broker knows. Raises BrokerRefusedError if there is none such."""
        state = self._broker.topics.find_readable(topic)
        if state is None:
            raise no_topic(topic)
        count = state.topic.partition_count
        if not 0 <= partition < count:
            raise refusal(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"Topic {topic} has no partition {partition}: it has {count}, numbered from 0.",
            )
        if self._broker.peers is None:  # A node alone leads whatever it has opened, in every mode.
            return self.broker_id if state.partitions[partition] is not None else None
        if self._broker.topics.find(topic) is None:
            return self._server_of_branch(state.partitions[partition])
        return self._broker.leader_of(state, partition)

    def _server_of_branch(self, partition: "Partition | None") -> BrokerId | None:
        """Any broker that holds it serves a branch as a topic of its own; None: none is known here."""
        from anabranch.broker.branch.views import BranchView  # There is none where nobody has branches.

        branches = self._broker.branches
        if branches is None or not isinstance(partition, BranchView):
            return None
        return branches.views.server_of(partition)

    # --- records -------------------------------------------------------------------------------------------------

    async def produce(
        self,
        topic: str,
        topic_id: UUID,
        partition: int,
        batch: bytes | bytearray,
        *,
        timeout_ms: int = PATIENCE_MS,
    ) -> Written:
        """One try, at whoever leads now: whoever has made the batch knows whether it may be sent twice."""
        at = self._writer(topic, partition)
        data = [{"topic_id": topic_id, "partition_data": [{"index": partition, "records": batch}]}]
        request = {"transactional_id": None, "acks": -1, "timeout_ms": timeout_ms, "topic_data": data}
        answer = await self.ask(
            ApiKey.PRODUCE, PRODUCE_VERSION, request, at=at, timeout_ms=timeout_ms + ANSWER_MS
        )
        row = answer["responses"][0]["partition_responses"][0]
        if row["error_code"]:
            raise refusal(row["error_code"], row["error_message"] or "")
        return Written(row["base_offset"], row["log_append_time_ms"])

    def _writer(self, topic: str, partition: int) -> BrokerId:
        """Whoever leads; where any broker may write, this one."""
        here = self._broker.topics.find_partition(topic, partition)
        if here is not None and here.ends_by_quorum and here.is_leader:
            return self.broker_id
        at = self.leader(topic, partition)
        if at is None:
            raise refusal(ErrorCode.LEADER_NOT_AVAILABLE, f"Nobody leads {topic}-{partition} just now.")
        return at

    async def fetch(
        self,
        topic: str,
        partition: int,
        offset: int,
        *,
        bytes_max: int = 2**20,
        wait_ms: int = 0,
        patience_ms: int = PATIENCE_MS,
    ) -> Fetched:
        """Batches from that offset on; none if there are none after `wait_ms`, or none so far on. Readers who wait for
        the same at another broker share one question."""
        at = self.leader(topic, partition)
        if at == self._broker.id or wait_ms <= 0:
            return await self._fetch(topic, partition, offset, bytes_max, wait_ms, patience_ms)
        key = topic, partition, offset, bytes_max, wait_ms
        task = self._shared.get(key)
        if task is None:
            task = asyncio.ensure_future(
                self._fetch(topic, partition, offset, bytes_max, wait_ms, patience_ms)
            )
            self._shared[key] = task
            task.add_done_callback(lambda ended: self._forget(key, ended))
        return await asyncio.shield(task)

    def _forget(self, key: tuple[str, int, int, int, int], ended: "asyncio.Task[Fetched]") -> None:
        self._shared.pop(key, None)
        if not ended.cancelled():
            ended.exception()  # Whoever waited for it may have left: then it is nobody's.

    async def _fetch(
        self, topic: str, partition: int, offset: int, bytes_max: int, wait_ms: int, patience_ms: int
    ) -> Fetched:
        clock = self._broker.clock
        wait_end_ms = clock.monotonic_ms() + wait_ms
        while True:
            row = await self._at_leader(
                topic,
                partition,
                patience_ms,
                lambda at: self._fetch_at(
                    at, topic, partition, offset, bytes_max, wait_end_ms - clock.monotonic_ms()
                ),
            )
            fetched = Fetched(row["records"] or b"", row["high_watermark"], row["log_start_offset"])
            left_ms = wait_end_ms - clock.monotonic_ms()
            if fetched.batches or left_ms <= 0:
                return fetched
            # It waited less than it was asked to, because others wanted to, or because there is no such offset yet.
            await asyncio.sleep(min(left_ms / 1000, BEYOND_SECONDS if row["error_code"] else PAUSE_SECONDS))

    async def _fetch_at(
        self, at: BrokerId, topic: str, partition: int, offset: int, bytes_max: int, wait_ms: int
    ) -> Body:
        wait_ms = max(0, wait_ms)
        kind = WAIT if wait_ms else READ
        if kind == WAIT and at != self._broker.id:
            bytes_max = min(bytes_max, WAITING_BYTES_MAX)
            if self.is_crowded(at, WAIT):
                wait_ms = min(wait_ms, CROWDED_WAIT_MS)
        view = await self.topic(topic)
        part = {"partition": partition, "fetch_offset": offset, "partition_max_bytes": bytes_max}
        request = {
            "max_wait_ms": wait_ms,
            "min_bytes": 1,
            "max_bytes": bytes_max,
            "isolation_level": 0,
            "session_id": 0,
            "session_epoch": -1,
            "topics": [{"topic_id": view.topic_id, "partitions": [part]}],
            "forgotten_topics_data": [],
            "rack_id": "",
        }
        answer = await self.ask_as(
            ApiKey.FETCH, FETCH_VERSION, request, at, CLIENT_ID, "", wait_ms + PATIENCE_MS, kind
        )
        if answer["error_code"]:
            raise refusal(answer["error_code"], "")
        row: Body = answer["responses"][0]["partitions"][0]
        is_beyond = row["error_code"] == ErrorCode.OFFSET_OUT_OF_RANGE and offset > row["high_watermark"] >= 0
        if row["error_code"] and not is_beyond:
            raise refusal(row["error_code"], "", start_offset=row["log_start_offset"])
        return row

    async def list_offsets(
        self, topic: str, partition: int, timestamp: int, *, patience_ms: int = PATIENCE_MS
    ) -> tuple[int, int]:
        """(offset, time) of the first record at or after that time; (-1, -1): there is none. LATEST is where the next
        record will be, EARLIEST where the first one is."""
        request = {
            "replica_id": -1,
            "isolation_level": 0,
            "topics": [
                {
                    "name": topic,
                    "partitions": [
                        {"partition_index": partition, "current_leader_epoch": -1, "timestamp": timestamp}
                    ],
                }
            ],
        }

        async def once(at: BrokerId) -> Body:
            answer = await self.ask(ApiKey.LIST_OFFSETS, LIST_OFFSETS_VERSION, request, at=at)
            row: Body = answer["topics"][0]["partitions"][0]
            if row["error_code"]:
                raise refusal(row["error_code"], "")
            return row

        row = await self._at_leader(topic, partition, patience_ms, once)
        return row["offset"], row["timestamp"]

    async def list_offsets_of(
        self, topic: str, partitions: Iterable[int], timestamp: int, *, patience_ms: int = PATIENCE_MS
    ) -> dict[int, tuple[int, int] | AnabranchError]:
        """The same of many partitions: one request to each leader, not one for each partition."""
        found: dict[int, tuple[int, int] | AnabranchError] = {}
        missing = list(partitions)
        begun_ms = self._broker.clock.monotonic_ms()
        while True:
            asked = await asyncio.gather(
                *(self._list_at(at, topic, some, timestamp) for at, some in self._by_leader(topic, missing))
            )
            for each in asked:
                found.update(each)
            passed_ms = self._broker.clock.monotonic_ms() - begun_ms
            failed = ((index, found[index]) for index in missing)
            missing = [
                index
                for index, error in failed
                if isinstance(error, AnabranchError) and self._may_pass(error, topic, index, passed_ms)
            ]
            if not missing or passed_ms >= patience_ms:
                return found
            await asyncio.sleep(PAUSE_SECONDS)

    def _by_leader(self, topic: str, partitions: Iterable[int]) -> list[tuple[BrokerId | None, list[int]]]:
        """Raises BrokerRefusedError if there is no such partition."""
        groups: dict[BrokerId | None, list[int]] = {}
        for index in partitions:
            groups.setdefault(self.leader(topic, index), []).append(index)
        return [
            (at, some[start : start + LISTED_AT_ONCE])
            for at, some in groups.items()
            for start in range(0, len(some), LISTED_AT_ONCE)
        ]

    async def _list_at(
        self, at: BrokerId | None, topic: str, partitions: list[int], timestamp: int
    ) -> dict[int, tuple[int, int] | AnabranchError]:
        if at is None:
            error = refusal(ErrorCode.LEADER_NOT_AVAILABLE, f"Nobody leads {topic}-{partitions[0]} now.")
            return dict.fromkeys(partitions, error)
        rows = [
            {"partition_index": index, "current_leader_epoch": -1, "timestamp": timestamp}
            for index in partitions
        ]
        request = {
            "replica_id": -1,
            "isolation_level": 0,
            "topics": [{"name": topic, "partitions": rows}],
        }
        await self.turns.wait(ROWS_PER_TURN)
        try:
            answer = await self.ask(ApiKey.LIST_OFFSETS, LIST_OFFSETS_VERSION, request, at=at)
        except (NotOwnerError, RequestTimedOutError) as error:
            return dict.fromkeys(partitions, error)
        return {
            row["partition_index"]: refusal(row["error_code"], "")
            if row["error_code"]
            else (row["offset"], row["timestamp"])
            for row in answer["topics"][0]["partitions"]
        }

    def _may_pass(self, error: AnabranchError, topic: str, partition: int, passed_ms: int) -> bool:
        """Whether another try may help; why this one failed is noted."""
        is_passing = not isinstance(error, BrokerRefusedError) or code_of_error(error) in ELSEWHERE
        if is_passing or self.is_news(error, topic, partition, passed_ms):
            note_cause(error)
            return True
        return False

    async def _at_leader(self, topic: str, partition: int, patience_ms: int, once: Any) -> Body:
        """Whatever reads may be asked again, of whoever leads by then."""
        clock = self._broker.clock
        begun_ms = clock.monotonic_ms()
        while True:
            try:
                at = self.leader(topic, partition)
                if at is None:
                    raise refusal(ErrorCode.LEADER_NOT_AVAILABLE, f"Nobody leads {topic}-{partition} now.")
                row: Body = await once(at)
                return row
            except (BrokerRefusedError, NotOwnerError, RequestTimedOutError) as error:
                passed_ms = clock.monotonic_ms() - begun_ms
                if passed_ms >= patience_ms or not self._may_pass(error, topic, partition, passed_ms):
                    raise
            await asyncio.sleep(PAUSE_SECONDS)

    def is_news(self, error: AnabranchError, topic: str, partition: int, passed_ms: int) -> bool:
        """Whether the broker that was asked may only not have heard of a partition yet."""
        is_unknown = code_of_error(error) in (
            ErrorCode.UNKNOWN_TOPIC_ID,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        )
        view = self.known_topic(topic) if is_unknown and passed_ms < NEWS_MS else None
        return view is not None and partition < view.partition_count

    # --- groups --------------------------------------------------------------------------------------------------

    async def coordinator(self, group_id: str) -> BrokerId:
        """Raises BrokerRefusedError: nobody coordinates it just now."""
        request = {"key_type": 0, "coordinator_keys": [group_id]}
        answer = await self.ask(ApiKey.FIND_COORDINATOR, FIND_VERSION, request)
        row = answer["coordinators"][0]
        if row["error_code"]:
            raise refusal(row["error_code"], row["error_message"] or "")
        return BrokerId(row["node_id"])

    async def ask_group(
        self,
        group_id: str,
        api_key: ApiKey,
        version: int,
        body: Body,
        *,
        client_id: str = CLIENT_ID,
        host: str = "",
        timeout_ms: int = PATIENCE_MS,
        patience_ms: int = PATIENCE_MS,
    ) -> Body:
        """The answer of whoever coordinates that group, whose other error codes are the caller's to read. An answer may
        take `timeout_ms`; for `patience_ms` the coordinator is looked for."""
        clock = self._broker.clock
        end_ms = clock.monotonic_ms() + patience_ms
        while True:
            try:
                at = await self.coordinator(group_id)
                answer = await self.ask(
                    api_key, version, body, at=at, client_id=client_id, host=host, timeout_ms=timeout_ms
                )
                missing = next((code for code in codes_in(answer) if code in NOT_COORDINATED), None)
                if missing is None:
                    return answer
                raise refusal(missing, "")
            except (BrokerRefusedError, NotOwnerError) as error:
                is_over = clock.monotonic_ms() + PAUSE_SECONDS * 1000 >= end_ms
                if is_over or (isinstance(error, BrokerRefusedError) and error.code not in NOT_COORDINATED):
                    raise
                note_cause(error)
            await asyncio.sleep(PAUSE_SECONDS)


def codes_in(value: Any) -> Iterator[int]:
    """Every error code of an answer."""
    if isinstance(value, dict):
        for name, each in value.items():
            if name == "error_code":
                yield each
            elif isinstance(each, dict | list):
                yield from codes_in(each)
    elif isinstance(value, list):
        for each in value:
            yield from codes_in(each)


def refusal(code: int, message: str, *, start_offset: int | None = None) -> BrokerRefusedError:
    """The error of a code, with a sentence where the broker has none."""
    if code == ErrorCode.OFFSET_OUT_OF_RANGE and start_offset is not None and start_offset >= 0:
        message = f"There are no such records: the first offset is {start_offset}."
    known = ErrorCode(code) if code in ErrorCode._value2member_map_ else ErrorCode.UNKNOWN_SERVER_ERROR
    return BrokerRefusedError(message or _words(known), known)


def code_of_error(error: AnabranchError) -> ErrorCode:
    """Kafka's code of whatever a call has raised."""
    return ErrorCode(error.code) if isinstance(error, BrokerRefusedError) else code_of(error)


def _words(code: ErrorCode) -> str:
    if code == ErrorCode.UNKNOWN_TOPIC_ID:
        return "The topic was deleted; there may be another of its name."
    if code == ErrorCode.CORRUPT_MESSAGE:
        return (
            "The record at this offset is damaged on the broker's disk and stays so until it is restored: go on behind "
            "it, and see what is wrong with `anabranch log verify`."
        )
    again = ": try again in a moment" if code.retriable else ""
    return f"The broker answered {code.name}{again}."


def no_topic(name: str) -> BrokerRefusedError:
    """Why there is no topic of this name, which this broker does not know, with advice that can work."""
    if "@" in name:
        return refusal(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            f"There is no branch {name[:NAME_SHOWN_MAX]!a}: `anabranch branch list` lists the branches.",
        )
    try:
        Topics.check_name(name)
    except InvalidTopicError as error:
        return refusal(ErrorCode.INVALID_TOPIC_EXCEPTION, str(error))
    advice = f"make it with `anabranch topic create {name}`"
    if name in INTERNAL_NAMES:
        advice = "brokers create it when they first need it"
    return refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no topic {name}: {advice}.")
