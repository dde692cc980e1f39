"""Lanes become one log: whatever a crash leaves of that, and whatever is not all there."""

import contextlib
from collections.abc import Iterable
from random import Random
from typing import Any

import pytest

from anabranch.broker.branch.lanes.lanes_to_log import (
    LastLine,
    LeavingFolder,
    Taken,
    clear_earlier,
    has_lanes,
    last_line,
    say_view,
    view_in,
    write_leaving,
)
from anabranch.broker.branch.lanes.logs import LaneLogs
from anabranch.broker.topics.partition_opener import PartitionOpener
from anabranch.cluster.metadata.rows import Placement
from anabranch.config import NodeSettings
from anabranch.errors import StorageError
from anabranch.log.cleaner import clean_now, plan
from anabranch.log.disk.checkpoint import RecoveryPoint, read_checkpoint, write_checkpoint
from anabranch.log.log import Log
from anabranch.log.segment.index import IndexCache
from anabranch.log.settings import LogConfig
from anabranch.modes.branch.lines import Branches, Span
from anabranch.modes.branch.rows import NOWHERE, Lane, Tip, first_offset, opened, started
from anabranch.record.batch import batch_spans, read_header
from anabranch.record.builder import BatchBuilder
from anabranch.record.producer_table import ProducerTable
from anabranch.record.records import records_of
from anabranch.testing.fakes.disk import FakeDisk, PowerLoss
from anabranch.values import Offset, TopicPartition
from support.broker_bench import batch_of

FOLDER = "data/t-0"
CONFIG = LogConfig(segment_bytes=300)
MOVE, VIEW = 17, 4
FIRST, SECOND, IDLE, THIRD = Lane(3), Lane(5), Lane(1029), Lane(2053)
END = Offset(first_offset(Lane(3077)) + 1)
Records = list[tuple[int, bytes | None]]


class Folder:
    """A folder with lanes, and what of them is in the line."""

    def __init__(self, disk: FakeDisk | None = None) -> None:
        self.disk = disk or FakeDisk()
        self.disk.make_folder(FOLDER)
        self.lanes = LaneLogs(self.disk, FOLDER, CONFIG, IndexCache())
        self.spans: list[Span] = []
        self.records: Records = []

    def add(self, lane: Lane, counts: Iterable[int], behind: int = 0, **fields: int) -> None:
        """A lane with batches of so many records; a negative number is a gap. `behind`: records that the line does not
        have any more."""
        start = at = first_offset(lane)
        self.lanes.make(lane, start)
        for count in counts:
            if count > 0:
                values = [b"%d" % (at + number) for number in range(count)]
                self._append(lane, at, values, **fields)
                if "base_sequence" in fields:
                    fields["base_sequence"] += count
                self.records += [(at + number, value) for number, value in enumerate(values)]
            at = Offset(at + abs(count))
        self.lanes.extend(lane, at)
        self.spans.append(Span(lane, start, at))
        for _ in range(behind):
            self._append(lane, at, [b"elsewhere"])
            at = Offset(at + 1)
        self.lanes.sync(lane)

    def _append(self, lane: Lane, at: int, values: list[bytes], **fields: int) -> None:
        builder = BatchBuilder(at, **fields)
        for value in values:
            builder.add(b"key", value, timestamp_ms=1_700_000_000_000)
        self.lanes.append_copied(lane, builder.build(), 0)

    def say(self, start: int = 0, **changed: int) -> None:
        self.lanes.close(clean=False)
        spans = [span._replace(start=max(span.start, Offset(start))) for span in self.spans]
        line = LastLine(MOVE, Offset(start), END, tuple(span for span in spans if span.start < span.end))
        write_leaving(self.disk, FOLDER, line._replace(**changed))  # type: ignore[arg-type]
        write_checkpoint(self.disk, f"{FOLDER}/branch", {"adopted": THIRD, "next": -1, "view": VIEW - 1})
        write_checkpoint(self.disk, f"{FOLDER}/closing", {"move": MOVE, "to": 1})


