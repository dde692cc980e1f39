"""Offers as a job would lay them beside a log, on any disk, good ones and spoiled ones."""

from collections.abc import Callable, Iterator

from anabranch.log.disk.files import Files
from anabranch.log.log import Log
from anabranch.log.segment.scan import whole_batches
from anabranch.record.batch import read_header
from anabranch.record.compaction.check import OFFER_MS_MAX
from anabranch.record.compaction.offer_format import (
    FOLDER,
    MANIFEST,
    Offer,
    OfferedSource,
    dump_offer,
    file_name,
)
from anabranch.record.compaction.offset_map import OffsetMap
from anabranch.record.compaction.run import CompactionRun, grouped, map_latest
from anabranch.values import Offset

Spoil = Callable[[list[bytes]], list[bytes]]


def batches_of(log: Log) -> Iterator[memoryview]:
    for segment in log.segments[:-1]:
        yield from whole_batches(segment.file, segment.published_bytes)


def lay_offer(
    files: Files,
    log: Log,
    now_ms: int,
    *,
    name: str = "job",
    keys_max: int = 10_000,
    spoil: Spoil | None = None,
) -> Offer:
    """Compact all sealed segments of a log and offer the result; `spoil` changes the batches of the last file."""
    sealed = log.segments[:-1]
    latest, last_offsets = OffsetMap(keys_max), {}
    upto = map_latest(batches_of(log), latest, Offset(0), sealed[-1].published_offset)
    for header in map(read_header, batches_of(log)):
        last_offsets[header.producer_id] = header.last_offset
    run = CompactionRun(latest, upto, last_offsets, now_ms, log.config.delete_retention_ms + OFFER_MS_MAX)
    groups = grouped([each for each in sealed if each.base_offset < upto], log.config.segment_bytes)
    aside = f"{log.folder}/{FOLDER}"
    files.make_folder(aside)
    for group in groups:
        stays: list[bytes] = []
        for segment in group:
            kept = map(run.stays, whole_batches(segment.file, segment.published_bytes))
            stays += [bytes(batch) for batch in kept if batch is not None]
        if spoil is not None and group is groups[-1]:
            stays = spoil(stays)
        files.write(f"{aside}/{file_name(group[0].base_offset)}", b"".join(stays), sync=True)
    sources = [[OfferedSource(each.base_offset, each.published_bytes) for each in group] for group in groups]
    offer = Offer(name, upto, sources)
    lay_manifest(files, log.folder, offer)
    return offer


def lay_manifest(files: Files, folder: str, offer: Offer) -> None:
    aside = f"{folder}/{FOLDER}"
    files.write(f"{aside}/{MANIFEST}.tmp", dump_offer(offer), sync=True)
    files.rename(f"{aside}/{MANIFEST}.tmp", f"{aside}/{MANIFEST}")
    files.sync_folder(aside)
    files.sync_folder(folder)
