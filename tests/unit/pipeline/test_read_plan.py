"""Admission and the cutting into tasks."""

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.pipeline.plan import Range, SegmentFile, Stretch, admitted, shares, split, stretches
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
    assert all(0 < count <= available[place] for place, count in granted.items())


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
