"""Small writers share batches, and nobody suffers for another."""

import asyncio
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any
from uuid import UUID

import pytest

from anabranch.config import NodeSettings, TopicSettings
from anabranch.errors import AnabranchError, BrokerRefusedError, RequestTimedOutError
from anabranch.gateway.calls import TopicView, Written, refusal
from anabranch.gateway.produce import produce_batcher as gathering
from anabranch.gateway.produce.pending_batch import HELD_BYTES, Placed
from anabranch.gateway.produce.produce_batcher import Gatherer
from anabranch.record.batch import read_header
from anabranch.record.partitioner import partition_for
from anabranch.record.records import Record, records_of
from anabranch.testing.fakes.clock import FakeClock
from anabranch.testing.fakes.loop import VirtualLoop
from anabranch.wire.api_keys import ApiKey
from anabranch.wire.error_codes import ErrorCode as E
from support.broker_bench import in_loop, turn

TOPIC_ID = UUID(int=7)


class FakeCalls:
    """Takes batches in the order they come, each when it is let; `script` says what becomes of the next ones."""

    def __init__(self, partitions: int = 1, **overrides: str) -> None:
        settings = TopicSettings.from_overrides(NodeSettings(), MappingProxyType(overrides))
        self.view = TopicView("t", TOPIC_ID, partitions, settings, False)
        self.batches: list[bytes] = []
        self.written: list[tuple[int, Record]] = []
        self.script: list[AnabranchError | None] = []
        self.gate: asyncio.Event | None = None
        self.ids = 100

    def known_topic(self, name: str) -> TopicView | None:
        return self.view

    def is_news(self, error: AnabranchError, topic: str, partition: int, passed_ms: int) -> bool:
        return False

    def leader(self, topic: str, partition: int) -> int:
        return 0

    async def ask(self, api_key: ApiKey, version: int, body: Any) -> Any:
        assert api_key == ApiKey.INIT_PRODUCER_ID
        self.ids += 1
        return {"error_code": 0, "producer_id": self.ids}

    async def produce(
        self, topic: str, topic_id: UUID, partition: int, batch: bytes, *, timeout_ms: int
    ) -> Written:
        self.batches.append(bytes(batch))
        if self.gate is not None:
            await self.gate.wait()
        if self.script and (error := self.script.pop(0)) is not None:
            raise error
        base = sum(1 for index, _ in self.written if index == partition)
        self.written += [(partition, record) for record in records_of(batch)]
        return Written(base, -1)

    @property
    def values(self) -> list[bytes | None]:
        return [record.value for _, record in self.written]


def make(calls: FakeCalls, **settings: object) -> Gatherer:
    dotted = {name.replace("_", "."): value for name, value in settings.items()}
    return Gatherer(calls, NodeSettings.load({"gateway.linger.ms": 0, **dotted}), FakeClock())  # type: ignore[arg-type]


async def sent(gather: Gatherer, values: Sequence[bytes]) -> list[Placed | BaseException]:
    return await asyncio.gather(
        *(gather.send("t", 0, None, value) for value in values), return_exceptions=True
    )


@in_loop
async def test_records_gather_while_a_batch_is_under_way() -> None:
    calls = FakeCalls()
    calls.gate = asyncio.Event()
    gather = make(calls)
    first = asyncio.ensure_future(gather.send("t", 0, None, b"first"))
    await turn()
    rest = asyncio.ensure_future(sent(gather, [b"%d" % number for number in range(50)]))
    await turn()
    assert len(calls.batches) == 1
    calls.gate.set()
    assert (await first)[:2] == (0, 0)
    assert [placed.offset for placed in await rest if isinstance(placed, Placed)] == list(range(1, 51))
    assert [read_header(batch).record_count for batch in calls.batches] == [1, 50]


def test_lone_record_lingers_for_company_but_not_for_long() -> None:
    calls, clock = FakeCalls(), FakeClock()
    loop = VirtualLoop(clock, lambda: False)

    async def body() -> None:
        gather = make(calls, gateway_linger_ms=20)
        first = asyncio.ensure_future(gather.send("t", 0, None, b"a"))
        await asyncio.sleep(0.015)
        second = asyncio.ensure_future(gather.send("t", 0, None, b"b"))
        await asyncio.gather(first, second)

    begun_ms = clock.monotonic_ms()
    loop.run_until_complete(body())
    loop.close()
    assert [read_header(batch).record_count for batch in calls.batches] == [2]
    assert clock.monotonic_ms() - begun_ms == 20


