"""Files of a segment that come and go: deletion, and the swap of cleaned segments for those they were made
of.

A swap is safe at every step, because each is on disk before the next begins:

    1. `<base>.log.clean` and its sidecars are written and synced.   A crash: `.clean` files are removed.
    2. The sidecars become `.swap`; the folder is synced.            A crash: the same, and lone `.swap`
    sidecars. 3. The log becomes `.log.swap`; the folder is synced.            From here the swap counts as
    done. 4. The other old segments become `.deleted`; synced.             A crash: steps 4 to 7 are done at
    the next open. 5. The sidecars take their final names; synced. 6. The log takes its final name, over the
    first old log; synced. 7. The `.deleted` files go.

Steps 1 to 3 are `commit_clean`, in a worker. The log changes its list in memory, on the writer's thread,
between 3 and 4 (`Log.swap_in`). Which segments the new one replaces is in its seal: all from its base to its
`next_base`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from anabranch.errors import CorruptDataError
from anabranch.log import names
from anabranch.log.disk.files import File, Files
from anabranch.log.segment.seal import load_seal
from anabranch.log.segment.segment import Segment
from anabranch.log.segment.tail import Tail
from anabranch.values import Offset


@dataclass
class Rewritten:
    """A cleaned segment that is complete on disk as `.swap`, and the segments it was made of."""

    sources: Sequence[Segment]
    tail: Tail
    cleaned: Segment | None = None
    """What stands for it in the log, once it was swapped in."""


def commit_clean(files: Files, folder: str, file: File, tail: Tail, next_base: Offset) -> None:
    """Steps 1 to 3, for a `.log.clean` file whose batches are all written."""
    base = tail.base_offset
    tail.finish()
    contents = {
        names.INDEX: tail.index.dump(),
        names.TIME_INDEX: tail.time_index.dump(),
        names.SEAL: tail.sums.dump(next_base, tail.end_bytes, tail.max_timestamp, final=True),
    }
    for suffix, data in contents.items():
        files.write(f"{names.segment_path(folder, base, suffix)}{names.CLEAN}", data, sync=True)
    file.sync()
    file.close()
    for suffix in names.SIDECARS:
        _step(files, folder, base, suffix, names.CLEAN, names.SWAP)
    files.sync_folder(folder)
    _step(files, folder, base, names.LOG, names.CLEAN, names.SWAP)
    files.sync_folder(folder)


def finish_swap(files: Files, folder: str, rewritten: Rewritten) -> None:
    """Steps 4 to 7, or the removal of the cleaned files if they were not wanted any more."""
    cleaned = rewritten.cleaned
    if cleaned is None:
        _discard(files, folder, rewritten.tail.base_offset)
        return
    others = [segment.base_offset for segment in rewritten.sources[1:]]
    _retire(files, folder, others)
    if not cleaned.dropped:  # Else retention took it meanwhile, under the name it had then.
        _install_sidecars(files, folder, cleaned.base_offset)
        cleaned.file.rename(names.segment_path(folder, cleaned.base_offset, names.LOG))
        files.sync_folder(folder)
    _remove_retired(files, folder, others)


def resolve_leftovers(files: Files, folder: str, present: Sequence[str]) -> bool:
    """At open: complete every swap that counts as done, undo every other. Says whether there were any among the
    names present."""
    if not any(name.endswith((names.CLEAN, names.SWAP)) for name in present):
        return False
    for name in present:
        base = names.base_offset_of(name)
        if base is not None and name.endswith(f"{names.LOG}{names.SWAP}"):
            _resolve(files, folder, base, present)
    undo_leftovers(files, folder)
    return True


def undo_leftovers(files: Files, folder: str) -> None:
    """Remove every swap that is not needed: the logs first, for without them the sidecars mean nothing."""
    leftovers = [
        name
        for name in files.list(folder)
        if names.base_offset_of(name) is not None and name.endswith((names.CLEAN, names.SWAP))
    ]
    if not leftovers:
        return
    for name in sorted(leftovers, key=lambda name: names.LOG not in name):
        files.unlink(f"{folder}/{name}")
    files.sync_folder(folder)


def _resolve(files: Files, folder: str, base: Offset, present: Sequence[str]) -> None:
    next_base = _replaced_upto(files, folder, base)
    if next_base is None:
        # Its seal was synced before it counted, so this is rot. The old log, if it is still there, is the
        # safe choice.
        if f"{base:020d}{names.LOG}" in present:
            return
        next_base = base
    bases = [names.base_offset_of(name) for name in present if name.endswith(names.LOG)]
    others = [other for other in bases if other is not None and base < other < next_base]
    _retire(files, folder, others)
    _install_sidecars(files, folder, base)
    _step(files, folder, base, names.LOG, names.SWAP, "")
    files.sync_folder(folder)


def _replaced_upto(files: Files, folder: str, base: Offset) -> Offset | None:
    log = names.segment_path(folder, base, names.LOG)
    seal_path = names.segment_path(folder, base, names.SEAL)
    # A crash after step 5 has renamed the seal already.
    for path in (f"{seal_path}{names.SWAP}", seal_path):
        try:
            seal = load_seal(files.read(path))
        except (FileNotFoundError, CorruptDataError):
            continue
        if seal.log_bytes == files.size(f"{log}{names.SWAP}"):
            return seal.next_base
    return None


def _retire(files: Files, folder: str, bases: Sequence[Offset]) -> None:
    """Step 4. Segments that are gone already were dealt with before the crash."""
    for base in bases:
        path = names.segment_path(folder, base, names.LOG)
        if files.exists(path):
            files.rename(path, f"{path}{names.DELETED}")
    files.sync_folder(folder)


def _remove_retired(files: Files, folder: str, bases: Sequence[Offset]) -> None:
    for base in bases:
        log, *sidecars = [names.segment_path(folder, base, suffix) for suffix in names.SUFFIXES]
        for path in (f"{log}{names.DELETED}", *sidecars):
            if files.exists(path):
                files.unlink(path)


def _install_sidecars(files: Files, folder: str, base: Offset) -> None:
    """Step 5."""
    for suffix in names.SIDECARS:
        _step(files, folder, base, suffix, names.SWAP, "")
    files.sync_folder(folder)


def _discard(files: Files, folder: str, base: Offset) -> None:
    """Undo a swap that counts as done: the log first, for without it the sidecars mean nothing."""
    for suffix in names.SUFFIXES:
        path = f"{names.segment_path(folder, base, suffix)}{names.SWAP}"
        if files.exists(path):
            files.unlink(path)
            files.sync_folder(folder)


def _step(files: Files, folder: str, base: Offset, suffix: str, old: str, new: str) -> None:
    path = names.segment_path(folder, base, suffix)
    if files.exists(f"{path}{old}"):
        files.rename(f"{path}{old}", f"{path}{new}")


def delete_segments(files: Files, segments: Sequence[Segment]) -> None:
    """Remove the files of segments that no log has any more, oldest first.

    Each `.log` is renamed and the folder synced before the next one goes: a crash in between must not leave a
    hole. What was begun behind them is made durable first: it alone says then where the log goes on.
    """
    if segments:
        files.sync_folder(segments[0].folder)
    retired = []
    for segment in segments:
        segment.close()
        path = segment.file.path
        files.rename(path, f"{path}{names.DELETED}")
        retired.append(f"{path}{names.DELETED}")
        files.sync_folder(segment.folder)
    for path in retired:
        files.unlink(path)
    for segment in segments:
        for path in segment.paths()[1:]:
            for present in (path, f"{path}{names.SWAP}"):
                if files.exists(present):
                    files.unlink(present)
