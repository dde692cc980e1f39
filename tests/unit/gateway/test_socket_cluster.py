"""WebSockets at any broker of a cluster, while others die; by virtual time, without a web server."""

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from anabranch.gateway.calls import Calls
from anabranch.gateway.produce.produce_batcher import Gatherer
from anabranch.gateway.websocket.session import SocketSession
from anabranch.gateway.websocket.sockets import Sockets
from anabranch.values import BrokerId
from anabranch.wire.api_keys import ApiKey
from support.broker_cluster import close_all
from support.whole_cluster import WholeCluster, whole_cluster_of

PARTITIONS = 3
RECORDS = 120


@pytest.fixture(autouse=True)
def clusters_end() -> Iterator[None]:
    yield
    close_all()


def cluster_with_topic(seed: int, mode: str | None = None) -> WholeCluster:
    cluster = whole_cluster_of(3, seed)
    configs = [{"name": "anabranch.mode", "value": mode}] if mode is not None else []
    row = {
        "name": "t",
        "num_partitions": PARTITIONS,
        "replication_factor": -1,
        "assignments": [],
        "configs": configs,
    }
    body = {"topics": [row], "timeout_ms": 10_000, "validate_only": False}
    assert cluster.ask(1, ApiKey.CREATE_TOPICS, 7, body)["topics"][0]["error_code"] == 0
    cluster.run(1000)
    return cluster


class Page:
    """A client and its socket at one broker: remembers everything it hears, and acknowledges if it is told to."""

    host = "127.0.0.1"

    def __init__(self, cluster: WholeCluster, broker_id: int, *, acks: bool = False) -> None:
        broker = cluster.broker(broker_id)
        calls = Calls(broker)
        self._gather = Gatherer(calls, broker.settings, broker.clock)
        gateway: Any = SimpleNamespace(
            calls=calls,
            gather=self._gather,
            settings=broker.settings,
            broker=broker,
            clock=broker.clock,
            refusals=Counter(),
        )
        self._said: asyncio.Queue[str | None] = asyncio.Queue()
        self._acks = acks
        self._sockets = Sockets(gateway)
        self.heard: list[dict[str, Any]] = []
        self.task = cluster.loop.create_task(self._sockets.serve(SocketSession(self._sockets, self, "t")))

    async def receive(self) -> str | None:
        return await self._said.get()

    async def send(self, text: bytes) -> None:
        message = json.loads(text)
        self.heard.append(message)
        if self._acks and message["type"] == "records":
            last = message["records"][-1]["offset"]
            self.say(type="ack", id=message["id"], partition=message["partition"], offset=last)

    def send_now(self, text: bytes) -> bool:
        self.heard.append(json.loads(text))
        return True

    async def close(self, code: int, reason: str) -> None:
        self._said.put_nowait(None)

    def say(self, **message: object) -> None:
        self._said.put_nowait(json.dumps(message))

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [message for message in self.heard if message["type"] == kind]

    def offsets(self, partition: int) -> list[int]:
        messages = [message for message in self.of("records") if message["partition"] == partition]
        return [int(record["offset"]) for message in messages for record in message["records"]]

    def values(self) -> set[str]:
        return {record["value"] for message in self.of("records") for record in message["records"]}

    def last_assigned(self) -> set[int]:
        """What is its own now, as far as it has heard."""
        for message in reversed(self.heard):
            if message["type"] in ("assigned", "revoked"):
                return {int(index) for index in message.get("offsets", ())}
        return set()

    async def leave(self) -> None:
        self._said.put_nowait(None)
        await self.task
        await self._sockets.close()


async def publish(page: Page, numbers: range) -> None:
    """Whatever was not answered is said again, until it is written: some of it may be there twice."""
    left = {number: str(number) for number in numbers}
    while left:
        before = len(page.heard)
        for number, value in left.items():
            page.say(type="publish", id=number, value=value, partition=number % PARTITIONS)
        while len(page.heard) - before < len(left):  # noqa: ASYNC110 - The page is no part of what is tried.
            await asyncio.sleep(0.05)
        for message in page.heard[before:]:
            if message["type"] == "published":
                del left[message["id"]]


