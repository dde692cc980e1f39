"""Produce, versions 3 to 13 (0 to 2 are advertised, as Kafka does, and refused).

acks=0 is never answered (an error closes the connection), acks=1 is answered when written (where several brokers keep
the partition, as acks=all is, unless `ring.acks1` says otherwise), acks=all when the topic's mode calls the records
safe. Idempotent producers are served; transactional ones are refused. What another broker leads is refused with its
name, or handed to it (`broker/requests/routing.py`).
"""

from collections.abc import Callable
from typing import TYPE_CHECKING
from uuid import UUID

from anabranch.broker.handlers.answers import message_of
from anabranch.broker.handlers.leader_hints import LeaderHints
from anabranch.broker.requests.call import Call
from anabranch.broker.requests.error_table import code_of
from anabranch.broker.requests.turns import FREE_ROWS, Rows
from anabranch.broker.requests.unpacking import unpack
from anabranch.broker.topics.internal_topics import check_not_internal
from anabranch.broker.topics.partition import Partition
from anabranch.broker.write.append_queue import NEVER_MS, AppendJob, Batch
from anabranch.broker.write.intake import (
    RECORD_ERRORS_MAX,
    UNPACKED_BYTES_AT_ONCE_MAX,
    WALKED_BYTES_AT_ONCE_MAX,
    check_contents,
    check_envelope,
)
from anabranch.errors import (
    AnabranchError,
    BatchTooLargeError,
    InvalidAcksError,
    InvalidRequestError,
    NotEnoughCopiesError,
    NotOwnerError,
    RefusedRecordsError,
    TransactionsUnsupportedError,
    UnsupportedCompressionError,
    detached,
)
from anabranch.record.batch import HEADER_BYTES, LOG_APPEND_TIME, MAGIC, BatchHeader, read_header
from anabranch.record.compression import Codec
from anabranch.values import BrokerId
from anabranch.wire.error_codes import ErrorCode
from anabranch.wire.produce_fast import (
    NULL_RECORDS,
    PartitionAnswer,
    TopicSpans,
    encode_produce_response,
    parse_produce_request,
)

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker

TopicKey = str | UUID
ACKS_NONE, ACKS_LEADER, ACKS_ALL = 0, 1, -1
ZSTD_SINCE = 7
UNPACKED_AT_ONCE_MAX = 8
"""So many compressed batches of a request; the others are a worker's."""


class Routed:
    """Records that another broker is to take, and what it said of them: an answer, or why there is none."""

    __slots__ = ("answer", "data", "error", "index", "topic")

    def __init__(self, topic: TopicKey, index: int, data: bytes | None) -> None:
        self.topic = topic
        self.index = index
        self.data = data
        self.answer: PartitionAnswer | None = None
        self.error: AnabranchError | None = None


Outcome = AppendJob | Routed | AnabranchError
"""What became of one partition: its job, which may fail still, who else was asked, or why nobody was."""


