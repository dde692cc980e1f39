"""A task's way to the object store: it waits a little for one that is away, and knows its own object again."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from anabranch.errors import ObjectExistsError, ObjectGoneError, PipelineError, StoreUnavailableError
from anabranch.objects.store import Buffer
from anabranch.pipeline.source import object_store
from anabranch.pipeline.source.object_store import JobStore


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobStore:
    monkeypatch.setattr(object_store, "PAUSES_SECONDS", (0.0, 0.0))
    return JobStore(f"file://{tmp_path}/store")


def fail(store: JobStore, times: int, *, is_done: bool = False) -> None:
    """Let the next PUTs fail, though they are done."""
    put = store._store.put
    left = [None] * times

    async def failing(name: str, pieces: Sequence[Buffer]) -> None:
        if left:
            left.pop()
            if is_done:
                await put(name, pieces)
            raise StoreUnavailableError("The store is away.")
        await put(name, pieces)

    store._store.put = failing  # type: ignore[method-assign]


def test_what_is_put_is_there_in_parts(store: JobStore) -> None:
    with store:
        store.put("merged/a", [b"one ", b"two"])
        assert store.get("merged/a") == b"one two"
        assert store.get("merged/a", 4, 7) == b"two"
        with pytest.raises(ObjectGoneError):
            store.get("merged/b")


def test_a_store_that_is_away_is_waited_for(store: JobStore) -> None:
    with store:
        fail(store, 2)
        store.put("merged/a", [b"x"])
        assert store.get("merged/a") == b"x"
        fail(store, 3)
        with pytest.raises(StoreUnavailableError):
            store.put("merged/b", [b"x"])


def test_a_put_that_was_done_though_it_failed_is_done(store: JobStore) -> None:
    with store:
        fail(store, 1, is_done=True)
        store.put("merged/a", [b"x"])
        assert store.get("merged/a") == b"x"


def test_an_object_of_somebody_else_is_left_alone(store: JobStore) -> None:
    with store:
        store.put("merged/a", [b"x"])
        with pytest.raises(ObjectExistsError):
            store.put("merged/a", [b"y"])


def test_a_store_in_memory_cannot_be_reached() -> None:
    with pytest.raises(PipelineError, match="memory"):
        JobStore("memory:x")
