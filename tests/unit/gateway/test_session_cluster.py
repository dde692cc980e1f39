"""Sessions by HTTP that ask another broker each time, while brokers die; by virtual time, without a web server."""

import asyncio
import json
import random
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any, TypeVar
from urllib.parse import urlencode

import pytest
from starlette.requests import Request

from anabranch.errors import AnabranchError, GatewayError
from anabranch.gateway.api.sessions import REGISTER_WAIT_MS, SessionsApi
from anabranch.gateway.calls import Calls
from anabranch.gateway.gateway import Gateway
from anabranch.gateway.sessions.state import EARLIEST, Wish
from anabranch.wire.api_keys import ApiKey
from support.broker_cluster import close_all
from support.whole_cluster import WholeCluster, whole_cluster_of

PARTITIONS = 3
RECORDS = 90
TIMEOUT_MS = 8000
PAUSE_SECONDS = 0.2

Result = TypeVar("Result")


@pytest.fixture(autouse=True)
def clusters_end() -> Iterator[None]:
    yield
    close_all()


class Doors:
    """The gateways of all brokers; whoever is served by one that dies is cut off."""

    def __init__(self, seed: int) -> None:
        self.cluster = whole_cluster_of(3, seed)
        self.rng = random.Random(seed)
        self._make_topic()
        self._doors: dict[int, tuple[Gateway, SessionsApi]] = {}
        self._served: dict[int, set[asyncio.Task[Any]]] = {each: set() for each in self.cluster.lives}
        self.dead: list[Any] = []

    def _make_topic(self) -> None:
        row = {"name": "t", "num_partitions": PARTITIONS, "replication_factor": -1}
        topic = {**row, "assignments": [], "configs": []}
        body = {"topics": [topic], "timeout_ms": 10_000, "validate_only": False}
        assert self.cluster.ask(1, ApiKey.CREATE_TOPICS, 7, body)["topics"][0]["error_code"] == 0
        self.cluster.run(1000)

    def _door(self, broker_id: int) -> tuple[Gateway, SessionsApi]:
        if broker_id not in self._doors:
            gateway = Gateway(self.cluster.broker(broker_id), SimpleNamespace())  # type: ignore[arg-type]
            self._doors[broker_id] = gateway, SessionsApi(gateway)
        return self._doors[broker_id]

    async def ask(self, work: Callable[[Gateway, SessionsApi], Awaitable[Result]]) -> Result | None:
        """What any broker answers; None: it died meanwhile."""
        broker_id = self.rng.choice(sorted(self.cluster.lives))
        task = asyncio.ensure_future(work(*self._door(broker_id)))
        self._served[broker_id].add(task)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if not task.cancelled():
                task.cancel()
                raise
            return None
        finally:
            self._served[broker_id].discard(task)

    def kill(self, broker_id: int) -> None:
        for task in self._served[broker_id]:
            task.cancel()
        self._doors.pop(broker_id, None)
        self.dead.append(self.cluster.lives[broker_id])
        self.cluster.kill(broker_id)


class Consumer:
    """Polls and commits as the documentation says, and registers anew when it is told that its session is over."""

    def __init__(self, doors: Doors) -> None:
        self._doors = doors
        self.session: str | None = None
        self._cursor: str | None = None
        self.heard: dict[int, list[int]] = {index: [] for index in range(PARTITIONS)}
        self.values: set[str] = set()
        self.partitions: list[int] = []
        self.sessions_total = 0
        self.task = doors.cluster.loop.create_task(self._run())

    async def _run(self) -> None:
        while True:
            try:
                await (self._register() if self.session is None else self._poll(self.session))
            except GatewayError as error:
                if error.code != "SESSION_OVER":
                    raise
                self.session = self._cursor = None
            except AnabranchError:
                await asyncio.sleep(PAUSE_SECONDS)

    async def _register(self) -> None:
        wish = Wish(("t",), EARLIEST)
        found = await self._doors.ask(
            lambda _, api: api._sessions.register("g", wish, timeout_ms=TIMEOUT_MS, wait_ms=REGISTER_WAIT_MS)
        )
        if found is not None:
            self.session = found[0]
            self.sessions_total += 1

    async def _poll(self, session: str) -> None:
        query = {"wait_ms": "500", "max_records": "7"}
        if self._cursor is not None:
            query |= {"cursor": self._cursor, "commit": "true"}
        answer = await self._doors.ask(lambda gateway, api: _poll(gateway, api, session, query))
        if answer is None:
            return
        self._cursor = answer["cursor"]
        self.partitions = [row["partition"] for row in answer["partitions"]]
        for record in answer["records"]:
            self.heard[record["partition"]].append(int(record["offset"]))
            self.values.add(record["value"])


