"""Table formats behind one protocol (`table.py`): Iceberg, Delta and plain Parquet, and where their files are."""
