"""`anabranch pipeline audit`: every segment of a data folder checked against itself, a Spark task for each.

It only reads, and takes no lock: a node may run on the folder. `anabranch log verify` does the same in one process,
for a folder that no node uses.
"""

from typing import TYPE_CHECKING

import click

from anabranch.cli.common import Command, Failure, format_option, show_json, show_table
from anabranch.cli.pipeline.spark import SparkStart, one_job, spark_options

if TYPE_CHECKING:
    from anabranch.pipeline.jobs.audit import PartitionReport

COUNTS = ("segments", "batches", "records", "bytes_read", "missing_offsets", "torn_bytes", "segments_gone")


@click.command(cls=Command)
@click.argument("folder", default="anabranch-data", metavar="[FOLDER]")
@click.option(
    "--gaps-allowed", is_flag=True, help="Missing offsets are no damage: every topic here was compacted."
)
@spark_options
@format_option()
def audit(folder: str, gaps_allowed: bool, spark_start: SparkStart, format: str) -> None:
    """Check every byte of a data folder against itself.

    Every checksum, the order of offsets, indexes and seals; exit code 1 if anything is wrong. FOLDER is a node's data
    folder, or one partition's; a node may be running on it.
    """
    from anabranch.pipeline.jobs.audit import audit_folders, partition_folders
    from anabranch.pipeline.jobs.segment_audit import name_of

    folders = partition_folders(folder)
    names = {name_of(one) for one in folders}
    holed = names if gaps_allowed else _compacted(folder)
    with one_job(spark_start, "audit", unit="segments", consequence="Nothing was changed.") as session:
        reports = audit_folders(session, folders, holed)
    _show(reports, format)


def _compacted(folder: str) -> set[str]:
    from anabranch.cli.log.offline_topics import compacted_partitions
    from anabranch.log.disk.real_files import RealFiles

    return compacted_partitions(RealFiles(), folder)


def _show(reports: "list[PartitionReport]", format: str) -> None:
    damaged = [report.partition for report in reports if report.findings]
    totals = {name: sum(getattr(report, name) for report in reports) for name in COUNTS}
    problems = sum(len(report.findings) for report in reports)
    if format == "json":
        show_json({**totals, "problems": problems, "partitions": [report.as_json() for report in reports]})
    else:
        _show_tables(reports)
        click.echo(
            f"{len(reports)} partitions, {totals['segments']} segments, {totals['batches']} batches, "
            f"{totals['records']} records, {totals['bytes_read']} bytes: {problems} problems."
        )
    if damaged:
        raise Failure(
            f"Damaged: {', '.join(damaged)}. Stop the node and see `anabranch log repair --dry-run`."
        )


def _show_tables(reports: "list[PartitionReport]") -> None:
    show_table(
        [
            "partition",
            "#segments",
            "#batches",
            "#records",
            "#first offset",
            "#end offset",
            "#bytes",
            "verdict",
        ],
        [
            (
                report.partition,
                report.segments,
                report.batches,
                report.records,
                report.first_offset,
                report.end_offset,
                report.bytes_read,
                "damaged" if report.findings else "intact",
            )
            for report in reports
        ],
    )
    rows = [(report.partition, *finding) for report in reports for finding in report.findings]
    if rows:
        show_table(["partition", "file", "#position", "problem"], rows)
