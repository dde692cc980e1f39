"""`file:` when the power goes, the disk is full, and several use one folder."""

import asyncio
import errno
import os
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from anabranch.clock import RealClock
from anabranch.errors import (
    ObjectExistsError,
    ObjectGoneError,
    ObjectRefusedError,
    StoreRefusedError,
    StoreUnavailableError,
)
from anabranch.log.disk.files import Files
from anabranch.log.disk.real_files import RealFiles
from anabranch.objects.folder_store import ASIDE_MS_MAX, FolderStore
from anabranch.objects.stores import check_store
from anabranch.testing.fakes.clock import FakeClock
from anabranch.testing.fakes.disk import FakeDisk, PowerLoss
from anabranch.testing.fakes.loop import SimWorkers, VirtualLoop

ROOT = "/objects"
ASIDE = f"{ROOT}/.aside"
OBJECTS = {
    "segments/1-0": b"first" * 300,
    "segments/1-1": b"second" * 300,
    "merged/1-0": b"third" * 500,
}


class HereAndNow:
    """Workers without threads."""

    def sync(self, task: Callable[[], object], done: Callable[[object, BaseException | None], None]) -> None:
        try:
            result = task()
        except BaseException as error:  # noqa: BLE001 - handed to `done`, as real workers do.
            done(None, error)
        else:
            done(result, None)

    heavy = sync


def store_on(files: Files, clock: FakeClock | None = None, root: str = ROOT) -> FolderStore:
    return FolderStore(root, files, HereAndNow(), clock or FakeClock())


def run(story: Coroutine[object, object, object]) -> object:
    return asyncio.run(story)


async def names_of(store: FolderStore) -> list[str]:
    return [line.name async for page in store.list("") for line in page]


async def write_all(store: FolderStore, acknowledged: set[str]) -> None:
    for name, content in OBJECTS.items():
        await store.put(name, [content[:700], content[700:]])
        acknowledged.add(name)
    with suppress(ObjectExistsError):
        await store.put("segments/1-0", [OBJECTS["segments/1-0"]])


def changes_of_all() -> int:
    disk = FakeDisk()
    run(write_all(store_on(disk), set()))
    return disk.operations


@pytest.mark.parametrize("crash_at", range(1, changes_of_all() + 1))
def test_a_power_cut_at_any_step_leaves_objects_whole_or_absent(crash_at: int) -> None:
    disk = FakeDisk()
    disk.crash_at = crash_at
    acknowledged: set[str] = set()
    with pytest.raises(PowerLoss):
        run(write_all(store_on(disk), acknowledged))
    for seed in range(15):
        after = disk.copy()
        after.crash(Random(seed))
        run(check_whole(store_on(after), acknowledged))


async def check_whole(store: FolderStore, acknowledged: set[str]) -> None:
    found = set(await names_of(store))
    assert acknowledged <= found <= OBJECTS.keys()
    for name in found:
        assert await store.get(name) == OBJECTS[name]
    # The writer tries again what it has no answer for.
    for name, content in OBJECTS.items():
        with suppress(ObjectExistsError):
            await store.put(name, [content])
        assert await store.get(name) == content
    assert set(await names_of(store)) == OBJECTS.keys()


def test_an_object_that_an_earlier_try_has_linked_is_durable_when_the_next_finds_it() -> None:
    disk = FakeDisk()
    store = store_on(disk)
    run(store.put("segments/0", [b"x"]))
    disk.fail_next("sync_folder", path_contains="segments")
    with pytest.raises(StoreUnavailableError):
        run(store.put("segments/1", [b"content"]))
    with pytest.raises(ObjectExistsError):
        run(store.put("segments/1", [b"content"]))
    for seed in range(20):
        after = disk.copy()
        after.crash(Random(seed))
        assert run(store_on(after).get("segments/1")) == b"content"


def test_a_delete_stays_done_when_the_power_goes() -> None:
    disk = FakeDisk()
    store = store_on(disk)
    run(store.put("segments/1", [b"content"]))
    run(store.delete(["segments/1"]))
    for seed in range(20):
        after = disk.copy()
        after.crash(Random(seed))
        with pytest.raises(ObjectGoneError):
            run(store_on(after).get("segments/1"))


