"""Workers without threads: a task runs when it is handed over, or when the test says so."""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

Task = Callable[[], Any]
Done = Callable[[Any, BaseException | None], None]


def _run(task: Task, done: Done) -> None:
    try:
        result = task()
    except BaseException as error:  # noqa: BLE001 - as real workers do: `done` deals with it.
        done(None, error)
    else:
        done(result, None)


class InlineWorkers:
    """Every task is done before `sync` or `heavy` returns."""

    def sync(self, task: Task, done: Done) -> None:
        _run(task, done)

    def heavy(self, task: Task, done: Done) -> None:
        _run(task, done)

    def side_by_side(self, tasks: Iterable[Task]) -> list[Any]:
        return [task() for task in tasks]

    def close(self) -> None:
        pass


class HeldWorkers:
    """Tasks wait until `run_sync` or `run_heavy` lets the oldest one run."""

    def __init__(self) -> None:
        self.syncs: deque[tuple[Task, Done]] = deque()
        self.heavies: deque[tuple[Task, Done]] = deque()

    def sync(self, task: Task, done: Done) -> None:
        self.syncs.append((task, done))

    def heavy(self, task: Task, done: Done) -> None:
        self.heavies.append((task, done))

    def run_sync(self) -> None:
        _run(*self.syncs.popleft())

    def run_heavy(self) -> None:
        _run(*self.heavies.popleft())

    def side_by_side(self, tasks: Iterable[Task]) -> list[Any]:
        return [task() for task in tasks]

    def close(self) -> None:
        pass
