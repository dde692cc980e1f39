"""The last line of a partition that comes out of branches: what its replicas keep from then on, as one log."""

from collections.abc import Sequence
from typing import NamedTuple

from anabranch.errors import StorageError
from anabranch.log.checkpoint import read_checkpoint, write_checkpoint
from anabranch.log.files import Files
from anabranch.replication.branch_lines import Span
from anabranch.replication.branch_rows import Lane
from anabranch.values import Offset

LEAVING_FILE = "leaving"


class LastLine(NamedTuple):
    move: int
    """The decision under which it comes out of branches."""
    start: Offset
    """Below this nothing is wanted any more."""
    end: Offset
    """Where it goes on, in numbers that no branch ever had."""
    spans: Sequence[Span]


def write_leaving(files: Files, folder: str, last: LastLine) -> None:
    """Any thread: say that this folder has all of it, synced. Raises StorageError."""
    state = {
        "move": last.move,
        "start": last.start,
        "end": last.end,
        "spans": [list(span) for span in last.spans],
    }
    try:
        write_checkpoint(files, f"{folder}/{LEAVING_FILE}", state)
    except OSError as error:
        raise StorageError(f"{folder} cannot come out of branches: {error.strerror or error}.") from error


def read_leaving(files: Files, folder: str) -> LastLine | None:
    state, _ = read_checkpoint(files, f"{folder}/{LEAVING_FILE}")
    if state is None:
        return None
    spans = [Span(Lane(lane), Offset(start), Offset(end)) for lane, start, end in state["spans"]]
    return LastLine(state["move"], Offset(state["start"]), Offset(state["end"]), spans)
