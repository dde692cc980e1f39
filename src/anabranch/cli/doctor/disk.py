"""What `anabranch doctor` looks at on the disk: can a node have this folder, is there room, how long does a sync take?

Whether a folder can be written is found by writing, since modes alone do not tell (a read-only mount, /proc, a full
disk). The file for that has no name where the system can do it, and is gone again in any case.
"""

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from anabranch.cli.doctor.findings import Finding

if TYPE_CHECKING:
    from anabranch.log.disk.files import Stray

LOCK_NAME = ".lock"
NODE_NAME = "node"
KAFKA_NAME = "meta.properties"
LOST_AND_FOUND = "lost+found"
"""The file system's own, in the root of a volume."""
FREE_BYTES_WANTED = 2 * 2**30
FREE_BYTES_MIN = 64 * 2**20
"""Below it a node could not even begin the segments of a few partitions."""
SYNC_COUNT = 20
SYNC_BYTES = 4096
SYNC_MS_WANTED = 20.0
"""Under flush=always that is what acks=all waits for at least."""


def nearest_folder(path: str) -> str:
    """The path itself, or the nearest above it that exists; it need not be a folder."""
    path = os.path.abspath(path)
    while not os.path.lexists(path):
        path = os.path.dirname(path)
    return path


def disk_space(data_dir: str, free_of: Callable[[str], int]) -> Finding:
    free_bytes = free_of(nearest_folder(data_dir))
    text = f"{free_bytes / 2**30:.1f} GiB free"
    if free_bytes < FREE_BYTES_MIN:
        return Finding("disk space", "fail", text, "make room, or choose another --data-dir")
    if free_bytes < FREE_BYTES_WANTED:
        return Finding("disk space", "warn", text, "make room, or set log.retention.bytes")
    return Finding("disk space", "ok", text)


def data_folder(data_dir: str) -> Finding:
    where = os.path.abspath(data_dir)
    there = nearest_folder(where)
    if not os.path.isdir(there):
        what = f"{there} is a file" if os.path.exists(there) else f"{there} is a link to nothing"
        return Finding("data folder", "fail", what, "choose another --data-dir")
    try:
        with probe_file(there):
            pass
    except OSError as error:
        reason = error.strerror or error
        text = (
            f"{where} is not writable ({reason})" if there == where else f"{where} cannot be made ({reason})"
        )
        return Finding("data folder", "fail", text, "change its owner or mount, or choose another --data-dir")
    if there != where:
        return Finding("data folder", "ok", f"{where} will be made by `anabranch up`")
    return _what_is_in(where)


def _what_is_in(folder: str) -> Finding:
    if is_locked(folder):
        return Finding("data folder", "ok", f"{folder} is in use by a running node")
    try:
        names, stray = os.listdir(folder), _stray_in(folder)
    except OSError as error:
        text = f"{folder} cannot be read ({error.strerror or error})"
        return Finding("data folder", "fail", text, "change its owner or mount, or choose another --data-dir")
    if stray is not None:
        text = f"{stray.path} is {stray.kind}, and what is in a data folder must be there itself, as a file"
        return Finding("data folder", "fail", text, "put what it points to in its place, or remove it")
    if NODE_NAME in names:
        damage = _damage_of(os.path.join(folder, NODE_NAME))
        if damage:
            step = "restore it from a backup, or choose another --data-dir"
            return Finding("data folder", "fail", f"{folder}/{NODE_NAME} cannot be used: {damage}", step)
    elif KAFKA_NAME in names:
        text = f"{folder} is a data folder of Apache Kafka"
        return Finding("data folder", "fail", text, "choose another --data-dir")
    elif set(names) - {LOCK_NAME, LOST_AND_FOUND}:
        text = f"{folder} has files that no node made"
        return Finding("data folder", "warn", text, "choose an empty --data-dir")
    return Finding("data folder", "ok", f"{folder} is free")


def _stray_in(folder: str) -> "Stray | None":
    from anabranch.log.disk.real_files import RealFiles

    return RealFiles().find_stray(folder)


def _damage_of(path: str) -> str | None:
    """What is wrong with the file that says whose folder it is."""
    from anabranch.log.disk.checkpoint import read_checkpoint
    from anabranch.log.disk.real_files import RealFiles

    known, reason = read_checkpoint(RealFiles(), path)
    if known is None:
        return str(reason)
    return None if "cluster_id" in known and "broker_id" in known else "it is of another format"


def owner(data_dir: str, user_id: int) -> Finding | None:
    """Nothing to say of a folder that is not there yet, or is the user's."""
    import pwd

    where = os.path.abspath(data_dir)
    try:
        owner_id = os.stat(where).st_uid
    except OSError:
        return None
    if owner_id == user_id:
        return None
    try:
        name = pwd.getpwuid(owner_id).pw_name
    except KeyError:
        name = f"user {owner_id}"
    return Finding(
        "owner", "warn", f"{where} belongs to {name}", f"run the node as {name}, or change its owner"
    )


def is_locked(folder: str) -> bool:
    """Whether a node holds the folder; asks for the lock and lets go of it at once."""
    import fcntl

    try:
        descriptor = os.open(os.path.join(folder, LOCK_NAME), os.O_RDWR | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def sync_latency(data_dir: str, now_seconds: Callable[[], float] = time.perf_counter) -> Finding:
    """How long a small write takes until it is on the disk."""
    where = nearest_folder(data_dir)
    taken_ms = []
    try:
        with probe_file(where) as descriptor:
            for _ in range(SYNC_COUNT):
                os.write(descriptor, bytes(SYNC_BYTES))
                begun = now_seconds()
                os.fdatasync(descriptor)
                taken_ms.append((now_seconds() - begun) * 1000)
    except OSError as error:
        return Finding(
            "sync", "fail", f"{where} cannot be synced ({error.strerror or error})", "check the disk"
        )
    median_ms = statistics.median(taken_ms)
    text = f"{median_ms:.2f} ms (median of {SYNC_COUNT}), {max(taken_ms):.2f} ms at most"
    if median_ms > SYNC_MS_WANTED:
        step = "acks=all waits for each sync: take another disk, or --flush interval"
        return Finding("sync", "warn", text, step)
    return Finding("sync", "ok", text)


@contextmanager
def probe_file(folder: str) -> Iterator[int]:
    """A file in this folder to write to. Raises OSError if there cannot be one."""
    try:
        descriptor = os.open(folder, os.O_TMPFILE | os.O_WRONLY, 0o600)
    except OSError:  # Not every file system has files without a name: then one that is removed at once.
        descriptor, path = tempfile.mkstemp(prefix=".anabranch-doctor-", dir=folder)
        os.unlink(path)
    try:
        os.write(descriptor, b"\0")
        yield descriptor
    finally:
        os.close(descriptor)
