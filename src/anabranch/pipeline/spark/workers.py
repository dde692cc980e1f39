"""What a Python worker of Spark need not do again for every task.

- Spark tells Python before each task, and before each question to a source, that modules may have changed. Up to 3.11
  Python then reads every archive's directory again, once for each package in it, and the largest is Spark's own jar: a
  tenth of a second of CPU each time. Those archives do not change while Spark runs.
- Columns of some megabytes are taken from the system and given back for each Arrow batch, page by page, unless the
  allocator is told to keep them.

`settle` is called where Spark enters our code in a worker.
"""

import sys
from functools import cache
from pathlib import PurePath
from zipimport import zipimporter

ARCHIVES = ("pyspark.zip", "py4j-", "spark-core_")
"""How the names of Spark's own archives begin."""
KEPT_BYTES = 64 * 2**20


class KeptArchive(zipimporter):
    """An archive, or a folder in it, that nobody changes."""

    def invalidate_caches(self) -> None:
        """Nothing to read again."""


def settle() -> None:
    """Make this process one that runs many tasks."""
    if sys.version_info < (3, 12):
        keep_archives()
    keep_memory()


def keep_archives() -> None:
    for path, importer in list(sys.path_importer_cache.items()):
        if type(importer) is zipimporter and PurePath(importer.archive).name.startswith(ARCHIVES):
            sys.path_importer_cache[path] = KeptArchive(path)


@cache
def keep_memory() -> None:
    try:
        from anabranch.record._fast import keep_freed_memory
    except ImportError:
        return  # The pure form has no say in it.
    keep_freed_memory(KEPT_BYTES)