@pytest.mark.parametrize("operation", ["create", "write", "sync", "link"])
def test_a_put_that_the_disk_refuses_leaves_nothing(operation: str) -> None:
    disk = FakeDisk()
    store = store_on(disk)
    disk.fail_next(operation, errno.EIO)  # type: ignore[arg-type]
    with pytest.raises(StoreUnavailableError, match="Input/output error"):
        run(store.put("segments/1", [b"content"]))
    assert run(names_of(store)) == []
    assert disk.list(ASIDE) == []
    run(store.put("segments/1", [b"content"]))
    assert run(store.get("segments/1")) == b"content"


def test_a_full_disk_is_said_and_gets_over_it() -> None:
    disk = FakeDisk()
    store = store_on(disk)
    disk.capacity_bytes = 1000
    with pytest.raises(StoreUnavailableError, match="make room on its disk"):
        run(store.put("segments/1", [bytes(600), bytes(600)]))
    assert disk.list(ASIDE) == []
    disk.capacity_bytes = None
    run(store.put("segments/1", [bytes(1200)]))


def test_a_disk_that_takes_a_write_in_parts_gets_all_of_it() -> None:
    disk = FakeDisk()
    store = store_on(disk)
    disk.short_next(10)
    run(store.put("segments/1", [b"0123456", b"789abcdef"]))
    assert run(store.get("segments/1")) == b"0123456789abcdef"


def test_without_links_a_name_is_still_taken_once() -> None:
    disk = FakeDisk()
    store = store_on(disk)
    disk.fail_next("link", errno.EPERM, times=10)
    run(store.put("segments/1", [b"first"]))
    with pytest.raises(ObjectExistsError):
        run(store.put("segments/1", [b"second"]))
    assert run(store.get("segments/1")) == b"first"
    assert disk.list(ASIDE) == []


def test_what_a_crash_left_aside_goes_after_an_hour_and_not_before() -> None:
    clock = FakeClock()
    disk = FakeDisk()
    disk.wall_ms = clock.wall_ms
    disk.make_folder(ASIDE)
    disk.write(f"{ASIDE}/old.0", b"half")
    clock.advance(ASIDE_MS_MAX)
    disk.write(f"{ASIDE}/new.0", b"another process writes it now")
    clock.advance(1)
    run(store_on(disk, clock).put("segments/1", [b"x"]))
    assert disk.list(ASIDE) == ["new.0"]


def test_a_left_over_does_not_take_the_place_of_a_new_try() -> None:
    disk = FakeDisk()
    disk.make_folder(ASIDE)
    disk.write(f"{ASIDE}/1.0", b"half of an earlier try")
    store = store_on(disk)
    run(store.put("segments/1", [b"content"]))
    assert run(store.get("segments/1")) == b"content"


def test_a_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    store = store_on(RealFiles(), root=f"{tmp_path}/file/objects")
    with pytest.raises(StoreRefusedError, match="check that it is a folder which this user may write to"):
        run(store.put("segments/1", [b"x"]))


def test_a_folder_that_cannot_be_is_told_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(StoreRefusedError, match="check that it is a folder which this user may write to"):
        run(check_store(store_on(RealFiles(), root=f"{tmp_path}/file/objects")))


def test_a_disk_that_cannot_be_written_to_is_told_at_the_start() -> None:
    disk = FakeDisk()
    disk.fail_next("create", errno.EROFS)
    with pytest.raises(StoreRefusedError, match="Read-only file system"):
        run(check_store(store_on(disk)))
    disk.fail_next("sync", errno.EIO)
    assert run(check_store(store_on(disk))) is False


def test_a_new_folder_is_made_at_the_start(tmp_path: Path) -> None:
    assert run(check_store(store_on(RealFiles(), root=f"{tmp_path}/new/objects"))) is True
    assert [path.name for path in (tmp_path / "new/objects").rglob("*")] == [".aside"]