class Produce:
    """One produce request: counts its open partitions and answers when none is left."""

    __slots__ = (
        "_acks",
        "_broker",
        "_call",
        "_in_line",
        "_now_ms",
        "_open",
        "_readers",
        "_record_errors_left",
        "_routed",
        "_seen_elsewhere",
        "_timeout_ms",
        "_topics",
        "_unpacked_count",
        "_walk_left",
    )

    def __init__(self, broker: "Broker", call: Call, acks: int, timeout_ms: int) -> None:
        self._broker = broker
        self._call = call
        self._acks = acks
        self._timeout_ms = timeout_ms
        self._now_ms = broker.clock.wall_ms()
        self._open = 1  # Held by `run` itself, so that early answers do not settle the request.
        self._topics: list[tuple[TopicKey, list[tuple[int, Outcome]]]] = []
        self._unpacked_count = 0
        self._record_errors_left = RECORD_ERRORS_MAX
        self._walk_left = WALKED_BYTES_AT_ONCE_MAX
        self._routed: dict[BrokerId, list[Routed]] | None = None
        self._seen_elsewhere: set[tuple[TopicKey, int]] = set()
        self._readers = 0
        """Tasks that look at the bytes of the request yet."""
        self._in_line: list[Callable[[], bool]] = []
        """How batches leave the line that wait to be unpacked."""

    def run(self, topics: list[TopicSpans]) -> None:
        """Take each partition's batch: at once, or in turns where there are so many that others would have to wait."""
        rows = self._rows(topics)
        if sum(len(spans) for _, spans in topics) <= FREE_ROWS:
            for _ in rows:
                pass
            return
        driven = self._broker.turns.drive(rows)
        if not isinstance(driven, dict):
            # The batches are still where the connection has read them to, and those behind must not overtake these.
            self._keep_bytes()
            self._broker.core.carry_on(driven, self._call, lambda _: self._let_bytes_go())

    def _keep_bytes(self) -> None:
        """A task has yet to look at the request's bytes."""
        self._readers += 1
        self._call.holds = self._call.keeps_bytes = True

    def _let_bytes_go(self) -> None:
        self._readers -= 1
        self._call.keeps_bytes = self._readers > 0

    def _rows(self, topics: list[TopicSpans]) -> Rows:
        seen: set[Partition] = set()
        for key, spans in topics:
            outcomes: list[tuple[int, Outcome]] = []
            for index, start, end in spans:
                try:
                    outcome: Outcome = self._take(key, index, start, end, seen)
                except NotOwnerError as error:
                    outcome = self._route(key, index, start, end) or self._refused(
                        key, index, start, end, error
                    )
                except AnabranchError as error:
                    outcome = self._shortened(self._refused(key, index, start, end, error))
                outcomes.append((index, outcome))
                yield
            self._topics.append((key, outcomes))
        if self._routed is not None:
            self._forward(self._routed)
        self._settle_one()
        return {}

    def refuse(self, topics: list[TopicSpans], error: AnabranchError) -> None:
        self._topics = [(key, [(span[0], error) for span in spans]) for key, spans in topics]
        self._settle_one()

    def _take(self, key: TopicKey, index: int, start: int, end: int, seen: set[Partition]) -> AppendJob:
        partition = self._broker.topics.partition(key, index)
        if partition in seen:
            raise InvalidRequestError(f"Partition {partition.id} appears twice in one request.")
        seen.add(partition)
        call, settings = self._call, partition.settings
        self._check_may_write(partition)
        header = check_envelope(call.view, start, end, settings)
        if header.codec == Codec.ZSTD and call.header.api_version < ZSTD_SINCE:
            # Who speaks so old a version may have readers to whom zstd means nothing.
            raise UnsupportedCompressionError(f"zstd may be produced since version {ZSTD_SINCE}.")
        if getattr(call.client, "is_far", False):
            partition.producers.check_start(header)
        partition.check_producer(header, self._now_ms)
        batch: Batch = call.view[start:end]
        try:
            kept, header = check_contents(
                batch,
                header,
                settings,
                self._now_ms,
                self._unpack_at_once(header),
                self._walk_at_once(end - start),
                self._broker.turns.spend,
            )
        except BatchTooLargeError:
            job = self._job(partition, batch, header)
            self._take_in_worker(job)
        else:
            job = self._job(partition, kept, header)
            self._broker.core.submit(job)
        if partition.is_crowded:
            call.holds = True
        return job

    def _refused(
        self, key: TopicKey, index: int, start: int, end: int, error: AnabranchError
    ) -> AnabranchError:
        """What to tell the producer of a batch that was never queued."""
        partition, view = self._broker.topics.find_partition(key, index), self._call.view
        if partition is not None and start >= 0 and end - start >= HEADER_BYTES:
            header = read_header(view, start)
            if header.magic == MAGIC:
                refused = self._broker.opener.producer_limits.refused
                error = refused.told(partition, header, error, self._now_ms)
        return detached(error)

    def _route(self, key: TopicKey, index: int, start: int, end: int) -> Outcome | None:
        """Records for another broker; None: there is nobody to hand them to."""
        routing = self._broker.routing
        if routing is None or not self._broker.settings.produce_forward:
            return None
        leader = routing.leader_for(self._call, key, index)
        if leader is None:
            return None
        if self._routed is None:
            self._routed = {}
        parts = self._routed.setdefault(leader, [])
        if (key, index) in self._seen_elsewhere:
            return InvalidRequestError(f"Partition {index} of {key} appears twice in one request.")
        self._seen_elsewhere.add((key, index))
        # Copied now: the connection reads on while these are under way.
        data = None if start == NULL_RECORDS else bytes(self._call.view[start:end])
        parts.append(Routed(key, index, data))
        return parts[-1]

    def _forward(self, routed: dict[BrokerId, list[Routed]]) -> None:
        routing = self._broker.routing
        assert routing is not None
        self._call.holds = True  # What this producer sends next must not overtake these records.
        for leader, parts in routed.items():
            self._open += 1
            routing.forward(leader, self._call, self._acks, self._timeout_ms, parts, self._settle_one)

    def _unpack_at_once(self, header: BatchHeader) -> int:
        """How much of this batch may be unpacked right here, where everybody waits for it."""
        if header.codec != Codec.NONE:
            self._unpacked_count += 1
        may_unpack = self._unpacked_count <= UNPACKED_AT_ONCE_MAX and self._broker.turns.has_room
        return UNPACKED_BYTES_AT_ONCE_MAX if may_unpack else 0

    def _walk_at_once(self, size: int) -> int:
        """How many bytes of this batch may be looked at record by record right here."""
        left = self._walk_left
        self._walk_left = max(0, left - size)
        return left if self._broker.turns.has_room else 0

    def _shortened(self, error: AnabranchError) -> AnabranchError:
        """With no more single records than one answer may name: small batches can be full of wrong ones."""
        if isinstance(error, RefusedRecordsError) and error.record_errors:
            error.record_errors = error.record_errors[: self._record_errors_left]
            self._record_errors_left -= len(error.record_errors)
        return error

    def _check_may_write(self, partition: Partition) -> None:
        copies_min = partition.settings.min_insync_replicas
        if self._acks == ACKS_ALL and copies_min > partition.copies:
            kept = "one node keeps one copy" if partition.copies == 1 else "records are safe with two copies"
            raise NotEnoughCopiesError(
                f"min.insync.replicas of {partition.id.topic} is {copies_min}, and {kept}: lower it, or produce "
                "with acks=1."
            )
        partition.check_writable()
        check_not_internal(partition.id.topic)

    def _job(self, partition: Partition, batch: Batch, header: BatchHeader) -> AppendJob:
        self._open += 1
        wait_safe = self._acks == ACKS_ALL or (self._acks == ACKS_LEADER and partition.acks1_waits)
        deadline_ms = self._broker.clock.monotonic_ms() + max(0, self._timeout_ms) if wait_safe else NEVER_MS
        return AppendJob(
            partition, batch, header, self._settled, wait_safe=wait_safe, deadline_ms=deadline_ms
        )

    def _take_in_worker(self, job: AppendJob) -> None:
        settings, unpacked_max = job.partition.settings, self._broker.settings.batch_decompressed_bytes_max
        batch, header = job.batch, job.header
        assert batch is not None

        def task() -> tuple[Batch, BatchHeader]:
            return check_contents(batch, header, settings, self._now_ms, unpacked_max)

        def done(result: tuple[Batch, BatchHeader] | None, error: BaseException | None) -> None:
            self._let_bytes_go()
            if result is not None:
                job.replace(*result)
                self._broker.core.submit(job)
            elif isinstance(error, AnabranchError):
                job.error = self._shortened(detached(error))
                self._settle_one()
            elif error is not None:
                self._call.close("a batch could not be checked")
                raise error

        # What this producer sends next must not overtake this batch, nor lie where its bytes are.
        self._keep_bytes()
        self._in_line.append(unpack(self._broker, [header], task, done))
        self._call.on_close = self._leave_line

    def _leave_line(self) -> None:
        """The client is gone: batches that still wait for memory are not written."""
        in_line, self._in_line = self._in_line, []
        for leave in in_line:
            if leave():
                self._settle_one()

    def _settled(self, job: AppendJob) -> None:
        self._settle_one()

    def _settle_one(self) -> None:
        self._open -= 1
        if not self._open:
            self._answer()
            # Jobs and tasks know their request, and its call is known by that: without this, only a search for garbage
            # would free them, and with them the buffer of the connection.
            self._topics, self._in_line, self._call.on_close = [], [], None

    def _answer(self) -> None:
        call = self._call
        if self._acks == ACKS_NONE:
            failed = self._first_error()
            if failed is not None:
                call.close(f"produce with acks=0 failed: {failed}")
            else:
                call.answer(None)
            return
        header = call.header
        hints = LeaderHints(self._broker, call.client)
        topics = [
            (key, [_row(hints, key, index, outcome) for index, outcome in outcomes])
            for key, outcomes in self._topics
        ]
        call.answer(
            [
                encode_produce_response(
                    header.api_version, header.correlation_id, topics, endpoints=hints.endpoints
                )
            ]
        )

    def _first_error(self) -> AnabranchError | None:
        for _, outcomes in self._topics:
            for _, outcome in outcomes:
                error = outcome if isinstance(outcome, AnabranchError) else outcome.error
                if error is not None:
                    return error
        return None


