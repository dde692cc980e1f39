"""The table a job writes to or reads from, as options, and the settings of a pipeline made of them.

Everything that can be wrong with the settings is found in `PipelineSettings`, which needs nothing of Spark.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from anabranch.cli.common import Function, pairs_of
from anabranch.cli.pipeline.spark import require_spark
from anabranch.errors import OptionError

if TYPE_CHECKING:
    from anabranch.pipeline.lake.settings import PipelineSettings

KINDS = ("iceberg", "delta", "parquet")


def table_options(*, required: bool = True) -> Callable[[Function], Function]:
    """`--to`, `--warehouse`, `--table` and `--catalog`, which arrive as one `place` argument: a dict of them.

    Where a table is not `required` and none is named, `place` is None.
    """

    def collect(ctx: click.Context, _: click.Parameter, to: str) -> dict[str, Any] | None:
        taken = {name: ctx.params.pop(name) for name in ("warehouse", "table", "catalog")}
        if taken["table"] is None and taken["warehouse"] is None:
            return None
        for name in ("table", "warehouse"):
            if taken[name] is None:
                raise click.UsageError(f"Missing option '--{name}': a table is a name and its warehouse.")
        return {
            **taken,
            "to": to,
            "catalog": pairs_of(taken["catalog"], "--catalog", "uri=http://127.0.0.1:8181"),
        }

    options = (
        click.option("--to", "--kind", "place", type=click.Choice(KINDS), default="iceberg", show_default=True,
                     callback=collect, help="What kind of table."),
        click.option("--warehouse", required=required, metavar="DIR", is_eager=True, help="The folder of the tables."),
        click.option("--table", required=required, metavar="NAME", is_eager=True, help="The table's name."),
        click.option("--catalog", metavar="NAME=VALUE", multiple=True, is_eager=True,
                     help="A property of the Iceberg catalog; may be repeated. [SQLite in the warehouse]"),
    )  # fmt: skip
    return _all_of(options)


def _all_of(options: "Iterable[Callable[[Function], Function]]") -> Callable[[Function], Function]:
    def add(function: Function) -> Function:
        for option in reversed(list(options)):
            function = option(function)
        return function

    return add


partition_option = click.option(
    "--partition-by", metavar="COLUMN", multiple=True,
    help="A column, or hour(column), day(column), month(column); may be repeated.",
)  # fmt: skip


def shape_options(function: Function) -> Function:
    """How records become rows, which arrives as one `shape` argument: a dict."""

    def collect(ctx: click.Context, _: click.Parameter, mode: str) -> dict[str, Any]:
        key = ctx.params.pop("key") or ""
        return {
            "mode": mode,
            "key": tuple(column.strip() for column in key.split(",") if column.strip()),
            "schema": ctx.params.pop("schema"),
            "columns_max": ctx.params.pop("columns_max"),
        }

    options = (
        click.option("--mode", "shape", type=click.Choice(["append", "upsert"]), default="append",
                     show_default=True, callback=collect, help="Add rows, or replace and delete them by key."),
        click.option("--key", metavar="COLUMN,...", is_eager=True, help="What upsert goes by. [the record's key]"),
        click.option("--schema", default="records", show_default=True, metavar="records|raw|FILE", is_eager=True,
                     help="Columns from the records (JSON), their bytes, or a JSON Schema file."),
        click.option("--columns-max", type=click.IntRange(min=1), default=1000, show_default=True, is_eager=True,
                     help="Columns that records may give the table, fields of objects counted."),
        partition_option,
    )  # fmt: skip
    return _all_of(options)(function)


def settings_of(**given: Any) -> "PipelineSettings":
    """The pipeline, or a usage error that names what is wrong."""
    from anabranch.pipeline.lake.settings import PipelineSettings

    with options_named():
        return PipelineSettings(**given)


def require_table_place(settings: "PipelineSettings") -> None:
    """For a job that writes to a table, before Spark starts: what stands against it is said now."""
    require_spark()
    from anabranch.pipeline.lake.ready import check_ready

    with options_named():
        check_ready(settings)


@contextmanager
def options_named() -> Iterator[None]:
    """A wrong option is a wrong command line."""
    try:
        yield
    except OptionError as error:
        raise click.UsageError(str(error)) from error
