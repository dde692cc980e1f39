"""Draws what goes on from what as `git log --graph` does: the newest first, a column for each line that is under way.

Knows nothing of branches: nodes are anything that can be a key, and each names those it goes on from.
"""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

Node = TypeVar("Node", bound=Hashable)


class Row(NamedTuple, Generic[Node]):
    """One printed row: the drawing, and the node it stands for; None: only lines."""

    drawing: str
    node: Node | None


def graph(
    parents: Mapping[Node, Sequence[Node]], marks: Mapping[Node, str] | None = None
) -> Iterator[Row[Node]]:
    """`parents` in drawing order: every node before those it goes on from. A mark is one character, `*` if none is
    given."""
    columns: list[Node] = []
    last = next(reversed(list(parents)), None)
    for node, named in parents.items():
        if node not in columns:
            columns.append(node)
        place = columns.index(node)
        for other in reversed([at for at, waits_for in enumerate(columns) if waits_for == node][1:]):
            yield Row(_joined(len(columns), place, other), None)
            del columns[other]
        mark = (marks or {}).get(node, "*")
        yield Row(" ".join(mark if at == place else "|" for at in range(len(columns))), node)
        for number, _ in enumerate(named[1:]):
            yield Row(_opened(len(columns) + number, place + number), None)
        columns[place : place + 1] = named
        if not named and node != last:  # What comes below in the same column does not belong to it.
            yield Row(_closed(len(columns) + 1, place), None)


def _joined(count: int, into: int, other: int) -> str:
    """The column `other` ends in `into`, and those behind it move up."""
    text = _bars(count, other)
    for at in range(2 * into + 1, 2 * other - 1, 2):
        text[at] = "_"
    return _with(text, "/", [2 * other - 1, *(2 * at - 1 for at in range(other + 1, count))])


def _opened(count: int, place: int) -> str:
    """A column opens behind `place`, and those behind it make room."""
    return _with(_bars(count + 1, place + 1), "\\", [2 * at + 1 for at in range(place, count)])


def _closed(count: int, place: int) -> str:
    """The column ends, and those behind it move up."""
    return _with(_bars(count, place), "/", [2 * at - 1 for at in range(place + 1, count)])


def _bars(count: int, upto: int) -> list[str]:
    text = [" "] * (2 * count)
    for at in range(upto):
        text[2 * at] = "|"
    return text


def _with(text: list[str], sign: str, places: Sequence[int]) -> str:
    for at in places:
        text[at] = sign
    return "".join(text).rstrip()