def usual(behind: int = 7) -> Folder:
    folder = Folder()
    folder.add(FIRST, [3, -2, 2, 1, 1, 1, 1, 1, 1, 1], producer_id=9, producer_epoch=0, base_sequence=0)
    folder.add(SECOND, [1, -4, *[2] * 9], behind)
    folder.add(IDLE, [])
    folder.add(THIRD, [1, 2, -1, 3, *[1] * 8])
    return folder


def take(disk: FakeDisk, *, is_known: bool = False, is_only_copy: bool = False) -> Taken | None:
    folder = LeavingFolder(disk, FOLDER, CONFIG, IndexCache())
    # As they were when the lanes were open: some of them were longer.
    ends = {SECOND: Offset(first_offset(SECOND) + 30), THIRD: Offset(first_offset(THIRD) + 15)}
    points = {lane: RecoveryPoint(end, end) for lane, end in ends.items()} if is_known else {}
    return folder.take(MOVE, VIEW, points.get, is_only_copy=is_only_copy)


def opened_log(disk: FakeDisk, taken: Taken, *, clean: bool = False, config: LogConfig = CONFIG) -> Log:
    return Log.open(disk, FOLDER, config, clean=clean, recovery_point=taken.point, start_offset=taken.start)


def records_in(log: Log, start: int | None = None) -> Records:
    at, found = log.start_offset if start is None else Offset(start), []
    while (part := log.slice(at, 1000, log.end_offset)).count:
        if not part.verified:
            part.verify()
        data = part.read()
        for first, last in batch_spans(data):
            found += [(each.offset, each.value) for each in records_of(data[first:last]) if each.offset >= at]
            at = read_header(data, first).next_offset
    return found


def check(disk: FakeDisk, taken: Taken | None, records: Records) -> Log:
    """All of it is there, and will be after any end of the process or the power."""
    assert taken is not None
    for end in ("stays", "kill", "crash"):
        other = disk.copy()
        if end == "crash":
            other.crash(Random(1))
        for clean in (True, False) if end == "stays" else (False,):
            log = opened_log(other, taken, clean=clean)
            assert (records_in(log), log.end_offset) == (records, END)
            assert not log.damaged
            assert not log.quarantined
    kept = {name for name in disk.list(FOLDER) if not name[:20].isdigit()}
    assert kept == {"leaving", "producers"}
    return opened_log(disk, taken)


# --- the whole of it


def test_lanes_become_one_log_with_gaps() -> None:
    folder = usual()
    folder.say()
    taken = take(folder.disk)
    assert taken == Taken(Offset(0), RecoveryPoint(END, END))
    log = check(folder.disk, taken, folder.records)
    assert records_in(log, folder.spans[1].end) == [
        each for each in folder.records if each[0] >= first_offset(THIRD)
    ]
    log.append([_stamped(END, b"next")], 0)
    assert records_in(log)[-1] == (END, b"next")
    assert take(folder.disk) == Taken(Offset(0), None), "what is done is not done again"


def _stamped(at: int, value: bytes) -> tuple[bytearray, Offset, Offset, int]:
    return batch_of(value, base_offset=at), Offset(at), Offset(at), 1_700_000_000_000


@pytest.mark.parametrize("counts", [[], [4], [-3], [-3, 1, -3]], ids=["empty", "one batch", "a gap", "gaps"])
def test_a_line_of_one_lane_is_a_log(counts: list[int]) -> None:
    folder = Folder()
    folder.add(SECOND, counts)
    folder.say()
    log = check(folder.disk, take(folder.disk), folder.records)
    log.append([_stamped(END, b"next")], 0)
    assert records_in(log) == [*folder.records, (END, b"next")]


def test_lanes_that_are_not_in_the_line_go_with_what_they_have() -> None:
    folder = usual()
    folder.add(Lane(4101), [5])
    del folder.spans[-1], folder.records[-5:]
    folder.say()
    check(folder.disk, take(folder.disk), folder.records)


