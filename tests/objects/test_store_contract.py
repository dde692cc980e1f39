"""What every object store does, told once and tried on all of them."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from anabranch.broker.workers import ThreadWorkers
from anabranch.clock import RealClock
from anabranch.errors import ObjectExistsError, ObjectGoneError
from anabranch.log.disk.files import Files
from anabranch.log.disk.real_files import RealFiles
from anabranch.objects.store import ObjectStore
from anabranch.objects.stores import check_store, open_store
from anabranch.testing.fakes.disk import FakeDisk
from anabranch.testing.fakes.store import FakeBucket, FakeStore, StoreFaults
from anabranch.testing.store_proxy import StoreProxy
from anabranch.testing.stub_store import StubStore
from support.s3_server import CREDENTIALS

MIB = 2**20
Story = Callable[[ObjectStore], Coroutine[object, object, None]]
Run = Callable[[Story], None]


VERSITY = pytest.param("versity", marks=pytest.mark.interop)


@pytest.fixture(
    params=["file", "file on a fake disk", "memory", "s3", "s3 through a proxy", "stub", "fake", VERSITY]
)
def run(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """Runs a story on a store of one kind; on the same store again, if it is called again."""
    files: Files = RealFiles() if request.param == "file" else fake_disk()
    match request.param:
        case "file":
            yield runner(f"file://{tmp_path}/objects", files)
        case "file on a fake disk":
            yield runner("file:///objects", files)
        case "memory":
            yield runner(f"memory:{tmp_path.name}", files)
        case "s3":
            yield runner(request.getfixturevalue("s3_url"), files)
        case "s3 through a proxy":
            server, bucket = request.getfixturevalue("s3_server"), request.getfixturevalue("s3_bucket")
            with StoreProxy(server.endpoint) as proxy:
                yield runner(server.url(bucket, "tests", proxy.endpoint), files)
        case "versity":
            yield runner(request.getfixturevalue("versity_url"), files)
        case "stub":
            for name, value in CREDENTIALS.items():
                monkeypatch.setenv(name, value)
            with StubStore() as stub:
                yield runner(f"s3://bucket/tests?endpoint={stub.endpoint}", files)
        case _:
            bucket = FakeBucket(RealClock())
            yield lambda story: asyncio.run(story(FakeStore(bucket, Random(7), StoreFaults(answer_ms_max=3))))


def runner(url: str, files: Files) -> Run:
    async def run(story: Story) -> None:
        workers = ThreadWorkers(asyncio.get_running_loop(), 4, 2)
        store = open_store(url, files=files, workers=workers, clock=RealClock())
        try:
            await story(store)
            await store.close()
        finally:
            workers.close()

    return lambda story: asyncio.run(run(story))


def fake_disk() -> FakeDisk:
    disk = FakeDisk()
    disk.wall_ms = RealClock().wall_ms
    return disk


async def names_of(store: ObjectStore, prefix: str = "", after: str = "") -> list[str]:
    return [line.name async for page in store.list(prefix, after) for line in page]


def test_what_was_put_is_got_back_whole_and_in_ranges(run: Run) -> None:
    async def story(store: ObjectStore) -> None:
        await store.put("segments/1-0", [b"abc", bytearray(b"defg"), memoryview(b"hij")])
        assert await store.get("segments/1-0") == b"abcdefghij"
        assert await store.get("segments/1-0", 2, 5) == b"cde"
        assert await store.get("segments/1-0", 7) == b"hij"
        assert await store.get("segments/1-0", 0, 1) == b"a"
        assert await store.get("segments/1-0", 8, 500) == b"ij", "what lies beyond the end is left out"

    run(story)


def test_ranges_that_hold_nothing_are_empty(run: Run) -> None:
    async def story(store: ObjectStore) -> None:
        await store.put("o", [b"abc"])
        assert await store.get("o", 1, 1) == b""
        assert await store.get("o", 3) == b""
        assert await store.get("o", 10, 20) == b""

    run(story)


def test_the_end_is_got_without_knowing_the_size(run: Run) -> None:
    async def story(store: ObjectStore) -> None:
        await store.put("o", [b"abcdefghij"])
        assert await store.get_end("o", 3) == b"hij"
        assert await store.get_end("o", 10) == b"abcdefghij"
        assert await store.get_end("o", 4096) == b"abcdefghij"

    run(story)


def test_an_empty_object_is_an_object(run: Run) -> None:
    async def story(store: ObjectStore) -> None:
        await store.put("none", [])
        await store.put("empty", [b""])
        for name in ("none", "empty"):
            assert await store.get(name) == b""
            assert await store.get_end(name, 8) == b""
        assert await names_of(store) == ["empty", "none"]

    run(story)


def test_a_name_is_taken_once(run: Run) -> None:
    async def story(store: ObjectStore) -> None:
        await store.put("segments/1", [b"first"])
        with pytest.raises(ObjectExistsError):
            await store.put("segments/1", [b"second"])
        assert await store.get("segments/1") == b"first"

    run(story)


def test_of_many_that_put_one_name_at_once_one_wins(run: Run) -> None:
    async def put(store: ObjectStore, content: bytes) -> bytes | None:
        with suppress(ObjectExistsError):
            await store.put("segments/contended", [content])
            return content
        return None

    async def story(store: ObjectStore) -> None:
        tried = await asyncio.gather(*(put(store, bytes([number]) * 1000) for number in range(12)))
        won = [content for content in tried if content is not None]
        assert len(won) == 1
        assert await store.get("segments/contended") == won[0]

    run(story)


def test_what_is_not_there_is_gone(run: Run) -> None:
    async def story(store: ObjectStore) -> None:
        for ask in (store.get("segments/1"), store.get("segments/1", 1, 5), store.get_end("segments/1", 9)):
            with pytest.raises(ObjectGoneError):
                await ask

    run(story)


def test_deletes_many_and_those_that_are_gone(run: Run) -> None:
    names = [f"segments/{number:04}" for number in range(1050)]

    async def story(store: ObjectStore) -> None:
        for first in range(0, len(names), 50):
            await asyncio.gather(*(store.put(name, [b"x"]) for name in names[first : first + 50]))
        await store.put("merged/stays", [b"x"])
        await store.delete([*names, "segments/never-was", "nowhere/at/all"])
        assert await names_of(store) == ["merged/stays"]
        await store.delete(names[:2])
        await store.delete([])
        with pytest.raises(ObjectGoneError):
            await store.get(names[7])

    run(story)


def test_a_deleted_name_may_be_put_again(run: Run) -> None:
    async def story(store: ObjectStore) -> None:
        await store.put("a/b", [b"old"])
        await store.delete(["a/b"])
        await store.put("a/b", [b"new"])
        assert await store.get("a/b") == b"new"

    run(story)


def test_names_are_listed_in_order_with_size_and_time(run: Run) -> None:
    names = ["a", "a-b", "a/b", "a/b-c", "a/b/c", "a0", "b/10", "b/9", "segments/ff-2-10", "segments/ff-2-9"]

    async def story(store: ObjectStore) -> None:
        # A folder cannot have a file and a folder of one name, and our names need none.
        mine = [name for name in names if name not in ("a", "a/b")]
        for name in Random(7).sample(mine, len(mine)):
            await store.put(name, [name.encode()])
        lines = [line async for page in store.list("") for line in page]
        assert [line.name for line in lines] == mine
        assert [line.size for line in lines] == [len(name) for name in mine]
        now_ms = RealClock().wall_ms()
        for line in lines:
            assert abs(now_ms - line.modified_ms) < 300_000

    run(story)


def test_a_listing_begins_with_any_prefix_and_behind_any_name(run: Run) -> None:
    async def story(store: ObjectStore) -> None:
        for name in ("segments/a-1-1", "segments/a-1-2", "segments/a-11-0", "segments/b-1-0", "other/a-1"):
            await store.put(name, [b"x"])
        assert await names_of(store, "segments/a-1-") == ["segments/a-1-1", "segments/a-1-2"]
        assert await names_of(store, "segments/a-1-1") == ["segments/a-1-1"], (
            "a whole name is a prefix of itself"
        )
        assert await names_of(store, "segments/") == [
            "segments/a-1-1",
            "segments/a-1-2",
            "segments/a-11-0",
            "segments/b-1-0",
        ]
        assert await names_of(store, "seg", "segments/a-1-2") == ["segments/a-11-0", "segments/b-1-0"]
        assert await names_of(store, "segments/a", "segments/zzz") == []
        assert await names_of(store, "segments/a-1-", "other/a-1") == ["segments/a-1-1", "segments/a-1-2"]
        assert await names_of(store, "nothing/") == []

    run(story)


def test_a_long_listing_comes_in_pages_that_join(run: Run) -> None:
    names = [f"segments/{number:05}" for number in range(1100)]

    async def story(store: ObjectStore) -> None:
        for first in range(0, len(names), 60):
            await asyncio.gather(*(store.put(name, [b"x"]) for name in names[first : first + 60]))
        pages = [[line.name for line in page] async for page in store.list("segments/")]
        assert len(pages) > 1
        assert max(map(len, pages)) <= 1000
        assert [name for page in pages for name in page] == names
        assert await names_of(store, "segments/", names[1050]) == names[1051:]

    run(story)


def test_a_store_in_which_nothing_was_put_is_empty(run: Run) -> None:
    async def story(store: ObjectStore) -> None:
        assert await check_store(store)
        assert await names_of(store) == []
        await store.delete(["segments/none"])

    run(story)


def test_a_large_object_goes_through_whole(run: Run) -> None:
    piece = Random(11).randbytes(MIB)
    pieces = [piece[start:] + piece[:start] for start in range(64)]

    async def story(store: ObjectStore) -> None:
        await store.put("merged/large", pieces)
        assert await store.get("merged/large", 4 * MIB, 8 * MIB) == b"".join(pieces[4:8])
        assert await store.get_end("merged/large", 100) == pieces[-1][-100:]
        assert await store.get("merged/large") == b"".join(pieces)

    run(story)


def test_many_pieces_become_one_object(run: Run) -> None:
    pieces = [bytes([number % 256]) * (number % 300) for number in range(5000)]

    async def story(store: ObjectStore) -> None:
        await store.put("segments/pieces", pieces)
        assert await store.get("segments/pieces") == b"".join(pieces)

    run(story)


def test_puts_and_gets_side_by_side_do_not_mix(run: Run) -> None:
    async def one(store: ObjectStore, number: int) -> None:
        content = Random(number).randbytes(20_000 + number)
        await store.put(f"segments/{number}", [content[:7], content[7:]])
        assert await store.get(f"segments/{number}") == content
        assert await store.get(f"segments/{number}", 100, 10_000) == content[100:10_000]

    async def story(store: ObjectStore) -> None:
        await asyncio.gather(*(one(store, number) for number in range(40)))

    run(story)


def test_another_who_opens_the_store_finds_what_was_put(run: Run) -> None:
    async def write(store: ObjectStore) -> None:
        await store.put("segments/1", [b"kept"])

    async def read(store: ObjectStore) -> None:
        assert await store.get("segments/1") == b"kept"

    run(write)
    run(read)
