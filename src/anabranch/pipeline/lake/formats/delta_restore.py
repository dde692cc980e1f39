"""Was a Delta table restored to an older version? Its log says so, and its transaction identifiers do not.

RESTORE makes a new version with the files of an old one, and leaves every transaction identifier at its newest value.
What a pipeline had come to is then what the old version says.
"""

import json
from datetime import UTC, datetime
from typing import Any

from anabranch.errors import TableError
from anabranch.pipeline.lake.formats.storage import read_text
from anabranch.pipeline.spark.failures import in_one_line

Target = dict[str, Any]
"""What RESTORE was told: `version`, or deltalake's `datetime` in ms, or Spark's `timestamp`."""


def restore_in(log_entry: str | None) -> Target | None:
    """None if this entry of the log is of anything else, or gone."""
    for line in (log_entry or "").splitlines():
        done = json.loads(line).get("commitInfo", {})
        if done.get("operation") == "RESTORE":
            return dict(done.get("operationParameters", {}))
    return None


class Restores:
    """Those of one table. An entry of the log never changes, so each is read once."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._known: dict[int, Target | None] = {}

    def last(self, after: int, upto: int) -> Target | None:
        for version in range(upto, after, -1):
            if version not in self._known:
                entry = read_text(f"{self._address}/_delta_log/{version:020d}.json")
                self._known[version] = restore_in(entry)
            if self._known[version] is not None:
                return self._known[version]
        return None

    def restored(self, target: Target) -> Any:
        """The table at the version that it was restored to, as deltalake has it."""
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError

        try:
            table = DeltaTable(self._address)
            table.load_as_version(_moment(target))
        except (DeltaError, ValueError) as error:
            raise TableError(
                f"The table was restored ({json.dumps(target)}), and how far its pipeline had come by then cannot be "
                f"read: {in_one_line(error)}. Restore it to a version by its number, or fill a new table."
            ) from error
        return table


def _moment(target: Target) -> int | datetime:
    if target.get("version") is not None:
        return int(target["version"])
    if target.get("datetime") is not None:
        return datetime.fromtimestamp(int(target["datetime"]) / 1000, UTC)
    raise ValueError("it names no version")