@in_loop
async def test_full_batch_does_not_linger() -> None:
    calls = FakeCalls()
    gather = make(calls, gateway_linger_ms=10_000, gateway_batch_bytes_max=2000)
    async with asyncio.timeout(5):
        await sent(gather, [b"x" * 500] * 3)
    assert len(calls.written) == 3


@pytest.mark.parametrize(("name", "codec"), [("none", 0), ("lz4", 3), ("zstd", 4)])
def test_batches_are_compressed_as_the_setting_says(name: str, codec: int) -> None:
    @in_loop
    async def body() -> None:
        calls = FakeCalls()
        await sent(make(calls, gateway_compression=name), [b"x" * 100] * 10)
        assert read_header(calls.batches[0]).codec == codec

    body()


@in_loop
async def test_batch_is_refused_for_one_record_and_only_that_one_fails() -> None:
    calls = FakeCalls()
    gather = make(calls)

    async def produce(topic: str, topic_id: UUID, index: int, batch: bytes, *, timeout_ms: int) -> Written:
        if any(record.value == b"bad" for record in records_of(batch)):
            raise refusal(E.INVALID_RECORD, "bad")
        return await FakeCalls.produce(calls, topic, topic_id, index, batch, timeout_ms=timeout_ms)

    calls.produce = produce  # type: ignore[method-assign]
    values = [b"%d" % number for number in range(16)]
    values[5] = b"bad"
    outcomes = await sent(gather, values)
    assert [isinstance(outcome, Placed) for outcome in outcomes] == [value != b"bad" for value in values]
    assert calls.values == [value for value in values if value != b"bad"]
    sequences = [read_header(batch).base_sequence for batch in calls.batches]
    assert sequences == sorted(set(sequences)), "what was refused has used no sequence"


@in_loop
async def test_batch_whose_answer_is_lost_is_sent_again_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "PAUSE_SECONDS", 0)
    calls = FakeCalls()
    calls.script = [RequestTimedOutError("lost"), refusal(E.NOT_LEADER_OR_FOLLOWER, "moved"), None]
    placed = await make(calls).send("t", 0, b"k", b"v", [("h", b"x")], 5)
    assert placed == (0, 0, 5)
    assert len(set(calls.batches)) == 1, "the bytes decide whether it is the same batch"
    assert len(calls.batches) == 3


@in_loop
async def test_after_an_unknown_outcome_another_producer_id_goes_on() -> None:
    calls = FakeCalls()
    calls.script = [None, RequestTimedOutError("lost")]
    gather = make(calls)
    gather.delivery_ms = 0
    await gather.send("t", 0, None, b"a")
    with pytest.raises(RequestTimedOutError, match="not known"):
        await gather.send("t", 0, None, b"b")
    await gather.send("t", 0, None, b"c")
    headers = [read_header(batch) for batch in calls.batches]
    assert [(header.producer_id, header.base_sequence) for header in headers] == [
        (101, 0),
        (101, 1),
        (102, 0),
    ]


@in_loop
async def test_partition_that_forgot_the_producer_meets_a_new_one() -> None:
    calls = FakeCalls()
    calls.script = [None, refusal(E.OUT_OF_ORDER_SEQUENCE_NUMBER, "forgotten"), None]
    gather = make(calls)
    await gather.send("t", 0, None, b"a")
    assert (await gather.send("t", 0, None, b"b")).offset == 1
    assert [read_header(batch).producer_id for batch in calls.batches] == [101, 101, 102]


@in_loop
async def test_records_without_key_take_turns_by_batch() -> None:
    calls = FakeCalls(partitions=3)
    gather = make(calls)
    places = [(await gather.send("t", None, None, b"v")).partition for _ in range(6)]
    assert places == [0, 1, 2, 0, 1, 2]
    together = await asyncio.gather(*(gather.send("t", None, None, b"v") for _ in range(10)))
    assert len({placed.partition for placed in together}) == 1


@in_loop
async def test_what_waits_is_bounded_and_writers_wait_for_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "GATHERED_BYTES_MAX", 8000)
    calls = FakeCalls()
    calls.gate = asyncio.Event()
    gather = make(calls)
    writing = asyncio.ensure_future(sent(gather, [b"x" * 800] * 40))
    await turn()
    assert gather.budget.bytes_taken <= 8000
    assert gather.budget.waiting_count == 35
    calls.gate.set()
    assert all(isinstance(outcome, Placed) for outcome in await writing)
    await turn()
    assert gather.budget.bytes_taken == 0


