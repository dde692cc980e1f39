"""A log with gaps between lanes says where its records are: whoever counts them, or asks for the end, goes by that."""

from log_helpers import NOW_MS, Open, fill, make_batch, offsets_of, read_all

from anabranch.values import LANE_BITS, Offset

LANE = 1 << LANE_BITS
LATER = Offset(7 * LANE)
START = Offset(9 * LANE + 1)


def test_the_end_is_behind_the_last_record_until_one_is_written_behind_the_gap(both_disks: Open) -> None:
    log = both_disks()
    fill(log, 5)
    log.advance_end(START)
    assert log.end_offset == START
    assert log.readable_end(log.end_offset) == 5
    fill(log, 1)
    assert log.readable_end(log.end_offset) == START + 1


def test_the_end_is_the_same_after_a_start_whatever_the_stop_was_like(both_disks: Open) -> None:
    log = both_disks(index_interval_bytes=100)
    fill(log, 40)
    log.advance_end(LATER)
    fill(log, 30, count=2)
    log.advance_end(START)
    log.sync()
    log.close()
    for clean in (True, False):
        log = both_disks(clean=clean, point=START, index_interval_bytes=100)
        assert log.end_offset == START
        assert log.readable_end(log.end_offset) == LATER + 60
        assert log.runs(log.end_offset) == [(0, 40), (LATER, LATER + 60)]
        log.close()


def test_an_index_that_lies_does_not_move_the_end(both_disks: Open) -> None:
    log = both_disks(index_interval_bytes=100)
    fill(log, 40)
    log.advance_end(START)
    log.sync()
    (path,) = [path for path in log.segments[0].paths() if path.endswith(".index")]
    log._files.write(path, b"\x00\x00\x00\x07\x00\x00\x00\x09")
    log.close()
    log = both_disks(clean=True, index_interval_bytes=100)
    assert log.readable_end(log.end_offset) == 40


def test_an_end_below_a_gap_is_what_it_is(open_log: Open) -> None:
    log = open_log()
    fill(log, 5)
    log.advance_end(LATER)
    fill(log, 5)
    log.advance_end(START)
    assert [log.readable_end(Offset(at)) for at in (0, 3, 5, 6, LATER)] == [0, 3, 5, 5, 5]
    assert log.readable_end(Offset(LATER + 2)) == LATER + 2


def test_runs_join_segments_and_leave_out_what_was_removed_and_what_is_not_seen_yet(open_log: Open) -> None:
    log = open_log(segment_bytes=500)
    fill(log, 30)
    log.advance_end(LATER)
    fill(log, 30)
    log.advance_start(Offset(4))
    assert len(log.segments) > 5
    assert log.runs(log.end_offset) == [(4, 30), (LATER, LATER + 30)]
    assert log.runs(Offset(LATER + 3)) == [(4, 30), (LATER, LATER + 3)]
    assert log.runs(LATER) == log.runs(Offset(30)) == [(4, 30)]


def test_a_dense_log_is_one_run_even_across_the_numbers_of_a_lane(open_log: Open) -> None:
    log = open_log(segment_bytes=500)
    log.advance_end(Offset(LANE - 10))
    fill(log, 40)
    log.roll()
    assert log.runs(log.end_offset) == [(LANE - 10, LANE + 30)]
    assert log.readable_end(log.end_offset) == LANE + 30


def test_a_reader_at_the_end_before_a_gap_goes_on_behind_it(open_log: Open) -> None:
    log = open_log()
    fill(log, 5)
    log.advance_end(START)
    assert not log.slice(Offset(5), 1000, log.readable_end(log.end_offset)).count
    log.append([make_batch(START)], NOW_MS)
    assert offsets_of(read_all(log, 5)) == [START]


def test_what_is_removed_before_a_gap_leaves_the_start_where_the_gap_begins(both_disks: Open) -> None:
    log = both_disks(segment_bytes=500, retention_ms=1000)
    fill(log, 30)
    log.advance_end(LATER)
    fill(log, 30)
    log.advance_end(START)
    log.delete_files(log.drop(log.expired(NOW_MS + 2**62)))
    assert (log.start_offset, log.readable_end(log.end_offset)) == (LATER + 30, LATER + 30)
    assert log.runs(log.end_offset) == []
    log.sync()
    log.close()
    for clean in (True, False):
        log = both_disks(clean=clean, point=START, start_offset=LATER + 30)
        assert (log.start_offset, log.end_offset) == (LATER + 30, START)
        assert not log.slice(log.start_offset, 1000, log.end_offset).count
        log.close()
    written = fill(both_disks(clean=True, start_offset=LATER + 30), 1)
    assert read_all(both_disks(start_offset=LATER + 30)) == written


def test_what_was_deleted_up_to_the_last_record_goes_though_a_gap_follows(open_log: Open) -> None:
    log = open_log()
    fill(log, 5)
    log.advance_end(START)
    log.advance_start(log.readable_end(log.end_offset))
    assert len(log.drop(log.expired(NOW_MS))) == 1
    assert (log.start_offset, log.end_offset) == (5, START)
