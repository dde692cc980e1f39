"""Data folders without a node: which partitions they hold, and their lock while they are read.

A partition is any folder with segment files in it, at most two levels down; its name is the folder's. The lanes of a
topic in mode branch are such folders one level further down, and their names begin with that of their partition. The
lock of the data folder is taken if there is one, so that no node writes meanwhile; a folder without one was never a
node's (it is a copy, or Kafka's own) and needs none.
"""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

from anabranch.cli.common import Failure, WrongCommandLine
from anabranch.log import names
from anabranch.log.disk.files import Files, require_no_strays
from anabranch.log.disk.real_files import RealFiles

LOCK_NAME = ".lock"
DEPTH_MAX = 2
LANE = "lane-"
SKIPPED = frozenset({"quarantine"})
_OWNER, _ROOM = "run this as the owner of the folder, or change its owner", "make room on the disk"
_FILES = "let this process open more files (`ulimit -n`)"
ADVICE = {
    errno.EACCES: _OWNER,
    errno.EPERM: _OWNER,
    errno.EROFS: "mount it read-write, or copy the folder elsewhere and check the copy",
    errno.ENOSPC: _ROOM,
    errno.EDQUOT: _ROOM,
    errno.EMFILE: _FILES,
    errno.ENFILE: _FILES,
}
"""What to do about a folder that cannot be locked, by the error."""


@contextmanager
def held(path: str) -> Iterator[RealFiles]:
    """The disk, with the data folder of `path` locked. DataFolderInUseError if a node runs on it."""
    if not os.path.exists(path):
        raise WrongCommandLine(f"There is nothing at {path}: give a node's data folder, or one partition's.")
    files = RealFiles()
    folder = data_folder_of(path)
    lock_path = os.path.join(folder or path, LOCK_NAME)
    try:
        lock = files.lock(lock_path) if folder is not None else None
    except OSError as error:
        advice = ADVICE.get(error.errno or 0, "check the disk")
        raise Failure(
            f"{error.filename or lock_path} cannot be locked ({error.strerror or error}): {advice}."
        ) from error
    try:
        real = os.path.realpath(path)
        if os.path.isdir(real):
            require_no_strays(files, real)
        yield files
    finally:
        if lock is not None:
            lock.release()


def data_folder_of(path: str) -> str | None:
    """The folder itself, or the nearest of its parents, that a node has locked before."""
    folder = os.path.realpath(path)
    for _ in range(DEPTH_MAX + 2):
        lock = os.path.join(folder, LOCK_NAME)
        if os.path.isfile(lock) or os.path.islink(lock):  # A link is refused, wherever it leads.
            return folder
        folder = os.path.dirname(folder)
    return None


def partition_folders(path: str, wanted: tuple[str, ...]) -> list[str]:
    """Every partition's folder at or below `path`, sorted; only the wanted ones if any are named."""
    found = sorted(_walk(os.path.normpath(path), DEPTH_MAX))
    if not found:
        raise Failure(f"{path} holds no partition: give a node's data folder, or one partition's.")
    if not wanted:
        return found
    there: dict[str, list[str]] = {}
    for folder in found:
        for name in {name_of(folder), name_of(folder).partition("/")[0]}:
            there.setdefault(name, []).append(folder)
    missing = [name for name in wanted if name not in there]
    if missing:
        raise Failure(f"{path} holds no partition {missing[0]}; it does hold {min(there)}, for example.")
    return list(dict.fromkeys(folder for name in wanted for folder in there[name]))


def name_of(folder: str) -> str:
    """The name of a partition, or of a lane of one."""
    name = os.path.basename(folder)
    return f"{os.path.basename(os.path.dirname(folder))}/{name}" if is_lane(folder) else name


def is_lane(folder: str) -> bool:
    return os.path.basename(folder).startswith(LANE)


def _walk(folder: str, depth: int) -> Iterator[str]:
    with os.scandir(folder) as entries:
        children = list(entries)
    if any(names.base_offset_of(entry.name) is not None for entry in children):
        yield folder
        return
    for entry in children:
        skipped = entry.name in SKIPPED or entry.name.endswith(names.DELETED)
        if entry.is_dir(follow_symlinks=False) and not skipped and (depth or entry.name.startswith(LANE)):
            yield from _walk(entry.path, max(0, depth - 1))


def is_segment(name: str) -> bool:
    base = names.base_offset_of(name)
    return base is not None and name == f"{base:020d}{names.LOG}"


def segment_bases(files: Files, folder: str) -> list[int]:
    return [int(name[:20]) for name in files.list(folder) if is_segment(name)]