@in_loop
async def test_writer_that_is_gone_harms_nobody() -> None:
    calls = FakeCalls()
    calls.gate = asyncio.Event()
    gather = make(calls)
    gone = asyncio.ensure_future(gather.send("t", 0, None, b"a"))
    other = asyncio.ensure_future(gather.send("t", 0, None, b"b"))
    await turn()
    gone.cancel()
    calls.gate.set()
    await other
    assert calls.values == [b"a", b"b"]


@in_loop
async def test_defect_does_not_leave_writers_waiting(caplog: pytest.LogCaptureFixture) -> None:
    calls = FakeCalls()
    calls.script = [None]
    gather = make(calls)

    async def produce(*args: Any, **more: Any) -> Written:
        raise KeyError("a defect")

    calls.produce = produce  # type: ignore[method-assign]
    with pytest.raises(RequestTimedOutError, match="KeyError"):
        await gather.send("t", 0, None, b"a")
    assert "this is a defect" in caplog.text
    assert gather.budget.bytes_taken == 0


@in_loop
async def test_closing_writes_what_waits_and_takes_no_more() -> None:
    calls = FakeCalls()
    gather = make(calls, gateway_linger_ms=10_000)
    waiting = asyncio.ensure_future(gather.send("t", 0, None, b"a"))
    await turn()
    async with asyncio.timeout(5):
        await gather.close()
    assert (await waiting).offset == 0
    with pytest.raises(BrokerRefusedError, match="stops"):
        await gather.send("t", 0, None, b"b")


@in_loop
async def test_topic_limits_are_kept_before_records_meet() -> None:
    calls = FakeCalls()
    calls.view = calls.view._replace(
        settings=TopicSettings.from_overrides(NodeSettings(), {"max.message.bytes": "1000"})
    )
    gather = make(calls)
    outcomes = await sent(gather, [b"a", b"x" * 2000, b"b"])
    assert isinstance(outcomes[1], BrokerRefusedError)
    assert outcomes[1].code == E.MESSAGE_TOO_LARGE
    assert calls.values == [b"a", b"b"]


@in_loop
async def test_key_that_takes_long_to_hash_is_left_to_a_worker() -> None:
    handed: list[int] = []

    class Calls(FakeCalls):
        async def in_worker(self, task: Any) -> Any:
            handed.append(task())
            return handed[-1]

    long_key = b"k" * (gathering.LONG_KEY_BYTES + 1)
    gather = make(Calls(partitions=5))
    placed = [await gather.send("t", None, key, b"v") for key in (long_key, b"k", None)]
    assert handed == [placed[0].partition] == [partition_for(long_key, 5, "murmur2")]


@in_loop
async def test_record_is_put_at_once_only_if_nothing_has_to_be_waited_for() -> None:
    calls = FakeCalls()
    gather = make(calls)
    gather.budget.bytes_max = 2 * (gathering.RECORD_OVERHEAD_BYTES + HELD_BYTES + 1)
    first, second = (gather.put_now("t", 0, None, b"v") for _ in range(2))
    assert first is not None
    assert second is not None
    assert gather.put_now("t", 0, None, b"v") is None, "there is no room"
    assert (await first).offset == 0
    assert gather.put_now("t", None, b"k" * (gathering.LONG_KEY_BYTES + 1), b"v") is None
    with pytest.raises(BrokerRefusedError):
        gather.put_now("t", 7, None, b"v")
    await second
    await turn()
    assert gather.budget.bytes_taken == 0
    await gather.close()
    assert gather.put_now("t", 0, None, b"v") is None


# --- in time ---------------------------------------------------------------------------------------------------


def clock_of(gather: Gatherer) -> FakeClock:
    clock = gather._clock
    assert isinstance(clock, FakeClock)
    return clock


@in_loop
async def test_record_under_way_for_too_long_may_be_written_and_the_one_behind_it_is_not() -> None:
    calls = FakeCalls()
    calls.gate = asyncio.Event()
    gather = make(calls)
    first = asyncio.ensure_future(gather.send("t", 0, None, b"a"))
    await turn()
    second = asyncio.ensure_future(gather.send("t", 0, None, b"b"))
    await turn()
    clock_of(gather).advance(gather.delivery_ms - 1)
    gather.expire()
    third = asyncio.ensure_future(gather.send("t", 0, None, b"c"))
    await turn()
    assert not first.done()
    clock_of(gather).advance(1)
    gather.expire()
    with pytest.raises(RequestTimedOutError, match="not known"):
        await first
    with pytest.raises(BrokerRefusedError, match=r"not written to t-0.*gateway\.request\.timeout\.ms"):
        await second
    calls.gate.set()
    assert await third == (0, 1, 1_700_000_008_000 - 1)
    assert calls.values == [b"a", b"c"]
    await turn()
    assert gather.budget.bytes_taken == 0


