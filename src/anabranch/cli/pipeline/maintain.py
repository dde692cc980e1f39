"""`anabranch pipeline maintain`: a table's small files merged, old states forgotten, orphans swept."""

from typing import Any

import click

from anabranch.cli.common import Command, format_option, show_json
from anabranch.cli.durations import seconds_option
from anabranch.cli.pipeline.spark import SparkStart, one_job, require_spark, spark_options
from anabranch.cli.pipeline.table import partition_option, settings_of, table_options

MEGABYTE = 2**20
NOWHERE = "localhost:9092"
"""A table is kept without asking any broker; settings of a pipeline name one all the same."""


@click.command(cls=Command)
@table_options()
@partition_option
@click.option(
    "--topic", default="any", help="Not needed: what killed batches left is swept, whatever their topic."
)
@click.option(
    "--file-mb",
    type=click.IntRange(min=1),
    default=128,
    show_default=True,
    help="Files well below this many megabytes are merged.",
)
@seconds_option("--expire", "7d", "Forget states of the table that are older.")
@seconds_option(
    "--orphans", "1d", "Sweep files that nothing names and that are older; longer than a batch lasts."
)
@spark_options
@format_option()
def maintain(
    place: dict[str, Any], partition_by: tuple[str, ...], topic: str, file_mb: int, expire: float, orphans: float,
    spark_start: SparkStart, format: str,
) -> None:  # fmt: skip
    """Merge a table's small files, sweep what is left over.

    States of the table that are older than --expire are forgotten. A pipeline may be running.
    """
    settings = settings_of(**place, partition_by=partition_by, bootstrap=NOWHERE, topic=topic)
    require_spark()
    from anabranch.pipeline.lake.formats.table import open_table
    from anabranch.pipeline.lake.maintain import maintain as keep

    open_table(settings)  # A table that is not there is said before Spark starts.
    consequence = "The table is whole: each step is a commit of its own."
    with one_job(spark_start, "maintain", unit="files", consequence=consequence) as session:
        done = keep(
            session, settings, file_bytes=file_mb * MEGABYTE, expire_seconds=expire, orphan_seconds=orphans
        )
    if format == "json":
        show_json(vars(done))
    else:
        click.echo(
            f"{done.files_merged} files merged into {done.files_made}, {done.states_expired} states expired, "
            f"{done.orphans_swept} orphans swept."
        )
