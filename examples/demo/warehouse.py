"""The demo's Iceberg tables, opened with pyiceberg alone, as any other program would open them."""

from pathlib import Path
from typing import Any

import pyarrow as pa

CATALOG = "anabranch"
NAMESPACE = "nyc"
JOINED = "delays_by_hour"


def warehouse_of(folder: Path) -> Path:
    return folder / "warehouse"


def catalog_uri(folder: Path) -> str:
    """Of the catalog that the pipelines keep in their warehouse."""
    return f"sqlite:///{warehouse_of(folder)}/catalog.db"


def read_table(folder: Path, name: str, *columns: str) -> pa.Table:
    table = _catalog(folder).load_table(f"{NAMESPACE}.{name}")
    return table.scan(selected_fields=columns or ("*",)).to_arrow()


def replace_table(folder: Path, name: str, rows: pa.Table) -> None:
    """All rows of a table by these, in one commit."""
    catalog = _catalog(folder)
    catalog.create_namespace_if_not_exists(NAMESPACE)
    catalog.create_table_if_not_exists(f"{NAMESPACE}.{name}", rows.schema).overwrite(rows)


def _catalog(folder: Path) -> Any:
    from pyiceberg.catalog import load_catalog

    place = warehouse_of(folder).resolve()
    return load_catalog(CATALOG, type="sql", uri=catalog_uri(folder.resolve()), warehouse=place.as_uri())
