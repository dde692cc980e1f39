"""Small state files, replaced atomically: a crash leaves the old one or the new one, never half of each.

Written aside, synced, renamed, folder synced. A file that is torn, garbled or of another version reads as
missing, with the reason why (`record.state_file` has the format); the caller decides what that means and says
so. On top of it, the three lists a node keeps for all of its partitions at once: where recovery may begin,
where each log starts, how far each log has been cleaned.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from anabranch.log.disk.files import Files, folder_of
from anabranch.record.state_file import dump_state, load_state
from anabranch.values import Offset


class Checkpoint(NamedTuple):
    """What a state file holds, or why it holds nothing."""

    value: Any
    missing_because: str | None


class ProducersMark(NamedTuple):
    """How long the snapshot of producers stays true: from `snapshot`, the offset it was made at (0: there is
    no snapshot), up to `upto` no producer with an id has written."""

    snapshot: Offset
    upto: Offset


NO_PRODUCERS_MARK = ProducersMark(Offset(-1), Offset(-1))


class RecoveryPoint(NamedTuple):
    """Everything below `offset` is whole in the file: a recovery scan may begin here.

    Below `synced` it is on the disk too, and not only in the page cache of this boot. `producers` never
    reaches beyond `offset`: what follows may be lost, and other records written in its place.
    """

    offset: Offset
    synced: Offset = Offset(0)
    producers: ProducersMark = NO_PRODUCERS_MARK


class RecoveryMark(NamedTuple):
    """What a log says of itself for the next recovery: below `synced` the disk has it, below `written` at
    least the page cache has it, which outlives a killed process but not the boot."""

    synced: Offset
    written: Offset


def write_checkpoint(files: Files, path: str, value: Any) -> None:
    """Replace the file with `value` (anything JSON can carry), durably."""
    aside = f"{path}.tmp"
    files.write(aside, dump_state(value), sync=True)
    files.rename(aside, path)
    files.sync_folder(folder_of(path))


def read_checkpoint(files: Files, path: str) -> Checkpoint:
    try:
        data = files.read(path)
    except FileNotFoundError:
        return Checkpoint(None, "there is no such file")
    except OSError as error:
        return Checkpoint(None, f"it cannot be read: {error.strerror or error}")
    return Checkpoint(*load_state(data))


def write_recovery_points(
    files: Files,
    path: str,
    boot: str,
    marks: Mapping[str, RecoveryMark],
    producers: Mapping[str, ProducersMark] | None = None,
) -> None:
    """`marks` by partition folder; `boot` names the boot of the machine (`real_files.boot_id`)."""
    known = producers or {}
    points = {name: [*mark, *known.get(name, ())] for name, mark in marks.items()}
    write_checkpoint(files, path, {"boot": boot, "points": points})


def read_recovery_points(files: Files, path: str, boot: str) -> tuple[dict[str, RecoveryPoint], str | None]:
    """Where each partition's recovery may begin, and why nothing is known if so.

    In the same boot all that was written is still there; after another one, only what was synced.
    """
    value, reason = read_checkpoint(files, path)
    if value is None:
        return {}, reason
    same_boot = bool(boot) and value["boot"] == boot
    points = {}
    for name, (synced, written, *producers) in value["points"].items():
        offset = Offset(written if same_boot else synced)
        points[name] = RecoveryPoint(offset, Offset(synced), _producers_mark(producers, offset))
    return points, None


def _producers_mark(known: list[int], upto_max: Offset) -> ProducersMark:
    if not known:
        return NO_PRODUCERS_MARK
    snapshot, upto = known
    return ProducersMark(Offset(snapshot), min(Offset(upto), upto_max))


def write_offsets(files: Files, path: str, offsets: Mapping[str, Offset]) -> None:
    """One offset per partition folder: `log-start-offsets`, `cleaner-offsets`."""
    write_checkpoint(files, path, dict(offsets))


def read_offsets(files: Files, path: str) -> tuple[dict[str, Offset], str | None]:
    value, reason = read_checkpoint(files, path)
    return (
        ({name: Offset(offset) for name, offset in value.items()}, None)
        if value is not None
        else ({}, reason)
    )