def test_what_a_start_without_lanes_left_in_the_folder_makes_no_difference() -> None:
    folder = usual()
    folder.say()
    stray = Log.open(folder.disk, FOLDER, CONFIG, clean=True)
    stray.append([_stamped(0, b"stray")], 0)
    stray.close()
    write_checkpoint(folder.disk, f"{FOLDER}/ring", {"view": 1})
    check(folder.disk, take(folder.disk), folder.records)


# --- which line


def test_the_file_of_another_decision_is_not_believed() -> None:
    folder = usual()
    folder.say(move=MOVE - 1)
    before = folder.disk.list(FOLDER)
    assert take(folder.disk) is None
    assert folder.disk.list(FOLDER) == before
    assert has_lanes(folder.disk, FOLDER)


def test_what_was_removed_is_not_part_of_the_last_line() -> None:
    key = Branches, 0
    rows = [
        opened(key, NOWHERE, FIRST),  # type: ignore[arg-type]
        opened(key, Tip(FIRST, Offset(10)), SECOND),  # type: ignore[arg-type]
        opened(key, Tip(SECOND, Offset(first_offset(SECOND) + 10)), THIRD),  # type: ignore[arg-type]
        started(key, SECOND, Offset(first_offset(SECOND) + 3)),  # type: ignore[arg-type]
    ]
    tip = Tip(THIRD, Offset(first_offset(THIRD) + 5))
    start = Offset(first_offset(SECOND) + 3)
    line = last_line(Branches(rows), tip, move=MOVE, start=start, end=END)
    assert line.spans == (
        Span(SECOND, start, Offset(first_offset(SECOND) + 10)),
        Span(THIRD, first_offset(THIRD), tip.end),
    )


# --- where it begins


@pytest.mark.parametrize(
    "start",
    [4, first_offset(FIRST) + 4, first_offset(FIRST) + 9, first_offset(SECOND) + 3, first_offset(THIRD) + 6],
)
def test_what_was_deleted_before_stays_deleted(start: int) -> None:
    folder = usual()
    folder.say(start)
    taken = take(folder.disk)
    records = [each for each in folder.records if each[0] >= start]
    log = check(folder.disk, taken, records)
    assert log.start_offset == start


def test_a_reader_may_come_from_before_the_first_lane() -> None:
    folder = usual()
    folder.say()
    log = check(folder.disk, take(folder.disk), folder.records)
    assert log.start_offset == 0
    assert records_in(log, 0) == records_in(log, 17) == folder.records


# --- crashes


