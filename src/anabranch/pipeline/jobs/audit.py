"""The audit job: every segment of a data folder checked against itself, one Spark task per segment.

Nothing is changed and no lock is taken, so a node may run on the folder. Executors must see the same folder. What one
task does is in `segment_audit`; this module finds the segments, spreads them, and adds the answers up.
"""

import os
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from anabranch.errors import PipelineError
from anabranch.pipeline.jobs.segment_audit import (
    Finding,
    SegmentReport,
    SegmentTask,
    audit_segment,
    is_lane,
    name_of,
    segment_bases,
)
from anabranch.values import was_in_branches

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEPTH_MAX = 2
SKIPPED = frozenset({"quarantine"})
DELETED_MARK = ".deleted"


@dataclass
class PartitionReport:
    """One partition's segments together."""

    partition: str
    segments: int = 0
    segments_gone: int = 0
    batches: int = 0
    records: int = 0
    bytes_read: int = 0
    first_offset: int = 0
    end_offset: int = 0
    missing_offsets: int = 0
    torn_bytes: int = 0
    findings: list[Finding] = field(default_factory=list)

    def add(self, segment: SegmentReport) -> None:
        """Segments come in order of their offsets."""
        if segment.is_gone:
            self.segments_gone += 1
            return
        if not self.segments:
            self.first_offset = segment.base
        self.segments += 1
        self.batches += segment.batches
        self.records += segment.records
        self.bytes_read += segment.bytes_read
        self.end_offset = segment.end_offset
        self.missing_offsets += segment.missing_offsets
        self.torn_bytes += segment.torn_bytes
        self.findings += segment.findings

    def as_json(self) -> dict[str, object]:
        findings = [finding._asdict() for finding in self.findings]
        return {**vars(self), "findings": findings, "intact": not self.findings}


def partition_folders(folder: str) -> list[str]:
    """Every folder with segments in it, at most two levels below, and the lanes of each; PipelineError if there is
    none."""
    if not os.path.isdir(folder):
        raise PipelineError(f"There is no folder {folder}: give a node's data folder, or one partition's.")
    found = sorted(_walk(os.path.abspath(folder), DEPTH_MAX))
    if not found:
        raise PipelineError(f"{folder} holds no partition: give a node's data folder, or one partition's.")
    return found


def _walk(folder: str, depth: int) -> Iterator[str]:
    with os.scandir(folder) as entries:
        children = list(entries)
    if segment_bases([entry.name for entry in children]):
        yield folder
        return
    for entry in children:
        is_left_out = entry.name in SKIPPED or entry.name.endswith(DELETED_MARK)
        if entry.is_dir(follow_symlinks=False) and not is_left_out and (depth or is_lane(entry.path)):
            yield from _walk(entry.path, max(0, depth - 1))


def segment_tasks(folders: Iterable[str], gaps_allowed: Collection[str]) -> list[SegmentTask]:
    """One task per segment that is there now. `gaps_allowed` names partitions whose cleaner leaves holes; a lane may
    have some where a batch had come twice."""
    tasks = []
    for folder in folders:
        bases = segment_bases(_names(folder))
        may_have_gaps = is_lane(folder) or was_in_branches(bases) or name_of(folder) in gaps_allowed
        tasks += [SegmentTask(folder, base, may_have_gaps) for base in bases]
    return tasks


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []  # A topic that was deleted since.


def audit_folders(
    spark: "SparkSession", folders: Iterable[str], gaps_allowed: Collection[str] = ()
) -> list[PartitionReport]:
    """Runs the job; one report per partition, in order of their names."""
    tasks = segment_tasks(folders, gaps_allowed)
    if not tasks:
        return []
    spread = spark.sparkContext.parallelize(tasks, len(tasks))
    return gathered(spread.map(audit_segment).collect())


def gathered(segments: Iterable[SegmentReport]) -> list[PartitionReport]:
    reports: dict[str, PartitionReport] = {}
    for segment in sorted(segments, key=lambda one: (one.partition, one.base)):
        reports.setdefault(segment.partition, PartitionReport(segment.partition)).add(segment)
    return list(reports.values())
