"""The table a job writes to or reads from, as options, and the settings of a pipeline made of them.

Everything that can be wrong with the settings is found in `PipelineSettings`, which needs nothing of Spark.
"""

from typing import TYPE_CHECKING, Any

import click

from anabranch.cli.common import Function, pairs_of
from anabranch.errors import OptionError

if TYPE_CHECKING:
    from anabranch.pipeline.lake.settings import PipelineSettings

KINDS = ("iceberg", "delta", "parquet")


def table_options(function: Function) -> Function:
    """`--to`, `--warehouse`, `--table` and `--catalog`, which arrive as one `place` argument: a dict of them."""

    def collect(ctx: click.Context, _: click.Parameter, to: str) -> dict[str, Any]:
        catalog = pairs_of(ctx.params.pop("catalog"), "--catalog")
        return {
            "to": to,
            "warehouse": ctx.params.pop("warehouse"),
            "table": ctx.params.pop("table"),
            "catalog": catalog,
        }

    options = (
        click.option("--to", "place", type=click.Choice(KINDS), default="iceberg", show_default=True,
                     callback=collect, help="What kind of table."),
        click.option("--warehouse", required=True, metavar="DIR", is_eager=True, help="The folder of the tables."),
        click.option("--table", required=True, metavar="NAME", is_eager=True, help="The table's name."),
        click.option("--catalog", metavar="NAME=VALUE", multiple=True, is_eager=True,
                     help="A property of the Iceberg catalog; may be repeated. [SQLite in the warehouse]"),
    )  # fmt: skip
    for option in reversed(options):
        function = option(function)
    return function


def shape_options(function: Function) -> Function:
    """How records become rows, which arrives as one `shape` argument: a dict."""

    def collect(ctx: click.Context, _: click.Parameter, mode: str) -> dict[str, Any]:
        key = ctx.params.pop("key") or ""
        return {
            "mode": mode,
            "key": tuple(column.strip() for column in key.split(",") if column.strip()),
            "schema": ctx.params.pop("schema"),
            "partition_by": ctx.params.pop("partition_by"),
        }

    options = (
        click.option("--mode", "shape", type=click.Choice(["append", "upsert"]), default="append",
                     show_default=True, callback=collect, help="Add rows, or replace and delete them by key."),
        click.option("--key", metavar="COLUMN,...", is_eager=True, help="What upsert goes by. [the record's key]"),
        click.option("--schema", default="records", show_default=True, metavar="records|raw|FILE", is_eager=True,
                     help="Columns from the records (JSON), their bytes, or a JSON Schema file."),
        click.option("--partition-by", metavar="COLUMN", multiple=True, is_eager=True,
                     help="A column, or hour(column), day(column), month(column); may be repeated."),
    )  # fmt: skip
    for option in reversed(options):
        function = option(function)
    return function


def settings_of(**given: Any) -> "PipelineSettings":
    """The pipeline, or a usage error that names what is wrong."""
    from anabranch.pipeline.lake.settings import PipelineSettings

    try:
        return PipelineSettings(**given)
    except OptionError as error:
        raise click.UsageError(str(error)) from error
