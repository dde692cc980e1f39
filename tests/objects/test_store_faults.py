"""What an S3 store says when network or server fail: each fault by the proxy, with what was done and what was not."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import NamedTuple

import pytest

from anabranch.broker.workers import ThreadWorkers
from anabranch.clock import RealClock
from anabranch.errors import ObjectExistsError, StoreRefusedError, StoreUnavailableError
from anabranch.log.disk.real_files import RealFiles
from anabranch.objects.store import ObjectStore
from anabranch.objects.stores import check_store, open_store
from anabranch.testing.store_proxy import StoreProxy, Trouble
from support.s3_server import S3Server

Story = Callable[[ObjectStore], Coroutine[object, object, None]]
NOT_DONE = [Trouble.ERROR, Trouble.OVERLOAD, Trouble.TOO_MANY, Trouble.CUT_REQUEST, Trouble.DEAF]
DONE = [Trouble.CUT_ANSWER, Trouble.DROPPED_ANSWER, Trouble.WITHHELD_ANSWER]
TIMEOUT_MS = 2000


class World(NamedTuple):
    proxy: StoreProxy
    url: str
    run: Callable[[Story], None]


@pytest.fixture
def world(s3_server: S3Server, s3_bucket: str) -> Iterator[World]:
    with StoreProxy(s3_server.endpoint) as proxy:
        url = s3_server.url(s3_bucket, "tests", proxy.endpoint)
        yield World(proxy, url, lambda story: asyncio.run(told(url, story)))


async def told(url: str, story: Story, timeout_ms: int = TIMEOUT_MS) -> None:
    workers = ThreadWorkers(asyncio.get_running_loop(), 1, 1)
    store = open_store(url, files=RealFiles(), workers=workers, clock=RealClock(), timeout_ms=timeout_ms)
    try:
        await story(store)
    finally:
        workers.close()


@pytest.mark.parametrize("trouble", NOT_DONE)
def test_a_put_that_failed_before_it_was_done_can_be_tried_again(world: World, trouble: Trouble) -> None:
    async def story(store: ObjectStore) -> None:
        world.proxy.fail(trouble, kind="PUT", times=2)
        for _ in range(2):
            with pytest.raises(StoreUnavailableError):
                await store.put("segments/1", [b"content"])
        await store.put("segments/1", [b"content"])
        assert await store.get("segments/1") == b"content"
        assert world.proxy.requests["PUT"] == 3, "the library repeats nothing behind our back"

    world.run(story)


@pytest.mark.parametrize("trouble", DONE)
def test_a_put_that_was_done_without_an_answer_is_found_there(world: World, trouble: Trouble) -> None:
    async def story(store: ObjectStore) -> None:
        world.proxy.fail(trouble, kind="PUT", times=1)
        with pytest.raises(StoreUnavailableError):
            await store.put("segments/1", [b"content"])
        with pytest.raises(ObjectExistsError):
            await store.put("segments/1", [b"content"])
        assert await store.get("segments/1") == b"content"
        assert world.proxy.requests["PUT"] == 2

    world.run(story)


@pytest.mark.parametrize("trouble", [*NOT_DONE, *DONE])
@pytest.mark.parametrize("kind", ["GET", "LIST", "DELETE"])
def test_no_other_request_is_answered_wrongly(world: World, trouble: Trouble, kind: str) -> None:
    async def ask(store: ObjectStore) -> object:
        match kind:
            case "GET":
                return await store.get("segments/1", 100, 200_000)
            case "LIST":
                return [line.name async for page in store.list("segments/") for line in page]
            case _:
                return await store.delete(["segments/1"])

    async def story(store: ObjectStore) -> None:
        content = bytes(range(256)) * 1000
        await store.put("segments/1", [content])
        world.proxy.fail(trouble, kind=kind, times=1)
        with pytest.raises(StoreUnavailableError):
            await ask(store)
        expected = {"GET": content[100:200_000], "LIST": ["segments/1"], "DELETE": None}
        assert await ask(store) == expected[kind]

    world.run(story)


def test_slow_is_not_failed(world: World) -> None:
    async def story(store: ObjectStore) -> None:
        world.proxy.fail(Trouble.SLOW, times=2)
        await store.put("segments/1", [b"content"])
        assert await store.get("segments/1") == b"content"
        assert world.proxy.struck[Trouble.SLOW] == 2

    asyncio.run(told(world.url, story, timeout_ms=30_000))


def test_a_large_object_has_more_time(world: World) -> None:
    async def story(store: ObjectStore) -> None:
        world.proxy.delay("PUT", TIMEOUT_MS + 500)
        await store.put("merged/large", [bytes(16 * 2**20)])
        with pytest.raises(StoreUnavailableError, match="does not answer in time"):
            await store.put("segments/small", [b"small"])

    world.run(story)


def test_a_store_that_refuses_connections_is_away_and_comes_back_by_itself(world: World) -> None:
    async def story(store: ObjectStore) -> None:
        await store.put("segments/1", [b"content"])
        world.proxy.refuse()
        with pytest.raises(StoreUnavailableError):
            await store.put("segments/2", [b"x"])
        with pytest.raises(StoreUnavailableError):
            await store.get("segments/1")
        with pytest.raises(StoreUnavailableError):
            await store.delete(["segments/1"])
        assert await check_store(store) is False
        world.proxy.heal()
        assert await check_store(store) is True
        assert await store.get("segments/1") == b"content"

    world.run(story)


def test_who_stops_waiting_harms_nobody(world: World) -> None:
    async def story(store: ObjectStore) -> None:
        world.proxy.fail(Trouble.WITHHELD_ANSWER, kind="PUT", times=1)
        waiting = asyncio.ensure_future(store.put("segments/1", [b"content"]))
        await asyncio.sleep(0.2)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await store.put("segments/2", [b"other"])
        assert await store.get("segments/2") == b"other"

    world.run(story)


def test_wrong_credentials_are_not_tried_again_in_vain(world: World) -> None:
    async def story(store: ObjectStore) -> None:
        world.proxy.fail(Trouble.DENIED)
        with pytest.raises(
            StoreRefusedError, match=r"does not accept the credentials.*403.*object\.credentials\.file"
        ):
            await check_store(store)
        with pytest.raises(StoreRefusedError):
            await store.put("segments/1", [b"x"])

    world.run(story)


def test_a_bucket_that_is_not_there_is_named(world: World, s3_server: S3Server) -> None:
    async def story(store: ObjectStore) -> None:
        said = "has no bucket no-such-bucket: create it, or correct object.store"
        with pytest.raises(StoreRefusedError, match=said):
            await check_store(store)
        with pytest.raises(StoreRefusedError, match=said):
            await store.put("segments/1", [b"x"])
        with pytest.raises(StoreRefusedError, match=said):
            await store.get("segments/1")

    asyncio.run(told(s3_server.url("no-such-bucket"), story))


def test_a_host_without_an_address_is_away(s3_bucket: str) -> None:
    async def story(store: ObjectStore) -> None:
        with pytest.raises(StoreUnavailableError, match="its host has no address"):
            await store.get("segments/1")
        assert await check_store(store) is False

    asyncio.run(told(f"s3://{s3_bucket}?endpoint=http://no-such-host.invalid:9000", story))


@pytest.mark.parametrize("name", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"])
def test_the_endpoint_may_come_from_the_environment(
    s3_server: S3Server, s3_bucket: str, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    async def story(store: ObjectStore) -> None:
        await store.put("segments/1", [b"content"])
        assert await store.get("segments/1") == b"content"
        assert store.url == f"s3://{s3_bucket}/p"

    monkeypatch.setenv(name, s3_server.endpoint)
    asyncio.run(told(f"s3://{s3_bucket}/p", story))


def test_requests_are_counted_by_kind_and_delayed_by_kind(world: World) -> None:
    async def story(store: ObjectStore) -> None:
        world.proxy.delay("PUT", 100)
        for number in range(3):
            started_ms = RealClock().monotonic_ms()
            await store.put(f"segments/{number}", [bytes(1000)])
            assert RealClock().monotonic_ms() - started_ms >= 100
        await store.get("segments/1", 0, 500)
        await store.get_end("segments/1", 8)
        assert await check_store(store)
        await store.delete(["segments/1", "segments/2"])
        assert world.proxy.requests == {"PUT": 3, "GET": 2, "LIST": 1, "DELETE": 1}
        assert world.proxy.bytes == {"PUT": 3000, "GET": 508}

    world.run(story)


def test_a_store_without_conditional_puts_is_written_to_all_the_same(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(store: ObjectStore) -> None:
        world.proxy.fail(Trouble.NOT_IMPLEMENTED, kind="PUT", times=1)
        await store.put("segments/1", [b"content"])
        await store.put("segments/1", [b"content"])
        assert await store.get("segments/1") == b"content"
        assert world.proxy.requests["PUT"] == 3, "the next one does not ask in vain again"

    with caplog.at_level("WARNING"):
        world.run(story)
    assert caplog.text.count("does not know conditional PUTs") == 1


@pytest.mark.interop
def test_a_wrong_secret_is_told_from_a_wrong_bucket(
    versity_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(store: ObjectStore) -> None:
        with pytest.raises(StoreRefusedError, match="SignatureDoesNotMatch") as refused:
            await check_store(store)
        assert "not-the-secret" not in str(refused.value)
        with pytest.raises(StoreRefusedError, match="does not accept the credentials"):
            await store.put("segments/1", [b"x"])

    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-the-secret")
    asyncio.run(told(versity_url, story))
