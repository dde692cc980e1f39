"""The small door to a table format: Iceberg, Delta and Parquet each fill it in their own file.

A table is read at one moment (`refresh` moves it on) and a commit holds only if nothing has changed since: else it
raises TableMovedError and leaves nothing behind but files that no commit names. Whoever commits decides after a
refresh whether the change still makes sense.
"""

from typing import TYPE_CHECKING, Protocol

from anabranch.errors import PipelineError, TableError
from anabranch.pipeline.lake.change import Change, DataFile, SourceState
from anabranch.pipeline.lake.settings import PartitionField, PipelineSettings
from anabranch.pipeline.spark.failures import in_one_line

if TYPE_CHECKING:
    import pyarrow as pa


class Table(Protocol):
    """One table as it was when it was opened or last refreshed."""

    root: str
    """Address of the folder that all of the table is in."""
    data_folder: str
    """Address of the folder that data files go to."""
    parts: tuple[PartitionField, ...]
    """What it is partitioned by: known to the table, whether or not the settings say it."""
    reserved: frozenset[str]
    """Names that no new column can have, in small letters."""
    widens: bool
    """Can a column go from int to long, and from float to double?"""

    def refresh(self) -> None: ...

    def schema(self) -> "pa.Schema":
        """Its columns; with field numbers in the metadata if the format has them."""

    def file_schema(self) -> "pa.Schema":
        """The columns that a data file holds: those that the folder's name gives are left away by some formats."""

    def evolve(self, schema: "pa.Schema") -> None:
        """Add the columns that are new in `schema` and widen those that are wider there; a commit of its own."""

    def state(self) -> SourceState | None:
        """How far the pipeline of our topic has come."""

    def files(self) -> list[DataFile]: ...

    def version(self) -> int | None:
        """Which of its states this is, by the number its format gives it; None: it has none yet."""

    def commit(self, change: Change) -> None: ...

    def expire(self, before_ms: int) -> int:
        """Forget the table's states older than this, but never the current one; how many."""

    def may_sweep(self, path: str) -> bool:
        """Is this the address of a file, below `root`, that is an orphan unless something refers to it?"""

    def referenced(self) -> set[str]:
        """Addresses of all files that any state of the table still needs."""


def open_table(settings: PipelineSettings, schema: "pa.Schema | None" = None) -> Table:
    """The table, made with these columns if it is not there; TableMissingError without them.

    Whatever a catalog or an object store raises becomes a TableError: which libraries speak there is not ours to know.
    """
    try:
        return _opened(settings, schema)
    except PipelineError:
        raise
    except Exception as error:
        raise TableError(
            f"The table {settings.table} in {settings.warehouse} cannot be opened: {in_one_line(error)}"
        ) from error


def _opened(settings: PipelineSettings, schema: "pa.Schema | None") -> Table:
    if settings.to == "iceberg":
        from anabranch.pipeline.lake.formats.iceberg import open_iceberg

        return open_iceberg(settings, schema)
    if settings.to == "delta":
        from anabranch.pipeline.lake.formats.delta import open_delta

        return open_delta(settings, schema)
    from anabranch.pipeline.lake.formats.parquet import open_parquet

    return open_parquet(settings, schema)