def test_the_power_may_go_at_any_step() -> None:
    folder = usual()
    folder.say()
    base = folder.disk
    whole = base.copy()
    take(whole, is_known=True)
    steps = whole.operations - base.operations
    assert steps > 60
    for step in range(1, steps + 1):
        disk = base.copy()
        for crash in range(1 + step % 2):  # Now and then once more, while it is repeated.
            disk.crash_at = disk.operations + (step if not crash else 1 + step // 2)
            with contextlib.suppress(PowerLoss):
                take(disk, is_known=True)
            disk.crash_at = None
            if step % 3:
                disk.crash(Random(step))
            else:
                disk.kill()
        taken = take(disk, is_known=True)
        assert taken is not None
        assert taken.is_whole, f"step {step}"
        log = opened_log(disk, taken)
        assert (records_in(log), log.end_offset) == (folder.records, END), f"step {step}"
        assert not log.quarantined
        assert producers_of(disk) == {9: [7, 8, 9, 10, 11]}


@pytest.mark.parametrize("operation", ["write", "rename", "sync", "unlink"])
def test_a_disk_that_refuses_is_tried_again(operation: str) -> None:
    folder = usual()
    folder.say()
    folder.disk.fail_next(operation)  # type: ignore[arg-type]
    with pytest.raises(StorageError):
        take(folder.disk)
    check(folder.disk, take(folder.disk), folder.records)


# --- what is not all there


def test_a_copy_with_a_hole_ends_before_it_and_throws_nothing_away() -> None:
    folder = usual(behind=0)
    folder.say()
    folder.disk.unlink(f"{FOLDER}/lane-{SECOND:010d}/{first_offset(SECOND):020d}.log")
    taken = take(folder.disk)
    assert taken is not None
    assert not taken.is_whole
    log = opened_log(folder.disk, taken)
    assert records_in(log) == [each for each in folder.records if each[0] < first_offset(SECOND)]
    names = folder.disk.list(FOLDER)
    assert [name for name in names if name.endswith(".lost")] == [
        f"lane-{SECOND:010d}.lost",
        f"lane-{THIRD:010d}.lost",
    ]


def test_a_copy_that_lost_the_end_of_a_lane_keeps_the_beginning() -> None:
    folder = usual(behind=0)
    folder.say()
    lane = f"{FOLDER}/lane-{SECOND:010d}"
    last = max(name for name in folder.disk.list(lane) if name.endswith(".log"))
    folder.disk.unlink(f"{lane}/{last}")
    taken = take(folder.disk)
    assert taken is not None
    assert not taken.is_whole
    log = opened_log(folder.disk, taken)
    assert records_in(log) == [each for each in folder.records if each[0] < int(last[:20])]


def test_the_only_copy_goes_on_with_what_there_is() -> None:
    folder = usual(behind=0)
    folder.say()
    lane = f"{FOLDER}/lane-{SECOND:010d}"
    last = max(name for name in folder.disk.list(lane) if name.endswith(".log"))
    folder.disk.unlink(f"{lane}/{last}")
    taken = take(folder.disk, is_only_copy=True)
    assert taken is not None
    log = opened_log(folder.disk, taken)
    third = first_offset(THIRD)
    assert records_in(log) == [
        each for each in folder.records if each[0] < int(last[:20]) or each[0] >= third
    ]
    assert log.end_offset == END


# --- producers


def producers_of(disk: FakeDisk) -> dict[int, list[int]]:
    """The first number of each batch that is remembered of each producer."""
    snapshot, _ = read_checkpoint(disk, f"{FOLDER}/producers")
    table = ProducerTable()
    table.restore(snapshot)
    assert snapshot["offset"] == END
    return {
        each: sorted({batch.base_sequence for batch in producer.batches})
        for each, producer in table.producers.items()
    }


def test_of_a_producer_whose_records_were_joined_the_last_numbers_count() -> None:
    folder = Folder()
    one, other = {"producer_id": 7, "producer_epoch": 1}, {"producer_id": 8, "producer_epoch": 0}
    folder.add(FIRST, [2], base_sequence=0, **one)
    folder.add(SECOND, [2], base_sequence=4, **one)  # It went on in the other branch,
    folder.add(IDLE, [1], base_sequence=0, **other)
    folder.add(THIRD, [2], base_sequence=2, **one)  # and these came again with the join.
    folder.say()
    check(folder.disk, take(folder.disk), folder.records)
    snapshot, _ = read_checkpoint(folder.disk, f"{FOLDER}/producers")
    table = ProducerTable()
    table.restore(snapshot)
    repeat = read_header(batch_of(b"x", b"x", base_sequence=4, **one))
    assert table.original_of(repeat) == first_offset(SECOND)
    assert table.original_of(read_header(batch_of(b"x", base_sequence=6, **one))) is None
    assert table.original_of(read_header(batch_of(b"x", base_sequence=0, **other))) == first_offset(IDLE)


def test_a_snapshot_of_this_line_spares_reading_what_is_before_it() -> None:
    folder = usual()
    folder.say()
    known = [[77, 0, 5, [[3, 3, 1]]]]
    offset = first_offset(THIRD) + 1
    write_checkpoint(folder.disk, f"{FOLDER}/producers", {"offset": offset, "producers": known})
    take(folder.disk)
    assert producers_of(folder.disk) == {77: [3]}


def test_a_snapshot_of_another_line_is_not_believed() -> None:
    folder = usual()
    folder.say()
    known = [[77, 0, 5, [[3, 3, 1]]]]
    offset = folder.spans[1].end + 3
    write_checkpoint(folder.disk, f"{FOLDER}/producers", {"offset": offset, "producers": known})
    take(folder.disk)
    assert producers_of(folder.disk) == {9: [7, 8, 9, 10, 11]}


# --- afterwards


def test_retention_deletes_segments_of_lanes_like_any() -> None:
    folder = usual()
    folder.say()
    taken = take(folder.disk)
    assert taken is not None
    log = opened_log(folder.disk, taken, config=LogConfig(segment_bytes=300, retention_ms=1000))
    expired = log.expired(1_800_000_000_000)
    log.delete_files(log.drop(expired))
    assert (records_in(log), log.readable_end(END), log.end_offset) == ([], log.start_offset, END)
    again = Log.open(folder.disk, FOLDER, CONFIG, clean=False, start_offset=END)
    assert (again.end_offset, again.quarantined) == (END, [])


def test_compaction_works_across_lanes() -> None:
    folder = usual()
    folder.say()
    taken = take(folder.disk)
    assert taken is not None
    config = LogConfig(segment_bytes=2**20, compacted=True, deleted=False)
    log = opened_log(folder.disk, taken, config=config)
    to_clean = plan(log, Offset(0), 1_800_000_000_000)
    assert to_clean is not None
    clean_now(folder.disk, log, to_clean)
    assert (records_in(log), log.end_offset) == ([folder.records[-1]], END)
    log.close()
    again = opened_log(folder.disk, taken, config=config, clean=True)
    assert (records_in(again), again.end_offset) == ([folder.records[-1]], END)
    assert not again.quarantined


# --- of which time a folder is


def placed(view: int) -> Placement:
    return Placement((), view=view)


def test_a_half_made_log_is_not_opened_by_a_table_that_is_behind() -> None:
    folder = usual()
    folder.say()
    disk = folder.disk
    disk.crash_at = disk.operations + 8
    with pytest.raises(PowerLoss):
        take(disk)
    disk.kill()
    nobody: Any = None
    opener = PartitionOpener(nobody, NodeSettings.load({}), disk, "data", nobody)
    place = TopicPartition("t", 0)
    assert opener.is_of_later(place, placed(VIEW - 1), is_branched=True)
    assert not opener.is_of_later(place, placed(VIEW), is_branched=False)
    before = disk.list(FOLDER)
    with pytest.raises(StorageError, match="later"):
        clear_earlier(disk, FOLDER, placed(VIEW - 1))
    assert disk.list(FOLDER) == before
    check(disk, take(disk), folder.records)


def test_lanes_of_an_earlier_time_go_and_those_of_now_stay() -> None:
    folder = usual()
    folder.say()
    disk = folder.disk
    write_checkpoint(disk, f"{FOLDER}/owner", {})
    before = disk.list(FOLDER)
    clear_earlier(disk, FOLDER, placed(VIEW - 1))
    assert disk.list(FOLDER) == before, "an attempt to leave changes nothing"
    clear_earlier(disk, FOLDER, placed(VIEW + 1))
    assert disk.list(FOLDER) == ["owner"]
    say_view(disk, FOLDER, placed(VIEW + 1))
    assert view_in(disk, FOLDER, "branch") == VIEW + 1


def test_a_log_that_was_made_and_slept_through_the_way_back_is_of_nobody() -> None:
    folder = usual()
    folder.say()
    take(folder.disk)
    clear_earlier(folder.disk, FOLDER, placed(VIEW + 1))
    assert folder.disk.list(FOLDER) == []


def test_a_log_of_a_ring_goes_into_branches_again() -> None:
    folder = usual()
    folder.say()
    take(folder.disk)
    write_checkpoint(folder.disk, f"{FOLDER}/ring", {"view": VIEW})
    before = folder.disk.list(FOLDER)
    clear_earlier(folder.disk, FOLDER, placed(VIEW + 1))
    assert folder.disk.list(FOLDER) == before
