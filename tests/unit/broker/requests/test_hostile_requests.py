"""The worst requests of every API, by counted work: how many calls of functions a broker makes between two turns of its
loop, and how long the answer is. `make hostile` measures the same requests on real nodes, by time and memory."""

import asyncio
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from anabranch.broker.handlers import HANDLERS, dispatch
from anabranch.broker.requests.call import Call, Piece
from anabranch.broker.requests.turns import Turns
from anabranch.errors import AnabranchError
from anabranch.record.builder import BatchBuilder
from anabranch.testing.in_process_client import InProcessClient, Pending
from anabranch.values import Offset
from anabranch.wire.api_keys import ApiKey
from anabranch.wire.codec import encode_request
from anabranch.wire.error_codes import ErrorCode
from anabranch.wire.header import parse_request_header, request_header
from hostile.kafka_requests import Hostile, Sizes, World, worst_requests
from support.broker_bench import Bench, in_loop, turn

ELEMENTS = 4000
SIZES = Sizes(read=ELEMENTS - 100, beyond=ELEMENTS + 1000, tags_beyond=ELEMENTS + 1000, frame_bytes=2**20)
CALLS_PER_TURN_MAX = 60_000
"""To decode 4,000 elements, to encode as many rows, or to handle the rows of one turn takes up to half of this; to
handle 4,000 rows in one go would take several times as much."""
ANSWER_BYTES_MAX = 40 * 2**20
"""`request.control.bytes.max`, since an answer repeats names, and `request.answer.bytes.max`."""
TURNS_MAX = 2000


class Asker:
    """A client that waits for one answer."""

    host = "stranger"
    local_address = ("here", 9092)

    def __init__(self) -> None:
        self.is_done = False
        self.bytes_received = 0

    def answered(self, call: Call, pieces: list[Piece] | None) -> None:
        call.is_settled = self.is_done = True
        self.bytes_received = sum(len(piece) for piece in pieces or () if not hasattr(piece, "fileno"))

    def settled(self) -> None:
        self.is_done = True

    def dropped(self, call: Call, reason: str) -> None:
        self.is_done = True


class Work:
    """Calls of functions; `with_builtins`: those of Python's own too."""

    def __init__(self, *, with_builtins: bool = False) -> None:
        self.calls = 0
        self._counted = ("call", "c_call") if with_builtins else ("call",)

    @contextmanager
    def counted(self) -> Iterator[None]:
        def count(frame: object, event: str, argument: object) -> None:
            if event in self._counted:
                self.calls += 1

        sys.setprofile(count)
        try:
            yield
        finally:
            sys.setprofile(None)


async def most_calls_in_a_turn(bench: Bench, request: Hostile, clients: int = 1) -> tuple[int, int]:
    """Of all turns until the request of each client is settled; and the bytes of the longest answer."""
    askers, work, most = [Asker() for _ in range(clients)], Work(), 0
    with work.counted():
        for asker in askers:
            view = memoryview(bytearray(request.frame))
            try:
                header, body = parse_request_header(view, 0, len(view))
                dispatch(bench.broker, Call(asker, header, view, body, len(view)))
            except AnabranchError:
                asker.is_done = True  # The connection is closed.
        most, work.calls = work.calls, 0
        for _ in range(TURNS_MAX):
            if all(asker.is_done for asker in askers):
                return most, max(asker.bytes_received for asker in askers)
            await asyncio.sleep(0)
            most, work.calls = max(most, work.calls), 0
    raise AssertionError(f"{request.name} was not answered in {TURNS_MAX} turns")


async def a_world(bench: Bench) -> World:
    partition = await bench.topic("hostile", partitions=4)
    return World("hostile", partition.topic_id, 4, "readers")


NEEDS_OTHERS = {ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP}
"""Answered when others have come, or time has passed."""


@pytest.mark.parametrize(
    "api_key", [key for key in HANDLERS if key not in NEEDS_OTHERS], ids=lambda key: key.name
)
def test_no_request_does_more_than_a_turn_has_room_for(api_key: ApiKey) -> None:
    @in_loop
    async def body() -> None:
        bench = Bench(request_elements_max=ELEMENTS)
        world = await a_world(bench)
        for request in worst_requests(world, [api_key], SIZES):
            calls, answer_bytes = await most_calls_in_a_turn(bench, request)
            assert calls <= CALLS_PER_TURN_MAX, request.name
            assert answer_bytes <= ANSWER_BYTES_MAX, request.name

    body()


WIDE_PARTITIONS, WIDE_CLIENTS = 2000, 60
WIDE = {
    ApiKey.METADATA: {"topics": None, "allow_auto_topic_creation": False},
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: {"topics": [{"name": "wide"}], "response_partition_limit": 2000},
    ApiKey.DESCRIBE_LOG_DIRS: {"topics": None},
}
"""One row of each names thousands of partitions."""


@pytest.mark.parametrize("api_key", WIDE, ids=lambda key: key.name)
def test_partitions_of_a_wide_topic_are_counted(api_key: ApiKey) -> None:
    @in_loop
    async def body() -> None:
        bench = Bench()
        await bench.topic("wide", partitions=WIDE_PARTITIONS)
        version = HANDLERS[api_key].versions[-1]
        frame = request_header(api_key, version, 7, "many") + encode_request(api_key, version, WIDE[api_key])
        request = Hostile(api_key, version, "a wide topic", frame)
        some, answer_bytes = await most_calls_in_a_turn(bench, request, WIDE_CLIENTS)
        many, _ = await most_calls_in_a_turn(bench, request, 2 * WIDE_CLIENTS)
        assert answer_bytes > 10 * WIDE_PARTITIONS
        assert many < max(CALLS_PER_TURN_MAX, 1.1 * some)

    body()