def _row(hints: LeaderHints, topic: TopicKey, index: int, outcome: Outcome) -> PartitionAnswer:
    if isinstance(outcome, AppendJob):
        if outcome.error is None:
            header = outcome.header
            append_time_ms = header.max_timestamp if header.attributes & LOG_APPEND_TIME else -1
            return (index, 0, outcome.base_offset, append_time_ms, outcome.partition.log.start_offset, None)
        outcome = outcome.error
    elif isinstance(outcome, Routed):
        if outcome.answer is not None:
            return _routed_row(hints, topic, outcome.answer)
        assert outcome.error is not None
        outcome = outcome.error
    code, message = code_of(outcome), message_of(outcome)
    if isinstance(outcome, RefusedRecordsError) and outcome.record_errors:
        return (index, code, -1, -1, -1, message, None, outcome.record_errors)
    hint = hints.of(topic, index, outcome)
    return (index, code, -1, -1, -1, message) if hint is None else (index, code, -1, -1, -1, message, hint)


def _routed_row(hints: LeaderHints, topic: TopicKey, answer: PartitionAnswer) -> PartitionAnswer:
    """As the leader gave it; if it leads no more, with what is known here of who does."""
    if answer[1] != ErrorCode.NOT_LEADER_OR_FOLLOWER:
        return answer
    hint = hints.of(topic, answer[0], NotOwnerError(""))
    return answer if hint is None else (*answer[:6], hint)


def handle(broker: "Broker", call: Call) -> None:
    transactional_id, acks, timeout_ms, topics = parse_produce_request(
        call.view, call.body, call.end, call.header.api_version, broker.settings.request_elements_max
    )
    produce = Produce(broker, call, acks, timeout_ms)
    if acks not in (-1, 0, 1):
        produce.refuse(topics, InvalidAcksError(f"acks={acks} is not 0, 1 or all (-1)."))
    elif transactional_id is not None:
        refusal = "This version has no transactions: produce without a transactional id."
        produce.refuse(topics, TransactionsUnsupportedError(refusal))
    else:
        produce.run(topics)
