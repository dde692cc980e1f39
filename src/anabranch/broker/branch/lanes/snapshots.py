"""LaneSnapshots: who has written to a partition in mode branch, written down lane by lane.

    <topic>-<partition>/lane-0000000005/producers

Whoever begins to reign has to know the producers of its line, and a line may be long. So each lane's folder says of the
line up to some offset in it what is known then: lanes are never cut, so that holds for every line that goes through
that offset. Of other lines it says nothing, and an earlier lane's is taken. A partition that came from another mode
begins with what that left in the partition's own folder.
"""

from collections.abc import Iterable
from typing import Any

from anabranch.broker.branch.lanes.logs import lane_folder
from anabranch.broker.topics.partition_opener import PRODUCERS_FILE
from anabranch.log.disk.checkpoint import read_checkpoint
from anabranch.log.disk.files import Files
from anabranch.modes.branch.lines import Span
from anabranch.modes.branch.rows import Lane


class LaneSnapshots:
    def __init__(self, files: Files, folder: str) -> None:
        self._files = files
        self._folder = folder

    def folder_of(self, lane: Lane) -> str:
        return f"{self._folder}/{lane_folder(lane)}"

    def newest(self, line: Iterable[Span]) -> dict[str, Any] | None:
        """Of those that speak of this line. Any thread."""
        first = self._read(self._folder)
        for span in reversed(list(line)):
            candidates = (self._read(self.folder_of(span.lane)), first)
            usable = [each for each in candidates if each is not None and _is_in(span, each)]
            if usable:
                return max(usable, key=lambda each: int(each["offset"]))
        return None

    def _read(self, folder: str) -> dict[str, Any] | None:
        snapshot: dict[str, Any] | None
        snapshot, _ = read_checkpoint(self._files, f"{folder}/{PRODUCERS_FILE}")
        return snapshot


def _is_in(span: Span, snapshot: dict[str, Any]) -> bool:
    return bool(span.start <= snapshot["offset"] <= span.end)
