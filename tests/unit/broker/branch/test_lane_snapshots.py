"""Which snapshot of producers a line begins with."""

from typing import Any

from anabranch.broker.branch.lanes.logs import lane_folder
from anabranch.broker.branch.lanes.snapshots import LaneSnapshots
from anabranch.broker.topics.partition_opener import PRODUCERS_FILE
from anabranch.log.disk.checkpoint import write_checkpoint
from anabranch.modes.branch.lines import Span
from anabranch.modes.branch.rows import Lane, first_offset
from anabranch.testing.fakes.disk import FakeDisk
from anabranch.values import Offset

FOLDER = "/data/t-0"
ONE, TWO = Lane(1), Lane(3)


def in_lane(lane: Lane, number: int) -> Offset:
    return Offset(first_offset(lane) + number)


def span(lane: Lane, end: int) -> Span:
    return Span(lane, in_lane(lane, 0), in_lane(lane, end))


LINE = (span(ONE, 50), span(TWO, 20))


class Folder:
    def __init__(self) -> None:
        self.disk = FakeDisk()
        for folder in ("/data", FOLDER, *(f"{FOLDER}/{lane_folder(lane)}" for lane in (ONE, TWO))):
            self.disk.make_folder(folder)

    def say(self, offset: Offset, lane: Lane | None = None) -> None:
        folder = FOLDER if lane is None else f"{FOLDER}/{lane_folder(lane)}"
        write_checkpoint(self.disk, f"{folder}/{PRODUCERS_FILE}", {"offset": offset, "producers": []})

    def newest(self) -> Any:
        found = LaneSnapshots(self.disk, FOLDER).newest(LINE)
        return None if found is None else found["offset"]


def test_without_any_the_whole_line_has_to_be_read() -> None:
    assert Folder().newest() is None


def test_the_last_lane_that_says_something_counts() -> None:
    folder = Folder()
    folder.say(in_lane(ONE, 40), ONE)
    assert folder.newest() == in_lane(ONE, 40)
    folder.say(in_lane(TWO, 3), TWO)
    assert folder.newest() == in_lane(TWO, 3)


def test_what_was_written_down_behind_the_end_of_this_line_is_of_another() -> None:
    folder = Folder()
    folder.say(in_lane(ONE, 40), ONE)
    folder.say(in_lane(TWO, 21), TWO)
    assert folder.newest() == in_lane(ONE, 40)


def test_what_another_mode_has_left_counts_where_no_lane_says_more() -> None:
    folder = Folder()
    folder.say(in_lane(ONE, 10))
    assert folder.newest() == in_lane(ONE, 10)
    folder.say(in_lane(ONE, 5), ONE)
    assert folder.newest() == in_lane(ONE, 10)
    folder.say(in_lane(ONE, 11), ONE)
    assert folder.newest() == in_lane(ONE, 11)
