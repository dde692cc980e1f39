"""The pages that users read, and what is in them: fenced blocks, code within lines, commands."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    ROOT / "examples" / "README.md",
]
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_PROMPT = re.compile(r"^(?:[a-z]+)?\$\s+(.*)$")


class Block(NamedTuple):
    page: Path
    line: int
    language: str
    text: str

    @property
    def name(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks_of(page: Path) -> Iterator[Block]:
    text = page.read_text()
    for found in _FENCE.finditer(text):
        yield Block(page, text.count("\n", 0, found.start()) + 1, found[1], found[2])


def prose_of(page: Path) -> str:
    """Without the blocks."""
    return _FENCE.sub("", page.read_text())


def code_of(page: Path) -> list[str]:
    """Code within lines; it may go over the end of one."""
    return [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", prose_of(page))]


class Command(NamedTuple):
    text: str
    """As a shell takes it, with the lines of a here-document."""
    shown: str
    """What the page says is printed."""


def commands_of(block: Block) -> list[Command]:
    """`console` blocks have a prompt before commands and show answers; of `sh` blocks every line is one."""
    if block.language == "sh":
        return [Command(line, "") for line in block.text.splitlines() if line.strip()]
    commands: list[Command] = []
    lines = iter(block.text.splitlines())
    for line in lines:
        found = _PROMPT.match(line)
        if found is None:
            commands[-1] = commands[-1]._replace(shown=f"{commands[-1].shown}{line}\n")
            continue
        text = found[1]
        while text.endswith("\\"):
            text = f"{text}\n{next(lines)}"
        if marker := re.search(r"<<(\w+)", text):
            while (more := next(lines)) != marker[1]:
                text += f"\n{more}"
            text += f"\n{marker[1]}"
        commands.append(Command(text, ""))
    return commands


def calls_of_program(text: str) -> list[list[str]]:
    """The words of each call of `anabranch` in a shell command, or in code within a line."""
    joined = re.sub(r"\\\n", " ", text)
    calls = []
    for part in re.split(r" \| |[;\n]|&&|<<\w+", joined):
        part = part.split(" #", 1)[0].strip()
        if not re.match(r"(?:\S*/)?anabranch(?:\s|$)", part):
            continue
        try:
            words = shlex.split(part)
        except ValueError:  # Code that is cut short, with half of a quote.
            words = part.split()
        calls.append([word for word in words[1:] if word != "&"])
    return calls
