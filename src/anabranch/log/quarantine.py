"""Moves aside what cannot be trusted, and lists it: nothing of a user's is ever deleted because it looks
wrong.

`<partition folder>/quarantine/` keeps the files under their names (with a number if one is taken) and
`list.json`, a checkpoint file with one entry per file: its name, size, and why. The list is durable before a
file moves, so that a crash in between leaves an entry too many rather than a file nobody can explain.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

from anabranch.log.disk.checkpoint import read_checkpoint, write_checkpoint
from anabranch.log.disk.files import Files

FOLDER = "quarantine"
LIST = "list.json"
_KEPT = re.compile(r"(?P<name>\d{20}\.[a-z]+)(\.from-(?P<position>\d+))?(\.\d+)?")


class Quarantined(NamedTuple):
    name: str
    size_bytes: int
    reason: str

    @property
    def origin(self) -> tuple[str, int | None]:
        """The name of the file that it was, and the position from which it was cut off; None: it is the whole file."""
        found = _KEPT.fullmatch(self.name)
        if found is None:
            return self.name, None
        return found["name"], int(found["position"]) if found["position"] is not None else None


def quarantine(files: Files, folder: str, file_names: Sequence[str], reason: str) -> list[Quarantined]:
    """Move files of the partition folder aside."""
    aside = _aside(files, folder)
    moves = [(f"{folder}/{name}", _free_name(files, aside, name)) for name in file_names]
    entries = [Quarantined(new, files.size(old), reason) for old, new in moves]
    _list(files, aside, entries)
    for old, new in moves:
        files.rename(old, f"{aside}/{new}")
    files.sync_folder(aside)
    files.sync_folder(folder)
    return entries


def keep_copy(
    files: Files, folder: str, name: str, position: int, data: bytes, reason: str
) -> list[Quarantined]:
    """Keep the bytes from `position` on, which are about to be cut off a file."""
    aside = _aside(files, folder)
    entry = Quarantined(_free_name(files, aside, f"{name}.from-{position}"), len(data), reason)
    _list(files, aside, [entry])
    files.write(f"{aside}/{entry.name}", data, sync=True)
    files.sync_folder(aside)
    return [entry]


def listed(files: Files, folder: str) -> list[Quarantined]:
    """Everything ever moved aside here, oldest first."""
    value, _ = read_checkpoint(files, f"{folder}/{FOLDER}/{LIST}")
    return [Quarantined(*entry) for entry in value or []]


def _list(files: Files, aside: str, entries: list[Quarantined]) -> None:
    path = f"{aside}/{LIST}"
    value, _ = read_checkpoint(files, path)
    write_checkpoint(files, path, [*(value or []), *(list(entry) for entry in entries)])


def _aside(files: Files, folder: str) -> str:
    aside = f"{folder}/{FOLDER}"
    files.make_folder(aside)
    return aside


def _free_name(files: Files, aside: str, name: str) -> str:
    number, free = 0, name
    while files.exists(f"{aside}/{free}"):
        number += 1
        free = f"{name}.{number}"
    return free