def test_a_folder_that_was_removed_meanwhile_is_made_again(tmp_path: Path) -> None:
    store = store_on(RealFiles(), root=f"{tmp_path}/objects")
    run(store.put("segments/1", [b"x"]))
    (tmp_path / "objects/segments/1").unlink()
    (tmp_path / "objects/segments").rmdir()
    with pytest.raises(StoreUnavailableError):
        run(store.put("segments/2", [b"x"]))
    run(store.put("segments/2", [b"x"]))
    assert run(store.get("segments/2")) == b"x"


def test_a_store_that_is_gone_takes_nothing_until_it_is_back(tmp_path: Path) -> None:
    store = store_on(RealFiles(), root=f"{tmp_path}/objects")
    run(store.put("segments/1", [b"x"]))
    (tmp_path / "objects").rename(tmp_path / "unmounted")
    (tmp_path / "objects").mkdir()  # What a disk was mounted on is there without it, and empty.
    for _ in range(3):
        with pytest.raises(StoreUnavailableError, match="mount the disk again"):
            run(store.put("segments/2", [b"x"]))
    assert list((tmp_path / "objects").iterdir()) == []
    (tmp_path / "objects").rmdir()
    with pytest.raises(StoreUnavailableError, match="mount the disk again"):
        run(store.put("segments/2", [b"x"]))
    assert not (tmp_path / "objects").exists()
    (tmp_path / "unmounted").rename(tmp_path / "objects")
    run(store.put("segments/2", [b"y"]))
    assert run(store.get("segments/1")) == b"x"
    assert run(store.get("segments/2")) == b"y"


def test_several_stores_on_one_new_folder_do_not_trip_over_each_other(tmp_path: Path) -> None:
    from anabranch.broker.workers import ThreadWorkers

    async def story() -> None:
        workers = ThreadWorkers(asyncio.get_running_loop(), 8, 2)
        try:
            for attempt in range(10):
                root = f"{tmp_path}/{attempt}/deep/objects"
                stores = [FolderStore(root, RealFiles(), workers, RealClock()) for _ in range(8)]
                await asyncio.gather(
                    *(store.put(f"segments/{number}", [b"x"]) for number, store in enumerate(stores))
                )
                assert len(await names_of(stores[0])) == 8
        finally:
            workers.close()

    asyncio.run(story())


def simulated(seed: int) -> tuple[list[str], int]:
    """Many puts side by side, on the simulator's loop, workers and disk."""
    clock, disk = FakeClock(), FakeDisk()
    loop = VirtualLoop(clock, lambda: False)
    store = FolderStore(ROOT, disk, SimWorkers(loop, Random(seed)), clock)

    async def story() -> list[str]:
        order: list[str] = []

        async def put(name: str) -> None:
            await store.put(name, [name.encode()])
            order.append(name)

        await asyncio.gather(*(put(f"segments/{number}") for number in range(20)))
        assert await store.get("segments/7") == b"segments/7"
        assert len(await names_of(store)) == 20
        loop.stop()
        return order

    with loop.running():
        task = loop.create_task(story())
    loop.run_for(60_000)
    loop.close()
    return task.result(), clock.monotonic_ms()


def test_it_runs_in_the_simulator_and_one_seed_is_one_run() -> None:
    assert simulated(3) == simulated(3)
    assert simulated(3) != simulated(4)


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_what_is_no_object_of_its_own_is_refused_at_once(kind: str, tmp_path: Path) -> None:
    store = store_on(RealFiles(), root=f"{tmp_path}/objects")
    run(store.put("segments/1", [b"x"]))
    place = tmp_path / "objects/segments/2"
    match kind:
        case "link":
            place.symlink_to("1")
        case "pipe":
            os.mkfifo(place)
        case _:
            place.mkdir()
    for request in (store.get("segments/2"), store.get("segments/2", 0, 10), store.get_end("segments/2", 10)):
        with pytest.raises(ObjectRefusedError, match="segments/2"):
            run(request)
