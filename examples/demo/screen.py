"""What the demo says while it works: one line per step with the time it took, and bars if somebody is looking."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.text import Text

NAME_WIDTH = 22


class Screen:
    def __init__(self, console: Console) -> None:
        self.console = console

    def say(self, name: str, text: str, seconds: float | None = None) -> None:
        line = Text("  ").append(f"{name:<{NAME_WIDTH}}", style="bold").append(text)
        if seconds is not None:
            line.append(f"  {seconds:.1f} s", style="dim")
        self.console.print(line, soft_wrap=True)

    @contextmanager
    def bar(self, name: str, total: int) -> Iterator[Callable[[int], None]]:
        """Yields what to call with how many more are done; the bar goes away at the end."""
        columns = (TextColumn(f"  {name:<{NAME_WIDTH - 1}}"), BarColumn(), MofNCompleteColumn())
        with Progress(
            *columns, console=self.console, transient=True, disable=not self.console.is_terminal
        ) as bar:
            task = bar.add_task("", total=total)
            yield lambda count: bar.advance(task, count)


class Stopwatch:
    """Seconds since it was made, or since it was last asked."""

    def __init__(self) -> None:
        self._start = time.monotonic()

    def lap(self) -> float:
        now = time.monotonic()
        seconds, self._start = now - self._start, now
        return seconds
