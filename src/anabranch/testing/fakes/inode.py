"""One file of a `FakeDisk`, twice: what a running process sees, and what would survive a power cut.

Changes wait in `pending` until `sync` carries them over; a power cut keeps any part of those that wait. Nobody but
`fake_disk` uses it.
"""

from dataclasses import dataclass, field
from random import Random

SECTOR_BYTES = 512


class Write:
    def __init__(self, position: int, data: bytes) -> None:
        self.position = position
        self.data = data

    def apply(self, content: bytearray) -> None:
        _put(content, self.position, self.data)


class Truncate:
    def __init__(self, size: int) -> None:
        self.size = size

    def apply(self, content: bytearray) -> None:
        _resize(content, self.size)


@dataclass
class Inode:
    visible: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    pending: list[Write | Truncate] = field(default_factory=list)
    modified_ms: int = 0

    def change(self, step: Write | Truncate) -> None:
        step.apply(self.visible)
        self.pending.append(step)

    def sync(self) -> None:
        for step in self.pending:
            step.apply(self.durable)
        self.pending.clear()

    def reload(self) -> None:
        """What reads show once the cache is dropped: the disk, and the changes still waiting for it."""
        self.visible = bytearray(self.durable)
        for step in self.pending:
            step.apply(self.visible)


def copied(inode: Inode, done: dict[int, Inode]) -> Inode:
    """Two names of one file stay two names of one file."""
    if id(inode) not in done:
        copy = Inode(
            bytearray(inode.visible), bytearray(inode.durable), list(inode.pending), inode.modified_ms
        )
        done[id(inode)] = copy
    return done[id(inode)]


def _put(content: bytearray, position: int, data: bytes) -> None:
    if position > len(content):
        content.extend(bytes(position - len(content)))
    content[position : position + len(data)] = data


def _resize(content: bytearray, size: int) -> None:
    if size < len(content):
        del content[size:]
    else:
        content.extend(bytes(size - len(content)))


def lose_power(inode: Inode, rng: Random) -> None:
    """Any subset of the unsynced sectors; a sector that was not written reads as before, or as zeros beyond
    the end."""
    keep = rng.choice((0.0, 0.3, 0.7, 1.0))
    survivor = inode.durable
    for number, step in enumerate(inode.pending):
        if isinstance(step, Truncate):
            if rng.random() < keep:
                step.apply(survivor)
            continue
        _write_sectors(survivor, step, keep, rng)
        if number == len(inode.pending) - 1 and step.data and rng.random() < 0.5:
            torn = step.data[: rng.randrange(len(step.data))]
            _put(survivor, step.position, torn)
    inode.visible = bytearray(survivor)
    inode.pending.clear()


def _write_sectors(content: bytearray, write: Write, keep: float, rng: Random) -> None:
    end = write.position + len(write.data)
    position = write.position
    while position < end:
        stop = min(end, (position // SECTOR_BYTES + 1) * SECTOR_BYTES)
        if rng.random() < keep:
            _put(content, position, write.data[position - write.position : stop - write.position])
        position = stop
    if end > len(content) and rng.random() < keep:
        _resize(content, end)  # The length reached the disk, the bytes did not: zeros.