class PatientRequest(Request):
    async def is_disconnected(self) -> bool:
        return False


async def _poll(gateway: Gateway, api: SessionsApi, session: str, query: dict[str, str]) -> dict[str, Any]:
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/",
        "headers": [],
        "query_string": urlencode(query).encode(),
        "path_params": {"group": "g", "session": session},
    }
    answer: Any = await api.poll(PatientRequest(scope))
    answer._release()
    found: dict[str, Any] = json.loads(answer.body)
    return found


async def publish(doors: Doors, numbers: range) -> None:
    for number in numbers:
        while not await doors.ask(partial(_write, number)):
            pass


async def _write(number: int, gateway: Gateway, _: SessionsApi) -> bool:
    try:
        await gateway.gather.send("t", number % PARTITIONS, None, str(number).encode())
    except AnabranchError:
        await asyncio.sleep(PAUSE_SECONDS)
        return False
    return True


def coordinator(cluster: WholeCluster) -> int:
    async def find() -> int:
        return await Calls(cluster.broker(min(cluster.lives))).coordinator("g")

    return cluster.do(find())


def until(doors: Doors, consumers: list[Consumer], check: Callable[[], bool]) -> None:
    """And not a moment longer if one of them has met what it should not."""
    doors.cluster.until(lambda: check() or any(each.task.done() for each in consumers), within_ms=120_000)
    for each in consumers:
        assert not each.task.done(), each.task.exception()


def all_are_assigned(consumers: list[Consumer]) -> bool:
    return sorted(index for each in consumers for index in each.partitions) == list(range(PARTITIONS))


def end(doors: Doors, *consumers: Consumer) -> None:
    for consumer in consumers:
        consumer.task.cancel()
    doors.cluster.run(100)
    assert all(dead.is_over for dead in doors.dead)


@pytest.mark.parametrize("seed", range(4))
def test_sessions_miss_nothing_when_their_coordinator_and_leaders_die(seed: int) -> None:
    doors = Doors(seed)
    cluster = doors.cluster
    consumers = [Consumer(doors), Consumer(doors)]
    until(doors, consumers, lambda: all_are_assigned(consumers))
    writing = cluster.loop.create_task(publish(doors, range(RECORDS)))
    for victim in (coordinator(cluster), None):
        cluster.run(200 + 37 * seed)
        chosen = victim if victim is not None else doors.rng.choice(sorted(cluster.lives))
        doors.kill(chosen)
        cluster.run(5000)
        cluster.start(chosen)
        cluster.run(3000)
    cluster.until(writing.done, within_ms=120_000)
    everything = {str(number) for number in range(RECORDS)}
    until(doors, consumers, lambda: set.union(*(each.values for each in consumers)) == everything)
    end(doors, *consumers)


@pytest.mark.parametrize("seed", range(2))
def test_what_a_lost_consumer_did_not_commit_goes_to_the_other(seed: int) -> None:
    doors = Doors(seed)
    cluster = doors.cluster
    stays, goes = Consumer(doors), Consumer(doors)
    until(doors, [stays, goes], lambda: all_are_assigned([stays, goes]))
    cluster.do(publish(doors, range(RECORDS // 2)))
    until(doors, [stays, goes], lambda: bool(goes.values))
    goes.task.cancel()  # Without a goodbye, and before it has committed what it heard last.
    cluster.do(publish(doors, range(RECORDS // 2, RECORDS)))
    until(doors, [stays], lambda: stays.partitions == [0, 1, 2])
    until(doors, [stays], lambda: len(stays.values | goes.values) == RECORDS)
    assert stays.sessions_total == 1
    for offsets in stays.heard.values():
        assert offsets == list(range(offsets[0], offsets[0] + len(offsets)))
    end(doors, stays, goes)