@in_loop
async def test_record_that_every_try_refuses_is_told_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "PAUSE_SECONDS", 3600)
    calls = FakeCalls()
    calls.script = [refusal(E.LEADER_NOT_AVAILABLE, "Nobody leads t-0 just now.")] * 9
    gather = make(calls)
    writing = asyncio.ensure_future(gather.send("t", 0, None, b"a"))
    await turn()
    clock_of(gather).advance(gather.delivery_ms)
    gather.expire()
    with pytest.raises(BrokerRefusedError, match=r"Nobody leads t-0 just now\.") as refused:
        await writing
    assert refused.value.code == E.LEADER_NOT_AVAILABLE
    gather.abort()


@in_loop
async def test_record_without_a_producer_id_is_not_written_and_told_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = FakeCalls()
    asked = asyncio.Event()

    async def never(*_: object) -> None:
        asked.set()
        await asyncio.sleep(3600)

    monkeypatch.setattr(calls, "ask", never)
    gather = make(calls)
    writing = asyncio.ensure_future(gather.send("t", 0, None, b"a"))
    await asked.wait()
    clock_of(gather).advance(gather.delivery_ms)
    gather.expire()
    with pytest.raises(BrokerRefusedError, match="No producer id"):
        await writing
    gather.abort()


@in_loop
async def test_record_that_is_told_not_to_be_written_is_not_written_by_the_next_try() -> None:
    calls = FakeCalls()
    calls.script = [refusal(E.LEADER_NOT_AVAILABLE, "Nobody leads t-0 just now.")]
    gather = make(calls)
    first = gather.put_now("t", 0, None, b"a")
    clock_of(gather).advance(1)
    second = gather.put_now("t", 0, None, b"b")
    assert first is not None
    assert second is not None
    await turn()
    assert [read_header(batch).record_count for batch in calls.batches] == [2]
    clock_of(gather).advance(gather.delivery_ms - 1)
    gather.expire()
    with pytest.raises(BrokerRefusedError, match="not written to t-0"):
        await first
    assert (await second).offset == 0
    assert calls.values == [b"b"]
    assert (await gather.send("t", 0, None, b"c")).offset == 1, "the sequence goes on"
    assert [read_header(batch).base_sequence for batch in calls.batches] == [0, 0, 1]
    await turn()
    assert gather.budget.bytes_taken == 0


@in_loop
async def test_record_that_is_told_not_to_be_written_is_not_written_once_there_is_a_producer_id(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = FakeCalls()
    may_answer = asyncio.Event()
    answer = calls.ask

    async def late(*given: Any) -> Any:
        await may_answer.wait()
        return await answer(*given)

    monkeypatch.setattr(calls, "ask", late)
    gather = make(calls)
    writing = asyncio.ensure_future(gather.send("t", 0, None, b"a"))
    await turn()
    clock_of(gather).advance(gather.delivery_ms)
    gather.expire()
    with pytest.raises(BrokerRefusedError, match="No producer id"):
        await writing
    may_answer.set()
    await turn()
    assert calls.batches == []
    assert gather.budget.bytes_taken == 0


@in_loop
async def test_writer_who_finds_no_room_in_time_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "GATHERED_BYTES_MAX", 1600)
    calls = FakeCalls()
    calls.gate = asyncio.Event()
    gather = make(calls)
    first = asyncio.ensure_future(gather.send("t", 0, None, b"a" * 700))
    await turn()
    gather.delivery_ms = 1
    with pytest.raises(BrokerRefusedError, match="not written yet"):
        await gather.send("t", 0, None, b"b" * 700)
    calls.gate.set()
    await first


@in_loop
async def test_producers_of_deleted_topics_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = FakeCalls()
    monkeypatch.setattr(calls, "topics", lambda: [calls.view], raising=False)
    gather = make(calls)
    for number in range(3 * gathering.PRODUCERS_KEPT):
        calls.view = calls.view._replace(topic_id=UUID(int=number + 1))
        await gather.send("t", 0, None, b"v")
    assert len(gather._producers) <= gathering.PRODUCERS_KEPT
