"""Admission and the cutting into tasks."""

from itertools import pairwise
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.pipeline.source.plan import (
    Range,
    SegmentFile,
    Span,
    Stretch,
    admitted,
    count,
    shares,
    split,
    stretches,
)
from anabranch.values import TopicPartition

PLACES = [TopicPartition("t", number) for number in range(6)]
counts = st.dictionaries(st.sampled_from(PLACES), st.integers(0, 10_000), max_size=6)


def range_of(start: int, end: int, number: int = 0) -> Range:
    return Range(PLACES[number], UUID(int=1), start, end)


def file_of(base: int, end: int) -> SegmentFile:
    return SegmentFile(f"/{base}", base, end, 1, 1, 1)


@given(counts, st.integers(1, 12_000))
def test_shares_keep_to_the_limit_and_use_it_up(
    available: dict[TopicPartition, int], records_max: int
) -> None:
    granted = shares(available, records_max)
    assert sum(granted.values()) == min(records_max, sum(available.values()))
    assert all(0 < most <= available[place] for place, most in granted.items())


@given(counts)
def test_every_partition_gets_something_where_it_goes_round(available: dict[TopicPartition, int]) -> None:
    wanting = {place for place, count in available.items() if count}
    assert set(shares(available, max(1, len(wanting)))) == wanting


def test_shares_are_in_proportion() -> None:
    granted = shares({PLACES[0]: 9_000, PLACES[1]: 1_000}, 1_000)
    assert granted == {PLACES[0]: 900, PLACES[1]: 100}


def test_partitions_take_turns_where_the_limit_does_not_go_round() -> None:
    start, end = dict.fromkeys(PLACES, 0), dict.fromkeys(PLACES, 100)
    for _ in range(3 * len(PLACES)):
        start = admitted(start, end, 1)
    assert start == dict.fromkeys(PLACES, 3)


def test_without_need_nothing_is_cut() -> None:
    ranges = [range_of(0, 10), range_of(0, 90, 1)]
    assert split(ranges, 2, None) == ranges
    assert split(ranges, None, None) == ranges


def test_empty_ranges_are_no_tasks() -> None:
    assert split([range_of(5, 5), range_of(7, 5, 1)], 4, None) == []


@given(st.lists(st.integers(0, 500), min_size=1, max_size=6), st.integers(1, 20), st.integers(1, 100))
def test_pieces_cover_each_range_once(sizes: list[int], partitions_min: int, records_max: int) -> None:
    ranges = [range_of(10, 10 + size, number) for number, size in enumerate(sizes)]
    pieces = split(ranges, partitions_min, records_max)
    for whole in ranges:
        covered = [
            at for piece in pieces if piece.place == whole.place for at in range(piece.start, piece.end)
        ]
        assert covered == list(range(whole.start, whole.end))
    assert all(0 < piece.size <= records_max for piece in pieces)
    assert len(pieces) >= min(partitions_min, sum(sizes))


def test_the_largest_range_is_cut_most() -> None:
    pieces = split([range_of(0, 900), range_of(0, 100, 1)], 10, None)
    assert [piece.place.partition for piece in pieces].count(0) == 9


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ([], [Stretch(5, 50)]),
        ([file_of(0, 100)], [Stretch(5, 50, file_of(0, 100))]),
        (
            [file_of(10, 20), file_of(20, 30)],
            [
                Stretch(5, 10),
                Stretch(10, 20, file_of(10, 20)),
                Stretch(20, 30, file_of(20, 30)),
                Stretch(30, 50),
            ],
        ),
        ([file_of(0, 5), file_of(50, 60)], [Stretch(5, 50)]),
        (
            [file_of(0, 30), file_of(20, 40)],
            [Stretch(5, 30, file_of(0, 30)), Stretch(30, 40, file_of(20, 40)), Stretch(40, 50)],
        ),
    ],
)
def test_files_serve_what_they_hold_and_the_protocol_the_rest(
    files: list[SegmentFile], expected: list[Stretch]
) -> None:
    assert list(stretches(5, 50, files)) == expected


# --- branches ---------------------------------------------------------------------------------------------------------


BRANCHED = TopicPartition("branched", 0)
LANE = 5 << 32
LINE = (Span(0, 10, 80), Span(5, LANE, LANE + 60))


def test_between_two_branches_lie_no_records() -> None:
    assert count(LINE, 0, LANE + 60) == 70 + 60
    assert count(LINE, 79, LANE + 1) == 2
    assert count(None, 3, 7) == 4


def test_a_limit_counts_records_and_passes_over_the_gap_between_branches() -> None:
    start, end = {BRANCHED: 10}, {BRANCHED: LANE + 60}
    assert admitted(start, end, 75, {BRANCHED: LINE}) == {BRANCHED: LANE + 5}
    assert admitted(start, end, 70, {BRANCHED: LINE}) == {BRANCHED: 80}
    assert admitted({BRANCHED: 80}, end, 10, {BRANCHED: LINE}) == {BRANCHED: LANE + 10}
    assert admitted(start, end, 10_000, {BRANCHED: LINE}) == end


def test_a_trigger_after_the_other_reads_all_of_a_branched_partition() -> None:
    at, seen = {BRANCHED: 0}, 0
    end = {BRANCHED: LANE + 60}
    while at != end:
        following = admitted(at, end, 7, {BRANCHED: LINE})
        found = count(LINE, at[BRANCHED], following[BRANCHED])
        assert 0 < found <= 7
        at, seen = following, seen + found
    assert seen == 130


def test_tasks_of_a_branched_partition_have_alike_many_records() -> None:
    whole = Range(BRANCHED, UUID(int=1), 10, LANE + 60, line=LINE)
    pieces = split([whole], 4, None)
    assert [each.size for each in pieces] == [32, 33, 32, 33]
    assert pieces[0].start == 10
    assert pieces[-1].end == LANE + 60
    assert all(one.end == other.start for one, other in pairwise(pieces))
    assert [each.size for each in split([whole], None, 50)] == [43, 43, 44]
