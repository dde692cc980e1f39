"""Segments that a job has compacted, taken in as if the cleaner had written them (`record.compaction.offer_format`).

Nothing of an offer is believed. `matched` holds its manifest against the log as it is now; `take` then walks the
log's own segments and the offered file side by side, checks every CRC and, by `record.compaction.check`, every record,
and copies what it has just checked from memory into a file of our own. From there it is the cleaner's way: `.clean`,
`.swap`, the log's list (`swap.py`). So whoever may still write to the offered file cannot change what was taken, a
wrong offer costs nothing but its reading, and a crash at any step leaves what a crash of the cleaner leaves.

`read_offer`, `matched`, `take` and `answer` may run in any thread; the segments they are handed do not change.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from anabranch.errors import CorruptDataError, OfferRefusedError, StorageError
from anabranch.log.cleaner import CleanPlan, KeysMapped, batches_of, map_keys, write_aside
from anabranch.log.disk.files import Bytes, Files
from anabranch.log.segment.scan import whole_batches
from anabranch.log.segment.segment import Segment
from anabranch.log.settings import SEGMENT_BYTES_MAX
from anabranch.log.swap import Rewritten
from anabranch.record.batch import HEADER_BYTES, read_header
from anabranch.record.compaction.check import check_compacted
from anabranch.record.compaction.offer_format import (
    FOLDER,
    MANIFEST,
    MANIFEST_BYTES_MAX,
    OUTCOME,
    Offer,
    OfferedSource,
    Outcome,
    dump_outcome,
    file_name,
    load_offer,
    load_outcome,
)
from anabranch.record.compaction.run import grouped


def is_offered(files: Files, folder: str) -> bool:
    return files.exists(f"{folder}/{FOLDER}/{MANIFEST}")


def left_over(files: Files, folder: str) -> frozenset[tuple[str, int]]:
    """Names and sizes of what lies there: a job at work, or one that never came back."""
    aside = f"{folder}/{FOLDER}"
    if not files.is_folder(aside):
        return frozenset()
    found = [name for name in files.list(aside) if name != OUTCOME]
    return frozenset((name, files.size(f"{aside}/{name}")) for name in found)


def read_offer(files: Files, folder: str) -> Offer | None:
    """None if it was answered before, and only the removal of its files is missing."""
    path = f"{folder}/{FOLDER}/{MANIFEST}"
    try:
        if files.size(path) > MANIFEST_BYTES_MAX:
            raise OfferRefusedError(f"The manifest has more than {MANIFEST_BYTES_MAX} bytes.")
        offer = load_offer(files.read(path))
        answered = _outcome(files, folder)
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror or error}.") from error
    return None if answered is not None and answered.id == offer.id else offer


def _outcome(files: Files, folder: str) -> Outcome | None:
    path = f"{folder}/{FOLDER}/{OUTCOME}"
    return load_outcome(files.read(path)) if files.exists(path) else None


def matched(offer: Offer, plan: CleanPlan, keys_max: int, last_offsets: Mapping[int, int]) -> KeysMapped:
    """The offer as a run of the cleaner: our own map of the keys, and our own segments in the offer's groups.

    OfferRefusedError if it was made of anything else than what the log consists of now.
    """
    segments = [segment for segment in plan.segments if segment.base_offset < offer.upto]
    if not segments or segments[-1].published_offset < offer.upto:
        raise OfferRefusedError(f"Nothing of this log may be compacted up to offset {offer.upto} now.")
    groups = grouped(segments, plan.config.segment_bytes)
    ours = [[OfferedSource(each.base_offset, each.published_bytes) for each in group] for group in groups]
    if ours != [list(group) for group in offer.groups]:
        raise OfferRefusedError(
            "The log has other segments than those it was made of: it has changed meanwhile."
        )
    mapped = map_keys(replace(plan, segments=segments), keys_max, last_offsets, offer.upto)
    if mapped.upto < offer.upto:
        raise OfferRefusedError(
            f"It has more keys below offset {offer.upto} than the cleaner's map holds ({keys_max}): "
            "raise log.cleaner.dedupe.buffer.size."
        )
    return replace(mapped, groups=groups)


def take(files: Files, mapped: KeysMapped, group: Sequence[Segment]) -> Rewritten:
    """One group, checked and copied, complete on disk as `.swap` when this returns.

    OfferRefusedError leaves at most a `.clean` file, which is removed like any other.
    """
    return write_aside(files, mapped, group, _checked(files, mapped, group))


def _checked(files: Files, mapped: KeysMapped, group: Sequence[Segment]) -> Iterator[Bytes]:
    """Batches that were offered, each once it has been held against the one it replaces."""
    run = mapped.run
    theirs = _offered_batches(files, mapped, group)
    offered = next(theirs, None)
    for source in batches_of(mapped.plan, group):
        mine = offered
        if mine is not None and read_header(mine).base_offset == read_header(source).base_offset:
            offered = next(theirs, None)
        else:
            mine = None
        check_compacted(source, mine, run)
        if mine is not None:
            yield mine
    if offered is not None:
        offset = read_header(offered).base_offset
        raise OfferRefusedError(f"The batch at offset {offset} is none of the log's, or out of order.")


def _offered_batches(files: Files, mapped: KeysMapped, group: Sequence[Segment]) -> Iterator[memoryview]:
    folder, config = mapped.plan.folder, mapped.plan.config
    path = f"{folder}/{FOLDER}/{file_name(group[0].base_offset)}"
    try:
        size = files.size(path)
        if size > SEGMENT_BYTES_MAX:
            raise OfferRefusedError(f"{path} is larger than a segment can be.")
        file = files.open(path)
        try:
            yield from whole_batches(file, size, config.batch_bytes_max + HEADER_BYTES)
        finally:
            file.close()
    except FileNotFoundError as error:
        raise OfferRefusedError(f"{path} is not there.") from error
    except CorruptDataError as error:
        raise OfferRefusedError(f"What was offered is not whole: {error}") from error


def answer(files: Files, folder: str, outcome: Outcome | None) -> None:
    """Say what became of an offer, then remove it: the manifest first, for it is what makes it one."""
    aside = f"{folder}/{FOLDER}"
    try:
        if outcome is not None:
            path = f"{aside}/{OUTCOME}"
            files.write(f"{path}.tmp", dump_outcome(outcome), sync=True)
            files.rename(f"{path}.tmp", path)
            files.sync_folder(aside)
        present = [name for name in files.list(aside) if name != OUTCOME]
        for name in sorted(present, key=lambda name: name != MANIFEST):
            files.unlink(f"{aside}/{name}")
        files.sync_folder(aside)
    except OSError as error:
        raise StorageError(f"{aside} cannot be removed: {error.strerror or error}.") from error