@pytest.mark.parametrize("seed", range(4))
def test_a_subscriber_misses_nothing_when_leaders_die(seed: int) -> None:
    cluster = cluster_with_topic(seed)
    reader, writer = Page(cluster, 1), Page(cluster, 1)
    reader.say(type="subscribe", id="s", **{"from": "earliest"})
    cluster.do(publish(writer, range(RECORDS // 2)))
    victim = 2 + seed % 2
    writing = cluster.loop.create_task(publish(writer, range(RECORDS // 2, RECORDS)))
    cluster.run(10 + seed)
    dead = cluster.lives[victim]
    cluster.kill(victim)
    cluster.run(4000)
    cluster.start(victim)
    cluster.until(writing.done, within_ms=120_000)
    cluster.until(lambda: len(reader.values()) == RECORDS, within_ms=60_000)
    for index in range(PARTITIONS):
        assert reader.offsets(index) == list(range(len(reader.offsets(index))))
    assert reader.of("error") == []
    cluster.do(reader.leave())
    cluster.do(writer.leave())
    assert dead.is_over


@pytest.mark.parametrize("seed", range(3))
def test_a_group_goes_on_when_its_coordinator_and_one_of_its_members_die(seed: int) -> None:
    cluster = cluster_with_topic(seed)
    victim = 2 + seed % 2
    group = group_of(cluster, victim)
    stays, goes, writer = Page(cluster, 1, acks=True), Page(cluster, victim), Page(cluster, 1)
    for page in (stays, goes):
        page.say(type="subscribe", id="g", group=group, **{"from": "earliest"})
    both = lambda: (stays.last_assigned(), goes.last_assigned())  # noqa: E731
    cluster.until(lambda: all(both()) and set.union(*both()) == {0, 1, 2}, within_ms=60_000)
    cluster.do(publish(writer, range(RECORDS // 2)))
    cluster.run(1000)
    assert len(goes.values()) > 0, "what it has heard and not acknowledged has to come again"
    dead = cluster.lives[victim]
    goes.task.cancel()  # Its process is gone: it says no goodbye.
    cluster.kill(victim)
    cluster.run(2000)
    writing = cluster.loop.create_task(publish(writer, range(RECORDS // 2, RECORDS)))
    cluster.until(writing.done, within_ms=120_000)
    cluster.until(lambda: len(stays.values()) == RECORDS, within_ms=120_000)
    assert stays.last_assigned() == {0, 1, 2}
    cluster.do(stays.leave())
    cluster.do(writer.leave())
    assert dead.is_over


@pytest.mark.parametrize("seed", range(3))
def test_both_sides_of_a_split_go_on_and_subscribers_of_either_have_everything_when_it_heals(
    seed: int,
) -> None:
    cluster = cluster_with_topic(seed, "branch")
    pages = {broker_id: (Page(cluster, broker_id), Page(cluster, broker_id)) for broker_id in (1, 3)}
    for reader, _ in pages.values():
        reader.say(type="subscribe", id="s", **{"from": "earliest"})
    cluster.do(publish(pages[1][1], range(30)))
    cluster.net.isolate(BrokerId(3))  # Alone it cannot even have a producer id: it has written nothing yet.
    cluster.run(5000)
    writing = [
        cluster.loop.create_task(publish(pages[broker_id][1], range(100 * broker_id, 100 * broker_id + 30)))
        for broker_id in pages
    ]
    cluster.until(lambda: all(task.done() for task in writing), within_ms=60_000)
    cluster.until(lambda: all(len(reader.values()) == 60 for reader, _ in pages.values()), within_ms=60_000)
    cluster.net.heal()
    cluster.until(lambda: all(len(reader.values()) == 90 for reader, _ in pages.values()), within_ms=60_000)
    cluster.run(20_000)
    late = Page(cluster, 2)
    late.say(type="subscribe", id="s", **{"from": "earliest"})
    cluster.until(lambda: len(late.values()) == 90, within_ms=60_000)
    assert sum(len(late.offsets(index)) for index in range(PARTITIONS)) == 90, "something came twice"
    for page in (*pages[1], *pages[3], late):
        assert page.of("error") == []
        cluster.do(page.leave())


def group_of(cluster: WholeCluster, broker_id: int) -> str:
    """The name of a group that this broker coordinates."""

    async def find() -> str:
        calls = Calls(cluster.broker(1))
        for number in range(100):
            if await calls.coordinator(f"group-{number}") == BrokerId(broker_id):
                return f"group-{number}"
        raise AssertionError("it coordinates none of a hundred groups")

    return cluster.do(find())
