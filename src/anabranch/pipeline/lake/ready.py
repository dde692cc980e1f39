"""What can be told of a table before Spark starts: whether it can be reached, and could take what is asked.

Nothing is made here but the folders that the pipeline is about to fill.
"""

import os
from collections.abc import Collection
from typing import TYPE_CHECKING

from anabranch.errors import OptionError, TableError, TableMissingError
from anabranch.pipeline.lake.batch_files import given_columns
from anabranch.pipeline.lake.settings import PipelineSettings

if TYPE_CHECKING:
    import pyarrow as pa

    from anabranch.pipeline.lake.formats.table import Table


def check_ready(settings: PipelineSettings) -> None:
    """OptionError if the options contradict each other, TableError if the table or its folder cannot be had."""
    from anabranch.pipeline.lake.partitioning import check_partitions

    columns, _ = given_columns(settings)
    if settings.schema != "records":  # Else the records will show what columns there are.
        check_partitions(columns, settings.partitions())
        _check_key(settings, columns.names)
    _check_key_types(settings, columns)
    table = _table(settings)
    if table is not None:
        _check_key_types(settings, table.schema())
        if table.state() is not None:
            _check_key(settings, [*columns.names, *table.schema().names])
    _check_folder("warehouse", settings.warehouse_uri)
    _check_folder("checkpoint", settings.checkpoint_uri)


def _table(settings: PipelineSettings) -> "Table | None":
    from anabranch.pipeline.lake.formats.table import open_table

    try:
        return open_table(settings)
    except TableMissingError:
        return None


def _check_key(settings: PipelineSettings, names: Collection[str]) -> None:
    absent = [name for name in settings.key if name not in names]
    if absent:
        raise OptionError(
            f"key names {', '.join(absent)}, and the table has no such column, but {', '.join(names)}."
        )


def _check_key_types(settings: PipelineSettings, columns: "pa.Schema") -> None:
    """What is nested cannot be compared: no upsert can go by it."""
    import pyarrow as pa

    for field in columns:
        if field.name in settings.key and pa.types.is_nested(field.type):
            raise OptionError(
                f"key names {field.name}, a column of objects or lists: name columns of single values."
            )


def _check_folder(option: str, address: str) -> None:
    """A folder that can be written to. A local one is made; of any other only its kind is looked at."""
    if address.startswith("file://"):
        _check_local(option, address.removeprefix("file://"))
        return
    from anabranch.pipeline.lake.formats.storage import place

    place(address)


def _check_local(option: str, folder: str) -> None:
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise TableError(
            f"The {option} {folder} cannot be made: {error.strerror}. Name a folder you can write to."
        ) from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise TableError(
            f"The {option} {folder} cannot be written to: look at the permissions of the folder."
        )