WAITING_PARTITIONS, WAITING_CLIENTS = 500, 200


async def fetches_that_wait(bench: Bench) -> tuple[list[InProcessClient], list[Pending]]:
    """Of all partitions of one topic, as many as are waited for at once."""
    await bench.topic("wide", partitions=WAITING_PARTITIONS)
    asked = [{"partition": number, "partition_max_bytes": 100} for number in range(WAITING_PARTITIONS)]
    body = {"max_wait_ms": 60_000, "min_bytes": 1, "max_bytes": 2**20, "session_epoch": -1}
    body |= {"topics": [{"topic": "wide", "partitions": asked}], "forgotten_topics_data": []}
    clients = [InProcessClient(bench.broker) for _ in range(WAITING_CLIENTS)]
    pendings = [client.send(ApiKey.FETCH, 12, body) for client in clients]
    while len(bench.core.fetch_waits.waiting) < WAITING_CLIENTS:
        await turn(1)
    return clients, pendings


def rows_of(pending: Pending) -> list[dict[str, Any]]:
    assert pending.body is not None
    return [row for topic in pending.body["responses"] for row in topic["partitions"]]


async def most_calls_until(is_done: Callable[[], bool], begin: Callable[[], None]) -> int:
    """Of all turns after this beginning."""
    work, most = Work(with_builtins=True), 0
    with work.counted():
        begin()
        for _ in range(TURNS_MAX):
            most, work.calls = max(most, work.calls), 0
            if is_done():
                return most
            await asyncio.sleep(0)
    raise AssertionError(f"this is not done in {TURNS_MAX} turns")


@in_loop
async def test_fetches_that_the_end_of_a_topic_wakes_are_answered_in_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def nothing(*args: Any) -> None:
        """The folders of a disk in memory are moved by work that a disk does not cost."""

    bench = Bench()
    monkeypatch.setattr(bench.topics.kept, "discard", nothing)
    _, pendings = await fetches_that_wait(bench)
    most = await most_calls_until(
        lambda: all(pending.is_settled for pending in pendings),
        lambda: bench.topics._remove(bench.topics.known("wide")),
    )
    assert most <= CALLS_PER_TURN_MAX
    for pending in pendings:
        assert ErrorCode.UNKNOWN_TOPIC_OR_PARTITION in {row["error_code"] for row in rows_of(pending)}


@in_loop
async def test_fetches_whose_clients_hang_up_together_leave_in_turns() -> None:
    bench = Bench()
    clients, _ = await fetches_that_wait(bench)

    def hang_up() -> None:
        for client in clients:
            client.hang_up()

    def gone() -> bool:
        return not any(partition.waiting_fetches for partition in bench.broker.partitions())

    assert await most_calls_until(gone, hang_up) <= CALLS_PER_TURN_MAX


SMALL_BATCHES, LOOKUPS = 12_000, 10


def test_lookups_by_time_pass_small_batches_in_turns() -> None:
    """No time index entry leads anywhere: the first batch and the last are newer than all between them."""

    @in_loop
    async def body() -> None:
        bench = Bench()
        partition = await bench.topic("slow")
        now_ms = 1_700_000_000_000
        times = [now_ms + 100, *[now_ms] * SMALL_BATCHES, now_ms + 200]
        for offset, time_ms in enumerate(times):
            builder = BatchBuilder(base_offset=offset)
            builder.add(None, None, timestamp_ms=time_ms)
            partition.log.append([(builder.build(), Offset(offset), Offset(offset), time_ms)], now_ms)
        partition.high_watermark = partition.log.end_offset
        asked = [{"partition_index": 0, "timestamp": now_ms + 150}]
        wanted = {"replica_id": -1, "topics": [{"name": "slow", "partitions": asked}]}
        frame = request_header(ApiKey.LIST_OFFSETS, 7, 7, "many") + encode_request(
            ApiKey.LIST_OFFSETS, 7, wanted
        )
        request = Hostile(ApiKey.LIST_OFFSETS, 7, "by time", frame)
        calls, answer_bytes = await most_calls_in_a_turn(bench, request, LOOKUPS)
        assert answer_bytes > 0
        assert calls <= CALLS_PER_TURN_MAX

    body()


@pytest.mark.parametrize(
    "api_key", [ApiKey.METADATA, ApiKey.FETCH, ApiKey.DELETE_TOPICS], ids=lambda key: key.name
)
def test_requests_that_take_no_turns_would_be_noticed(
    api_key: ApiKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def at_once(self: Turns, rows: int = 1) -> None:
        return

    monkeypatch.setattr(Turns, "take", lambda self, rows=1: True)
    monkeypatch.setattr(Turns, "wait", at_once)

    @in_loop
    async def body() -> None:
        bench = Bench(request_elements_max=ELEMENTS)
        world = await a_world(bench)
        requests: list[Any] = list(worst_requests(world, [api_key], SIZES))
        assert max([(await most_calls_in_a_turn(bench, each))[0] for each in requests]) > CALLS_PER_TURN_MAX

    body()
