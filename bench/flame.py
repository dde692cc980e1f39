"""Stacks as py-spy writes them (`main;serve;recv 17`): counted, sorted out, and drawn as a flame graph.

Width is time, the root is at the top, and a function lies below the one that called it. Ours is orange, Python's own
library yellow, native code and the kernel's doors grey. Threads that wait for work are left out, and so is the long
stem of calls that every sample shares.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from html import escape

Stack = tuple[str, ...]

WAITING = (
    "_worker (concurrent/futures/thread.py",
    "Condition.wait (threading.py",
    "Event.wait (threading.py",
)
STEM_SHARE = 0.98
WIDTH, ROW, LETTER = 1400, 17, 6.6
NARROWEST = 0.4
OURS, LIBRARY, NATIVE = "#f2a65a", "#f6dc85", "#cfd4d8"


def read_stacks(lines: Iterable[str]) -> Counter[Stack]:
    stacks: Counter[Stack] = Counter()
    for line in lines:
        frames, _, count = line.rpartition(" ")
        stack = tuple(frames.split(";"))
        if not is_waiting(stack):
            stacks[stack] += int(count)
    return stacks


def is_waiting(stack: Stack) -> bool:
    """Whether the last Python function of a stack is one that only waits for work."""
    python = next((frame for frame in reversed(stack) if ".py:" in frame), "")
    return python.startswith(WAITING)


def own_counts(stacks: Counter[Stack]) -> Counter[str]:
    """How often each function was on top."""
    counts: Counter[str] = Counter()
    for stack, count in stacks.items():
        counts[stack[-1]] += count
    return counts


def whole_counts(stacks: Counter[Stack]) -> Counter[str]:
    """How often each function was anywhere on the stack: its own time and that of all it calls."""
    counts: Counter[str] = Counter()
    for stack, count in stacks.items():
        for frame in set(stack):
            counts[frame] += count
    return counts


@dataclass
class Node:
    name: str
    count: int = 0
    children: "dict[str, Node]" = field(default_factory=dict)


def tree_of(stacks: Counter[Stack]) -> Node:
    root = Node("all")
    for stack, count in stacks.items():
        node = root
        node.count += count
        for frame in stack:
            node = node.children.setdefault(frame, Node(frame))
            node.count += count
    return root


def without_stem(root: Node) -> Node:
    """The first function whose time parts into several branches."""
    node = root
    while node.children:
        largest = max(node.children.values(), key=lambda child: child.count)
        if largest.count < STEM_SHARE * node.count:
            break
        node = largest
    return node


def draw(stacks: Counter[Stack], title: str) -> str:
    """The flame graph as an SVG document."""
    root = without_stem(tree_of(stacks))
    boxes: list[str] = []
    depth = _draw_node(root, 0.0, WIDTH / max(root.count, 1), 2, root.count, boxes)
    height = (depth + 2) * ROW
    style = "text { font: 11px sans-serif; pointer-events: none } rect:hover { stroke: #000 }"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'viewBox="0 0 {WIDTH} {height}"><style>{style}</style>'
        f'<rect width="100%" height="100%" fill="#ffffff"/>'
        f'<text x="6" y="14">{escape(title)}</text>{"".join(boxes)}</svg>\n'
    )


def _draw_node(node: Node, left: float, scale: float, row: int, total: int, boxes: list[str]) -> int:
    """Adds the boxes of a node and of all it calls; the lowest row that was used."""
    width = node.count * scale
    if width < NARROWEST:
        return row
    boxes.append(_box(node, left, width, row, total))
    lowest = row
    for child in sorted(node.children.values(), key=lambda child: -child.count):
        lowest = max(lowest, _draw_node(child, left, scale, row + 1, total, boxes))
        left += child.count * scale
    return lowest


def _box(node: Node, left: float, width: float, row: int, total: int) -> str:
    colour = OURS if "(anabranch/" in node.name else LIBRARY if ".py:" in node.name else NATIVE
    told = f"{node.name}: {node.count} samples, {node.count / total:.1%}"
    letters = int((width - 6) / LETTER)
    text = node.name if len(node.name) <= letters else node.name[: max(letters - 1, 0)] + "…"
    label = f'<text x="{left + 3:.1f}" y="{row * ROW - 4}">{escape(text)}</text>' if letters > 3 else ""
    return (
        f'<g><title>{escape(told)}</title><rect x="{left:.1f}" y="{(row - 1) * ROW}" '
        f'width="{max(width - 0.4, 0.2):.1f}" height="{ROW - 1}" rx="1" fill="{colour}"/>{label}</g>'
    )
