"""Tables that share a folder: every format leaves marks by which its files are told from another table's orphans.

A warehouse names folders after tables, so `shop.orders` is one folder whatever its format, and `shop.orders.eu` lies
below it. One table to a folder; tables below are left alone.
"""

import re
from collections.abc import Iterable

from anabranch.errors import TableError
from anabranch.pipeline.lake.formats.storage import Found, listed

MARK_FOLDERS = ("_delta_log", "_log", "metadata")
_MARK = re.compile(
    r"(?P<folder>.+)/(?:"
    r"(?P<delta>_delta_log/.+)|"
    r"(?P<parquet>_log/[0-9]{20}\.json)|"
    r"(?P<iceberg>metadata/[^/]+\.metadata\.json(?:\.gz)?))\Z"
)


def tables_among(paths: Iterable[str]) -> dict[str, set[str]]:
    """The folders that are tables by the files in them, each with its formats."""
    tables: dict[str, set[str]] = {}
    for path in paths:
        mark = _MARK.match(path)
        if mark is not None:
            tables.setdefault(mark["folder"], set()).add(str(mark.lastgroup))
    return tables


def check_alone(folder: str, to: str) -> None:
    """TableError if the folder of a table in the format `to` is also that of a table in another one."""
    paths = [found.path for name in MARK_FOLDERS for found in listed(f"{folder}/{name}")]
    others = tables_among(paths).get(folder, set()) - {to}
    if others:
        other = min(others)
        raise TableError(
            f"The folder {folder} holds a table in the format {other}, and one in {to} cannot share it: their files "
            f"could not be told apart. Say --to {other}, or name another table or another warehouse."
        )


def without_tables_below(folder: str, files: Iterable[Found]) -> list[Found]:
    """Of the files below a table's folder, those that belong to no other table further down."""
    found = list(files)
    below = tuple(f"{other}/" for other in tables_among(file.path for file in found) if other != folder)
    return [file for file in found if not file.path.startswith(below)]
