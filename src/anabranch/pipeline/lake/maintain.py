"""Keeping a table in shape: small files merged, old states forgotten, orphans swept.

Merging moves rows and changes none: the commit swaps files for one with the same rows, and gives way to a pipeline that
commits at the same time. An orphan is a file that no state of the table names: what a killed batch, a failed task or
a lost race left behind. A file is swept only when it is older than a limit that must be longer than a batch lasts; and
since a commit looks whether its files are there, a batch that was slower than the limit fails and is repeated.
"""

import json
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from anabranch.errors import LostRecordsError, TableMovedError
from anabranch.pipeline.lake import report
from anabranch.pipeline.lake.change import Change, DataFile
from anabranch.pipeline.lake.files import FilePlan, write_rows
from anabranch.pipeline.lake.formats.neighbours import check_alone, without_tables_below
from anabranch.pipeline.lake.formats.storage import listed, remove
from anabranch.pipeline.lake.formats.table import Table, open_table
from anabranch.pipeline.lake.settings import PipelineSettings
from anabranch.pipeline.lake.upsert import read_rows
from anabranch.pipeline.spark.workers import settle

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILE_BYTES = 128 * 2**20
EXPIRE_SECONDS = 7 * 86_400
ORPHAN_SECONDS = 86_400
COMMITS_MAX = 5
ENDINGS = (".parquet", ".avro", ".metadata.json")
"""Files of other kinds in a table's folders are not ours to judge."""

logger = logging.getLogger("anabranch.pipeline")


@dataclass
class Maintained:
    """What was done."""

    files_merged: int = 0
    files_made: int = 0
    states_expired: int = 0
    orphans_swept: int = 0


def maintain(
    spark: "SparkSession",
    settings: PipelineSettings,
    *,
    file_bytes: int = FILE_BYTES,
    expire_seconds: float = EXPIRE_SECONDS,
    orphan_seconds: float = ORPHAN_SECONDS,
) -> Maintained:
    """All of it, in the order in which each step leaves work for the next."""
    done = Maintained()
    check_alone(open_table(settings).root, settings.to)
    done.files_merged, done.files_made = merge_small_files(spark, settings, file_bytes)
    done.states_expired = open_table(settings).expire(_ago_ms(expire_seconds))
    done.orphans_swept = len(sweep_orphans(settings, orphan_seconds))
    return done


def sweep_orphans(settings: PipelineSettings, older_than_seconds: float = ORPHAN_SECONDS) -> list[str]:
    """Remove them, and say which they were."""
    table = open_table(settings)
    limit_ms = _ago_ms(older_than_seconds)
    check_alone(table.root, settings.to)
    # The list of files comes first: what is committed after it was made is younger than anything on it.
    own = without_tables_below(table.root, listed(table.root))
    old = [found.path for found in own if found.modified_ms <= limit_ms and table.may_sweep(found.path)]
    table.refresh()
    needed = table.referenced()
    orphans = [path for path in old if path.endswith(ENDINGS) and path not in needed]
    staged = listed(settings.staging_root_uri)
    orphans += [found.path for found in staged if found.modified_ms <= limit_ms]
    remove(orphans)
    return orphans


def _ago_ms(seconds: float) -> int:
    return int((time.time() - seconds) * 1000)


def merge_small_files(
    spark: "SparkSession", settings: PipelineSettings, file_bytes: int = FILE_BYTES
) -> tuple[int, int]:
    """How many files went, and how many came for them."""
    table = open_table(settings)
    groups = small_groups(table.files(), file_bytes)
    if not groups:
        return 0, 0
    plan = FilePlan(table.data_folder, "", 0, table.schema(), table.file_schema(), table.parts)
    rows = [(json.dumps([file.to_json() for file in group]),) for group in groups]
    frame = spark.createDataFrame(rows, "files string").repartition(len(rows))
    merged = report.collect(frame, MergeTask(plan))
    _check_rows(merged.removed, merged.added)
    if not _commit(table, Change(tuple(merged.added), tuple(merged.removed))):
        remove([file.path for file in merged.added])
        return 0, 0
    return len(merged.removed), len(merged.added)


def small_groups(files: list[DataFile], file_bytes: int) -> list[list[DataFile]]:
    """Files of one partition that are well below the size wanted, put together up to that size."""
    groups: list[list[DataFile]] = []
    by_partition: dict[tuple[str | None, ...], list[DataFile]] = {}
    for file in sorted(files, key=lambda file: file.path):
        if file.bytes * 4 < file_bytes * 3:
            by_partition.setdefault(file.partition, []).append(file)
    for small in by_partition.values():
        groups += _packed(small, file_bytes)
    return [group for group in groups if len(group) > 1]


def _packed(files: list[DataFile], file_bytes: int) -> list[list[DataFile]]:
    groups: list[list[DataFile]] = [[]]
    room = file_bytes
    for file in files:
        if file.bytes > room:
            groups.append([])
            room = file_bytes
        groups[-1].append(file)
        room -= file.bytes
    return groups


@dataclass(frozen=True)
class MergeTask:
    """`mapInArrow`'s function over groups of files: each group becomes one file."""

    plan: FilePlan

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        settle()
        for batch in batches:
            for text in batch.column(0).to_pylist():
                files = [DataFile.from_json(file) for file in json.loads(text)]
                rows = pa.concat_tables([read_rows(file, self.plan) for file in files])
                new = write_rows(self.plan, files[0].partition, rows)
                lines = [report.file_line("removed", file) for file in files]
                yield report.as_batch([*lines, report.file_line("file", new)])


def _check_rows(removed: list[DataFile], added: list[DataFile]) -> None:
    before, after = sum(file.rows for file in removed), sum(file.rows for file in added)
    if before != after:
        raise LostRecordsError(
            f"{before} rows were to be merged, and {after} came out. Nothing is committed."
        )


def _commit(table: Table, change: Change) -> bool:
    """False if another commit took one of the files away meanwhile: then the merge is void."""
    gone = {file.path for file in change.remove}
    for _ in range(COMMITS_MAX):
        try:
            table.commit(change)
            return True
        except TableMovedError as error:
            logger.info("the table moved on while its files were merged: %s", error)
        table.refresh()
        if not gone <= {file.path for file in table.files()}:
            return False
    return False
